"""Server-sent events: bytes in, ``data`` payloads out, wherever the bytes are split.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream". Lines end with LF, CRLF or CR;
the lines of an event join with LF. Comments (keep-alive pings) and other fields are skipped.
An event ``error`` without data has the words of its comments (Dynamo).

Differences: a last event is delivered without its blank line, because some servers leave the line
out. Half an event is then no JSON and fails later. No byte-order mark is looked for. The payload of
an event ``error``, or of a line ``error: …`` (older llama.cpp), is delivered as ``{"error": …}``.
"""

from __future__ import annotations

from pydantic_core import from_json, to_json

__all__ = ["EventStream"]

_LONGEST_COMMENT = 1024
"""More is never shown."""


class EventStream:
    """An incremental parser; ``rest`` is an unfinished line, ``data`` an unfinished event."""

    __slots__ = ("_comment", "_is_error", "_skip_lf", "data", "rest")

    def __init__(self) -> None:
        # Lists, joined once: a line in many chunks, or an event of many lines, must not cost its
        # square.
        self.rest: list[bytes] = []
        self.data: list[bytes] = []
        self._skip_lf = False
        self._is_error = False
        self._comment = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads that are complete now."""
        if self._skip_lf and chunk:
            # The CR that ended the last chunk may have been half of a CRLF.
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._skip_lf = False
        if b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = self.rest
        if rest:
            if len(lines) == 1:
                rest.append(chunk)
                return []
            rest.append(lines[0])
            lines[0] = b"".join(rest)
        last = lines.pop()
        self.rest = [last] if last else []
        payloads: list[bytes] = []
        data = self.data
        for line in lines:
            if not line:
                if data:
                    payload = data[0] if len(data) == 1 else b"\n".join(data)
                    payloads.append(_error(payload) if self._is_error else payload)
                    data.clear()
                elif self._is_error:
                    payloads.append(_error(self._comment.strip() or b"the server told no more"))
                self._is_error = False
                self._comment = b""
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"error:"):
                data.append(line[6:])
                self._is_error = True
            elif line.startswith(b"event:"):
                self._is_error = line[6:].strip() == b"error"
            elif line.startswith(b":") and len(self._comment) < _LONGEST_COMMENT:
                self._comment += line[1 : 1 + _LONGEST_COMMENT]
        return payloads

    def end(self) -> list[bytes]:
        """Return the last payload if the stream ended without its blank line."""
        return self.feed(b"\n\n")


def _error(payload: bytes) -> bytes:
    """Return the payload of an error event as the error of a JSON object."""
    try:
        from_json(payload)
    except ValueError:
        payload = to_json(payload.decode("utf-8", "replace"))
    return b'{"error":%b}' % payload
