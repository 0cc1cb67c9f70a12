"""A body as HTTP/1.1 puts it on the wire, byte by byte: which bytes are the body's, and what of them each event is."""

from dataclasses import dataclass, field

__all__ = ["Wire", "frame", "head_of"]


@dataclass
class Wire:
    """A framed reply.

    Args:
        parts: (bytes, where in the body they begin) in order; ``None``: they are framing.
        closes: whether the connection's end is the body's.
    """

    parts: list = field(default_factory=list)
    closes: bool = False

    def __bytes__(self):
        return b"".join(data for data, _ in self.parts)

    def place_in_body(self, offset):
        """Which byte of the body stands at an offset; ``None``: framing."""
        for data, start in self.parts:
            if offset < len(data):
                return None if start is None else start + offset
            offset -= len(data)
        return None


def head_of(headers, status="200 OK"):
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frame(rng, reply, body, events=()):
    """Frame a body: by its length, in chunks or by the connection's end; return (headers, wire).

    Args:
        rng: decides how.
        reply: says its content type.
        body: the bytes.
        events: where the events of a stream end; what a server writes in a chunk of its own.
    """
    headers = [("content-type", reply.content_type)]
    how = rng.choices(("length", "chunked", "end"), (1, 6, 1) if reply.streamed else (6, 2, 1))[0]
    if how == "length":
        headers.append(("content-length", len(body)))
        return headers, Wire([(head_of(headers), None), (body, 0)])
    if how == "end":
        return headers, Wire([(head_of(headers), None), (body, 0)], closes=True)
    headers.append(("transfer-encoding", "chunked"))
    ends = (
        list(events)
        if events and rng.random() < 0.5
        else [rng.randrange(len(body) + 1) for _ in range(rng.randint(0, 6))]
    )
    parts = [(head_of(headers), None)]
    start = 0
    for end in sorted({*ends, len(body)} - {0}):
        if end > start:
            parts += [(b"%x\r\n" % (end - start), None), (body[start:end], start), (b"\r\n", None)]
            start = end
    parts.append((b"0\r\n\r\n", None))
    return headers, Wire(parts)
