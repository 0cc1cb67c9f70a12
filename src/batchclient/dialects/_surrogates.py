"""Replies with halves of surrogate pairs: JSON can escape a lone half, but no file can hold it.

A server escapes UTF-16, and cuts between two tokens. Halves that came in two pieces are joined. A
lone half becomes U+FFFD, as on servers that decode bytes. pydantic's parser refuses such a reply
whole; ``json`` reads it.
"""

from __future__ import annotations

import json
from typing import Any

from batchclient.dialects._reader import Reader

__all__ = ["MendingReader", "mend", "read_odd"]

_ALONE = "\ufffd"
_Path = tuple[Any, ...]


def read_odd(text: bytes) -> Any:
    """Parse JSON that pydantic's parser refuses: lone surrogates, a byte-order mark.

    Raises:
        ValueError: no JSON, or nested too deeply. ``json``'s own error would hold the whole text.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    raise ValueError("no JSON, or nested too deeply")


def mend(value: Any) -> Any:
    """Return a JSON value whose texts can be written; raise ``ValueError`` if nested too deeply."""
    try:
        return _mend(value)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _joined(value)
    if isinstance(value, list):
        return [_mend(each) for each in value]
    if isinstance(value, dict):
        return {_mend(name): _mend(each) for name, each in value.items()}
    return value


def _joined(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class MendingReader:
    """A stream's reader whose events can be written.

    The first half of a pair is held back until the next piece of the same text.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.counts_each = reader.counts_each
        self.tells_sums = reader.tells_sums
        self._held: dict[_Path, str] = {}
        """Halves held back, by choice and place within the choice."""

    def reply(self, reply: Any) -> Any:
        """Mend a plain reply."""
        return mend(self._reader.reply(reply))

    def event(self, event: Any) -> Any:
        """Mend an event of a stream; raise ``ValueError`` if nested too deeply."""
        event = self._reader.event(event)
        pieces = event.get("choices")
        mended = {name: mend(value) for name, value in event.items() if name != "choices"}
        try:
            mended["choices"] = [self._piece(each) for each in pieces] if isinstance(pieces, list) else pieces
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
        return mended

    def _piece(self, piece: Any) -> Any:
        if not isinstance(piece, dict):
            return piece
        place = str(piece.get("index"))
        mended = {name: self._walk(value, (place, name)) for name, value in piece.items()}
        if piece.get("finish_reason"):
            for path in [path for path in self._held if path[0] == place]:
                del self._held[path]
                _put(mended, path[1:])
        return mended

    def _walk(self, value: Any, path: _Path) -> Any:
        if isinstance(value, str):
            text = self._held.pop(path, "") + value
            if "\ud800" <= text[-1:] <= "\udbff":
                self._held[path] = text[-1]
                text = text[:-1]
            return _joined(text)
        if isinstance(value, dict):
            return {name: self._walk(each, (*path, name)) for name, each in value.items()}
        if isinstance(value, list):
            # Only numbered entries go on in a later piece.
            numbered = [isinstance(each, dict) and type(each.get("index")) is int for each in value]
            return [
                self._walk(each, (*path, each["index"])) if is_numbered else _mend(each)
                for each, is_numbered in zip(value, numbered, strict=True)
            ]
        return value


def _put(into: dict[str, Any], path: _Path) -> None:
    """Append U+FFFD for a lone half at its place in the last piece, which may lack the place."""
    name, *rest = path
    if not rest:
        into[name] = (into.get(name) or "") + _ALONE
    elif type(rest[0]) is int:
        entries = into[name] = into.get(name) or []
        entry = next((each for each in entries if each.get("index") == rest[0]), None)
        if entry is None:
            entries.append(entry := {"index": rest[0]})
        _put(entry, tuple(rest[1:]))
    else:
        into[name] = into.get(name) or {}
        _put(into[name], tuple(rest))
