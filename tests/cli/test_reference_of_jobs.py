"""The reference of jobs names each option, command, file and field that there is."""

import json
import re
from pathlib import Path

import pytest

from batchclient import Journal

from .conftest import write_rows

PAGE = (Path(__file__).parents[2] / "docs/reference/job.md").read_text()
OTHERS_OF_MAP = """
--api-key --base-url --call --columns --concurrency --dedupe --dry-run --endpoints-shard --first --format --gpu-price --gpus --header
--help --http-backend --keep-going --log-format --log-level --max-batch-size --max-cost --max-tokens --metrics-port --model --outage-patience --output
--overwrite --param --preset --price --prompt --prompt-file --quiet --retry-invalid --sample --schema --shard --system
--temperature --timeout --unordered --vectors
""".split()
"""Options that have nothing to do with a job."""


def cells(heading):
    """The names in the first column of a section's table."""
    section = PAGE.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))


@pytest.fixture
def job(cli_map, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a"}, {"other": 1}])
    assert cli_map(source, "-o", tmp_path / "out.jsonl").exit_code == 1
    return tmp_path / "out.jsonl.job"


def test_the_options_of_map(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    there = set(re.findall(r"(?<!\S)(--[a-z][a-z-]+)", cli("map", "--help").stdout))
    named = {name.split()[0] for name in cells("## The options of `map`")}
    assert named.isdisjoint(OTHERS_OF_MAP)
    assert there == named | set(OTHERS_OF_MAP)


def test_the_commands(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    there = re.findall(r"^  ([a-z]+) ", cli("job", "--help").stdout.partition("Commands:")[2], re.MULTILINE)
    assert sorted(name.split()[2] for name in cells("## The commands")) == sorted(there)


def test_the_fields_of_the_status(cli, job):
    assert cells("### `status --json`") == list(json.loads(cli("job", "status", job, "--json").stdout))


def test_the_fields_of_an_export(cli, job):
    lines = [json.loads(line) for line in cli("job", "export", job).stdout.splitlines()]
    assert sorted(cells("### A line of `export`")) == sorted({name for line in lines for name in line})


def test_the_files_and_the_manifest(job):
    there = {path.name for path in job.iterdir()}
    named = cells("## The folder")
    assert set(named) - {"input"} <= there
    assert {name for name in there if not name.startswith("journal.sqlite")} <= set(named)
    assert cells("### The manifest") == list(json.loads((job / "done.json").read_text()))


def test_the_arguments_of_a_journal():
    journal = Journal("x")
    assert cells("## `Journal`") == list(vars(journal))
    signature = 'Journal(path, *, sync="full", commit_rows=1024, commit_s=0.2, disk_patience_s=600, reuse=())'
    assert f"`{signature}`" in " ".join(PAGE.split())
    assert (journal.sync, journal.commit_rows, journal.commit_s) == ("full", 1024, 0.2)
    assert (journal.disk_patience_s, journal.reuse) == (600, ())
