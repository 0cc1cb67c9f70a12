"""Measure and check the prose: docstrings of ``src``, pages of ``docs``.

    python scripts/prose.py count          # words that point instead of naming, in 1,000 words
    python scripts/prose.py check [PATH …] # lines over 100 columns and sentences over 40 words
    python scripts/prose.py same REVISION  # whether code differs from a git revision

``count`` reads docstrings. ``check`` has exit status 1 if it finds any. ``same`` compares all but
docstrings and comments.

Prose is a docstring, a comment, or a Markdown paragraph or list item. Code blocks, tables, links'
targets and lines that are one word are not prose. A sentence ends at a full stop, colon,
semicolon, question mark or blank line.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_COLUMNS, MOST_WORDS = 100, 40
PRONOUNS = frozenset(
    [
        "it",
        "its",
        "itself",
        "they",
        "them",
        "their",
        "theirs",
        "themselves",
        "this",
        "that",
        "these",
        "those",
        "one",
        "ones",
    ]
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_CODE = re.compile(r"``.*?``|`[^`]*`|\[([^\]]*)\]\([^)]*\)|<[^>]*>|https?://\S+")
_END = re.compile(r"(?<=[.:;?!])[)\"'”*_]*(?:\s+|$)")

Line = tuple[int, str]
"""(number, text)."""


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, also those that stand under a name."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for statement in body:
                if _is_docstring(statement):
                    yield statement.value


def prose_of_python(source: str) -> Iterator[list[Line]]:
    """Yield each docstring and each run of comments as lines."""
    for text in docstrings(ast.parse(source)):
        lines = source.splitlines()[text.lineno - 1 : text.end_lineno]
        lines[0] = lines[0][text.col_offset :]
        yield list(enumerate(lines, text.lineno))
    run: list[Line] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") and not _is_mark(token.string):
            if run and token.start[0] != run[-1][0] + 1:
                yield run
                run = []
            run.append((token.start[0], token.line.rstrip("\n")))
    if run:
        yield run


def _is_mark(comment: str) -> bool:
    return bool(re.match(r"# (noqa|type:|fmt:|-{3})|#!|#.*-{10}$", comment))


def prose_of_markdown(source: str) -> Iterator[list[Line]]:
    """Yield the paragraphs and list items of a page."""
    fenced, block = False, []
    for number, line in enumerate(source.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        fenced = fenced != is_fence
        is_other = fenced or is_fence or line.startswith(("|", "#", "    ", "<!--")) or not line.strip()
        if (is_other or line.lstrip().startswith(("- ", "* ", "1. "))) and block:
            yield block
            block = []
        if not is_other:
            block.append((number, line))
    if block:
        yield block


def sentences(block: list[Line]) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) of a block; arguments, list items and code lines stand apart."""
    part: list[Line] = []
    indent_of_code = None
    for number, line in block:
        text = re.sub(r'^\s*(#|r?""")?\s?', "", line) if not line.lstrip().startswith("- ") else line
        stripped = text.strip().removeprefix('"""').removesuffix('"""').strip()
        indent = len(line) - len(line.lstrip())
        if indent_of_code is not None and (not stripped or indent >= indent_of_code):
            continue
        indent_of_code = None
        starts = re.match(r"\s*(- |\* |\d+\. |[A-Za-z_*, ]+: )", text) is not None
        if not stripped or starts:
            yield from _split(part)
            part = []
        if re.search(r"[=(){}\[\]]", stripped) and indent >= 8 and not re.search(r"[.;:]$|``", stripped) and not part:
            indent_of_code = indent
            continue
        if stripped:
            part.append((number, stripped))
    yield from _split(part)


def _split(lines: list[Line]) -> Iterator[tuple[int, str]]:
    if not lines:
        return
    text, starts = "", []
    for number, line in lines:
        starts.append((len(text), number))
        text += _CODE.sub(lambda match: match.group(1) or "X", line) + " "
    at = 0
    for end in [match.end() for match in _END.finditer(text)] + [len(text)]:
        said = text[at:end].strip()
        if said:
            yield max(number for start, number in starts if start <= at), said
        at = end


def words(text: str) -> list[str]:
    """Return the words of a text, code left out."""
    return _WORD.findall(_CODE.sub(lambda match: match.group(1) or " ", text))


def python_files(paths: list[str]) -> Iterator[Path]:
    """Yield the Python files under some paths; of ``src`` by default."""
    for path in map(Path, paths or [str(ROOT / "src")]):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.suffix == ".py" else []


def count(paths: list[str]) -> int:
    """Print the words that point, in 1,000 words of docstrings."""
    total = what = pronouns = 0
    lengths = []
    for path in python_files(paths):
        for text in docstrings(ast.parse(path.read_text())):
            said = [word.lower() for word in words(str(text.value))]
            total += len(said)
            what += said.count("what")
            pronouns += sum(word in PRONOUNS for word in said)
            lines = list(enumerate(str(text.value).splitlines(), 1))
            lengths += [len(words(sentence)) for _, sentence in sentences(lines)]
    lengths.sort()
    print(
        f"{total} words of docstrings; in 1,000: what {1000 * what / total:.1f}, pronouns {1000 * pronouns / total:.1f}"
    )
    print(
        f"words in a sentence: median {lengths[len(lengths) // 2]}, 90th percentile {lengths[len(lengths) * 9 // 10]}"
    )
    return 0


def check(paths: list[str]) -> int:
    """Print where prose is too wide or a sentence is too long."""
    found = 0
    pages = [path for path in map(Path, paths) if path.suffix == ".md"] or (
        [] if paths else [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    )
    for path in [*python_files(paths), *pages]:
        source = path.read_text()
        for block in prose_of_markdown(source) if path.suffix == ".md" else prose_of_python(source):
            problems = [(number, f"{len(line)} columns") for number, line in block if _is_wide(line)]
            problems += [
                (number, f"{len(said)} words: {sentence[:60]} …")
                for number, sentence in sentences(block)
                if len(said := words(sentence)) > MOST_WORDS
            ]
            for number, problem in problems:
                found += 1
                print(f"{path.relative_to(ROOT) if path.is_absolute() else path}:{number}: {problem}")
    if found:
        print(f"{found} places: prose ends at {MOST_COLUMNS} columns, a sentence at {MOST_WORDS} words")
    return 1 if found else 0


def _is_wide(line: str) -> bool:
    # A link or a path cannot be broken.
    return len(line) > MOST_COLUMNS and len(line.split()) > 2


def same(revision: str) -> int:
    """Print the files whose code differs from a revision's; docstrings and comments may."""
    differ = []
    for path in python_files([]):
        name = path.relative_to(ROOT).as_posix()
        shown = subprocess.run(
            ["git", "show", f"{revision}:{name}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if shown.returncode or _code(shown.stdout) != _code(path.read_text()):
            differ.append(name)
    print("\n".join(differ) or "no code differs")
    return 1 if differ else 0


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_docstring(statement)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["count", "check", "same"])
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.command == "same":
        return same(options.arguments[0])
    return (count if options.command == "count" else check)(options.arguments)


if __name__ == "__main__":
    sys.exit(main())
