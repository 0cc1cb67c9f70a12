"""What a server's message may show: neither prompts nor keys.

Two texts come of a message. Its *words* are judged: they are the server's, without echoes of 24
characters or more, so that a short prompt or key blinds no rule ("token", "argument"). What is
*shown* has no prompt of four characters or more, and no key.

Rules:
- The place of a fault in a request (``messages.0.tool_calls.0.arguments``) is no prompt; whoever
  reads a message marks it.
- A key that is short, or a plain word, is cut out where it stands alone: "4096 tokens" stays.
- A look at pieces of the message comes first: thousands of prompts are written in all their forms
  only if the message has a piece of them. In more than 256 KB of prompts only their beginnings
  and ends are looked for, which is what servers repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator

__all__ = ["mark", "redact", "unmarked", "words_and_shown", "words_of"]

_LONGEST_MESSAGE = 400
_LONGEST_READ = 2 * _LONGEST_MESSAGE
"""The rest is never shown: cutting it off first bounds the work."""
_SHORTEST_SECRET = 4
_PLAIN_KEY = 8
"""A shorter key may be a word."""
_SHORTEST_ECHO = 24
"""Characters; pydantic shows 25 and 24 of a longer value."""
_SHORTEST_PIECE = 12
"""The shortest piece of a prompt, in characters, that is looked for in a message."""
_MOST_BYTES = 256 * 1024
_WINDOW_BYTES = 128
_NO_TEXTS = frozenset({"role", "type"})
_PROTOCOL = frozenset({b"", b"role", b"content", b"type", b"text", b"user", b"system", b"assistant", b"tool", b"name"})
_ODD = re.compile(rb"[\x00-\x1f\x7f\"'\\]")
_TEXT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_PLACE = re.compile("\x02([^\x02\x03]*)\x03")


def mark(place: str) -> str:
    """Mark a place in a request, which is shown as it is."""
    return f"\x02{unmarked(place)}\x03"


def unmarked(message: str) -> str:
    """Return a message without marks."""
    return message.replace("\x02", "").replace("\x03", "")


def words_of(message: str, prompts: Collection[bytes]) -> str:
    """Return the server's own words of a message, to be judged; prompts are written as JSON."""
    return _words_of(message, _quoted_forms(message, prompts))


def redact(message: str, prompts: Collection[bytes], secrets: Collection[str]) -> str:
    """Cut prompts (written as JSON) and keys out of a server's message, and shorten the message."""
    return _redacted(message, _quoted_forms(message, prompts), secrets)


def words_and_shown(message: str, prompts: Collection[bytes], secrets: Collection[str]) -> tuple[str, str]:
    """Return what ``words_of`` and ``redact`` return, with one look."""
    forms = _quoted_forms(message, prompts)
    return _words_of(message, forms), _redacted(message, forms, secrets)


def _words_of(message: str, forms: Collection[str]) -> str:
    echoes = dict.fromkeys((form for form in forms if len(form) >= _SHORTEST_ECHO), "[prompt]")
    return _without(unmarked(message)[:_LONGEST_READ], echoes, _SHORTEST_ECHO)


def _redacted(message: str, forms: Collection[str], secrets: Collection[str]) -> str:
    labels = dict.fromkeys(forms, "[prompt]")
    labels.update((secret, "[key]") for secret in secrets if not _is_plain(secret))
    parts = _PLACE.split(message[:_LONGEST_READ])
    parts[::2] = [_without(unmarked(part), labels, 0) for part in parts[::2]]
    message = "".join(parts)
    for secret in filter(_is_plain, secrets):
        if len(secret) >= _SHORTEST_SECRET:
            message = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "[key]", message)
    message = " ".join(message.split())
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


def _is_plain(secret: str) -> bool:
    return len(secret) < _PLAIN_KEY or secret.isalpha()


def _quoted_forms(message: str, prompts: Collection[bytes]) -> set[str]:
    """Return all forms of the prompts of which a piece may be in a message."""
    message = unmarked(message)[:_LONGEST_READ]
    if not message or not prompts:
        return set()
    written = {message, message.replace(", ", ","), _write(message)[1:-1], json.dumps(message)[1:-1]}
    looked_at = list(prompts)
    if sum(map(len, prompts)) > _MOST_BYTES:
        looked_at = [prompt[:_WINDOW_BYTES] + prompt[-_WINDOW_BYTES:] for prompt in prompts]
    everything = b"\0".join(looked_at)
    pieces = {
        text[at : at + _SHORTEST_PIECE].encode("utf-8", "surrogatepass")
        for text in written
        for at in range(0, max(1, len(text) - _SHORTEST_PIECE + 1), _SHORTEST_PIECE)
    }
    found = [piece for piece in pieces if piece in everything]
    texts = b"\0".join(text.encode("utf-8", "surrogatepass") for text in written)
    forms: set[str] = set()
    for prompt, seen in zip(prompts, looked_at, strict=True):
        if any(end in texts for end in _ends(seen)) or any(piece in seen for piece in found):
            forms.update(_forms(prompt))
    return forms


