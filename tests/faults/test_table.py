"""The fault matrix in README.md: each row once, and every test it names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("README.md").read_text()
ROWS = {int(number): line for number, line in re.findall(r"^\| (\d+) (\|.*)$", PAGE, re.MULTILINE)}
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
NOT_BUILT = ()
CANNOT_BE_SEEN = 17


def defined(path):
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_each_row_is_there_once():
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE))) == [
        row for row in range(1, 78) if row not in NOT_BUILT
    ]


def test_each_row_names_a_test():
    assert [row for row, line in ROWS.items() if "::test_" not in line] == [CANNOT_BE_SEEN]


def test_every_test_that_is_named_exists():
    assert NAMED
    assert [f"{file}::{name}" for file, name in NAMED if name not in defined(TESTS / file)] == []


def test_every_test_by_a_rows_number_is_named_in_that_row():
    for path in Path(__file__).parent.glob("test_*.py"):
        for name in defined(path):
            found = re.match(r"test_rows?_(\d+)(?:_and_(\d+))?_", name)
            for row in filter(None, found.groups() if found else ()):
                assert f"::{name}`" in ROWS[int(row)], f"row {row} does not name {name}"
