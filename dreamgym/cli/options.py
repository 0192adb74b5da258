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
    typer.Option("--without", help="Leave out a part of the method, to show what it is worth; several times for more."),
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="What the model's answers are worth, as `dreamgym fidelity` wrote.")
]
MinConfidence = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="End an episode where an answer is less likely right; needs a calibration."),
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
    typer.Option("--allowed-host", help="A host name to be addressed by, besides localhost; * allows all."),
]
SETTING = "Experience model; with parts left out or so many transitions shown: 'MODEL without history,state -k 5'."
SettingName = Annotated[str | None, typer.Option("--model", metavar="SETTING", help=SETTING)]
Settings = Annotated[
    list[str] | None, typer.Option("--model", metavar="SETTING", help=f"{SETTING} Give a second one to compare two.")
]
Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        metavar="KEY=NUMBER",
        help=f"What is known of the costs of dream and reality; repeatable. Keys: {', '.join(Prices.model_fields)}.",
    ),
]
RecordedFile = Annotated[
    Path | None,
    typer.Option(help="JSONL of recorded trajectories, as `dreamgym collect --out` writes; default: the folder's."),
]
HeldOut = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that is predicted and not known.")
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Seed = Annotated[int, typer.Option(help="Fixes every random draw.")]
