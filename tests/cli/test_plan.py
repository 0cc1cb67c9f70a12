"""``plan``: what a job would take, by its journal; and what the journal has not seen is refused, with the pilot that shows it."""

import asyncio
import json
import random
import shlex
import time

import pytest

from batchclient import BatchClient
from batchclient.journal.lines import sealed
from batchclient.simulator import EmbeddedServer, SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

from .conftest import rows_of, write_rows

LIMITS = ((30, 8), (40, 24), (100, 64))
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


@pytest.fixture
def altered(seen, tmp_path):
    """A journal whose lines are changed: each of them, as a dictionary."""

    def write(change):
        lines = [json.loads(line) for line in seen[0].read_bytes().splitlines()]
        for fields in lines:
            fields.pop("crc")
            change(fields)
        path = tmp_path / "altered.journal"
        path.write_bytes(b"".join(sealed(json.dumps(each, separators=(",", ":")).encode()) for each in lines))
        return path

    return write


def plans_of(ask, *options):
    status, told = ask(*options, "--json")
    assert status == 0, told
    return json.loads(told)["plans"]


@pytest.mark.parametrize("of", [pytest.param(LIMITS[1:2], marks=pytest.mark.long), LIMITS[2:]], ids=["24", "64"])
def test_the_same_server_and_limit_take_what_the_job_took(ask, seen, tmp_path, monkeypatch, of):
    """On any machine: a simulated client opens no sockets."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    for count, limit in of:
        source = write_rows(tmp_path / f"{limit}.jsonl", rows(count, limit))
        (told,) = plans_of(ask, source, "--limit", limit)
        low, middle, high = told["seconds"]
        assert low < seen[1][limit] < high and middle == pytest.approx(seen[1][limit], rel=0.15)


def test_time_rate_and_cost_of_each_number_of_servers_and_each_limit(ask, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows(90, 5))
    told = plans_of(ask, source, "--servers", "1,2", "--limit", "16,auto", "--gpu-price", 2.5)
    assert [(each["servers"], each["limit"]) for each in told] == [
        (servers, limit) for servers in (1, 2) for limit in (16, "auto")
    ]
    for each in told:
        (low, middle, high), (slow, rate, quick) = each["seconds"], each["tokens_per_s"]
        assert low < middle < high and slow < rate < quick
        assert slow * high == pytest.approx(rate * middle) and rate * middle == pytest.approx(90 * 24, rel=0.2)
        assert each["cost"] == [pytest.approx(2.5 * each["servers"] * seconds / 3600) for seconds in each["seconds"]]
    seconds = {(each["servers"], each["limit"]): each["seconds"][1] for each in told}
    assert seconds[1, 16] == pytest.approx(2 * seconds[2, 16], rel=0.1)
    assert seconds[1, "auto"] < 0.8 * seconds[1, 16], "the client finds what is best of what was seen"


@pytest.mark.long
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
        (["--limit", "65"], ("21", 16, "170", 65)),
        (["--limit", "3"], ("50", 3, "150", 12)),
        pytest.param(["--limit", "8,72", "--servers", "1,2"], ("21", 8, "170", 72), marks=pytest.mark.long),
    ],
)
def test_a_load_that_was_not_seen_is_refused_with_the_pilot_that_shows_it(ask, options, pilot):
    status, told = ask(*options)
    assert status == 2 and "its servers had 8 to 64 sequences each, and not" in told
    assert "a pilot of two loads, in a new journal, shows it" in told
    first, low, whole, high = pilot
    assert f"batchclient map IN --journal PILOT -o LOW --first {first} --concurrency {low} …;" in told
    assert f"batchclient map IN --journal PILOT -o HIGH --first {whole} --concurrency {high} …" in told


def test_a_pilot_that_too_few_rows_cannot_show_is_not_advised(ask, seen, tmp_path):
    status, told = ask("--limit", 1000, journal=seen[2])
    assert status == 2 and "a pilot of 96 rows of the job does not show it: ask for --limit 67 at most" in told
    source = write_rows(tmp_path / "in.jsonl", rows(30, 5, words=300))
    status, told = ask(source)
    assert status == 2 and f"30 rows of {source} does not show it: give an IN of 50 rows at least" in told


@pytest.mark.long
def test_one_row_is_a_job_too(ask, tmp_path):
    (told,) = plans_of(ask, write_rows(tmp_path / "in.jsonl", rows(1, 5)), "--limit", 8)
    assert 0 < told["seconds"][0]


@pytest.mark.long
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
        (rows(100, 5, words=300), {}, "its prompts had"),
        (rows(100, 5, words=4), {}, "its prompts had"),
        ([{**each, "params": {"max_tokens": 1}} for each in rows(100, 5)], {}, "its answers had"),
        ([{**each, "params": {"max_tokens": 200}} for each in rows(100, 5)], {}, "its answers had"),
    ],
)
def test_other_prompts_and_answers_are_refused(ask, tmp_path, documents, params, why):
    source = write_rows(tmp_path / "in.jsonl", documents)
    status, told = ask(source, "--limit", 64)
    assert status == 2 and why in told and f"batchclient map {source} --journal PILOT -o LOW --first" in told


@pytest.mark.long
def test_shorter_answers_that_were_seen_are_told(ask, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{**each, "params": {"max_tokens": 16}} for each in rows(100, 5)])
    whole = write_rows(tmp_path / "whole.jsonl", rows(100, 5))
    (short,), (long,) = (plans_of(ask, each, "--limit", 64) for each in (source, whole))
    assert short["seconds"][1] < 0.85 * long["seconds"][1]


def test_one_load_and_a_journal_that_does_not_say_are_refused(ask, seen, altered):
    status, told = ask(journal=seen[2])
    assert status == 2 and "tells nothing of another" in told and "--concurrency 24 …" in told
    status, told = ask(journal=altered(lambda fields: fields.pop("sent", None)))
    assert status == 2 and "0 of its rows say when they were sent" in told
    assert "--first 21 --concurrency 16 …" in told and "--concurrency 64 …" in told


def test_a_job_of_several_models_has_no_plan(ask, altered):
    def of_one(fields):
        if "n" in fields:
            fields["completion"]["extra"]["model"] = "mine" if fields["prompt_bytes"] % 2 else "small"

    for change in (lambda fields: "job" in fields and fields["job"].update(model="mine | small"), of_one):
        status, told = ask(journal=altered(change))
        assert status == 2 and "model: mine, small; a plan is of one model, on servers that are alike" in told


def test_plans_are_of_generated_texts_with_one_answer(ask, altered, tmp_path):
    def twice(fields):
        if "n" in fields:
            fields["completion"]["choices"] *= 2

    status, told = ask(journal=altered(twice))
    assert status == 2 and "n: a plan is of generated texts with one answer a row, and most rows" in told
    status, told = ask(journal=altered(lambda fields: "job" in fields and fields["job"].update(call="embed")))
    assert status == 2 and "call: a plan is of generated texts with one answer a row, and this job's call" in told
    status, told = ask(journal=altered(lambda fields: "job" in fields and fields["job"].update(call="function")))
    assert status == 2 and "a function of rows (client.run) makes any calls: give the journal of a map" in told
    source = write_rows(tmp_path / "in.jsonl", [{**each, "params": {"n": 2}} for each in rows(50, 5)])
    status, told = ask(source)
    assert status == 2 and "in.jsonl" in told and "a plan is of generated texts with one answer a row" in told


def test_what_cannot_be_read_is_said(ask, altered, tmp_path):
    assert "there is no journal" in ask(journal=tmp_path / "none.jsonl")[1]
    assert ask(tmp_path / "none.jsonl")[0] == 2
    other = write_rows(tmp_path / "other.jsonl", [{"text": "no request"}])
    status, told = ask(other)
    assert status == 2 and "other.jsonl, line 1" in told
    status, told = ask(write_rows(tmp_path / "empty.jsonl", []))
    assert status == 2 and "empty.jsonl: it has no row" in told

    def with_template(fields):
        if "job" in fields:
            fields["job"].update(template="Say {words}", settings={})

    status, told = ask(other, journal=altered(with_template))
    assert status == 2 and "the job's template names {words}, and the first row" in told
    line = lambda fields: "job" in fields and fields["job"].update(template="{}", settings={})  # noqa: E731
    status, told = ask(other, journal=altered(line))
    assert status == 2 and "the job's template: {} stands for a text line" in told


@pytest.mark.parametrize(
    ("option", "bound", "values"),
    [
        ("--limit", "2,000", ["0", "00", "8,x", "8,,9", "-1", "2001", "1" * 5000, "9" * 20]),
        ("--servers", "64", ["auto", "", "0", "00", "65", "100000000", "1" * 5000]),
    ],
)
def test_a_wrong_number_is_refused_by_its_option_and_bound(ask, option, bound, values):
    for value in values:
        status, told = ask(f"{option}={value}")
        assert status == 2 and f"{option}: whole numbers from 1 to {bound}, between commas" in told


def test_a_wrong_price_is_refused_by_its_option(ask):
    for value in ("nan", "inf", "-1"):
        status, told = ask(f"--gpu-price={value}")
        assert status == 2 and f"--gpu-price: the price of an hour of one server, not {value}" in told


@pytest.mark.long
def test_the_advised_pilot_of_the_real_command_has_a_plan(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_rows(tmp_path / "in.jsonl", rows_of(120))
    with EmbeddedServer("tiny-cpu", speed=20, output_lengths="lognormal:16:0.4") as server:
        asked = ["--base-url", server.base_url, "--model", server.model, "--prompt", "Say {text}", "--max-tokens", 64]
        assert cli("map", source, "-o", "one", *asked, "--first", 60, "--concurrency", 24).exit_code == 0
        refused = cli("plan", "one", source, "--limit", 30)
        assert refused.exit_code == 2
        commands = " ".join(refused.output.split()).partition("shows it: ")[2].split(";")
        for command in commands:
            _, *given = shlex.split(command)
            assert given.pop() == "…" and cli(*given, *asked).exit_code == 0
    told = cli("plan", "PILOT", source, "--limit", 30, "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["rows"] == 120 and all(each["seconds"][0] > 0 for each in found["plans"])
