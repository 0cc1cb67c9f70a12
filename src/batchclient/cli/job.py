"""``batchclient job``: a job's journal, looked at and exported.

Both commands only read, also while the job runs. Nothing here sends a request.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer

from batchclient import Price
from batchclient.cli._cost import written_cost
from batchclient.cli._kept import outputs_in
from batchclient.cli._refusal import Refusal, named
from batchclient.cli._words import put, say
from batchclient.cli.app import make_group
from batchclient.errors import ConfigError
from batchclient.jobs.output import reason_of
from batchclient.jobs.statuses import Status
from batchclient.journal.held import HeldJournal
from batchclient.journal.rows import ANSWERED, ANSWERS, FAILED, MAY_BE_TRIED

__all__ = ["make_job_app", "opened"]

_Journal = Annotated[str, typer.Argument(metavar="OUT", help="The output of a job, or its journal.")]
_Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
_RUN = ("read", "answered", "failed", "reused", "seconds")


def make_job_app() -> typer.Typer:
    """Make the group of commands."""
    app = make_group("Look at a job by its journal, which `batchclient map` or your program has written.")
    for command in (status, export):
        app.command(command.__name__)(command)
    return app


def status(journal: _Journal, *, as_json: _Json = False) -> None:
    """Show how far a job is: rows, failures, tokens, cost, output."""
    with opened(journal) as held:
        told = _status(held)
    if as_json:
        put(json.dumps(told, ensure_ascii=False))
        return
    for name, value in told.items():
        if name in ("run", "bad_answers") and value is not None:
            shown = ", ".join(f"{number:,} {what}" for what, number in value.items()) or "none"
        else:
            shown = f"{value:,}" if type(value) is int else written_cost(value) if type(value) is float else str(value)
        if value is not None:
            put(f"{name.replace('_', ' ')}: {shown}")


def export(journal: _Journal, *, output: Annotated[str, typer.Option("--output", "-o", metavar="FILE")] = "-") -> int:
    """Write every record of the journal that can be read as a line of JSON, also of a damaged one.

    The fields are key, n, id, state (answered, failed or failed for now), attempts, and completion,
    embedding, classification or error. Of several records of a row the last one counts.
    """
    with opened(journal) as held, _writing(output) as write:
        for fields in held.records():
            del fields["crc"]
            write(json.dumps(fields))
        damaged = held.damaged_count
    if damaged:
        say(f"lines that cannot be read: {damaged:,}")
    return Status.FAILED if damaged else Status.OK


@contextmanager
def opened(path: str) -> Iterator[HeldJournal]:
    """Open a journal, or that beside an output, to read it.

    Raises:
        Refusal: there is none, or it cannot be read.
    """
    beside = f"{path}.journal"
    try:
        held = HeldJournal.look_into(beside if os.path.lexists(beside) else path)
    except FileNotFoundError:
        name = named(path, "OUT.journal")
        raise Refusal(f"{name}: there is no journal; it is beside its output, such as OUT.journal") from None
    except ConfigError as error:
        if " is no journal" not in error.message:
            raise
        way = "give the path that --journal or journal= has named"
        raise Refusal(f"{path} is no journal, and there is no {beside}: {way}") from None
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None
    with closing(held):
        yield held


def _status(held: HeldJournal) -> dict[str, Any]:
    states: Counter[str] = Counter()
    prompt_tokens = completion_tokens = 0
    for fields in held.records():
        states[str(fields.get("state"))] += 1
        answer: dict[str, Any] = next((fields[name] for name in ANSWERS if isinstance(fields.get(name), dict)), {})
        if isinstance(usage := answer.get("usage"), dict):
            prompt_tokens += _number(usage.get("prompt_tokens"))
            completion_tokens += _number(usage.get("completion_tokens"))
    path, job = held.path, held.job or {}
    out, told = [("", {}), *outputs_in(held).items()][-1]
    part = told.get("part")
    is_finished = "facts" in told and not (part and os.path.lexists(path.parent / os.path.dirname(out) / part))  # noqa: PTH120
    price, cost = told.get("price"), told.get("paid")
    if price:
        tokens = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        cost = (cost or 0.0) + Price(**price).cost(**tokens, seconds=told.get("seconds", 0.0))
    # Of equal rows the journal may have one.
    sent = told.get("read", 0) - told.get("not_sent", 0)
    return {
        "journal": str(path),
        "state": "running" if held.holder else "finished" if is_finished else "unfinished",
        "holder": held.holder or None,
        "begun": told.get("begun"),
        "finished": told.get("finished") if is_finished else None,
        "call": job.get("call"),
        "model": job.get("model"),
        "input": told.get("input"),
        "output": os.path.normpath(path.parent / out) if out else None,
        "answered": states[ANSWERED],
        "failed": states[FAILED],
        "may_be_tried": states[MAY_BE_TRIED],
        "not_in_output": max(states.total() - sent, 0) or None if is_finished else None,
        "damaged": held.damaged_count,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cost": cost,
        "run": {name: told[name] for name in _RUN if name in told} if is_finished else None,
        "bad_answers": told.get("bad") if is_finished else None,
        "journal_bytes": path.stat().st_size,
    }


def _number(told: object) -> int:
    return told if type(told) is int else 0


@contextmanager
def _writing(output: str) -> Iterator[Callable[[str], object]]:
    if output == "-":
        yield put
        return
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            yield lambda line: opened.write(f"{line}\n")
    except OSError as error:
        is_there = isinstance(error, FileExistsError)
        raise Refusal(
            f"--output: {output}: {reason_of(error)}", Status.USAGE if is_there else Status.DISK_FULL
        ) from None
