"""What the core is told and what it commands, as lines of text.

Hashed is what crosses the core's contract, and nothing behind it:
- of an event its time, its class and its public content;
- of a command its class and the content that the shell acts on: a batch's endpoint, its calls in
  their order, whether it is streamed, plain or bare; whose an answer is; an error whole;
- the next deadline, where it is another than before;
- at the end, the statistics.

Calls, batches, answers and shapes are numbered in the order in which they come. Two shapes of one
key have one number. So the text has no key, id or record of the core in it, and no words that a
test's server made up. Where a field of a request or a batch moves into a record of its own, its
reader in ``_OF_A_CALL`` or ``_OF_A_BATCH`` follows it, and the text stays as it was.
"""

from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter

from tests.core import (
    AbortBatch,
    Answered,
    Batch,
    EndpointAdded,
    Failed,
    Request,
    Resolve,
    Retuned,
    Scheduler,
    SendBatch,
    Shape,
    Submitted,
)
from batchclient import Statistics
from tests.simulation.run import run_seed
from tests.snapshots.text import text_of

__all__ = ["lines_of_seed", "recorded"]

_OF_A_CALL = {
    "deadline": attrgetter("deadline"),
    "tokens": attrgetter("prompt_tokens"),
    "weight": attrgetter("shape.weight"),
    "most_tokens": attrgetter("shape.max_output_tokens"),
    "priority": attrgetter("shape.priority"),
    "tenant": attrgetter("shape.tenant"),
    "shape": attrgetter("shape"),
}
"""By the name in the text: where a request has it."""
_OF_A_BATCH = {
    "endpoint": attrgetter("endpoint"),
    "shape": attrgetter("shape"),
    "calls": attrgetter("requests"),
    "streamed": attrgetter("streamed"),
    "failures": attrgetter("failures"),
    "alone": attrgetter("alone"),
    "packed": attrgetter("packed"),
    "bare": attrgetter("bare"),
}
"""The same of a batch."""
_OF_AN_ANSWER = {
    "attempts": attrgetter("attempts"),
    "usage": attrgetter("usage"),
    "counted_tokens": attrgetter("counted_tokens"),
}
"""The same of an answer; the rest of it only passes through the core."""
_COUNTS = [
    each.name
    for each in fields(Statistics)
    if each.name
    not in (
        "histograms",
        "outcomes",
        "tokens",
        "costs",
        "overflows",
        "errors",
        "changes",
        "health",
        "lengths",
        "regained_tokens",
    )  # fmt: skip
]
"""Of the statistics. The others' words may change; ``tests/simulation`` checks them against these counts."""


def lines_of_seed(seed):
    """Return the lines of one run of the simulation."""
    with recorded() as record:
        outcome = run_seed(seed)
    return record.lines() + [f"WRONG {each}" for each in outcome.wrong]


@contextmanager
def recorded():
    """Record what every scheduler is told and commands meanwhile; yields a ``Record``."""
    record = Record()
    handle, commands = Scheduler.handle, Scheduler.commands

    def handle_and_note(scheduler, event, now):
        record.note_event(scheduler, event, now)
        handle(scheduler, event, now)

    def commands_and_note(scheduler):
        given = commands(scheduler)
        record.note_commands(scheduler, given, scheduler.next_deadline())
        return given

    Scheduler.handle, Scheduler.commands = handle_and_note, commands_and_note
    try:
        yield record
    finally:
        Scheduler.handle, Scheduler.commands = handle, commands


class Record:
    """The lines of some schedulers, in the order in which things happened."""

    def __init__(self):
        self._lines = []
        self._schedulers = []
        self._deadlines = {}
        self._numbers = {}
        self._kept = []

    def lines(self):
        """Return all lines, the statistics as they are now among them."""
        return self._lines + [
            f"{self._of(scheduler)}statistics: {self._text(scheduler.statistics())}" for scheduler in self._schedulers
        ]

    def note_event(self, scheduler, event, now):
        """Before the scheduler takes it in."""
        self._lines.append(f"{self._of(scheduler)}{self._text(now)} {self._text_of_event(event)}")

    def note_commands(self, scheduler, commands, deadline):
        """Before anybody acts on them."""
        of = self._of(scheduler)
        self._lines += [f"{of}  {self._text_of_command(command)}" for command in commands]
        if self._deadlines.get(of) != deadline:
            self._deadlines[of] = deadline
            self._lines.append(f"{of}  next deadline {self._text(deadline)}")

    def _of(self, scheduler):
        """Nothing for the first scheduler; a number before the lines of others."""
        if scheduler not in self._schedulers:
            self._schedulers.append(scheduler)
        number = self._schedulers.index(scheduler)
        return f"[{number}] " if number else ""

    def _text_of_event(self, event):
        match event:
            case Submitted(request, may_wait):
                return f"Submitted({self._text(request)}, {self._read(request, _OF_A_CALL)}, may_wait={may_wait})"
            case Answered(batch, answers, ended):
                told = ", ".join(f"{position}: {self._text_of_answer(answer)}" for position, answer in answers)
                return f"Answered({self._text(batch)}, {told}, ended={ended})"
            case Failed(batch, failure, delay_s):
                told = self._text([failure.kind, failure.error, failure.status, failure.retry_after_s])
                return f"Failed({self._text(batch)}, {told}, retry after {self._text(delay_s)})"
            case Retuned(settings, limits):
                # What settings hold is the shell's business; what they change shows in the commands.
                limits = None if limits is None else len(limits)
                return f"Retuned(settings={settings is not None}, limits={limits})"
            case EndpointAdded(endpoint, _, name):
                return f"EndpointAdded({endpoint}, {name!r})"
        return self._text(event)

    def _text_of_command(self, command):
        match command:
            case SendBatch(batch):
                return f"SendBatch({self._text(batch)}, {self._read(batch, _OF_A_BATCH)})"
            case AbortBatch(batch):
                why = batch.ended_for and [batch.ended_for.kind, batch.ended_for.message]
                return f"AbortBatch({self._text(batch)}, because={self._text(why)})"
            case Resolve(answers):
                told = ", ".join(
                    f"{self._text(request)}: {self._text_of_answer(answer)}" for request, answer in answers
                )
                return f"Resolve({told})"
        return self._text(command)

    def _text_of_answer(self, answer):
        return f"answer {self._number('answer', id(answer), answer)} ({self._read(answer, _OF_AN_ANSWER)})"

    def _read(self, owner, readers):
        return ", ".join(f"{name}={self._text(read(owner))}" for name, read in readers.items())

    def _text(self, value):
        return text_of(value, self._known)

    def _known(self, value):
        if isinstance(value, Request):
            return f"call {self._number('call', id(value), value)}"
        if isinstance(value, Batch):
            return f"batch {self._number('batch', id(value), value)}"
        if isinstance(value, Shape):
            return str(self._number("shape", value.key, value))
        if isinstance(value, Statistics):
            told = ", ".join(f"{name}={self._text(getattr(value, name))}" for name in sorted(_COUNTS))
            return f"Statistics({told})"
        return None

    def _number(self, kind, key, value):
        numbers = self._numbers.setdefault(kind, {})
        if key not in numbers:
            numbers[key] = len(numbers)
            # While it lives, nothing else has its id.
            self._kept.append(value)
        return numbers[key]
