"""Real texts on every machine with Python: the docstrings of its standard library.

The same Python gives the same texts in the same order. The sources are parsed, not imported.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from batchclient.cli._refusal import Refusal
from batchclient.jobs.statuses import Status

__all__ = ["docstrings"]

_SHORTEST, _LONGEST = 20, 400
# Other people's packages, and code broken on purpose.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "lib2to3", "__pycache__"})


def docstrings(count: int) -> list[str]:
    """Return up to ``count`` different docstrings, each at most 400 characters long.

    Raises:
        Refusal: there are none.
    """
    seen: dict[str, None] = {}
    for source in _sources(sysconfig.get_path("stdlib")):
        for text in _docstrings_in(source):
            seen.setdefault(text[:_LONGEST].rstrip())
            if len(seen) == count:
                return list(seen)
    if not seen:
        raise Refusal("the sources of Python's standard library are not there to be read", Status.FAILED)
    return list(seen)


def _sources(root: str) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder, name)


def _docstrings_in(source: Path) -> Iterator[str]:
    try:
        # The file's own encoding, as Python reads it.
        with tokenize.open(source) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) >= _SHORTEST:
                # Docstrings may speak of lone surrogates, which cannot be sent.
                yield text.encode("utf-8", "replace").decode()
