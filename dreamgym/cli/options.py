"""Options and arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.prices import PRICE_VARIABLE
from dreamgym.runs.opening import DSN_VARIABLE, POLICY_URL_VARIABLE

VARIABLES = {
    DSN_VARIABLE: "PostgreSQL with pgvector, postgresql://USER@HOST/DATABASE. Default: the embedded server.",
    "DREAMGYM_ENCODER": "Text encoder: minilm, trigram, or a registered one. Default: minilm if installed.",
    POLICY_URL_VARIABLE: "Chat completions endpoint of the model behind the agent of collect and play.",
    PRICE_VARIABLE: "Prices in dollars per million tokens, for --budget and estimates: IN,OUT or IN,OUT,CACHED; "
    "MODEL=IN,OUT is one model's. Default: litellm's table, if that is installed.",
    "DREAMGYM_TOKEN": "Bearer token of serve and record. Default: the token in --token-file, else none.",
    "DREAMGYM_HOME": "Folder of the database, the redaction key and the models. Default: the user's data folders.",
}
"""Environment variables that the verbs read, with what they set."""
EnvName = Annotated[str, typer.Argument(metavar="ENV", help="An environment's name, or a folder with an env.toml.")]
SETTING = (
    "Experience model: nearest, local, a checkpoint folder, http://host/v1, …. Parts of the method can be left out: "
    "'MODEL without history,state'."
)
MEASURED = f"{SETTING} At the end, -k K shows K examples with each step; default: 48 for nearest, 5 for others."
ModelName = Annotated[str | None, typer.Option("--model", metavar="SETTING", help=SETTING)]
MeasuredModel = Annotated[
    str | None,
    typer.Option("--model", metavar="SETTING", help=MEASURED),
]
MeasuredModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="SETTING",
        help=f"{MEASURED} Give a second one to compare two.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on; one that others can reach needs a token.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the bearer token. Default: the variable DREAMGYM_TOKEN.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="Host name that clients may use, besides localhost; * allows all. Repeatable."),
]
RecordedFile = Annotated[
    Path | None,
    typer.Option(help="JSONL of recorded trajectories, as `dreamgym collect --out` writes; default: the folder's."),
]
HeldOut = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Share of the trajectories that the model must predict and does not know."),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT",
        help="The most that language models may be asked for: 5.00 (dollars), '200k tokens' or '300 calls'.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Ray cluster that does the work: HOST:PORT of its head, or local. Default: this process.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of every random draw.")]
