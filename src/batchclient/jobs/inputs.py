"""What ``IN`` names: a file, a folder, a pattern, or one of these at a URL.

Rules:
- A folder is its files whose endings tell a form, at any depth. Names that begin with ``.`` or
  ``_`` are left out. In a pattern ``*`` ends at a folder, and ``**`` does not.
- Several files are one input of one form, in the order of their names. A row knows its file's name.
- Each shard reads a part of each file, and another part from file to file: small files are shared
  out evenly. Of a URL with as many files as shards, each shard reads whole files.
- URLs are read by fsspec. No message has what stands in them before ``@`` or behind ``?``.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from batchclient._client.parts import shard_from
from batchclient.errors import ConfigError
from batchclient.jobs.rows import Row
from batchclient.jobs.source import ENDINGS, File, Source, ending_of

__all__ = ["open_source", "shown"]

_USER = re.compile(r"(?<=://)(?:[^/:@]*:(?!\d*(?:[/?:]|$)).*@|[^/]*@)", re.DOTALL)
"""What stands before a host, up to the last ``@``; of the whole, if a password may have a slash."""
_QUERY = re.compile(r"(https?://[^?]*)\?.*|\?[^/?*]*=.*?(?=::|$)", re.DOTALL | re.IGNORECASE)
"""In a page's address all behind ``?``; elsewhere, where ``?`` is a pattern's, ``?name=``."""
_CODES = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
"""Of errors that fsspec's file systems raise without one."""


def shown(path: str) -> str:
    """Return a path or URL for messages, without the secrets of a URL."""
    return _QUERY.sub(r"\1", _USER.sub("", path)) if "://" in path else path


def open_source(given: str | os.PathLike[str] | BinaryIO, form: str | None = None, **options: Any) -> Source:
    """Open an input.

    Args:
        given: a path, a folder, a pattern, a URL, ``-`` for stdin, or a file that is open.
        form, options: as for ``File``.

    Raises:
        OSError: there is no such file, or the file cannot be read.
        ConfigError: an argument is wrong, no file has such a name, or the files have several forms.
    """
    if not isinstance(given, (str, os.PathLike)):
        return File(given, form, **options)
    path = os.fspath(given)
    if "://" in path:
        return _at_url(path, form, options)
    if Path(path).is_dir():
        walk = os.walk(path, onerror=_refuse)
        found = [os.path.join(top, name) for top, _, names in walk for name in names]  # noqa: PTH118
        return _Files(path, path, [each for each in found if _is_of_rows(each, path, form)], form, options)
    if glob.has_magic(path) and not os.path.lexists(path):
        found = [each for each in glob.glob(path, recursive=True) if not Path(each).is_dir()]  # noqa: PTH207
        return _Files(path, os.path.commonpath([os.path.dirname(each) for each in found] or [""]), found, form, options)  # noqa: PTH120
    return File(path, form, **options)


def _at_url(url: str, form: str | None, options: dict[str, Any]) -> Source:
    name = shown(url)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(f"{name}: URLs need fsspec, of the extra batchclient[data]") from None
    with _said("", Exception):
        try:
            system, root = url_to_fs(url)
        except (ImportError, ValueError) as error:  # such as: Install s3fs to access S3
            raise ConfigError(f"{name}: {shown(str(error))}") from None
        folder, found = None, [root]
        # Of a page nothing tells whether it is a folder, and its address may have question marks.
        is_page = url.startswith(("http://", "https://"))
        if not is_page and glob.has_magic(root):
            paths = system.glob(root, detail=True).items()
            found = [path for path, told in paths if told["type"] == "file" and "/." not in path]
            folder = os.path.commonpath([os.path.dirname(each) for each in found] or [""])  # noqa: PTH120
        elif not is_page and system.isdir(root):
            folder, found = root, [each for each in system.find(root) if _is_of_rows(each, root, form)]
    return _Files(name, folder, found, form, options, system.open)


def _refuse(error: OSError) -> None:
    raise OSError(error.errno, f"{error.filename}: {error.strerror}")


def _is_of_rows(path: str, folder: str, form: str | None) -> bool:
    told, parts = ENDINGS.get(ending_of(path)), PurePath(os.path.relpath(path, folder)).parts
    return told is not None and form in (None, told) and not any(part[0] in "._" for part in parts)


