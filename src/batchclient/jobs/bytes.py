"""Files of bytes as the readers take them: given by a user, packed by gzip, in another encoding."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

from batchclient.errors import ConfigError

__all__ = ["CHUNK_BYTES", "Bytes", "Chunks", "codec_from", "recoded", "unpacked"]

CHUNK_BYTES = 256 * 1024
Bytes: TypeAlias = "io.BufferedReader[Any]"

_NO_TEXT = "batchclient.no-text"
"""Puts a lone surrogate, which UTF-8 does not have, in place of bytes that are no text."""
codecs.register_error(_NO_TEXT, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


class Chunks(io.RawIOBase):
    """A file that is read by a function, which returns what there is and closes nothing."""

    def __init__(self, take: Callable[[int], bytes]) -> None:
        self._take = take
        self._rest = b""
        self._least = 8  # the bytes at the start that tell what the file is

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._rest or self._take(len(buffer)) or b""
        if not isinstance(chunk, bytes):
            raise ConfigError("source: a file of rows is read as bytes: open it with mode 'rb'", field="source")
        # A pipe may give a byte at a time.
        while len(chunk) < self._least and b"\n" not in chunk and (more := self._take(1)):
            chunk += more
        self._least = 0
        size = min(len(chunk), len(buffer))
        buffer[:size], self._rest = chunk[:size], chunk[size:]
        return size


def _buffered(take: Callable[[int], bytes]) -> Bytes:
    return io.BufferedReader(Chunks(take), CHUNK_BYTES)


def unpacked(file: Bytes) -> Bytes:
    """Return what gzip has packed, as soon as it is there."""
    packed = gzip.GzipFile(fileobj=Chunks(file.read1), mode="rb")

    def take(size: int) -> bytes:
        try:
            return packed.read1(size)
        except EOFError:
            raise OSError(errno.EIO, "the gzip data ends early") from None
        except (gzip.BadGzipFile, zlib.error):
            raise OSError(errno.EIO, "the gzip data is damaged") from None

    return _buffered(take)


def recoded(file: Bytes, encoding: str) -> Bytes:
    """Return a file of UTF-8. Bytes that are no text are none there either: their row is unusable."""
    decoder = codecs.getincrementaldecoder(encoding)(_NO_TEXT)

    def take(size: int) -> bytes:
        try:
            text = ""
            while not text and (chunk := file.read1(size)):
                text = decoder.decode(chunk)
            return (text or decoder.decode(b"", final=True)).encode(errors="surrogatepass")
        except UnicodeError as error:  # there is no byte-order mark, say
            raise OSError(errno.EILSEQ, f"the bytes are no {encoding}: {error}") from None

    return _buffered(take)


def codec_from(encoding: str) -> str:
    """Check the name of an encoding.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        "".encode(encoding)
        return codecs.lookup(encoding).name.removesuffix("-sig")
    except (LookupError, ValueError):
        raise ConfigError(
            f"encoding: {encoding!r:.40} is no encoding of texts, such as cp1252", field="encoding"
        ) from None
