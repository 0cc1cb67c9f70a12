"""``plan``: what a job would take, by its journal; and what the journal has not seen is refused, with the pilot that shows it."""

import asyncio
import json
import random
import time

import pytest

from batchclient import BatchClient
from batchclient.journal.lines import sealed
from batchclient.simulator import EmbeddedServer, SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

from .conftest import rows_of, write_rows

LIMITS = ((60, 8), (90, 24), (200, 64))
"""Rows, and what was in flight."""
WORDS = ("a", "of", "the", "sentence", "consideration")


def rows(count, seed, words=30):
    rng = random.Random(seed)
    return [
        {"prompt": f"{seed} {number} " + " ".join(rng.choices(WORDS, k=rng.randrange(words // 2, words)))}
        for number in range(count)
    ]


async def run(documents, limit, journal, lengths="lognormal:24:0.5"):
    """Run rows in virtual time, on one server; return the seconds."""
    transport = SimulatorTransport(SimulatedServer("tiny-cpu", output_lengths=lengths, seed=limit))
    async with BatchClient("http://seen/v1", model="simulated", http=lambda *_: transport, limit=limit) as client:
        ended = began = asyncio.get_running_loop().time()
        asked = {"journal": journal, "max_tokens": 64, "temperature": 0}
        async for row in client.stream_map(documents, rows="prompt", ordered=False, **asked):
            assert row.error is None
            ended = asyncio.get_running_loop().time()
    return ended - began


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A journal of three loads, and how long the rows of each took; and one of a single load."""
    path, one, took = tmp_path_factory.mktemp("plan") / "seen.journal", tmp_path_factory.mktemp("one") / "journal", {}
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.MonkeyPatch.context() as patch:
        # The hour of the day goes on as the loop's clock does, which jumps.
        patch.setattr(time, "time", runner.get_loop().time)
        for count, limit in LIMITS:
            took[limit] = runner.run(run(rows(count, limit), limit, path))
        alike = [{"prompt": f"{number:03} of one length"} for number in range(96)]
        runner.run(run(alike, 24, one, lengths="fixed"))
    return path, took, one


@pytest.fixture
def ask(cli, seen):
    def run(*options, journal=seen[0]):
        done = cli("plan", journal, *options)
        return done.exit_code, done.stdout if done.exit_code == 0 else done.output

    return run


def plans_of(ask, *options):
    status, told = ask(*options, "--json")
    assert status == 0, told
    return json.loads(told)["plans"]


def test_the_same_server_and_limit_take_what_the_job_took(ask, seen, tmp_path):
    for count, limit in LIMITS[1:]:
        source = write_rows(tmp_path / f"{limit}.jsonl", rows(count, limit))
        (told,) = plans_of(ask, source, "--limit", limit)
        low, middle, high = told["seconds"]
        assert low < seen[1][limit] < high and middle == pytest.approx(seen[1][limit], rel=0.15)


def test_time_rate_and_cost_of_each_number_of_servers_and_each_limit(ask, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows(200, 5))
    told = plans_of(ask, source, "--servers", "1,2", "--limit", "16,auto", "--gpu-price", 2.5)
    assert [(each["servers"], each["limit"]) for each in told] == [
        (servers, limit) for servers in (1, 2) for limit in (16, "auto")
    ]
    for each in told:
        (low, middle, high), (slow, rate, quick) = each["seconds"], each["tokens_per_s"]
        assert low < middle < high and slow < rate < quick
        assert slow * high == pytest.approx(rate * middle) and rate * middle == pytest.approx(200 * 24, rel=0.2)
        assert each["cost"] == [pytest.approx(2.5 * each["servers"] * seconds / 3600) for seconds in each["seconds"]]
    seconds = {(each["servers"], each["limit"]): each["seconds"][1] for each in told}
    assert seconds[1, 16] == pytest.approx(2 * seconds[2, 16], rel=0.1)
    assert seconds[1, "auto"] < 0.8 * seconds[1, 16], "the client finds what is best of what was seen"


def test_people_get_a_table(ask, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows(60, 5))
    status, told = ask(source, "--limit", "8,64", "--gpu-price", 1)
    head, *lines = told.splitlines()
    assert status == 0 and head.split() == ["servers", "limit", "seconds", "tokens/s", "cost"]
    assert [line.split()[:2] for line in lines] == [["1", "8"], ["1", "64"]]
    assert all(line.count("(") == line.count(" to ") == 3 for line in lines)


@pytest.mark.parametrize(
    ("options", "pilot"),
    [
        (["--limit", "65"], "--pilot 550 --concurrency 65"),
        (["--limit", "8,400", "--servers", "1,2"], "--pilot 800 --concurrency 400"),
        (["--limit", "3"], "--pilot 550 --concurrency 3"),
    ],
)
def test_a_load_that_was_not_seen_is_refused_with_the_pilot_that_shows_it(ask, options, pilot):
    status, told = ask(*options)
    assert status == 2 and "its servers had 8 to 64 sequences each, and not" in told
    assert f"a pilot of a minute shows it: batchclient map IN -o OUT {pilot}" in told


def test_one_row_is_a_job_too(ask, tmp_path):
    (told,) = plans_of(ask, write_rows(tmp_path / "in.jsonl", rows(1, 5)), "--limit", 8)
    assert 0 < told["seconds"][0]


def test_a_job_longer_than_what_is_run_goes_on_as_its_middle_did(ask, seen, tmp_path):
    (told,) = plans_of(ask, write_rows(tmp_path / "in.jsonl", rows(4000, 5)), "--limit", 64)
    rows_seen, limit = LIMITS[-1]
    assert told["seconds"][1] == pytest.approx(4000 / rows_seen * seen[1][limit], rel=0.25)


def test_more_servers_may_share_what_one_has_seen(ask, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows(80, 5))
    assert ask(source, "--limit", 80)[0] == 2
    assert ask(source, "--limit", 80, "--servers", 2)[0] == 0, "neither has more than 40"


@pytest.mark.parametrize(
    ("documents", "params", "why"),
    [
        (rows(50, 5, words=300), {}, "its prompts had"),
        (rows(50, 5, words=4), {}, "its prompts had"),
        ([{**each, "params": {"max_tokens": 1}} for each in rows(50, 5)], {}, "its answers had"),
        ([{**each, "params": {"max_tokens": 200}} for each in rows(50, 5)], {}, "its answers had"),
    ],
)
def test_other_prompts_and_answers_are_refused(ask, tmp_path, documents, params, why):
    source = write_rows(tmp_path / "in.jsonl", documents)
    status, told = ask(source, "--limit", 64)
    assert status == 2 and why in told and f"batchclient map {source} -o OUT --pilot 550" in told


def test_shorter_answers_that_were_seen_are_told(ask, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{**each, "params": {"max_tokens": 16}} for each in rows(100, 5)])
    whole = write_rows(tmp_path / "whole.jsonl", rows(100, 5))
    (short,), (long,) = (plans_of(ask, each, "--limit", 64) for each in (source, whole))
    assert short["seconds"][1] < 0.85 * long["seconds"][1]


def test_one_load_and_a_journal_that_does_not_say_are_refused(ask, seen, tmp_path):
    lines = seen[0].read_bytes().splitlines(keepends=True)
    status, told = ask(journal=seen[2])
    assert status == 2 and "tells nothing of another" in told and "--concurrency 3" in told
    older = tmp_path / "older.journal"
    records = [
        {name: value for name, value in json.loads(line).items() if name not in ("sent", "crc")} for line in lines
    ]
    older.write_bytes(b"".join(sealed(json.dumps(each, separators=(",", ":")).encode()) for each in records))
    status, told = ask(journal=older)
    assert status == 2 and "0 of its rows say when they were sent" in told and "--pilot 200 --concurrency" in told


def test_what_cannot_be_read_is_said(ask, tmp_path):
    assert "there is no journal" in ask(journal=tmp_path / "none.jsonl")[1]
    assert ask(tmp_path / "none.jsonl")[0] == 2
    other = write_rows(tmp_path / "other.jsonl", [{"text": "no request"}])
    assert "no row makes a request as the job's do" in ask(other)[1]
    for option, value in (("--limit", "0"), ("--limit", "8,x"), ("--servers", "auto"), ("--servers", "")):
        status, told = ask(option, value)
        assert status == 2 and f"{option}: whole numbers from 1 on" in told


def test_the_journal_of_the_real_command_is_one(cli, tmp_path):
    rows = write_rows(tmp_path / "in.jsonl", rows_of(120))
    more = write_rows(tmp_path / "more.jsonl", rows_of(100, "more"))
    with EmbeddedServer("tiny-cpu", speed=5, output_lengths="lognormal:16:0.4") as server:
        for first, limit in ((40, 2), (120, 24)):
            asked = [
                "--base-url",
                server.base_url,
                "--model",
                server.model,
                "--prompt",
                "Say {text}",
                "--max-tokens",
                64,
            ]
            place = ["-o", tmp_path / f"{limit}.jsonl", "--journal", tmp_path / "job"]
            assert cli("map", rows, *place, *asked, "--first", first, "--concurrency", limit).exit_code == 0
    told = cli("plan", tmp_path / "job", more, "--limit", "8", "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["rows"] == 100 and all(each["seconds"][0] > 0 for each in found["plans"])
