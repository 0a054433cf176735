"""The command `polychoir`. Knows how to read flags and print; everything it does is done elsewhere.

Exit codes: 0, 1 with one line on stderr, 2 for a command line that cannot be understood.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from polychoir import __version__
from polychoir.cli.bench import app as bench
from polychoir.cli.catalogue import download, models, voices
from polychoir.cli.doctor import doctor
from polychoir.cli.say import say
from polychoir.cli.serve import serve
from polychoir.errors import PolychoirError

app = typer.Typer(
    name="polychoir",
    no_args_is_help=True,
    add_completion=False,
    # Plain help and errors: quick to start, and the same in a log as on a terminal.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command(name="start", help="The same as serve.")(serve)
app.command()(say)
app.command()(models)
app.command()(voices)
app.command()(download)
app.command()(doctor)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polychoir {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Text to speech for many listeners at once."""


def main() -> None:
    """Run the command line; an error that we know is one line, not a traceback."""
    try:
        app(prog_name="polychoir")
    except PolychoirError as error:
        typer.echo(f"polychoir: {error.message}", err=True)
        sys.exit(1)