class _Files(Source):
    """The rows of several files, one after the other.

    Args:
        name: for messages.
        folder: that has them all: the names of files begin there. ``None``: there is one file.
        paths: of the files.
        form, options: as for ``File``.
        open_at: opens a file behind a URL; ``None``: the paths are here.

    Raises:
        OSError: a file is not there any more.
        ConfigError: an argument is wrong, there is no file, or the endings tell several forms.
    """

    def __init__(
        self,
        name: str,
        folder: str | None,
        paths: Sequence[str],
        form: str | None,
        options: dict[str, Any],
        open_at: Callable[[str], Any] | None = None,
    ) -> None:
        options = dict(options)
        super().__init__(name, form, options.pop("most", None))
        shard = options.pop("shard", None)
        part, parts = (0, 1) if shard is None else shard_from(shard)
        self._folder, self._form, self._options, self._open_at = folder, form, options, open_at
        self._paths = sorted(paths)
        if not self._paths:
            why = f"the folder has no file of {form or 'rows'} by its ending ({', '.join(ENDINGS)})"
            raise ConfigError(f"{name}: {'no file has such a name' if glob.has_magic(name) else why}")
        if open_at is not None and len(paths) >= parts:
            self._paths, part, parts = self._paths[part::parts], 0, 1
        self._shard = part, parts
        forms = {ENDINGS.get(ending_of(path)): self._name_of(path) for path in reversed(self._paths)}
        if form is None and len(forms) > 1:
            several = ", ".join(f"{each} is {told or 'of no form'}" for told, each in forms.items())
            raise ConfigError(f"format: the files of {name} have several forms: {several}", field="format")
        self.is_regular = open_at is None
        self._place = 0
        self._sizes: list[int] = []
        if open_at is None:
            told = []
            for path in self._paths:
                with _said(self._name_of(path)):
                    status = os.stat(path)  # noqa: PTH116
                    if not stat.S_ISREG(status.st_mode):
                        raise OSError(errno.EINVAL, "it is no regular file")
                told.append((path, status.st_size, status.st_mtime_ns))
            self._sizes = [size for _, size, _ in told]
            self.stamp = [os.path.realpath(name), hashlib.sha256(repr(told).encode()).hexdigest()]

    def expected(self) -> int | None:
        total = 0
        for place, path in enumerate(self._paths):
            if self._open_at is not None:
                return None
            with _said(path), self._opened(place) as file:
                file.first()
                known = file.expected()
            if known is None:
                return None
            total += known
        return total if self._most is None else min(total, self._most)

    @property
    def share(self) -> float | None:
        if not self._sizes or self._file is None:
            return None
        done, now = self._sizes[: self._place], self._sizes[self._place]
        return (sum(done) + now * (self._file.share or 0.0)) / max(1, sum(self._sizes))

    def reads(self, path: str) -> bool:
        real, of_input = os.path.realpath(path), os.path.realpath(self.name)
        if Path(of_input).is_dir():
            return PurePath(real).is_relative_to(of_input) and _is_of_rows(real, of_input, self._form)
        # At the end of a pattern ** has the files at any depth.
        folder, last = os.path.split(self.name if PurePath(self.name).name != "**" else f"{self.name}/*")
        top, new = os.path.split(real)
        is_found = fnmatch.fnmatchcase(new, last) and (not new.startswith(".") or last.startswith("."))
        folders = glob.glob(folder or ".", recursive=True) if is_found else []  # noqa: PTH207
        return top in map(os.path.realpath, folders) or real in map(os.path.realpath, self._paths)

    def _name_of(self, path: str) -> str:
        return os.path.relpath(path, self._folder) if self._folder else path

    @contextmanager
    def _opened(self, place: int) -> Iterator[Source]:
        path, (part, parts) = self._paths[place], self._shard
        with ExitStack() as stack:
            given = path if self._open_at is None else stack.enter_context(self._open_at(path))
            shard = None if parts == 1 else ((part + place) % parts, parts)
            yield stack.enter_context(File(given, self._form, shard=shard, name=shown(path), **self._options))

    def _read(self) -> Iterator[Row]:
        kinds = OSError if self._open_at is None else Exception
        for place, path in enumerate(self._paths):
            name = "" if self._folder is None else self._name_of(path)
            self._place = place
            with _said(name if place else "", kinds), self._opened(place) as self._file:
                self._file.first()  # by which the form is known, and a table's columns; also if it has no row
                if self.form not in (None, self._file.form) and self._file.form is not None:
                    raise ConfigError(f"it is {self._file.form}, and the files before are {self.form}")
                self.form = self._file.form or self.form
                self.names, self.schema = self.names or self._file.names, self.schema or self._file.schema
                for row in self._file.read():
                    row.file = name
                    yield row


@contextmanager
def _said(name: str, kinds: type[Exception] = OSError) -> Iterator[None]:
    """Turn errors into an ``OSError``; of a later file, which has a name, wrong contents, too."""
    start = f"{name}: " if name else ""
    try:
        yield
    except ConfigError as error:
        if not name:
            raise
        raise OSError(errno.EINVAL, start + error.message) from None
    except kinds as error:
        code = getattr(error, "errno", None) or next((_CODES[kind] for kind in _CODES if isinstance(error, kind)), None)
        known = os.strerror(code) if isinstance(code, int) else type(error).__name__
        raise OSError(code or errno.EIO, start + (getattr(error, "strerror", None) or known)) from None
