"""What goes wrong with the bytes of a reply: on the wire, in its headers, and where the next reply begins."""

from bisect import bisect

from tests.mutations.framing import head_of
from tests.mutations.mutation import (
    SHORT_S,
    Mutation,
    all_calls,
    body_of,
    changed,
    ends,
    near,
    sent,
    to_strangers,
    whole_wire,
    writes,
)
from tests.mutations.server import encode

_PAUSES_S = (0.0, SHORT_S, 1.0, 4.9, 7.0, 200.0)
"""Below and above the client's read timeout of 5 s, and above its calls' deadline."""
_LONGEST_SLICE = 40

# Bytes ----------------------------------------------------------------------------------------------------------------


def in_pieces(rng, reply, strangers):
    return Mutation(
        "nothing, in pieces",
        sent(rng, reply, body_of(reply, ascii_only=rng.random() < 0.5)),
        spared=all_calls(reply),
    )


def closed(rng, reply, strangers):
    data = bytes(whole_wire(rng, reply))
    at = rng.randrange(len(data))
    return Mutation(f"closed at byte {at} of {len(data)}", [*writes(rng, data[:at]), None])


def cut(rng, reply, strangers):
    body = body_of(reply)
    at = rng.randrange(len(body))
    return Mutation(f"cut at byte {at} of {len(body)} of the body", sent(rng, reply, body[:at]))


def delayed(rng, reply, strangers):
    wire = whole_wire(rng, reply)
    data = bytes(wire)
    at, pause_s = rng.randrange(len(data)), rng.choice(_PAUSES_S)
    steps = [*writes(rng, data[:at]), pause_s, *writes(rng, data[at:])] + ([None] if wire.closes else [])
    spared = all_calls(reply) if pause_s < 4 else frozenset()
    return Mutation(f"{pause_s:g} s of silence at byte {at} of {len(data)}", steps, spared=spared)


def _damaged(rng, data):
    """(What, bytes): a byte or some doubled, or one lost."""
    at = rng.randrange(len(data))
    how = rng.choice(("doubled", "doubled", "lost", "slice"))
    if how == "lost":
        return f"byte {at} of {len(data)} lost", data[:at] + data[at + 1 :]
    size = 1 if how == "doubled" else rng.randint(2, _LONGEST_SLICE)
    end = min(len(data), at + size)
    return f"bytes {at} to {end - 1} of {len(data)} doubled", data[:end] + data[at:]


def body_damaged(rng, reply, strangers):
    body = body_of(reply, ascii_only=(ascii_only := rng.random() < 0.5))
    start, end = 0, len(body)
    if reply.streamed:
        # Within one event: nobody can tell whose a piece is that is one's beginning and another's end.
        number = rng.randrange(len(reply.events))
        start = len(body_of(reply, reply.events[:number], ascii_only=ascii_only))
        end = start + len(encode(reply.events[number], streamed=True, ascii_only=ascii_only))
    what, damaged = _damaged(rng, body[start:end])
    tainted = near(reply, number) if reply.streamed else changed(reply, damaged)
    return Mutation(f"body: {what}", sent(rng, reply, body[:start] + damaged + body[end:]), tainted)


def wire_damaged(rng, reply, strangers):
    wire = whole_wire(rng, reply)
    data = bytes(wire)
    at, doubled = rng.randrange(len(data)), rng.random() < 0.6
    if rng.random() < 0.4:
        # Rarely met otherwise: a body is long.
        at = rng.choice([offset for offset in range(len(data)) if wire.place_in_body(offset) is None])
    place = wire.place_in_body(at)
    data = data[: at + doubled] + data[at + (not doubled) :]
    tainted = frozenset()
    if reply.streamed:
        # Without its framing a body has lines of others between its events.
        tainted = all_calls(reply) if place is None else near(reply, bisect(ends(reply), place))
    elif place is not None:
        body = body_of(reply)
        tainted = changed(reply, body[: place + doubled] + body[place + (not doubled) :])
    what = f"wire: byte {at} {'doubled' if doubled else 'lost'}"
    return Mutation(what, writes(rng, data) + ([None] if wire.closes else []), tainted)


# Replies --------------------------------------------------------------------------------------------------------------


def more_follows(rng, reply, strangers):
    """Another's reply, or some of it, behind the right one."""
    wire = whole_wire(rng, reply)
    if wire.closes:
        return None
    data = bytes(wire)
    other = bytes(whole_wire(rng, to_strangers(reply, strangers)))
    if rng.random() < 0.3:
        other = rng.choice((other[: rng.randrange(1, len(other))], b"\r\n", b"x", b"0\r\n\r\n", body_of(reply)))
    if rng.random() < 0.5:
        return Mutation(
            "another's reply follows at once", writes(rng, data + other, len(data) - 1), spared=all_calls(reply)
        )
    return Mutation(
        "another's reply follows on the idle socket", [*writes(rng, data), SHORT_S, other], spared=all_calls(reply)
    )


# Headers --------------------------------------------------------------------------------------------------------------


def length(rng, reply, strangers):
    body = body_of(reply)
    size = len(body)
    value = rng.choice(
        (None, size + rng.randint(1, 100), rng.randrange(size), -size, f"{size}x", f"{size}, {size}", f"+{size}", "")
    )
    lengths = [] if value is None else [value]
    if rng.random() < 0.2:
        lengths.append(size)
    headers = [("content-type", reply.content_type), *(("content-length", each) for each in lengths)]
    # No split where a reply that is said to be shorter ends.
    return Mutation(f"content-length {lengths} of {size}", writes(rng, head_of(headers) + body, 1))
