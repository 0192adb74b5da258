"""Options and arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.dream.model import Part
from dreamgym.evaluation.cost import Prices
from dreamgym.runs.opening import DSN_VARIABLE

EnvName = Annotated[str, typer.Argument(metavar="ENV", help="An environment's name, or a folder with an env.toml.")]
Dsn = Annotated[
    str | None, typer.Option(envvar=DSN_VARIABLE, help="PostgreSQL with pgvector. Default: the embedded server.")
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="Experience model: nearest, local, a checkpoint folder, http://host/v1, …."),
]
Without = Annotated[
    list[Part] | None,
    typer.Option("--without", help="Leave out a part of the method, to measure its effect. Repeatable."),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", help="Calibration of the model's confidence, written by `dreamgym fidelity`."),
]
MinConfidence = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="End an episode if an answer has a lower confidence; needs --calibration."),
]
PolicyUrl = Annotated[
    str | None,
    typer.Option(envvar="OPENAI_BASE_URL", help="Chat completions endpoint of the model behind the agent."),
]
Host = Annotated[str, typer.Option(help="Address to listen on; one that others can reach needs a token.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the bearer token. Default: the variable DREAMGYM_TOKEN.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="Host name that clients may use, besides localhost; * allows all. Repeatable."),
]
SETTING = "Experience model, optionally without parts or with k examples: 'MODEL without history,state -k 5'."
SettingName = Annotated[str | None, typer.Option("--model", metavar="SETTING", help=SETTING)]
Settings = Annotated[
    list[str] | None, typer.Option("--model", metavar="SETTING", help=f"{SETTING} Give a second one to compare two.")
]
Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        metavar="KEY=NUMBER",
        help=f"A cost of the dream or of reality. Repeatable. Keys: {', '.join(Prices.model_fields)}.",
    ),
]
RecordedFile = Annotated[
    Path | None,
    typer.Option(help="JSONL of recorded trajectories, as `dreamgym collect --out` writes; default: the folder's."),
]
HeldOut = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Share of the trajectories that the model must predict and does not know."),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Seed = Annotated[int, typer.Option(help="Seed of every random draw.")]
