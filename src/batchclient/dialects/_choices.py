"""What a choice of a reply holds: a completion's text, or a chat's message; plain, or in pieces.

A stream's pieces are joined as they come: what is kept for each token is its text, and no event.

Rules:
- Texts and logprobs are appended. So are the ``reasoning`` and ``reasoning_content`` beside a
  completion (LiteLLM). Of any other field the last value but null and ``""`` counts.
- A text may be missing from the last piece, since LiteLLM leaves out empty values, and from a piece
  with reasoning.
- Halves of a character that came in two pieces are joined (``_surrogates``). A waiting caller gets
  the first half with the next piece: of a text, of reasoning, of a tool call's arguments.
- Token ids are handed out only where the caller asked for them: lists ask on their own account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchclient.dialects._deltas import TEXTS, MessageDeltas
from batchclient.dialects._shares import size_of
from batchclient.dialects._surrogates import ends_in_half, mend
from batchclient.types import Choice, Delta, Usage

__all__ = ["ABORTED", "MessagePieces", "TextPieces", "is_aborted"]

ABORTED = frozenset({"abort", "error"})
"""Reasons to finish that mean a failure."""
_READ = frozenset({"index", "text", "message", "delta", "finish_reason", "logprobs", "token_ids"})
_COUNTED = _READ | {"prompt_token_ids"}
_JOINED = ("reasoning", "reasoning_content")


def is_aborted(choice: Mapping[str, Any]) -> bool:
    """Whether the server gave a choice up."""
    reason = choice.get("finish_reason")
    return type(reason) is str and reason in ABORTED


class TextPieces:
    """A completion's choice in a stream, received so far.

    Args:
        keeps_ids: whether the caller asked for the token ids.
        verbatim: whether the reply is handed on, with every field of the server's.

    Attributes:
        reason: why the choice has ended; ``None`` or empty: it has not.
        events: how many pieces brought text.
        usage: the choice's own, as of its last piece.
        last: the last piece.
        choice: once it is over; ``None``: it goes on, or cannot be read.
    """

    def __init__(self, *, keeps_ids: bool, verbatim: bool) -> None:
        self.reason: str | None = None
        self.events = 0
        self.usage: Usage | None = None
        self.last: Mapping[str, Any] = {}
        self.choice: Choice | None = None
        self._texts: list[str] = []
        self._ids: list[int] | None = None
        self._keeps_ids = keeps_ids
        self._logprobs: dict[str, Any] | None = None
        self._fields: dict[str, Any] = {}
        self._joined: dict[str, list[str]] = {}
        self._names: dict[str, None] | None = {} if verbatim else None
        """Every field's name, as a plain reply has all of them."""
        self._halves: dict[tuple[object, ...], str] = {}
        """First halves of characters, kept until the next piece for a waiting caller; by their place
        in the piece.
        """

    @staticmethod
    def read_plain(choice: Mapping[str, Any], index: int, *, keeps_ids: bool) -> Choice:
        """Read a choice of a plain reply.

        Raises:
            LookupError, TypeError, AttributeError, ValueError: it is none.
        """
        text, ids = choice.get("text"), choice.get("token_ids") if keeps_ids else None
        if type(text) is not str:
            raise TypeError("a choice's text is no string")
        return Choice(
            index,
            text,
            _reason_of(choice),
            choice.get("logprobs"),
            None if ids is None else tuple(ids),
            _other_fields(choice, keeps_ids=keeps_ids),
        )

    @staticmethod
    def size_of(choice: Mapping[str, Any]) -> int:
        """Return the bytes of a plain choice's text."""
        return size_of(choice.get("text"))

    @staticmethod
    def brings(piece: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a piece adds to the answer: text, token ids."""
        return {name: piece[name] for name in ("text", "token_ids") if piece.get(name)}

    @staticmethod
    def text_in(piece: Mapping[str, Any]) -> Any:
        """Return a piece's text."""
        return piece.get("text")

    def add(self, piece: Mapping[str, Any]) -> None:
        """Take in a piece.

        Raises:
            LookupError, TypeError, AttributeError, ValueError: it is none.
        """
        self.last = piece
        reason = piece.get("finish_reason")
        self.reason = reason if reason is None else _reason_of(piece)
        self._add_content(piece)
        logprobs, ids = piece.get("logprobs"), piece.get("token_ids")
        if logprobs:
            self._add_logprobs(logprobs)
        if (self._keeps_ids and ids is not None) or (self._names is not None and type(ids) is list):
            self._ids = self._ids or []
            self._ids += ids
        for name, value in piece.items():
            if value is not None and name not in _READ:
                self._add_field(name, value)
        if self._names is not None:
            self._names.update(dict.fromkeys(piece))

    def _add_content(self, piece: Mapping[str, Any]) -> None:
        text = piece.get("text")
        if type(text) is not str:
            text = _text_of(piece)
        if text is not None:
            self._texts.append(text)
            self.events += text != ""

    def _add_field(self, name: str, value: Any) -> None:
        if name in _JOINED and isinstance(value, str):
            self._joined.setdefault(name, []).append(value)
        elif value != "" or name not in self._fields:
            self._fields[name] = value

    def _add_logprobs(self, logprobs: Mapping[str, Any]) -> None:
        """Join logprobs: every member is a list with an entry per token."""
        joined = self._logprobs
        if joined is None:
            self._logprobs = {name: [*each] if isinstance(each, list) else each for name, each in logprobs.items()}
            return
        for name, each in logprobs.items():
            if isinstance(each, list) and isinstance(joined.get(name), list):
                joined[name] += each
            elif joined.get(name) is None:
                joined[name] = each

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def finish(self, index: int, *, odd: bool) -> None:
        """The choice is over: make ``choice``.

        Args:
            index: among its prompt's choices.
            odd: whether there may be halves of characters in it.

        Raises:
            TypeError: its text is null, or no text.
        """
        if not self._texts and "text" in self.last:
            raise TypeError("a choice's text is no string")
        self._texts = [self.text]
        self._fields |= {name: "".join(texts) for name, texts in self._joined.items()}
        if odd:
            odd_parts = [self._texts, self.reason, self._logprobs, self._fields]
            self._texts, self.reason, self._logprobs, self._fields = mend(odd_parts)
        ids = tuple(self._ids) if self._keeps_ids and self._ids is not None else None
        extra = _other_fields(self._fields, keeps_ids=self._keeps_ids)
        self.choice = Choice(index, self._texts[0], self.reason, self._logprobs, ids, extra)

    def as_plain(self) -> dict[str, Any]:
        """Return the finished choice in a plain reply's form; null if nothing else came."""
        assert self.choice is not None
        plain = {**(self._names or {}), **self._fields, "finish_reason": self.reason}
        plain |= {"text": self.choice.text, "logprobs": self._logprobs}
        return plain | {"token_ids": self._ids} if self._ids else plain

    def delta(self, piece: Mapping[str, Any], index: int) -> Delta:
        """Return a piece for a caller who waits for each."""
        text = _text_of(piece) or ""
        if self._halves or not text.isascii():
            text = self._writable(text, ("text",), is_last=bool(piece.get("finish_reason")))
        return self._delta(piece, index, text)

    def _delta(self, piece: Mapping[str, Any], index: int, text: str, message: dict[str, Any] | None = None) -> Delta:
        ids = piece.get("token_ids") if self._keeps_ids else None
        token_ids = None if ids is None else tuple(ids)
        return Delta(text, index, piece.get("finish_reason"), piece.get("logprobs"), token_ids, message)

    def _writable(self, value: Any, place: tuple[object, ...], *, is_last: bool) -> Any:
        """Return what a piece holds so that it can be written.

        Args:
            value: the piece, or a part of it.
            place: of the part in the piece: the names and numbers that lead to it.
            is_last: whether no other piece follows.
        """
        if isinstance(value, str):
            text = self._halves.pop(place, "") + value
            if ends_in_half(text) and not is_last:
                text, self._halves[place] = text[:-1], text[-1]
            return mend(text)
        if isinstance(value, dict):
            return {mend(name): self._writable(each, (*place, name), is_last=is_last) for name, each in value.items()}
        if isinstance(value, list):
            numbers = [each.get("index", k) if isinstance(each, dict) else k for k, each in enumerate(value)]
            parts = zip(numbers, value, strict=True)
            return [self._writable(each, (*place, str(number)), is_last=is_last) for number, each in parts]
        return value


class MessagePieces(TextPieces):
    """A chat's choice in a stream, received so far."""

    def __init__(self, *, keeps_ids: bool, verbatim: bool) -> None:
        super().__init__(keeps_ids=keeps_ids, verbatim=verbatim)
        self._message = MessageDeltas()

    @staticmethod
    def read_plain(choice: Mapping[str, Any], index: int, *, keeps_ids: bool) -> Choice:
        """Read a choice of a plain reply: nulls and empty ``tool_calls`` are left out of its message."""
        ids = choice.get("token_ids") if keeps_ids else None
        given = choice["message"].items()
        message = {name: value for name, value in given if value is not None or name == "content"}
        message.setdefault("content", None)
        if message.get("tool_calls") == []:
            del message["tool_calls"]
        return Choice(
            index,
            _content_of(message),
            _reason_of(choice),
            choice.get("logprobs"),
            None if ids is None else tuple(ids),
            _other_fields(choice, keeps_ids=True),
            message,
        )

    @staticmethod
    def size_of(choice: Mapping[str, Any]) -> int:
        """Return the bytes of a plain message's texts."""
        message = choice.get("message")
        return sum(size_of(message.get(name)) for name in TEXTS) if isinstance(message, dict) else 0

    @staticmethod
    def brings(piece: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a piece adds to the answer."""
        brings = {name: value for name, value in (piece.get("delta") or {}).items() if value and name != "role"}
        return brings | {"token_ids": piece["token_ids"]} if piece.get("token_ids") else brings

    @staticmethod
    def text_in(piece: Mapping[str, Any]) -> Any:
        """Return a piece's text."""
        return (piece.get("delta") or {}).get("content")

    def _add_content(self, piece: Mapping[str, Any]) -> None:
        delta = piece.get("delta") or {}
        self._message.add(delta)
        self.events += bool(delta.get("content"))

    @property
    def text(self) -> str:
        """The text of the content so far."""
        return _content_of(self._message.joined())

    def finish(self, index: int, *, odd: bool) -> None:
        """The choice is over: make ``choice``."""
        message = self._message.joined()
        self._fields |= {name: "".join(texts) for name, texts in self._joined.items()}
        if odd:
            odd_parts = [message, self.reason, self._logprobs, self._fields]
            message, self.reason, self._logprobs, self._fields = mend(odd_parts)
        ids = tuple(self._ids) if self._keeps_ids and self._ids is not None else None
        extra = _other_fields(self._fields, keeps_ids=True)
        self.choice = Choice(index, _content_of(message), self.reason, self._logprobs, ids, extra, message)

    def as_plain(self) -> dict[str, Any]:
        """Return the finished choice in a plain reply's form."""
        assert self.choice is not None
        message = {"message": self.choice.message, "finish_reason": self.reason, "logprobs": self._logprobs}
        return message | self._fields

    def delta(self, piece: Mapping[str, Any], index: int) -> Delta:
        """Return a piece for a caller who waits for each."""
        message = {name: value for name, value in (piece.get("delta") or {}).items() if value is not None}
        if self._halves or not all(map(_is_ascii, message.values())):
            is_last = bool(piece.get("finish_reason"))
            left = [place[0] for place in self._halves if len(place) == 1] if is_last else []
            message = self._writable({**dict.fromkeys(left, ""), **message}, (), is_last=is_last)
        return self._delta(piece, index, _content_of(message), message)


def _reason_of(choice: Mapping[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if reason is not None and type(reason) is not str:
        raise TypeError("a reason to finish is no string")
    return reason


def _text_of(piece: Mapping[str, Any]) -> str | None:
    text = piece.get("text")
    if type(text) is str:
        return text
    may_lack = piece.get("finish_reason") or any(piece.get(name) for name in _JOINED)
    if text is not None or not may_lack or "delta" in piece or "message" in piece:
        raise TypeError("a choice's text is no string")
    return None


def _other_fields(choice: Mapping[str, Any], *, keeps_ids: bool) -> dict[str, Any]:
    read = _READ if keeps_ids else _COUNTED
    return {name: value for name, value in choice.items() if value is not None and name not in read}


def _content_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content."""
    content = message.get("content")
    if content is None:
        return ""
    if type(content) is list:
        # Parts: Mistral's reasoning models, gateways. What is no text stays in the message alone.
        return "".join([part["text"] for part in content if part["type"] == "text"])
    if type(content) is not str:
        raise TypeError("a message's content is no string")
    return content


def _is_ascii(value: Any) -> bool:
    return not isinstance(value, (str, dict, list)) or (isinstance(value, str) and value.isascii())
