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

__all__ = ["mark", "redact", "unmarked", "words_and_shown"]

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
_WINDOW_BYTES = 96
_NO_TEXTS = frozenset({"role", "type"})
_PROTOCOL = frozenset({b"", b"role", b"content", b"type", b"text", b"user", b"system", b"assistant", b"tool", b"name"})
_TEXT = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"')
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


def redact(message: str, prompts: Collection[bytes], secrets: Collection[str]) -> str:
    """Cut prompts (written as JSON) and keys out of a server's message, and shorten the message."""
    return words_and_shown(message, prompts, secrets)[1]


def words_and_shown(message: str, prompts: Collection[bytes], secrets: Collection[str]) -> tuple[str, str]:
    """Return the server's own words of a message, to be judged, and what is shown of it."""
    forms = _quoted_forms(message, prompts)
    echoes = dict.fromkeys((form for form in forms if len(form) >= _SHORTEST_ECHO), "[prompt]")
    words = _without(_beginning(unmarked(message)), echoes, _SHORTEST_ECHO)
    labels = dict.fromkeys(forms, "[prompt]")
    for secret in secrets:
        if " " in secret:
            # Of ``Bearer …`` the last word is a secret by itself.
            message = message.replace(secret, "[key]")
        elif not _is_plain(secret):
            labels.update(dict.fromkeys(_written(secret), "[key]"))
    parts = _PLACE.split(_beginning(message))
    parts[::2] = [_without(unmarked(part), labels) for part in parts[::2]]
    shown = "".join(parts)
    for secret in filter(_is_plain, secrets):
        if len(secret) >= _SHORTEST_SECRET:
            shown = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "[key]", shown)
    shown = " ".join(shown.split())
    return words, shown if len(shown) <= _LONGEST_MESSAGE else shown[: _LONGEST_MESSAGE - 1] + "…"


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
    looked_at = list(prompts)
    if sum(map(len, prompts)) > _MOST_BYTES:
        looked_at = [prompt[:_WINDOW_BYTES] + prompt[-_WINDOW_BYTES:] for prompt in prompts]
    found = _shared(message, looked_at)
    if not found:
        return set()
    return {
        unmarked(form)
        for prompt, seen in zip(prompts, looked_at, strict=True)
        if any(piece in seen for piece in found)
        for form in _forms(prompt)
    }


def _shared(message: str, prompts: Collection[bytes]) -> list[bytes]:
    """Return pieces of prompts, as they are written, that a message has, too: pieces of it from
    somewhere in a prompt, and texts whose beginning or end is somewhere in it.
    """
    everything = b"\0".join(prompts)
    plain, compact = _unescaped(message), message.replace(", ", ",")
    written = {message, compact, plain, _write(plain)[1:-1], _write(message)[1:-1], json.dumps(message)[1:-1]}
    pieces = {
        _as_bytes(text[at : at + _SHORTEST_PIECE])
        for text in written
        for at in range(0, max(1, len(text) - _SHORTEST_PIECE + 1), _SHORTEST_PIECE)
    }
    shared = [piece for piece in pieces if piece in everything]
    said = _as_bytes(f"{message}\0{compact}\0{plain}")
    texts = {text: _read(text) for text in {*_TEXT.findall(everything)} - _PROTOCOL}
    texts |= {ids: ids for ids in prompts if not ids.startswith((b'"', b"[{"))}
    shared += [
        text
        for text, read in texts.items()
        if len(read) >= _SHORTEST_SECRET and (read[:_SHORTEST_PIECE] in said or read[-_SHORTEST_PIECE:] in said)
    ]
    return shared


def _unescaped(message: str) -> str:
    """Return a message without the escapes of JSON and ``repr``; what is none stays."""
    if "\\" not in message:
        return message
    plain = _ESCAPE.sub(lambda found: _ESCAPED.get(found[0]) or chr(int(f"0x{found[0][2:]}", 0)), message)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read(text: bytes) -> bytes:
    """Return a text within JSON without escapes."""
    if b"\\" not in text:
        return text
    try:
        return _as_bytes(json.loads(b'"%b"' % text))
    except ValueError:
        # A character was cut in two.
        return text


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


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


def _without(message: str, labels: dict[str, str], shortest_run: int = 0) -> str:
    """Cut forms out of a message, whole and in pieces; shorter pieces than ``shortest_run`` stay."""
    runs = sorted(
        (start, -end, labels[form])
        for form in labels
        if len(form) >= _SHORTEST_SECRET
        for start, end in _runs_of(form, message)
        if end - start >= shortest_run
    )
    made, at, longest = [message], 0, 0
    for start, back, label in runs:
        end = -back
        if start >= at:
            made[-1:], longest = [made[-1][: start - at], label, ""], 0
        # Those that overlap are one; the longest names it.
        if end - start > longest:
            longest, made[-2] = end - start, label
        at = max(at, end)
        made[-1] = message[at:]
    return "".join(made)


def _runs_of(form: str, message: str) -> set[tuple[int, int]]:
    """Return where a message repeats a text: the whole; its beginning or end from ``_SHORTEST_PIECE``
    characters on, as servers shorten an echo; its middle from twice as many on, less one.
    """
    whole = {(at, at + len(form)) for at in _places(form, message)}
    if len(form) <= _SHORTEST_PIECE:
        return whole
    last = len(form) - _SHORTEST_PIECE
    alike = {(at, 0) for at in _places(form[:_SHORTEST_PIECE], message)}
    alike |= {(at, last) for at in _places(form[last:], message)}
    # Every run of the middle that long covers one of the message's pieces whole.
    for at in range(0, len(message) - _SHORTEST_PIECE + 1, _SHORTEST_PIECE):
        piece = message[at : at + _SHORTEST_PIECE]
        alike |= {(at, place) for place in islice(_places(piece, form), _MOST_PLACES)}
    return whole | {_run(at, place, form, message) for at, place in alike}


def _run(at: int, place: int, form: str, message: str) -> tuple[int, int]:
    """Return the whole run of a message that is alike from a place in a form on, and before it.

    The quotes around it, which the server wrote, and blanks outside them are left out.
    """
    ahead = behind = 0
    while at > ahead and place > ahead and message[at - ahead - 1] == form[place - ahead - 1]:
        ahead += 1
    longest = min(len(message) - at, len(form) - place)
    while behind < longest and message[at + behind] == form[place + behind]:
        behind += 1
    run = message[at - ahead : at + behind]
    before, after = _OPENING.match(run), _CLOSING.search(run)
    return at - ahead + (len(before[0]) if before else 0), at + behind - (len(after[0]) if after else 0)


def _places(piece: str, text: str) -> Iterator[int]:
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)
