"""Server-sent events: bytes in, ``data`` payloads out, whatever the split points.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream". Lines end with LF, CRLF or CR; lines of one event join
with LF; comments (keep-alive pings) and other fields are skipped. Where we differ: a last event without its blank line is
delivered, because some servers leave it out; a half one is then no JSON and fails there.
"""

from __future__ import annotations

__all__ = ["EventStream"]


class EventStream:
    """An incremental parser."""

    __slots__ = ("_data", "_rest", "_skip_lf")

    def __init__(self) -> None:
        self._rest = b""
        self._data: bytes | None = None
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads that are complete now."""
        if self._skip_lf and chunk:
            # The CR that ended the last chunk may have been half of a CRLF.
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._skip_lf = False
        if b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + chunk if self._rest else chunk).split(b"\n")
        self._rest = lines.pop()
        payloads: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data is not None:
                    payloads.append(data)
                    data = None
            elif line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                data = value if data is None else data + b"\n" + value
        self._data = data
        return payloads

    def end(self) -> list[bytes]:
        """Return the last payload if the stream ended without its blank line."""
        return self.feed(b"\n\n")
