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
from itertools import islice

__all__ = ["mark", "redact", "unmarked", "words_and_shown", "words_of"]

_LONGEST_MESSAGE = 400
_LONGEST_READ = 4 * _LONGEST_MESSAGE
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
_OPENING = re.compile(r"\s*[\"']+")
_CLOSING = re.compile(r"[\"']+\s*\Z")
_MOST_PLACES = 32
"""Places of one piece in a prompt that are compared with the message."""
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[nrt\"'\\/]")
_ESCAPED = {"\\n": "\n", "\\r": "\r", "\\t": "\t", '\\"': '"', "\\'": "'", "\\\\": "\\", "\\/": "/"}
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
    return _without(_beginning(unmarked(message)), echoes, _SHORTEST_ECHO)


def _redacted(message: str, forms: Collection[str], secrets: Collection[str]) -> str:
    labels = dict.fromkeys(forms, "[prompt]")
    for secret in secrets:
        if " " in secret:
            # Of ``Bearer …`` the last word is a secret by itself.
            message = message.replace(secret, "[key]")
        elif not _is_plain(secret):
            labels.update(dict.fromkeys(_written(secret), "[key]"))
    parts = _PLACE.split(_beginning(message))
    parts[::2] = [_without(unmarked(part), labels, 0) for part in parts[::2]]
    message = "".join(parts)
    for secret in filter(_is_plain, secrets):
        if len(secret) >= _SHORTEST_SECRET:
            message = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "[key]", message)
    message = " ".join(message.split())
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


def _beginning(message: str) -> str:
    """Return what is read of a message, without a last word that is cut, which may be half a key."""
    if len(message) <= _LONGEST_READ:
        return message
    return message[:_LONGEST_READ].rpartition(" ")[0] or message[:_LONGEST_READ]


def _is_plain(secret: str) -> bool:
    return len(secret) < _PLAIN_KEY or secret.isalpha()


def _quoted_forms(message: str, prompts: Collection[bytes]) -> set[str]:
    """Return all forms of the prompts of which a piece may be in a message."""
    message = _beginning(unmarked(message))
    if not message or not prompts:
        return set()
    plain = _unescaped(message)
    written = {
        message,
        message.replace(", ", ","),
        plain,
        _write(plain)[1:-1],
        _write(message)[1:-1],
        json.dumps(message)[1:-1],
    }
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
            forms.update(map(unmarked, _forms(prompt)))
    return forms


def _unescaped(message: str) -> str:
    """Return a message without the escapes of JSON and ``repr``; what is none stays."""
    if "\\" not in message:
        return message
    plain = _ESCAPE.sub(lambda found: _ESCAPED.get(found[0]) or chr(int(f"0x{found[0][2:]}", 0)), message)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ends(written: bytes) -> list[bytes]:
    """Return the beginning and the end of each text within JSON, in all forms; and of token ids."""
    begin, end = written[1 : _SHORTEST_PIECE + 1], written[-_SHORTEST_PIECE - 1 : -1]
    if written[:1] == b'"' and _is_written_alike(begin) and _is_written_alike(end):
        return [begin, end] if len(written) > _SHORTEST_SECRET + 1 else []
    ends = []
    if not written.startswith((b'"', b"[{")):
        spaced = written.replace(b",", b", ")
        ends = [each for ids in (written, spaced) for each in (ids[:_SHORTEST_PIECE], ids[-_SHORTEST_PIECE:])]
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


def _written(text: str) -> set[str]:
    shown = repr(text)[1:-1]
    # A part of a text may be quoted otherwise than the whole.
    quoted = shown.replace("\\'", "'").replace("'", "\\'")
    return {text, _write(text)[1:-1], json.dumps(text)[1:-1], shown, quoted, shown.replace("\\'", "'")}


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
    """Cut forms out of a message, whole and in pieces; shorter pieces than ``shortest_run`` stay."""
    cuts = sorted(
        (start, -end, labels[form])
        for form in labels
        if len(form) >= _SHORTEST_SECRET
        for start, end in _runs_of(form, message)
        if end - start >= shortest_run
    )
    made, at = [], 0
    while cuts:
        # Those that overlap are one; the longest names it.
        start, end, label = cuts[0][0], -cuts[0][1], cuts[0][2]
        longest = end - start
        taken = 1
        while taken < len(cuts) and cuts[taken][0] < end:
            if -cuts[taken][1] - cuts[taken][0] > longest:
                longest, label = -cuts[taken][1] - cuts[taken][0], cuts[taken][2]
            end = max(end, -cuts[taken][1])
            taken += 1
        del cuts[:taken]
        made += [message[at:start], label]
        at = end
    return "".join([*made, message[at:]])


def _runs_of(form: str, message: str) -> set[tuple[int, int]]:
    """Return where a message repeats a text: the whole; its beginning or end from ``_SHORTEST_PIECE``
    characters on, as servers shorten an echo; its middle from twice as many on, less one.
    """
    whole = {(at, at + len(form)) for at in _places(form, message)}
    if len(form) <= _SHORTEST_PIECE:
        return whole
    runs = set()
    head, tail = form[:_SHORTEST_PIECE], form[-_SHORTEST_PIECE:]
    for at in _places(head, message):
        end = at + _SHORTEST_PIECE
        while end < len(message) and end - at < len(form) and message[end] == form[end - at]:
            end += 1
        runs.add((at, end))
    for at in _places(tail, message):
        start, end = at, at + _SHORTEST_PIECE
        while start and end - start < len(form) and message[start - 1] == form[start - end - 1]:
            start -= 1
        runs.add((start, end))
    # Every run that long covers one of the message's pieces whole.
    for at in range(0, len(message) - _SHORTEST_PIECE + 1, _SHORTEST_PIECE):
        for place in islice(_places(message[at : at + _SHORTEST_PIECE], form), _MOST_PLACES):
            start, end, ahead, behind = at, at + _SHORTEST_PIECE, place, place + _SHORTEST_PIECE
            while start and ahead and message[start - 1] == form[ahead - 1]:
                start, ahead = start - 1, ahead - 1
            while end < len(message) and behind < len(form) and message[end] == form[behind]:
                end, behind = end + 1, behind + 1
            runs.add((start, end))
    return whole | {_trimmed(start, end, message) for start, end in runs}


def _trimmed(start: int, end: int, message: str) -> tuple[int, int]:
    """Return a run without the quotes around it, which the server wrote, and blanks outside them."""
    run = message[start:end]
    before, after = _OPENING.match(run), _CLOSING.search(run)
    return start + (len(before[0]) if before else 0), end - (len(after[0]) if after else 0)


def _places(piece: str, text: str) -> Iterator[int]:
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)
