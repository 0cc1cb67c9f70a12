"""Damaged files: what was handed out stays right or runs again, and what is no journal is left as it is."""

import json
from random import Random

import anyio
import pytest
from tests.journal.jobs import answers, run_job, sent_prompts, texts

from batchclient import ConfigError
from batchclient.journal.held import HeldJournal
from batchclient.journal.lines import line_of

LIBRARIES = ("asyncio",)
ROWS = 120


def again(path, count=ROWS, **arguments):
    return anyio.run(lambda: run_job(texts(count), path, **arguments))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The bytes of a finished journal."""
    path = tmp_path_factory.mktemp("job") / "journal"
    again(path)
    return path.read_bytes()


def cut(data, at, random):
    return data[:at]


def flip(data, at, random):
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def zero(data, at, random):
    end = min(len(data), at + random.choice((1, 100, 512, 4096)))
    return data[:at] + bytes(end - at) + data[end:]


@pytest.mark.parametrize("damage", [cut, flip, zero])
def test_no_damage_makes_a_wrong_answer(job, path, damage):
    random = Random(7)
    lines = job.split(b"\n")[1:-1]
    keys = [bytes.fromhex(json.loads(line)["key"]) for line in lines]
    for number in range(50):
        # The first line, too, is hit in some of them.
        damaged = damage(job, random.randrange(30, 200 if number % 10 == 0 else len(job)), random)
        path.write_bytes(damaged)
        journal = HeldJournal.open(path)
        found = journal.find([(key, 0) for key in keys])
        journal.close()
        whole = damaged.split(b"\n")[:-1]
        for line, kept in zip(lines, found, strict=True):
            assert (kept is not None and kept.crc == json.loads(line)["crc"]) if line in whole else kept is None
        if number % 10 < 2:
            rows, server = again(path)
            # ``answers`` holds each answer against its document.
            assert answers(rows).keys() == set(range(ROWS)) and not any(row.error for row in rows)
            assert len(sent_prompts(server)) == found.count(None) == ROWS - sum(row.reused for row in rows)
            rows, server = again(path)
            assert all(row.reused for row in rows) and server.sent == []


def test_a_damaged_line_is_told_by_its_number_and_its_row_runs_again_alone(job, path, caplog):
    path.write_bytes(job.replace(b"<Say: text 7|", b"<Say: text 8|"))
    told = []
    rows, server = again(path, progress=told.append)
    assert sent_prompts(server) == ["Say: text 7"] and answers(rows).keys() == set(range(ROWS))
    assert (told[-1].damaged, told[-1].reused, told[-1].answered) == (1, ROWS - 1, 1)
    number = next(n for n, line in enumerate(job.splitlines(), 1) if b"<Say: text 7|" in line)
    assert (
        f"1 lines of the journal {path} are damaged, the first is line {number}: a row without another record runs again"
        in caplog.text
    )
    rows, server = again(path)
    assert server.sent == [], "its new record is whole"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "done"),
        ("attempts", "1"),
        ("n", []),
        ("error", {"kind": "BadRequest"}),
        ("completion", None),
        ("completion", {"choices": []}),
        ("completion", {"choices": [{"index": 0, "text": 5}]}),
        ("completion", {"choices": [{"index": 0, "text": "5"}], "usage": {"prompt_tokens": "1"}}),
        ("embedding", {"vector": "AAAAA"}),
        ("classification", {"label": 3, "probabilities": [1]}),
    ],
)
def test_odd_json_is_a_damaged_record_though_its_checksum_is_right(job, path, name, value):
    first, line, *rest = job.splitlines(keepends=True)
    fields = json.loads(line)
    del fields["crc"]
    if name in ("embedding", "classification"):
        del fields["completion"]
    path.write_bytes(b"".join([first, line_of(fields | {name: value}), *rest]))
    told = []
    rows, server = again(path, progress=told.append)
    assert len(sent_prompts(server)) == 1 and answers(rows).keys() == set(range(ROWS))
    assert told[-1].damaged == 1


def test_deep_json_is_a_damaged_line(job, path):
    deep = b"[" * 200_000
    for line in (deep + b"\n", b'{"key":"' + deep + b"\n", b'{"note":' + deep + b',"crc":"00000000"}\n'):
        path.write_bytes(job + line)
        rows, server = again(path)
        assert all(row.reused for row in rows) and server.sent == []


@pytest.mark.parametrize(
    "foreign",
    [
        b"id,text\n1,a\n",
        b"SQLite format 3\0" + b"\xff" * 84,
        b"{",
        b'{"batchclient":"lease"}',
    ],
)
def test_what_is_no_journal_is_left_as_it_is(path, foreign):
    path.write_bytes(foreign)
    with pytest.raises(ConfigError, match="is no journal, and left as it is"):
        again(path)
    assert path.read_bytes() == foreign and [each.name for each in path.parent.iterdir()] == ["journal"]


def test_a_journal_of_another_version_is_refused_by_name(job, path):
    _, *rest = job.splitlines(keepends=True)
    newer = line_of({"batchclient": "journal", "version": 2, "job": {}}) + b"".join(rest)
    path.write_bytes(newer)
    with pytest.raises(ConfigError, match="is of version 2, and this batchclient reads 1"):
        again(path)
    assert path.read_bytes() == newer


def test_a_file_whose_making_was_cut_short_is_begun_anew(job, path):
    first = job.splitlines(keepends=True)[0]
    for size in (0, 30, len(first) - 1):
        path.write_bytes(first[:size])
        rows, _ = again(path, 3)
        assert len(rows) == 3
        journal = HeldJournal.open(path)
        assert journal.rows == 3 and journal.job["template"] == "Say: {}" and journal.damaged == []
        journal.close()
