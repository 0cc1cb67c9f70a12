"""Every protection is in the code as it is. ``python -m tests.mutants`` takes one after the other out."""

import ast
from pathlib import Path

import pytest

from tests.mutants.protections import PROTECTIONS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda each: each.name)
def test_a_protection_is_in_its_function_once_and_its_test_exists(protection):
    path = protection.path(ROOT)
    compile(protection.take_out(path.read_text()), path, "exec")
    file, _, test = protection.test.partition("::")
    # The part in square brackets is a parameter's name, which only pytest knows.
    assert test.partition("[")[0] in _functions_of(ROOT / file)


def test_they_are_many_and_differ():
    assert len(PROTECTIONS) >= 100
    assert len({each.name for each in PROTECTIONS}) == len(PROTECTIONS)


def _functions_of(path):
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
