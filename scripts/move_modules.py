"""Moves modules: ``git mv``, and the new names wherever the old ones stand. Nothing else changes.

    python scripts/move_modules.py             # move
    python scripts/move_modules.py --table     # print the table, old name and new name

- A dotted name is replaced in every text file that git knows: imports, strings, docs, settings. So is a path.
- ``from package import module`` is rewritten by the syntax tree, and so is the module's name in that file.
- New packages get an ``__init__.py`` with one line that says what is in them.
- ``ruff`` sorts the imports and wraps the lines that became too long.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "batchclient"

PACKAGES = {
    "_calls": "From a caller's arguments to a request: every check that can be made before anything is queued.",
    "_client": "The methods of ``BatchClient``, by what they are for, and what a client is made of.",
    "_maps": "What maps are made of: the reader of documents, the results, how often a document came.",
    "_shell": "Where the core meets a clock, tasks and servers.",
    "_threads": "From threads to an event loop.",
    "_core.learnt": "What past replies have taught: lengths, times, what a server can do.",
    "_core.outcomes": "How a call ends, or goes again.",
    "_core.prefixes": "Calls that begin alike, so that a server computes the common part once.",
    "_core.servers": "What is known of each server: permits, health, speed, rates.",
    "_core.waiting": "Who waits for a permit, and who is next.",
}

MOVES = {
    "_announcer": "_shell.announcer",
    "_attempts": "_shell.attempts",
    "_backend": "_shell.backend",
    "_batch_size": "_shell.batch_size",
    "_bridge": "_threads.bridge",
    "_callbacks": "_shell.callbacks",
    "_calls": "_calls.make",
    "_connections": "_client.connections",
    "_control": "_client.make_limit",
    "_crossing": "_threads.crossing",
    "_descriptors": "_shell.descriptors",
    "_dialect_choice": "_shell.dialect_choice",
    "_exchange": "_shell.exchange",
    "_header_roles": "integrations.header_roles",
    "_inputs": "_calls.inputs",
    "_kept_clients": "integrations.kept_clients",
    "_likelihood": "_calls.likelihood",
    "_map_methods": "_client.map_methods",
    "_map_reader": "_maps.reader",
    "_map_results": "_maps.results",
    "_methods": "_client.methods",
    "_model_lengths": "_calls.lengths",
    "_pages": "_shell.pages",
    "_questions": "_shell.asking",
    "_openai_form": "integrations.form",
    "_pooling": "_client.scoring",
    "_rendering": "_calls.rendering",
    "_runner": "_shell.runner",
    "_seen": "_maps.occurrences",
    "_server_model": "_shell.model_question",
    "_servers": "_shell.servers",
    "_sink": "_shell.pieces",
    "_steering": "_client.control",
    "_structured": "_calls.structured",
    "_sync_iterators": "_threads.iterators",
    "_tables": "_calls.tables",
    "_tasks": "_shell.tasks",
    "_together": "_calls.fan_out",
    "_unfrozen": "_shell.clock",
    "_unsendable": "_calls.unsendable",
    "_core.abilities": "_core.learnt.abilities",
    "_core.budget": "_core.servers.budget",
    "_core.choice": "_core.servers.choice",
    "_core.deadlines": "_core.waiting.deadlines",
    "_core.demux": "dialects._demux",
    "_core.endings": "_core.outcomes.ends",
    "_core.endpoint": "_core.servers.endpoint",
    "_core.endpoints": "_core.servers.endpoints",
    "_core.families": "_core.prefixes.families",
    "_core.groups": "_core.waiting.groups",
    "_core.health": "_core.servers.health",
    "_core.lanes": "_core.waiting.lanes",
    "_core.lengths": "_core.learnt.lengths",
    "_core.list_trial": "_core.learnt.list_trial",
    "_core.member_first": "_core.outcomes.member_first",
    "_core.order": "_core.waiting.order",
    "_core.outage": "_core.servers.outage",
    "_core.outside": "_core.waiting.overflow",
    "_core.queue": "_core.waiting.queue",
    "_core.rates": "_core.servers.rates",
    "_core.recovery": "_core.outcomes.recovery",
    "_core.recovery_table": "_core.outcomes.recovery_table",
    "_core.refusals": "_core.servers.denials",
    "_core.resending": "_core.outcomes.resending",
    "_core.service": "_core.learnt.times",
    "_core.speed": "_core.servers.speed",
    "_core.steering": "_core.feeding",
    "_core.stillness": "_core.servers.dead_engine",
    "_core.tally": "_core.learnt.answers",
    "_core.warmth": "_core.prefixes.conversations",
    "_core.withheld": "_core.learnt.withheld",
    "dialects._completions": "dialects.completions",
}
"""Old name to new name, below the package."""

_MARK = "@@moved@@"
NAMES = {f"{PACKAGE}.{old}": f"{PACKAGE}.{new}" for old, new in MOVES.items()}
_DOTTED = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, sorted(NAMES, key=len, reverse=True))) + r")(?!\w)")
_PATHS = {old.replace(".", "/") + ".py": new.replace(".", "/") + ".py" for old, new in NAMES.items()}
_PATH = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, sorted(_PATHS, key=len, reverse=True))) + ")")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    if parser.parse_args().table:
        print("\n".join(f"{old} -> {new}" for old, new in NAMES.items()))
        return
    for file in tracked():
        if file.resolve() == Path(__file__).resolve():
            continue
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        changed = renamed(text, is_python=file.suffix == ".py")
        if changed != text:
            file.write_text(changed)
    for package, says in PACKAGES.items():
        folder = ROOT / "src" / PACKAGE / package.replace(".", "/")
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(f'"""{says}"""\n')
    for old, new in _PATHS.items():
        run("git", "mv", f"src/{old}", f"src/{new}")
    run("git", "add", "--all", "src")
    run(sys.executable, "-m", "ruff", "check", "--quiet", "--select", "I", "--fix", ".")
    run(sys.executable, "-m", "ruff", "format", "--quiet", ".")


def tracked() -> list[Path]:
    """The files that git knows."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in (ROOT / name for name in out.split("\0") if name) if path.is_file()]


