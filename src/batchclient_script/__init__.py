"""The script ``batchclient``, up to the import of the library.

Rules:
- Ctrl-C ends the program at once and in silence, with status 130, and SIGTERM a worker, with 143. A
  command with something to finish, such as ``map``, handles the signal while it runs.
- A standard stream that is closed is opened on ``/dev/null``; ``CLOSED`` has its number.
- ``--version``, ``--help`` and the first steps are answered here, from the standard library alone:
  the packages ``batchclient`` and typer take 0.25 s and 0.06 s of CPU to import.
- This package stands beside ``batchclient``. Importing a module of ``batchclient`` imports the
  client first, and a Ctrl-C then shows where. ``python -m batchclient`` also begins with the
  client, so ``batchclient`` itself calls ``quit_on_interrupt`` there.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

__all__ = ["CLOSED", "COMMANDS", "is_program", "main", "quit_on_interrupt"]

CLOSED: set[int] = set()
"""The descriptors of the standard streams that were closed when the program began."""

COMMANDS = {
    "map": "Complete one prompt per row of a file and write each row with its completion.",
    "job": "Look at a map's job, by its journal (OUT.journal).",
    "plan": "Tell what a job would take on more servers or with another limit, by its journal.",
    "work": "Answer the messages of a Redis stream, beside other workers.",
    "enqueue": "Put rows of a file into a Redis stream, each as a message.",
    "dead": "Look at the messages that workers gave up, put them back, drop them.",
    "bench": "Measure a server: which limit, batch size and client keep an objective.",
    "doctor": "Say what a server is, and what is wrong with it for bulk work.",
    "metrics": "Write the metrics' names, a Grafana dashboard, or alert rules for Prometheus.",
    "top": "Show a running job or service in the terminal, from its page of statistics.",
    "simulate": "Serve a simulated vLLM or TGI: real HTTP with a cost model, no GPU.",
    "demo": "Measure this client beside AsyncOpenAI on real texts, with a server of its own.",
}
"""Each command with its line in the help; ``batchclient.cli.app`` has the functions."""

_FIRST_STEPS = """\
batchclient turns many small calls into few well-shaped requests to a self-hosted LLM server.

Try it without a server, on real texts, beside AsyncOpenAI:
  batchclient demo
Start a fake server, which answers as vLLM does:
  batchclient simulate --port 8000 --model m
Map a file, here a text per line, through a server:
  batchclient map docs.txt -o out.jsonl --base-url http://localhost:8000/v1 --prompt "Summarise: {text}"
Read on: batchclient --help, batchclient map --help
"""

_HELP = """\
Usage: batchclient [OPTIONS] COMMAND [ARGS]...

  Many small calls in, few well-shaped requests out: a client for self-hosted LLM servers.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
{}

batchclient COMMAND --help lists the options of a command.
"""


def main() -> None:
    """Run the command line."""
    quit_on_interrupt()
    _open_standard_streams()
    match sys.argv[1:]:
        case []:
            # As git, click and uv do: the arguments of a job may have got lost on the way.
            sys.stderr.write(_FIRST_STEPS)
            sys.exit(2)
        case ["--version", *_]:
            _put(f"batchclient {_version()}\n")
        case ["-h" | "--help", *_]:
            width = max(map(len, COMMANDS))
            _put(_HELP.format("\n".join(f"  {name:{width}}  {COMMANDS[name]}" for name in COMMANDS)))
        case _:
            from batchclient.cli import main

            main()


def _put(text: str) -> None:
    """Write to stdout; end the program where it takes no more, as ``batchclient.cli.app`` does."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # It would fail again at the end of the process, with a traceback.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        if error.errno == errno.EPIPE:
            sys.exit(1)
        sys.stderr.write(f"Error: stdout: {error.strerror}\n")
        sys.exit(4)


def _open_standard_streams() -> None:
    """Open streams that are closed (``>&-``) on nothing: else the next file takes their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            CLOSED.add(number)
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            CLOSED.add(number)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _version() -> str:
    # ``python -m batchclient`` has imported the package, which need not be installed.
    package = sys.modules.get("batchclient")
    if package is not None:
        return str(package.__version__)
    from importlib.metadata import version

    return version("batchclient")


def is_program(package: str) -> bool:
    """Whether ``python -m`` began this process with the package or a module of the package.

    A program of another name, importing the package, is none.
    """
    given = sys.orig_argv
    named = given[given.index("-m") + 1 :][:1] if "-m" in given else []
    return [name.partition(".")[0] for name in named] == [package]


def quit_on_interrupt() -> None:
    """Let Ctrl-C end this process from now on. Functions registered with ``atexit`` do not run."""
    signal.signal(signal.SIGINT, _quit)
    if sys.argv[1:2] == ["work"]:  # process 1 of a container, which SIGTERM does not end by itself
        signal.signal(signal.SIGTERM, _quit)


def _quit(number: int, _frame: object) -> None:
    os._exit(128 + number)
