"""Pictures and sounds of a row: parts of the last message of the user's, before its text.

Rules:
- A field has a path, a URL, bytes, or a struct of ``bytes`` and ``path``, as datasets writes it; or
  a list of these. ``null`` is none.
- A path leads from the root to a file below it, links included. What a URL (``http``, ``https``,
  ``data``) names is not fetched here: the server gets the URL.
- The first bytes of a file tell its type. Without a type that is known here, nothing is sent.
- No message has the path: whatever stands in a row may be its text.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchclient.errors import ConfigError
from batchclient.jobs.rows import BadRow, Row

__all__ = ["MOST_BYTES", "MOST_OPEN_BYTES", "Media"]

MOST_BYTES = 64 * 1024 * 1024
"""Of the media of one row."""
MOST_OPEN_BYTES = 256 * 1024 * 1024
"""Of the media of all rows that wait for an answer, as data URIs."""
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", 0, "png"), (b"\xff\xd8\xff", 0, "jpeg"), (b"GIF8", 0, "gif"), (b"WEBP", 8, "webp"),
    (b"BM", 0, "bmp"), (b"II*\0", 0, "tiff"), (b"MM\0*", 0, "tiff"), (b"ftypavif", 4, "avif"), (b"ftyphei", 4, "heic"),
)  # fmt: skip
_SOUNDS = (
    (b"WAVE", 8, "wav"), (b"ID3", 0, "mpeg"), (b"\xff\xfb", 0, "mpeg"), (b"\xff\xf3", 0, "mpeg"),
    (b"\xff\xf2", 0, "mpeg"), (b"fLaC", 0, "flac"), (b"OggS", 0, "ogg"), (b"ftypM4A", 4, "mp4"),
    (b"\x1aE\xdf\xa3", 0, "webm"),
)  # fmt: skip
"""How a file begins, from which byte on, and its type."""
_URLS = ("http://", "https://", "data:")
_OPENING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Media:
    """Adds the media of rows to their chats.

    Args:
        images: fields with pictures.
        audio: fields with sounds.
        root: the folder that paths lead from, and do not leave; ``None``: paths are refused.

    Attributes:
        fields: of both kinds.
        stamp: changes with the files of the rows read ahead, as far as path, size and mtime tell.
        checksum: of what these rows have, by whatever path.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(self, images: Sequence[str], audio: Sequence[str] = (), root: str | None = None) -> None:
        self.fields: tuple[str, ...] = (*images, *audio)
        self.stamp: int = 0
        self.checksum: int = 0
        self._open: dict[int, int] = {}
        self._room = threading.Condition()
        self._kinds = [(name, "image", _IMAGES) for name in images] + [(name, "audio", _SOUNDS) for name in audio]
        self._root = None if root is None else Path(root).resolve()
        if self._root is not None and not self._root.is_dir():
            raise ConfigError(f"{root} is no folder", field="media-root")

    def __repr__(self) -> str:
        return f"<Media of {', '.join(self.fields)}>"

    def load(self, row: Row) -> Row:
        """Read a row's media, and wait for files; return the row. ``add`` tells what is wrong."""
        try:
            row.media = self._parts_of(row)
        except BadRow as error:
            row.media = error
        return row

    def read_ahead(self, row: Row) -> Row:
        """Do as ``load``, and wait for room; ``leave`` makes it. One row of any size has room."""
        self.stamp ^= self.stamp_of(row)
        self.checksum ^= self.checksum_of(row)
        media = row.media
        parts = () if isinstance(media, BadRow) else media
        size = sum(len(part[part["type"]]["url"]) for part in parts)
        with self._room:
            self._room.wait_for(lambda: not self._open or sum(self._open.values()) + size <= MOST_OPEN_BYTES)
            self._open[id(row)] = size
        return row

    def checksum_of(self, row: Row) -> int:
        """Do as ``load``; return what changes with the pictures and sounds themselves."""
        media = self.load(row).media
        told = 0
        for part in () if isinstance(media, BadRow) else media:
            told = zlib.crc32(part[part["type"]]["url"].encode("utf-8", "surrogatepass"), told)
        return _hash_of(row, told) if told else 0

    def stamp_of(self, row: Row) -> int:
        """Return what changes with the files that a row names; none is opened."""
        told: list[Any] = []
        for name in self.fields if row.fault is None else ():
            value = row.get(name)
            for each in value if isinstance(value, list) else [value]:
                path = each.get("path") if isinstance(each, dict) and each.get("bytes") is None else each
                if self._root is None or not isinstance(path, str) or path.lower().startswith(_URLS):
                    continue
                with suppress(OSError, ValueError):
                    status = (self._root / path).stat()
                    told.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
        return _hash_of(row, (os.fspath(self._root or ""), told)) if told else 0

    def name(self, item: str | list[Any], row: Row) -> list[Any]:
        """Do as ``add``, and read no file: where a picture would be, stands what names it."""
        names = [row[name] for name in self.fields if name in row] if row.fault is None else []
        row.media = [{"type": "text", "text": repr(name)} for name in names if name is not None]
        return self.add(item, row)

    def leave(self, row: Row) -> None:
        """Take in that a row's call has ended."""
        with self._room:
            self._open.pop(id(row), None)
            self._room.notify()

    def add(self, item: str | list[Any], row: Row) -> list[Any]:
        """Return a prompt, or a conversation, with the row's media.

        Raises:
            BadRow: a field is not there, cannot be read, or has something else; or the conversation
                has no message of the user's.
        """
        if row.media is None:
            self.load(row)
        parts, row.media = row.media, None
        if isinstance(parts, BadRow):
            raise parts
        messages: list[Any] = [{"role": "user", "content": item}] if isinstance(item, str) else list(item)
        if not parts:
            return messages
        places = [place for place, each in enumerate(messages) if isinstance(each, dict) and each.get("role") == "user"]
        if not places:
            raise BadRow(f"{row.where} has media, and no message of the user's")
        message = messages[places[-1]]
        content = message.get("content")
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        messages[places[-1]] = {**message, "content": [*parts, *texts]}
        return messages

    def _parts_of(self, row: Row) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        left = MOST_BYTES
        for name, kind, types in self._kinds if row.fault is None else ():
            if name not in row:
                raise BadRow(f"{row.where} has no field {name!r}")
            value = row[name]
            for each in value if isinstance(value, list) else [value]:
                if each is None:
                    continue
                try:
                    url = each if isinstance(each, str) and each.lower().startswith(_URLS) else None
                    if url is None:
                        content = self._bytes_of(each, left)
                        left -= len(content)
                        url = _data_url(content, kind, types)
                except RuntimeError:  # a circle of links, before Python 3.13
                    raise BadRow(f"{row.where}: {name!r}: {os.strerror(errno.ELOOP)}") from None
                except OSError as error:
                    raise BadRow(f"{row.where}: {name!r}: {error.strerror or type(error).__name__}") from None
                except ValueError as error:
                    raise BadRow(f"{row.where}: {name!r} {error}") from None
                parts.append({"type": f"{kind}_url", f"{kind}_url": {"url": url}})
        return parts

    def _bytes_of(self, value: Any, most: int) -> bytes:
        if isinstance(value, dict):
            value = value["path"] if value.get("bytes") is None and "path" in value else value.get("bytes")
        if isinstance(value, bytes):
            if len(value) > most:
                raise ValueError(f"is too long: the media of a row have at most {MOST_BYTES >> 20} MiB")
            return value
        if not isinstance(value, str):
            raise ValueError(f"is a {type(value).__name__}, and no path, URL or bytes")
        if self._root is None:
            raise ValueError("is a path, and no --media-root says where paths begin")
        # ``resolve`` follows links; what has become one since then is not opened.
        path = (self._root / value).resolve(strict=True)
        if not path.is_relative_to(self._root):
            raise ValueError("leads out of --media-root")
        file = os.open(path, _OPENING)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("is no file")
            if status.st_size > most:
                raise ValueError(f"is too long: the media of a row have at most {MOST_BYTES >> 20} MiB")
            with open(file, "rb", closefd=False) as opened:
                return opened.read(most)
        finally:
            os.close(file)


def _hash_of(row: Row, told: Any) -> int:
    data = repr((row.file, row.line, told)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def _data_url(content: bytes, kind: str, types: Sequence[tuple[bytes, int, str]]) -> str:
    found = next((name for start, place, name in types if content.startswith(start, place)), None)
    if found is None:
        raise ValueError(f"has no {kind} of a type that is known by its first bytes")
    return f"data:{kind}/{found};base64,{base64.b64encode(content).decode()}"
