"""Find each number with a unit that README and docs tell in the code.

    python scripts/told_numbers.py          # those that the code does not have, and exceptions that nobody needs
    python scripts/told_numbers.py --all    # each number, and where the code has it

The code has a number if a name has it: a constant, a default, a field or an argument given by name.
What prose tells and no name has is an exception, with its reason, in ``told_numbers.toml``. Code
blocks and measured results are left out.
"""

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "batchclient"
SECONDS = {"ms": 0.001, "s": 1.0, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
BYTES = {"byte": 1, "KB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
COUNTS = [
    "token", "call", "request", "row", "character", "time", "attempt", "answer", "line", "prompt", "document",
    "failure", "refusal", "sequence", "server",
]  # fmt: skip
UNITS = "|".join([*(f"{unit}s?" if len(unit) > 2 else unit for unit in SECONDS), *BYTES, "bytes", "%"]) + "|"
NUMBER = re.compile(
    r"(?<![\w.,/×–-])(\d[\d,]*(?:\.\d+)?)\s*(" + UNITS + "|".join(f"{unit}s?" for unit in COUNTS) + r")(?![\w/])"
)
NOT_PROSE = (
    re.compile(r"<!-- results:.*?<!-- /results:\w+ -->", re.DOTALL),
    re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE),
    re.compile(r"^(?: {4}.*\n)+", re.MULTILINE),
    re.compile(r"`[^`\n]*`"),
    re.compile(r"\]\([^)]*\)"),
)


class Told(NamedTuple):
    page: str
    line: int
    number: str
    unit: str

    @property
    def text(self):
        return f"{self.number} {self.unit}"

    @property
    def values(self):
        """What a name may have for it."""
        number = float(self.number.replace(",", ""))
        unit = self.unit if self.unit in ("s", "ms", *BYTES) else self.unit.removesuffix("s")
        if unit in SECONDS:
            return {number * SECONDS[unit]}
        if unit in BYTES:
            return {number * BYTES[unit], number * 2 ** (10 * "BKMG".index(unit[0].upper()))}
        return {number / 100, 1 - number / 100, number} if unit == "%" else {number}


def told():
    """Each number of the prose."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text()
        for pattern in NOT_PROSE:
            text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        for found in NUMBER.finditer(text):
            yield Told(page.relative_to(ROOT).as_posix(), text.count("\n", 0, found.start()) + 1, *found.groups())


def named():
    """The places of each number that a name has."""
    places = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for name, value in _given(node):
                for each in _numbers(value):
                    places.setdefault(each, []).append(f"{path.relative_to(SOURCE)}: {name}")
    return places


def _given(node):
    match node:
        case ast.Assign(targets=[target, *_], value=value):
            yield ast.unparse(target), value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield ast.unparse(target), value
        case ast.arguments():
            names = [*node.posonlyargs, *node.args]
            defaults = [*zip(names[len(names) - len(node.defaults) :], node.defaults, strict=True)]
            for argument, value in [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
                if value is not None:
                    yield argument.arg, value
        case ast.keyword(arg=str(name), value=value):
            yield name, value


def _numbers(value):
    """The numbers of an expression, and its own if it is one of numbers alone."""
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield float(node.value)
        elif isinstance(node, ast.BinOp):
            try:
                yield float(eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}))
            except Exception:
                continue


def exceptions():
    return tomllib.loads((Path(__file__).parent / "told_numbers.toml").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="show each number, and where the code has it")
    options = parser.parse_args()
    places, excepted, unused, wrong = named(), exceptions(), dict(exceptions()), 0
    for each in told():
        found = [
            place for value in each.values for known, at in places.items() if abs(known - value) < 1e-9 for place in at
        ]
        reason = excepted.get(each.page, {}).get(each.text)
        if reason is not None and not found:
            unused.get(each.page, {}).pop(each.text, None)
        if options.all:
            print(f"{each.page}:{each.line}: {each.text}: {reason or ', '.join(found[:3]) or 'NOWHERE'}")
        elif not found and reason is None:
            wrong += 1
            print(f"{each.page}:{each.line}: no name has {each.text}")
    for page, texts in unused.items():
        for text in texts:
            wrong += 1
            print(f"told_numbers.toml: {page} does not tell {text}, or a name has it")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