def renamed(text: str, *, is_python: bool) -> str:
    """A file's text with the new names."""
    if is_python:
        text = with_module_imports(text)
    text = _DOTTED.sub(lambda match: NAMES[match[1]], text).replace(_MARK, "")
    return _PATH.sub(lambda match: _PATHS[match[1]], text)


def with_module_imports(text: str) -> str:
    """Rewrite ``from package import module`` where the module moves, and the module's name in the file."""
    tree = ast.parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    edits: list[tuple[int, int, str]] = []
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        moved = [alias for alias in node.names if f"{node.module}.{alias.name}" in NAMES]
        if not moved:
            continue
        lines = []
        kept = [alias for alias in node.names if alias not in moved]
        if kept:
            lines.append(f"from {node.module} import {', '.join(ast.unparse(alias) for alias in kept)}")
        for alias in moved:
            package, _, name = NAMES[f"{node.module}.{alias.name}"].rpartition(".")
            local = alias.asname or (alias.name if name in names | bound or alias.name in bound else name)
            # The mark keeps the new name from being taken for an old one.
            lines.append(
                f"from {package.replace('.', f'.{_MARK}', 1)} import {name}" + (f" as {local}" if local != name else "")
            )
            if alias.asname is None and local == name:
                uses = [use for use in ast.walk(tree) if isinstance(use, ast.Name) and use.id == alias.name]
                edits += [(*span(use, starts), name) for use in uses]
        begin, end = span(node, starts)
        edits.append((begin, end, f"\n{' ' * node.col_offset}".join(lines)))
    source = text.encode()
    for begin, end, new in sorted(set(edits), reverse=True):
        source = source[:begin] + new.encode() + source[end:]
    return source.decode()


def span(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int]:
    """Where a node begins and ends, in bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
