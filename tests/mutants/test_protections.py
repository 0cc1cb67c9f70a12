"""The list of protections is true of the code as it is; ``make mutants`` takes them out one after the other."""

import ast
from pathlib import Path

import pytest

from tests.mutants.protections import PROTECTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda each: each.name)
def test_a_protection_is_in_its_file_and_its_test_exists(protection):
    mutant = protection.apply((ROOT / protection.file).read_text())
    ast.parse(mutant)
    file, _, test = protection.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_they_are_many_and_differ():
    assert len(PROTECTIONS) >= 15
    assert len({each.name for each in PROTECTIONS}) == len(PROTECTIONS)
