"""What a mutation is, and what all of them are made with: whose the bytes of a reply are, and how they are written."""

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace

from tests.mutations.answers import items_in, write_answers
from tests.mutations.framing import frame
from tests.mutations.server import encode

__all__ = [
    "SHORT_S",
    "Mutation",
    "all_calls",
    "body_of",
    "calls_in",
    "changed",
    "ends",
    "near",
    "sent",
    "to_strangers",
    "whole_wire",
    "writes",
]

SHORT_S = 0.01


@dataclass
class Mutation:
    """One mutation of one reply.

    Args:
        what: in words.
        steps: bytes to write, seconds to wait, ``None`` to close.
        tainted: calls whose own bytes were touched.
        spared: calls that are to have their answers from this reply.
        then: what is done to the reply after, if anything: ``(reply) -> steps``.
        kind: the name of its family.
    """

    what: str
    steps: list
    tainted: frozenset = frozenset()
    spared: frozenset = frozenset()
    then: object = field(default=None, repr=False)
    kind: str = ""

    @property
    def leaves_bytes(self):
        """Whether bytes may be left on the connection that the next reply is read from."""
        return self.kind in ("more follows", "length")


def calls_in(reply, event):
    """Whose answers an event holds."""
    indices = [index for index, _ in items_in(event)]
    return {reply.owners[index][0] for index in indices if type(index) is int and 0 <= index < len(reply.owners)}


def all_calls(reply):
    return frozenset(call for call, _ in reply.owners)


def ends(reply):
    """Where each event ends in the body."""
    ends, end = [], 0
    for piece in reply.pieces:
        end += len(piece)
        ends.append(end)
    return ends


def near(reply, number):
    """Whose answers an event and its neighbours hold: what is spoilt at an edge may join them."""
    return frozenset().union(*(calls_in(reply, event) for event in reply.events[max(0, number - 1) : number + 2]))


def changed(reply, body):
    """Whose answers differ in a plain body that can still be read."""
    try:
        now = {index: item for index, item in items_in(json.loads(body)) if type(index) is int}
    except ValueError:
        return frozenset()
    before = dict(items_in(reply.events[0]))
    return frozenset(reply.owners[index][0] for index in before if now.get(index) != before[index])


def writes(rng, data, whole_from=None):
    """Bytes in random pieces; from an offset on in one."""
    most = len(data) if whole_from is None else whole_from
    ends = sorted({rng.randrange(most + 1) for _ in range(rng.randint(0, 4))} | {len(data)})
    pause_s = rng.choice((0.0, 0.0, SHORT_S))
    steps, start = [], 0
    for end in ends:
        if end > start:
            steps += [data[start:end], pause_s]
            start = end
    return steps[:-1]


def sent(rng, reply, body, events=()):
    """A body's writes, framed as it should be."""
    _, wire = frame(rng, reply, body, events)
    return writes(rng, bytes(wire)) + ([None] if wire.closes else [])


def body_of(reply, events=None, *, ascii_only=False):
    events = reply.events if events is None else events
    return b"".join(encode(event, streamed=reply.streamed, ascii_only=ascii_only) for event in events)


def whole_wire(rng, reply):
    return frame(rng, reply, body_of(reply), ends(reply) if reply.streamed else ())[1]


def to_strangers(reply, strangers):
    """The same reply as it would be to calls of others."""
    calls = list(dict.fromkeys(call for call, _ in reply.owners))
    owners = [(strangers[calls.index(call)], k) for call, k in reply.owners]
    other = replace(reply, owners=owners, events=deepcopy(reply.events))
    write_answers(other.events, owners)
    return other
