"""The reference of ``map`` names each option, command, file and field that there is."""

import json
import re
from pathlib import Path

import pytest

from .conftest import write_rows

PAGE = (Path(__file__).parents[2] / "docs/reference/map.md").read_text()


def cells(heading):
    """The names in the first column of a section's table."""
    section = PAGE.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))


@pytest.fixture
def job(cli_map, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": "0", "text": "a"}, {"text": "word " * 40000}])
    assert cli_map(source, "-o", tmp_path / "out.jsonl").exit_code == 1
    return tmp_path / "out.jsonl.journal"


def test_the_options_of_map(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    there = set(re.findall(r"(?<!\S)(--[a-z0-9][a-z0-9-]+)", cli("map", "--help").stdout))
    named = set(re.findall(r"(?<![\w-])(--[a-z0-9][a-z0-9-]+)", PAGE))
    assert there - named <= {"--output", "--help"}
    assert named - there <= {"--json", "--scheduling-policy", "--retry-failed"}


def test_the_commands(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    there = re.findall(r"^  ([a-z]+) ", cli("job", "--help").stdout.partition("Commands:")[2], re.MULTILINE)
    assert sorted(name.split()[2] for name in cells("### `batchclient job`")) == sorted(there)


def test_the_fields_of_the_status(cli, job):
    assert cells("### `status --json`") == list(json.loads(cli("job", "status", job, "--json").stdout))


def test_the_fields_of_an_export(cli, job):
    lines = [json.loads(line) for line in cli("job", "export", job).stdout.splitlines()]
    of_other_calls = {"embedding", "classification"}
    assert set(cells("### A line of `export`")) == {name for line in lines for name in line} | of_other_calls
