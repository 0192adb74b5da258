"""The command line: one thin file per verb. The top floor: it may import all four packages; nothing imports it."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def main() -> None:
    """Entry point of `dreamgym`."""
    app()
