"""``batchclient map`` before servers and firewalls that refuse what they have served: 404, 401 and 403 amid a job."""

import json
import threading
from time import monotonic
from types import SimpleNamespace

import pytest
from tests.fakes.pages import serving

from batchclient.cli import _giving_up
from batchclient.cli._progress import JobProgress

from .conftest import read_rows, rows_of, write_rows


@pytest.fixture
def router():
    """Answers chats, but for those of ``refusals`` (status) whose turn it is: by number, or for their words."""

    def answer(asked):
        if asked.method == "GET":
            return 404, {}
        with lock:
            running.posts += 1
            number = running.posts
        status = 403 if b"DROP TABLE" in asked.body else running.refusals(number)
        if number > 40 and running.gone in asked.body and running.is_gone():
            status = 404
        if status:
            running.refused += 1
            return status, {"error": {"message": running.words}}
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        return 200, {"id": "1", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    lock = threading.Lock()
    with serving(answer) as running:
        running.posts = running.refused = 0
        running.refusals = lambda number: 0
        running.gone, running.is_gone = b"no such words", lambda: True
        running.words = "The model `m` is not found."
        yield running


@pytest.fixture
def chats(cli, router, out, tmp_path):
    """Run ``map`` over rows of texts, as plain chats."""

    def run(*texts, made=None, options=()):
        made = made or [{"text": text} for text in texts] or rows_of(200)
        source = write_rows(tmp_path / "in.jsonl", made)
        given = ["--base-url", router.url, "--model", "m", "--call", "chat", "--prompt", "{text}", "--max-tokens", 500]
        return cli("map", source, "-o", out, *given, "--concurrency", 4, *options)

    return run


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_model_that_is_away_for_a_while_costs_no_row(chats, router, out, status, monkeypatch):
    # Six are sent before it is in doubt; then they go one by one, half a second apart.
    away = []

    def refusal(number):
        if number > 50:
            away.append(monotonic())
        return status if number > 50 and away[-1] < away[0] + 1.2 else 0

    router.refusals = refusal
    spreads, update = [], JobProgress.update

    def seen(progress, snapshot):
        spreads.append(snapshot.spread)
        update(progress, snapshot)

    monkeypatch.setattr(JobProgress, "update", seen)
    done = chats()
    assert done.exit_code == 0, done.stderr
    # No time that is left is told amid the outage.
    assert () in spreads and (1.0,) in (spreads[0], spreads[-1])
    assert len(read_rows(out)) == 200 and not any("error" in row for row in read_rows(out))
    assert 5 <= router.refused <= 20 and router.posts == 200 + router.refused
    assert f"an outage of {router.url} has begun: {status} to every call for the model 'm'" in done.stderr
    assert ("the key is refused" in done.stderr) == (status == 401)
    assert f"an outage of {router.url} ended after " in done.stderr


@pytest.mark.parametrize(
    ("status", "options"), [(401, ["--outage-patience", 1]), (404, [])], ids=["given", "by default"]
)
def test_after_the_patience_the_job_ends_and_the_same_command_goes_on(
    chats, router, out, journal, status, options, monkeypatch
):
    """By default it is a minute; here it is a second."""
    monkeypatch.setattr(_giving_up, "REFUSED_S", 1.0)
    router.refusals = lambda number: status if number > 50 else 0
    done = chats(options=options)
    assert done.exit_code == 2, done.stderr
    assert "Error: gave up: an outage of " in done.stderr and "the same command goes on" in done.stderr
    assert "failed" not in done.stderr
    assert not out.exists()
    states = [json.loads(line).get("state") for line in journal.read_text().splitlines()]
    assert (states.count("answered"), states.count("failed for now"), states.count("failed")) == (50, 0, 0)
    router.refusals = lambda number: 0
    done = chats(options=options)
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(out)) == 200


def test_of_two_models_one_is_gone_for_good_and_the_others_rows_are_answered(chats, router, out, journal, monkeypatch):
    monkeypatch.setattr("batchclient.cli._map_options.REFUSED_S", 0.5)
    router.gone = b'"model":"gone"'
    made = [{"text": f"row {number}", "model": ("m", "gone")[number % 2]} for number in range(80)]
    done = chats(made=made, options=["--row-params", "take"])
    assert done.exit_code == 2, done.stderr
    assert "Error: gave up on a key or a model that was served before: 404: The model `m` is not found." in done.stderr
    assert "the same command goes on" in done.stderr and not out.exists()
    states = [json.loads(line).get("state") for line in journal.read_text().splitlines()]
    assert states.count("answered") == router.posts - router.refused > 55 and states.count("failed") == 0
    router.gone = b"no such words"
    done = chats(made=made, options=["--row-params", "take"])
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(out)) == 80 and router.posts - router.refused == 80


@pytest.mark.parametrize(
    "order",
    [[], ["--unordered"], ["--order", "longest_first"]],
    ids=["in order", "unordered", "longest first"],
)
def test_rows_of_a_model_that_is_away_hold_no_others_up(chats, router, out, monkeypatch, order):
    """The look-ahead is 32 rows; 300 of the other model are answered before the model is back."""
    monkeypatch.setattr("batchclient._client.maps.LEAST_LOOK_AHEAD", 32)
    monkeypatch.setattr("batchclient._maps.journaled.Journaled.more_ahead", 0)
    monkeypatch.setattr("batchclient.cli._map_options.REFUSED_S", 2.0)
    # Of the first 40 fewer are of that model where rows do not go as they come.
    answered = 310 if "--order" in order else 320
    router.gone, router.is_gone = b'"model":"gone"', lambda: router.posts - router.refused < answered
    made = [{"text": f"row {number}", "model": ("m", "gone")[number % 2]} for number in range(600)]
    done = chats(made=made, options=["--row-params", "take", *order])
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(out)) == 600 == router.posts - router.refused


def test_a_refused_model_is_waited_for_for_a_minute_where_no_patience_is_given():
    giving_up = _giving_up.GivingUp(SimpleNamespace(outage_patience_s=None, cost=None), most=256)
    statistics = SimpleNamespace(endpoints=[SimpleNamespace(state="healthy", outage="404 to every call")])
    for now, end in ((100.0, None), (159.9, None), (160.0, (2, "gave up: 404 to every call"))):
        giving_up.look(statistics, 0.0, now)
        assert (giving_up.end and giving_up.end[:2]) == end


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_ends_the_job_at_once(chats, router, out, status):
    router.refusals = lambda number: status
    done = chats()
    assert done.exit_code == 2, done.stderr
    assert f"Error: {status}: " in done.stderr
    # Four under way, six that may each be a firewall's word, and one for each slice that is read meanwhile: more where
    # the machine is busy.
    assert router.posts <= 40
    assert not out.exists()


@pytest.mark.parametrize("percent", [10, 30])
def test_a_firewall_costs_no_innocent_row(chats, router, out, percent):
    router.words = "Forbidden"
    guilty = {number for number in range(200) if number * 37 % 100 < percent}
    done = chats(*(f"row {number}{': DROP TABLE rows' * (number in guilty)}" for number in range(200)))
    assert done.exit_code == 1, done.stderr
    rows = read_rows(out)
    assert {number for number, row in enumerate(rows) if "error" in row} == guilty
    assert sum(row.get("message", row.get("completion")) is not None for row in rows) == 200 - len(guilty)
    assert "an outage" not in done.stderr
