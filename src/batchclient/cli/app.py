"""The typer app: the commands by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperGroup

from batchclient.cli._log import PLAIN, log_to
from batchclient.cli._words import printable, say
from batchclient_script import COMMANDS

__all__ = ["make_app"]

_FUNCTIONS = {
    "map": ("batchclient.cli.map", "map_rows"),
    "job": ("batchclient.cli.job", "make_job_app"),
    "bench": ("batchclient.cli.bench", "make_bench_app"),
    "doctor": ("batchclient.cli.doctor", "doctor"),
    "metrics": ("batchclient.cli.metrics", "make_metrics_app"),
    "top": ("batchclient.cli.top", "top"),
    "simulate": ("batchclient.cli.simulate", "simulate"),
    "demo": ("batchclient.cli.demo", "demo"),
    "work": ("batchclient.cli.work", "work"),
    "enqueue": ("batchclient.cli.enqueue", "enqueue"),
    "dead": ("batchclient.cli.dead", "make_dead_app"),
}
"""The module and the function of each command, or the function that makes a group of commands."""
_GROUPS = frozenset({"bench", "dead", "job", "metrics"})


_TOO_MANY = re.compile(r"Got unexpected extra argument.*", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command (?!.*Did you mean).*", re.DOTALL)


class _Group(TyperGroup):
    """All commands. A complaint about usage repeats no word that may be a key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments before the command."""
        with _complaining():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of the command, and run it."""
        if isinstance(sys.stdout, TextIOWrapper):
            # Letters that its encoding lacks; on a terminal lines keep their widths.
            sys.stdout.reconfigure(errors="replace" if sys.stdout.isatty() else "backslashreplace")
        with _complaining(), log_to(say, PLAIN):
            return super().invoke(ctx)


@contextmanager
def _complaining() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # By its attributes: typer brings click's classes, in some versions as its own.
        context, message = getattr(error, "ctx", None), getattr(error, "message", None)
        if context is not None and isinstance(message, str):
            message = _TOO_MANY.sub(
                "arguments too many; a value with blanks is quoted: --header 'Name: value'", message
            )
            vars(error)["message"] = printable(_NO_COMMAND.sub("there is no such command", message))
        raise


def make_app(named: Sequence[str] = ()) -> typer.Typer:
    """Make the app, and import its commands.

    Args:
        named: the commands to import. Without a known command among them the app has all commands,
            so typer can say which of them was meant.
    """
    # Plain texts: the boxes of rich break long lines, and a complaint is one line to search for.
    # No pretty tracebacks: they may show the values of variables, among them the API key.
    app = typer.Typer(
        name="batchclient",
        cls=_Group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # With a callback the app keeps the commands' names, also where it has a single command.
    app.callback()(_nothing)
    for name in [name for name in COMMANDS if name in named] or COMMANDS:
        module, function = _FUNCTIONS[name]
        made = getattr(import_module(module), function)
        if name in _GROUPS:
            app.add_typer(made(), name=name, short_help=COMMANDS[name])
        else:
            app.command(name, short_help=COMMANDS[name])(made)
    return app


def _nothing() -> None:
    pass
