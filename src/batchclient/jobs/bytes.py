"""Files of bytes as the readers take them: given by a user, packed, in another encoding."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

from batchclient._maps.arrow import pyarrow_for
from batchclient.errors import ConfigError

__all__ = ["CHUNK_BYTES", "Bytes", "Chunks", "Packed", "checksum_of", "codec_from", "packed_by", "recoded"]

CHUNK_BYTES = 256 * 1024
Bytes: TypeAlias = "io.BufferedReader[Any]"

_PACKED = {
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](1AY&|\x17rE8)",
    "xz": rb"\xfd7zXZ\0",
    "zstd": rb"\x28\xb5\x2f\xfd",
}
"""How files begin that are packed."""
_NO_TEXT = "batchclient.no-text"
"""Puts a lone surrogate, which UTF-8 does not have, in place of bytes that are no text."""
codecs.register_error(_NO_TEXT, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


def checksum_of(path: str | os.PathLike[str], checksum: int = 0) -> int:
    """Return a checksum of a file's bytes, behind others of this checksum."""
    with open(path, "rb") as file:  # noqa: PTH123
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


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


def packed_by(start: bytes) -> str | None:
    """Return what has packed a file that begins so; ``None``: nothing has."""
    return next((name for name, begins in _PACKED.items() if re.match(begins, start)), None)


class Packed:
    """What is in a packed file, as soon as it is there.

    Args:
        file: the packed one.
        by: what has packed it.

    Attributes:
        file: what is in it.
        read, made: bytes of both files, so far.

    Raises:
        ConfigError: it is zstd, and pyarrow is not installed.
    """

    def __init__(self, file: Bytes, by: str) -> None:
        self.read: int = 0
        self.made: int = 0
        self._packed = file
        self._by = by
        self._source: Any = _OPEN[by](Chunks(self._read))
        self.file: Bytes = _buffered(self._make)

    def __repr__(self) -> str:
        return f"<Packed by {self._by}: {self.read} bytes read>"

    def _read(self, size: int) -> bytes:
        data = self._packed.read1(size)
        self.read += len(data)
        return data

    def _make(self, size: int) -> bytes:
        try:
            data: bytes = self._source.read1(size)
        except EOFError:
            raise OSError(errno.EIO, f"the {self._by} data ends early") from None
        except (ValueError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise OSError(errno.EIO, f"the {self._by} data is damaged") from None
        self.made += len(data)
        return data


def _open_zstd(file: io.RawIOBase) -> Any:
    return pyarrow_for("a file packed by zstd").input_stream(file, compression="zstd")


_OPEN: dict[str, Callable[[Any], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zstd": _open_zstd,
}


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
