"""The typer app: the commands by name, and ``--version``."""

from __future__ import annotations

from typing import Annotated

import typer

import batchclient
from batchclient.cli.demo import demo
from batchclient.cli.map import map_rows
from batchclient.cli.simulate import simulate

__all__ = ["app"]

# Plain texts: rich's boxes break long lines, and a complaint is one line that can be searched for. No pretty tracebacks:
# they may show the values of variables, and one of those is the API key.
app: typer.Typer = typer.Typer(
    name="batchclient",
    help="Many small calls in, few well-shaped requests out: a client for self-hosted LLM servers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("map")(map_rows)
app.command("simulate")(simulate)
app.command("demo")(demo)


def _show_version(value: bool) -> None:  # noqa: FBT001  # typer's callbacks are positional
    if value:
        typer.echo(f"batchclient {batchclient.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