def _ends(written: bytes) -> list[bytes]:
    """Return the beginning and the end of each text within JSON, in all forms; and of token ids."""
    begin, end = written[1 : _SHORTEST_PIECE + 1], written[-_SHORTEST_PIECE - 1 : -1]
    if written[:1] == b'"' and _is_written_alike(begin) and _is_written_alike(end):
        return [begin, end] if len(written) > _SHORTEST_SECRET + 1 else []
    ends = [] if written.startswith((b'"', b"[{")) else [written[:_SHORTEST_PIECE]]
    for text in _TEXT.findall(written):
        if text in _PROTOCOL:
            continue
        value = _read(text)
        for part in (value[:_SHORTEST_PIECE], value[-_SHORTEST_PIECE:]):
            as_bytes = part.encode("utf-8", "surrogatepass")
            if not _is_written_alike(as_bytes):
                for form in _written(part):
                    ends += [
                        each.encode("utf-8", "surrogatepass")
                        for each in (form[:_SHORTEST_PIECE], form[-_SHORTEST_PIECE:])
                    ]
            elif len(part) >= _SHORTEST_SECRET:
                ends.append(as_bytes)
    return ends


def _is_written_alike(text: bytes) -> bool:
    """Whether JSON, ``repr`` and the text itself are the same."""
    return text.isascii() and _ODD.search(text) is None


def _read(text: bytes) -> str:
    try:
        value: str = json.loads(b'"%b"' % text) if b"\\" in text else text.decode()
    except ValueError:
        # A character was cut in two.
        return text.decode("utf-8", "ignore")
    return value


def _written(text: str) -> tuple[str, ...]:
    return text, _write(text)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1]


def _forms(prompt: bytes) -> Iterator[str]:
    """Yield the ways to write a prompt: as is, as JSON, as ASCII-only JSON, as Python's ``repr``.

    Of a conversation, every text is written so.
    """
    value = json.loads(prompt)
    if not isinstance(value, str):
        yield prompt.decode()
        yield str(value)
    for text in _texts_in(value):
        yield from _written(text)


_write = json.JSONEncoder(ensure_ascii=False).encode


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text within a JSON value, except the protocol's words (``role``, ``type``)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts_in(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NO_TEXTS:
                yield from _texts_in(each)


def _without(message: str, labels: dict[str, str], shortest_run: int) -> str:
    """Cut forms out of a message, whole and in pieces."""
    # The longest first: one prompt may begin with another, or hold the key.
    forms = sorted((form for form in labels if len(form) >= _SHORTEST_SECRET), key=len, reverse=True)
    for form in forms:
        message = message.replace(form, labels[form])
    for form in forms:
        if len(form) > _SHORTEST_PIECE:
            message = _cut_runs(_cut_ends(message, form, labels[form], shortest_run), form, labels[form], shortest_run)
    return message


def _cut_ends(message: str, form: str, label: str, shortest: int) -> str:
    # A server that shortens its echo shows the beginning, the end or both.
    head, tail = form[:_SHORTEST_PIECE], form[-_SHORTEST_PIECE:]
    start = 0
    while (start := message.find(head, start)) >= 0:
        end = start + len(head)
        while end < len(message) and end - start < len(form) and message[end] == form[end - start]:
            end += 1
        message, start = _cut(message, start, end, label, shortest)
    start = 0
    while (start := message.find(tail, start)) >= 0:
        end = start + len(tail)
        while start and end - start < len(form) and message[start - 1] == form[start - end - 1]:
            start -= 1
        message, start = _cut(message, start, end, label, shortest)
    return message


def _cut_runs(message: str, form: str, label: str, shortest: int) -> str:
    """Cut a prompt's middle: every common run of at least twice ``_SHORTEST_PIECE``, less one."""
    start = 0
    while start + _SHORTEST_PIECE <= len(message):
        # Every run that long covers one of the message's pieces whole.
        found = form.find(message[start : start + _SHORTEST_PIECE])
        if found < 0:
            start += _SHORTEST_PIECE
            continue
        left, right = start, start + _SHORTEST_PIECE
        place, end = found, found + _SHORTEST_PIECE
        while left and place and message[left - 1] == form[place - 1]:
            left, place = left - 1, place - 1
        while right < len(message) and end < len(form) and message[right] == form[end]:
            right, end = right + 1, end + 1
        message, start = _cut(message, left, right, label, shortest)
    return message


def _cut(message: str, start: int, end: int, label: str, shortest: int) -> tuple[str, int]:
    """Put a label in the place of a run that is long enough; return where to go on."""
    if end - start < shortest:
        return message, end
    return message[:start] + label + message[end:], start + len(label)
