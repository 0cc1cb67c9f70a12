"""What ``IN`` names, as a list of files: one, a folder's, a pattern's, or those at a URL.

Rules:
- A folder is its files whose endings tell a form, at any depth. Names that begin with ``.`` or
  ``_`` are left out. In a pattern ``*`` ends at a folder, and ``**`` does not.
- Several files are one input of one form, in the order of their names. A row knows its file's name.
- URLs are read by fsspec. No message has what stands in them before ``@`` or behind ``?``.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from batchclient.errors import ConfigError
from batchclient.jobs.rows import Format

__all__ = ["ENDINGS", "Input", "ending_of", "input_of", "said", "shown"]

ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".csv": "csv", ".tsv": "csv", ".tab": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
_USER = re.compile(r"(?<=://)(?:[^/:@]*:(?!\d*(?:[/?:]|$)).*@|[^/]*@)", re.DOTALL)
"""What stands before a host, up to the last ``@``; of the whole, if a password may have a slash."""
_QUERY = re.compile(r"(https?://[^?]*)\?.*|\?[^/?*]*=.*?(?=::|$)", re.DOTALL | re.IGNORECASE)
"""In a page's address all behind ``?``; elsewhere, where ``?`` is a pattern's, ``?name=``."""
_CODES = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
"""Of errors that fsspec's file systems raise without one."""


def shown(path: str) -> str:
    """Return a path or URL for messages, without the secrets of a URL."""
    return _QUERY.sub(r"\1", _USER.sub("", path)) if "://" in path else path


def ending_of(name: str) -> str:
    """Return the ending that tells the form of a file, in small letters."""
    path = Path(name.lower())
    return (path.with_suffix("") if path.suffix in _PACKED_ENDINGS else path).suffix


class Input(NamedTuple):
    """The files of an input.

    Args:
        name: for messages.
        files: their paths; or one that is open, and stays open.
        folder: where the names of several files begin; ``None``: there is one file.
        system: fsspec's, of files at a URL; ``None``: they are here.
    """

    name: str
    files: Sequence[Any]
    folder: str | None = None
    system: Any = None

    @property
    def is_given(self) -> bool:
        """Whether it is a file that the caller has opened."""
        return not isinstance(self.files[0], str)

    def name_of(self, path: str) -> str:
        """Return a file's name in its rows; empty: there is one file."""
        if self.folder is None:
            return ""
        return os.path.relpath(path, self.folder) if self.folder else path

    @contextmanager
    def opened(self, file: Any) -> Iterator[Any]:
        """Open one of the files for reading bytes, whatever it is."""
        if self.is_given:
            yield file
            return
        is_stdin = self.system is None and file == "-"
        # Read below Python's own buffer: a thread that waits in it keeps the interpreter alive.
        open_at = partial(open, buffering=0, closefd=not is_stdin) if self.system is None else self.system.open
        with open_at(sys.stdin.fileno() if is_stdin else file, mode="rb") as opened:
            yield opened

    def reads(self, path: str, form: str | None) -> bool:
        """Return whether a new file of this name would be a part of an input of this form."""
        if self.folder is None:
            return False
        real, of_input = os.path.realpath(path), os.path.realpath(self.name)
        if Path(of_input).is_dir():
            return PurePath(real).is_relative_to(of_input) and _is_of_rows(real, of_input, form)
        # At the end of a pattern ** has the files at any depth.
        folder, last = os.path.split(self.name if PurePath(self.name).name != "**" else f"{self.name}/*")
        top, new = os.path.split(real)
        is_found = fnmatch.fnmatchcase(new, last) and (not new.startswith(".") or last.startswith("."))
        folders = glob.glob(folder or ".", recursive=True) if is_found else []  # noqa: PTH207
        return top in map(os.path.realpath, folders) or real in map(os.path.realpath, self.files)


def input_of(given: str | os.PathLike[str] | BinaryIO, form: str | None) -> Input:
    """Find the files of an input.

    Args:
        given: a path, a folder, a pattern, a URL, ``-`` for stdin, or a file that is open.
        form: of the files; ``None``: their endings tell.

    Raises:
        OSError: a folder cannot be read.
        ConfigError: no file has such a name, or the files have several forms.
    """
    if not isinstance(given, (str, os.PathLike)):
        return Input(str(getattr(given, "name", type(given).__name__)), [given])
    path = os.fspath(given)
    if "://" in path:
        found = _at_url(path, form)
    elif Path(path).is_dir():
        walk = os.walk(path, onerror=_refuse)
        paths = [os.path.join(top, name) for top, _, names in walk for name in names]  # noqa: PTH118
        found = Input(path, [each for each in paths if _is_of_rows(each, path, form)], path)
    elif glob.has_magic(path) and not os.path.lexists(path):
        paths = [each for each in glob.glob(path, recursive=True) if not Path(each).is_dir()]  # noqa: PTH207
        found = Input(path, paths, _folder_of(paths))
    else:
        return Input("stdin" if path == "-" else path, [path])
    if not found.files:
        why = f"the folder has no file of {form or 'rows'} by its ending ({', '.join(ENDINGS)})"
        raise ConfigError(f"{found.name}: {'no file has such a name' if glob.has_magic(found.name) else why}")
    found = found._replace(files=sorted(found.files))
    forms = {ENDINGS.get(ending_of(each)): found.name_of(each) or each for each in reversed(found.files)}
    if form is None and len(forms) > 1:
        several = ", ".join(f"{each} is {told or 'of no form'}" for told, each in forms.items())
        raise ConfigError(f"format: the files of {found.name} have several forms: {several}", field="format")
    return found


def _at_url(url: str, form: str | None) -> Input:
    name = shown(url)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(f"{name}: URLs need fsspec, of the extra batchclient[data]") from None
    with said("", Exception):
        try:
            system, root = url_to_fs(url)
        except (ImportError, ValueError) as error:  # such as: Install s3fs to access S3
            raise ConfigError(f"{name}: {shown(str(error))}") from None
        # Of a page nothing tells whether it is a folder, and its address may have question marks.
        is_page = url.startswith(("http://", "https://"))
        if not is_page and glob.has_magic(root):
            told = system.glob(root, detail=True).items()
            found = [path for path, each in told if each["type"] == "file" and "/." not in path]
            return Input(name, found, _folder_of(found), system)
        if not is_page and system.isdir(root):
            return Input(name, [each for each in system.find(root) if _is_of_rows(each, root, form)], root, system)
        return Input(name, [root], None, system)


def _folder_of(paths: Sequence[str]) -> str:
    """Return the folder that has all the files of a pattern."""
    return os.path.commonpath([os.path.dirname(each) for each in paths] or [""])  # noqa: PTH120


def _refuse(error: OSError) -> None:
    raise OSError(error.errno, f"{error.filename}: {error.strerror}")


def _is_of_rows(path: str, folder: str, form: str | None) -> bool:
    told, parts = ENDINGS.get(ending_of(path)), PurePath(os.path.relpath(path, folder)).parts
    return told is not None and form in (None, told) and not any(part[0] in "._" for part in parts)


@contextmanager
def said(name: str, kinds: type[Exception] = OSError) -> Iterator[None]:
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
