"""The typer app: the commands by name, and the one place where a command's complaint is said.

A command returns its exit status, or nothing, and raises what ends it. Here that becomes a line on
stderr and a status.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from batchclient.cli._log import form_in, log_to_stderr
from batchclient.cli._refusal import Refusal, refusal_of
from batchclient.cli._words import printable, say
from batchclient.errors import ConfigError
from batchclient.jobs.output import reason_of
from batchclient.jobs.statuses import Status
from batchclient_script import COMMANDS

__all__ = ["make_app", "make_group"]

_FUNCTIONS = {
    "map": ("batchclient.cli.map", "map_rows"),
    "job": ("batchclient.cli.job", "make_job_app"),
    "plan": ("batchclient.cli.plan", "plan"),
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
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_TOO_MANY = re.compile(r"Got unexpected extra argument.*", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command (?!.*Did you mean).*", re.DOTALL)


class _Group(TyperGroup):
    """All commands."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **__: Any) -> Any:
        """Run the command that the arguments name, and end with its status."""
        arguments = sys.argv[1:] if args is None else list(args)
        if isinstance(sys.stdout, TextIOWrapper):
            # Letters that its encoding lacks; on a terminal lines keep their widths.
            sys.stdout.reconfigure(errors="replace" if sys.stdout.isatty() else "backslashreplace")
        # Arrow's own allocator keeps what is free: some 40 MiB of a map of Parquet.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        form = form_in(arguments)
        with log_to_stderr(form):
            try:
                status = super().main(arguments, prog_name, standalone_mode=False) or Status.OK
            except Refusal as refusal:
                say(str(refusal), event="error")
                status = refusal.status
            except ConfigError as error:
                say(str(refusal_of(error)), event="error")
                status = Status.USAGE
            except OSError as error:
                status = _stdout_failed(error)
            except Exception as error:
                status = _usage(error, is_plain=form not in ("text", "json"))
        sys.exit(int(status))


class _Command(TyperCommand):
    """A command whose help has its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a list of options for each group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _stdout_failed(error: OSError) -> int:
    """Tell of a full stdout. A reader that has seen enough, such as ``head``, is no error."""
    if error.filename is not None:
        raise error
    # It would fail again at the end of the process, with a traceback.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if error.errno == errno.EPIPE:
        return Status.FAILED
    say(f"stdout: {reason_of(error)}", event="error")
    return Status.DISK_FULL


def _usage(error: Exception, *, is_plain: bool) -> int:
    """Tell of wrong usage, and repeat no word that may be a key."""
    # By its attributes: typer brings click's classes, in some versions as its own.
    if getattr(error, "ctx", None) is None or not isinstance(getattr(error, "message", None), str):
        raise error
    told: Any = error
    if type(told).__name__ != "NoArgsIsHelpError":
        message = _TOO_MANY.sub(
            "arguments too many; a value with blanks is quoted: --header 'Name: value'", told.message
        )
        # pydantic's words, which typer's newer versions show.
        message = _NO_COMMAND.sub("there is no such command", message).replace("Value error, ", "")
        told.message = printable(message)
    if is_plain:
        told.show()
    else:
        say(told.format_message(), event="error")
    return Status.USAGE


def make_app(named: Sequence[str] = ()) -> typer.Typer:
    """Make the app, and import its commands.

    Args:
        named: the commands to import. Without a known command among them the app has all commands,
            so typer can say which of them was meant.
    """
    app = make_group("", name="batchclient", cls=_Group, no_args_is_help=False)
    # With a callback the app keeps the commands' names, also where it has a single command.
    app.callback()(_nothing)
    for name in [name for name in COMMANDS if name in named] or COMMANDS:
        module, function = _FUNCTIONS[name]
        made = getattr(import_module(module), function)
        if name in _GROUPS:
            app.add_typer(made(), name=name, short_help=COMMANDS[name])
        else:
            app.command(name, cls=_Command, short_help=COMMANDS[name])(made)
    return app


def make_group(text: str, **options: Any) -> typer.Typer:
    """Make a group of commands.

    Args:
        text: the first line of its help.
        options: further ones of typer's.
    """
    # Plain texts: the boxes of rich break long lines, and a complaint is one line to search for.
    # No pretty tracebacks: they may show the values of variables, among them the API key.
    return typer.Typer(
        **{"help": text, "no_args_is_help": True, **options},
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP,
    )


def _nothing() -> None:
    pass
