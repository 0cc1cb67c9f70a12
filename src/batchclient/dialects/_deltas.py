"""A message joined from its pieces, on every field, known or not.

The reference is openai-python's accumulation (``openai.lib.streaming._deltas``, 2.x):
- Texts are joined, numbers added, objects merged field by field.
- Entries of lists are merged by ``index``; other lists are joined.
- The last ``index`` and ``type`` count, and nulls say nothing. Where two pieces have different
  types, the first counts.

The differences, where the reference would spoil the answer or raise:
- ``""``, or the same value again, changes no ``id``, ``name``, ``role`` or ``type``: many servers
  send such values with every piece. A name may come in pieces.
- A numbered entry with a name and another ``id`` than before is a new entry: some servers number
  every tool call 0. Another ``id`` alone begins no entry: older vLLM made one for every piece.
- Numbers may have gaps, and begin anywhere. A piece without a number belongs to the entry of its
  ``id``; with neither ``id`` nor name, to the last entry.
- The last truth value counts.
- Parts of a content go on: text after text, thinking after thinking.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from batchclient.dialects._readers import index_of

__all__ = ["TEXTS", "MessageDeltas"]

TEXTS = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
"""Fields of a message that are texts; ``content`` may be parts instead."""

_LABELS = frozenset({"id", "name", "role", "type"})
"""Texts sent whole, perhaps with every piece; only a name may come in pieces."""
_PARTS = ("text", "thinking")
"""The types of a content's parts that go on in the next piece."""


class _Text(list[str]):
    """A text's pieces, joined once."""


class MessageDeltas:
    """A message, received so far."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Take in the next piece.

        Raises:
            TypeError: a text is none, or a tool call is no object.
        """
        message = self._message
        if len(delta) == 1:
            # Most pieces hold a part of a single text.
            ((name, value),) = delta.items()
            before = message.get(name)
            if type(before) is _Text and type(value) is str:
                before.append(value)
                return
        content = delta.get("content")
        if type(content) is list or type(message.get("content")) is _Entries:
            delta = {**delta, "content": _parts(content)}
            before = message.pop("content", None)
            message["content"] = _Entries(strict=False) if type(before) is not _Entries else before
            if type(before) is _Text:
                message["content"].add(_parts("".join(before)) or ())
        for name in TEXTS.intersection(delta):
            if type(delta[name]) not in (str, NoneType) and (name != "content" or type(delta[name]) is not list):
                raise TypeError("a piece of a message is no string")
        _add(message, delta)

    def joined(self) -> dict[str, Any]:
        """Return the message in a plain reply's form: nulls are left out, but for the content's."""
        message = {"role": "assistant", "content": None} | {
            name: _finished(value) for name, value in self._message.items()
        }
        calls = message.get("tool_calls")
        if calls or message.get("reasoning") or message.get("reasoning_content"):
            # The opening event's empty content says nothing: if no other came, a plain reply has
            # null.
            message = {name: value for name, value in message.items() if value != "" or name not in TEXTS}
            message.setdefault("content", None)
        if calls == []:
            del message["tool_calls"]
        for call in calls or ():
            call.pop("index", None)
        return message


def _parts(content: Any) -> Any:
    """Return content as parts; ``None``: it says nothing."""
    return [{"type": "text", "text": content}] if content and type(content) is str else content or None


def _add(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    for name, value in piece.items():
        if value is None:
            continue
        before = whole.get(name)
        kind = type(value)
        if kind is str:
            if name in _LABELS:
                whole[name] = _label(name, before, value)
            elif type(before) is _Text:
                before.append(value)
            elif before is None:
                whole[name] = _Text((value,))
            else:
                _must_be_text(name)
        elif type(before) is _Text:
            _must_be_text(name)
        elif name == "index" or kind is bool:
            whole[name] = value
        elif kind is dict:
            if before is None:
                before = whole[name] = {}
            if type(before) is dict:
                _add(before, value)
        elif name == "tool_calls" or kind is list:
            if before is None:
                before = whole[name] = _Entries(strict=name == "tool_calls")
            if type(before) is _Entries:
                before.add(value)
        elif before is None:
            whole[name] = value
        elif type(before) in (int, float):
            whole[name] = before + value


def _must_be_text(name: str) -> None:
    if name in ("content", "arguments"):
        raise TypeError("a piece of a message is no string")


def _label(name: str, before: Any, value: str) -> Any:
    if not before or not value:
        return before or value
    if name == "name":
        return before if before == value or type(before) is not str else before + value
    return before if name == "id" else value


class _Entries:
    """A list's entries, numbered or not; if ``strict``, every entry has to be an object."""

    __slots__ = ("_found", "_latest", "_strict")

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._found: list[tuple[int, Any]] = []
        """(number, entry) each; of equal numbers the first to come is first."""
        self._latest: dict[int, dict[str, Any]] = {}

    def add(self, pieces: Any) -> None:
        """Take in the entries of a piece."""
        for piece in pieces:
            if not isinstance(piece, dict):
                if self._strict:
                    raise TypeError("a tool call is no object")
                self._found.append((len(self._found), piece))
                continue
            _add(self._entry(piece), piece)

    def _entry(self, piece: dict[str, Any]) -> dict[str, Any]:
        """Return the entry to which a piece belongs."""
        place, label, is_named = index_of(piece.get("index")), piece.get("id"), bool(_name_of(piece))
        is_numbered = type(place) is int
        if is_numbered:
            entry = self._latest.get(place)
            known = entry and entry.get("id")
            if is_named and label and known and label != known:
                entry = None
        elif not self._strict:
            kind, last = piece.get("type"), self._found[-1][1] if self._found else None
            entry = last if kind in _PARTS and type(last) is dict and last.get("type") == kind else None
        elif place is not None:
            raise TypeError("a tool call's index is no number")
        elif label:
            entry = next((each for _, each in self._found if each.get("id") == label), None)
        else:
            entry = self._found[-1][1] if self._found and not is_named else None
        if entry is None:
            entry = {}
            self._found.append((place if is_numbered else len(self._found), entry))
            if is_numbered:
                self._latest[place] = entry
        return entry

    def finished(self) -> list[Any]:
        """Return the entries in order."""
        return [_finished(entry) for _, entry in sorted(self._found, key=lambda numbered: numbered[0])]


def _name_of(piece: Mapping[str, Any]) -> Any:
    function = piece.get("function")
    return piece.get("name") or (function.get("name") if isinstance(function, dict) else None)


def _finished(value: Any) -> Any:
    kind = type(value)
    if kind is _Text:
        return value[0] if len(value) == 1 else "".join(value)
    if kind is _Entries:
        return value.finished()
    if kind is dict:
        return {name: _finished(each) for name, each in value.items()}
    return value
