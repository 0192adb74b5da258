"""The program `dreamgym`: its verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from dreamgym import __version__
from dreamgym.cli import (
    annotate,
    check,
    collect,
    db,
    demo,
    env,
    eval_,
    experiment,
    fidelity,
    fit,
    import_,
    label,
    models,
    play,
    record,
    seed,
    serve,
    tasks,
    train,
    view,
)
from dreamgym.cli.boundary import run
from dreamgym.cli.options import VARIABLES


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dreamgym {__version__}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="\n\n".join(["Variables:", *(f"{name}: {text}" for name, text in VARIABLES.items())]),
)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train and test LLM agents against a simulated environment that speaks MCP."""


app.command("demo")(demo.demo)
app.command("collect")(collect.collect)
app.command("record")(record.record)
app.command("label")(label.label)
app.command("annotate")(annotate.annotate)
app.command("view")(view.view)
app.command("seed")(seed.seed)
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("fidelity")(fidelity.fidelity)
app.command("fit")(fit.fit)
app.command("import")(import_.import_)
app.command("play")(play.play)
app.command("tasks")(tasks.tasks)
app.command("train", context_settings=train.CONTEXT, epilog=train.EPILOG)(train.train)
app.command("eval")(eval_.evaluate)
app.command("experiment")(experiment.experiment)
app.add_typer(env.app, name="env")
app.add_typer(models.app, name="models")
app.add_typer(db.app, name="db")


def main() -> None:
    """Entry point of `dreamgym`."""
    run(app)
