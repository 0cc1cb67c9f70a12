"""The reference of Redis names each option and command that there is; no Redis is needed to ask."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/reference/redis.md").read_text()


def named(heading):
    """The options in the first column of a section's table."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    first = " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    return {name.split()[0] for name in re.findall(r"`([^`]+)`", first)}


@pytest.mark.parametrize("command", ["work", "enqueue"])
def test_the_options_of_a_command(cli, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    there = set(re.findall(r"(?<!\S)(--[a-z][a-z-]+)", cli(command, "--help").stdout.partition("Options:")[2]))
    assert there == named(f"`batchclient {command}`") - {"IN"} | {"--help"}


def test_the_commands_of_dead(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    there = re.findall(r"^  ([a-z]+) ", cli("dead", "--help").stdout.partition("Commands:")[2], re.MULTILINE)
    commands = re.findall(r"^\| `batchclient dead ([a-z]+)` \|", PAGE, re.MULTILINE)
    assert sorted(commands) == sorted(there)
    options = set()
    for command in there:
        said = cli("dead", command, "--help").stdout.partition("Options:")[2]
        options |= set(re.findall(r"(?<!\S)(--[a-z][a-z-]+)", said))
    assert options == {"--all", "--dead", "--help", "--json", "--redis", "--stream"}


def test_the_names_for_python():
    module = pytest.importorskip("batchclient.integrations.redis")
    section = PAGE.partition("\n## From Python\n")[2]
    assert set(re.findall(r"`(\w+)`", section)) - {"decode_responses"} == set(module.__all__)
