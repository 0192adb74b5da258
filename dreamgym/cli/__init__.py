"""The command line: one thin file per verb. The top floor: it may import all four packages; nothing imports it.

stdout is the result, stderr the talk. Exit 0 done, 1 failed, 2 misused.
"""

from __future__ import annotations

import sys

import typer

from dreamgym.cli import collect, db, demo, eval_, models, play, seed, train
from dreamgym.errors import DreamGymError, InvalidInput

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Train and test LLM agents against a simulated environment that speaks MCP.",
)
app.command("demo")(demo.demo)
app.command("collect")(collect.collect)
app.command("seed")(seed.seed)
app.command("play")(play.play)
app.command("train")(train.train)
app.command("eval")(eval_.evaluate)
app.add_typer(models.app, name="models")
app.add_typer(db.app, name="db")


def run(program: typer.Typer) -> None:
    """Run a program; an error of ours is one line on stderr and an exit code, never a traceback."""
    try:
        program()
    except InvalidInput as error:
        sys.exit(_say(error, 2))
    except DreamGymError as error:
        sys.exit(_say(error, 1))


def _say(error: DreamGymError, code: int) -> int:
    typer.echo(f"dreamgym: {error}", err=True)
    return code


def main() -> None:
    """Entry point of `dreamgym`."""
    run(app)
