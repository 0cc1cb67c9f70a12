"""No page, example, docstring, benchmark or script has an old name of an argument or an option."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchclient._given_as import GIVEN_AS

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "src/batchclient/_given_as.py"
"""It has the old names, to refuse them with the new ones."""
FILES = [
    ROOT / "Makefile",
    *sorted(ROOT.glob("*.md")),
    *sorted(
        path
        for folder in ("docs", "examples", "src", "benchmarks", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".pyi", ".sh", ".toml", ".yaml"}
    ),
]
GROUPS = ("AdaptiveLimit", "Batching", "Schedule", "Http")
FIELDS = {name: re.fullmatch(r"\w+=(\w+)\((\w+)=…\)", given).groups() for name, given in GIVEN_AS.items()}  # type: ignore[union-attr]
"""By old name: the group, and the field in it."""
WORDS = sorted(name for name, (_, field) in FIELDS.items() if name not in {field, "batch_size"})
"""Names that mean nothing now. ``batch_size`` is a plain word: only as an argument is it old."""
WORD = re.compile(rf"\b({'|'.join(WORDS)})\b|--max-list\b")
FLAT = re.compile(rf"(?<![\w.]){'(' + '|'.join(FIELDS) + ')'}=(?!=)")
SPAN = re.compile(r"`[^`]+`")
COMMANDS = ROOT / "src/batchclient/cli"
OPTIONS = frozenset({"http_backend", "max_list", "--max-list"})
"""Words of the commands: ``--http-backend`` is an option, ``--max-list`` is refused."""
OF_OTHERS = {"docs/how-to/ray.md": "batch_size="}
"""Arguments of other libraries' functions that have an old name of ours."""
TAKERS = {"AsyncOpenAI", "BatchClient", "BatchTransport", "OpenAI", "SyncBatchClient", "SyncBatchTransport"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def old_words(source: str, own: frozenset[str] = frozenset()) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), 1):
        yield from (f"{number}: {found[0]}" for found in WORD.finditer(line) if found[0] not in own)


def old_options(source: str) -> Iterator[str]:
    """Where our own command is given ``--limit``. Benchmarks have a ``--limit`` of theirs."""
    for found in re.finditer(r"\bbatchclient (?:map|demo)\b[^`]*?--limit\b", source):
        yield f"{source.count(chr(10), 0, found.end()) + 1}: --limit"


def flat_in_page(page: str) -> Iterator[str]:
    """Where a page gives a field without its group: in a span of code, or in a line of a block."""
    fenced = False
    for number, line in enumerate(page.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        for code in [line] if fenced else SPAN.findall(line):
            yield from (f"{number}: {found[0]}" for found in FLAT.finditer(code) if not in_group(code, found.start()))


def in_group(code: str, at: int) -> bool:
    return any(f"{group}(" in code[:at] for group in GROUPS)


def flat_in_python(source: str) -> Iterator[str]:
    """Where a client, a drop-in or a transport is made with a field instead of its group."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in TAKERS:
                yield from (f"{node.lineno}: {key.arg}=" for key in node.keywords if key.arg in FIELDS)


@pytest.mark.parametrize("path", [path for path in FILES if path != TABLE], ids=name)
def test_a_file_has_no_old_name(path: Path) -> None:
    source = path.read_text()
    found = [*old_words(source, OPTIONS if COMMANDS in path.parents else frozenset()), *old_options(source)]
    if path.suffix == ".md":
        own = OF_OTHERS.get(name(path))
        found += [place for place in flat_in_page(source) if place.partition(": ")[2] != own]
    elif path.suffix == ".py" and any(taker in source for taker in TAKERS):
        found += flat_in_python(source)
    assert not found, f"{name(path)}: {found}; the new names: {GIVEN_AS}"


@pytest.mark.parametrize(
    "page",
    [
        "give `max_list=1`",
        "until `initial_limit`",
        "set `trust_env=True`",
        "`BatchClient(order=…)`",
        "```python\nclient = BatchClient(URL, linger_s=1)\n```",
        "run\n    batchclient map in.jsonl --base-url URL \\\n        --limit 8",
        "batchclient map --max-list 8",
    ],
)
def test_it_sees_an_old_name(page: str) -> None:
    assert [*old_words(page), *old_options(page), *flat_in_page(page)]


@pytest.mark.parametrize("call", ["BatchClient(URL, refill_s=1)", "openai.AsyncOpenAI(batch_size=len)"])
def test_it_sees_an_old_argument_of_a_call(call: str) -> None:
    assert [*flat_in_python(call)]


@pytest.mark.parametrize(
    "page",
    [
        "`Batching(max_size=8, linger_s=0)`",
        "`read_timeout_s` of `Http`",
        "python benchmarks/million.py --limit 8",
        "batch_size",
    ],
)
def test_it_lets_new_names_be(page: str) -> None:
    assert not [*old_words(page), *old_options(page), *flat_in_page(page)]
