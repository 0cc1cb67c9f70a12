"""``map --pilot``: rows at random go first, and tell what the others take; ``--audit``: some are asked again."""

import asyncio
import json
import os
import re
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from tests.fakes.pages import serving

from batchclient import Choice, Completion, MapResult, Usage
from batchclient._maps.row_calls import RowCall
from batchclient.cli import _job, _pilot
from batchclient.cli._audit import Audit
from batchclient.cli._kept import Kept
from batchclient.cli._progress import Meter, Snapshot
from batchclient.jobs import Row

from .conftest import read_rows, rows_of, write_rows

ROWS = 200


@pytest.fixture
def asked(tmp_path):
    """A server that counts its prompts. Of the rows every fifth is cut off, and ``running.odd`` is answered otherwise;
    ``running.failing`` are statuses by the last digit of a row, or of all."""

    def answer(asked):
        if not asked.path.endswith("/completions"):
            return 404, b""
        prompt = asked.json["prompt"]
        prompts = prompt if isinstance(prompt, list) else [prompt]
        running.prompts.update(prompts)
        numbers = [int(each.split()[-1]) for each in prompts]
        if failing := running.failing.get(numbers[0] % 10) or running.failing.get(None):
            return failing, {"error": {"message": "bad field"}}
        said = [
            "otherwise" if each in running.odd and running.prompts[prompts[i]] > 1 else f"yes {each}"
            for i, each in enumerate(numbers)
        ]
        choices = [
            {"index": i, "text": text, "finish_reason": "length" if numbers[i] % 5 == 0 else "stop"}
            for i, text in enumerate(said)
        ]
        count = len(prompts)
        return 200, {
            "choices": choices,
            "usage": {"prompt_tokens": 3 * count, "completion_tokens": 9 * count, "total_tokens": 12 * count},
        }

    with serving(answer) as running:
        running.prompts, running.odd, running.failing = Counter(), set(), {}
        yield running


@pytest.fixture
def ask(cli, asked, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(ROWS))

    def run(*options, source=source, output=out, call="complete"):
        command = ["map", source, "-o", output, "--base-url", asked.url, "--model", "m", "--dialect", "vllm"]
        done = cli(*command, "--prompt", "Say {text}", "--call", call, *options)
        return done.exit_code, done.output.splitlines()

    return run


def test_a_pilot_tells_of_the_other_rows_and_its_answers_are_the_jobs(ask, asked, out):
    status, lines = ask("--pilot", 60, "--price", "1000000/0", "--max-tokens", 9, "--concurrency", 8)
    assert status == 0
    assert re.fullmatch(r"pilot: 60 of 200 rows at random, in \d+\.\d s; the other 140, by 90 % intervals:", lines[0])
    assert re.fullmatch(r"  time: 0:00:0\d to 0:00:\d\d(; a larger pilot tells more)?", lines[1])
    # A list's usage is shared out by the characters of its answers; "yes 7" and "yes 107" have nine tokens each.
    out_tokens = re.fullmatch(r"  tokens: 420 to 420 in, ([\d,]+) to ([\d,]+) out", lines[2])
    assert [round(int(each.replace(",", "")) / 1260, 1) for each in out_tokens.groups()] == [1, 1]
    assert lines[3] == "  cost: 420.00 to 420.00"
    told = re.fullmatch(r"  answers: ([\d.]+) to ([\d.]+) % ok, ([\d.]+) to ([\d.]+) % truncated", lines[4])
    assert float(told[1]) < 80 < float(told[2]) and float(told[3]) < 20 < float(told[4])
    assert "reused: 60" in lines[5]
    assert lines[-1].startswith(
        "the same command with --retry-truncated 1 --max-tokens-at-most 18 without --pilot lets "
    )
    assert [row["completion"] for row in read_rows(out)] == [f"yes {number}" for number in range(ROWS)]
    assert set(asked.prompts.values()) == {1} and len(asked.prompts) == ROWS, "no row is asked twice"


def test_a_broken_bound_ends_the_job_where_nobody_can_be_asked(ask, asked, out):
    bound = ["--pilot", 60, "--fail-if", "truncated>5%"]
    status, lines = ask(*bound)
    assert status == 3 and not out.exists() and len(asked.prompts) == 60
    assert re.match(r"Error: stopped: --fail-if truncated>5%: \d+ of 60 rows", lines[-3])
    # The dry run knows by now how long the others take.
    time = next(line for line in ask(*bound, "--dry-run")[1] if line.startswith("time"))
    assert time.startswith("time of the 140 rows that the journal has not: 0:00:0")
    # Within the interval of so few rows the bound may be kept.
    assert ask("--pilot", 60, "--fail-if", "truncated>15%", "--quiet")[0] == 3
    assert len(asked.prompts) == ROWS and set(asked.prompts.values()) == {1}


def test_somebody_is_asked_whether_to_go_on(cli, ask, asked, out, monkeypatch):
    def answering(answer):
        async def asks():
            return answer

        monkeypatch.setattr(_job, "asks", asks)

    answering(False)
    # In four requests: one may be sent and answered between two looks at what is in flight, and tells no time.
    pilot = ["--pilot", 30, "--concurrency", 8]
    status, lines = ask(*pilot)
    assert (status, len(asked.prompts)) == (3, 30) and not out.exists()
    assert lines[-3].startswith("stopped after the pilot"), "it is no error"
    begun = status_of(cli, f"{out}.journal")["begun"]
    assert lines[-1] == f"{out}.journal has the answers: the same command goes on with them"
    told = [lines[1].partition(";")[0] + ", by the earlier pilot", *lines[2:4]]
    status, lines = ask(*pilot)
    assert (status, len(asked.prompts), lines[1:4]) == (3, 30, told), "an earlier pilot's rows tell the same"
    assert begun and ask(*pilot, "--yes")[0] == 0, "nobody is asked"
    assert status_of(cli, f"{out}.journal")["begun"] == begun
    answering(True)
    assert ask(*pilot, "--fail-if", "truncated>1%", "--new")[0] == 3, "the job ends by its bound, not the pilot's"
    assert len(asked.prompts) == ROWS


def test_the_time_in_which_somebody_is_asked_costs_nothing(ask, monkeypatch):
    asked_s = 0

    async def asks():
        nonlocal asked_s
        asked_s = 3600
        return True

    monkeypatch.setattr(_job, "asks", asks)
    monkeypatch.setattr(_job, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + asked_s))
    status, lines = ask("--pilot", 30, "--gpu-price", 3600)
    assert status == 0 and float(re.search(r"cost: ([\d.]+)$", "\n".join(lines), re.MULTILINE)[1]) < 600


def test_rows_that_a_pilot_has_read_are_counted_and_no_estimate(ask, out, tmp_path, monkeypatch):
    async def no():
        return False

    monkeypatch.setattr(_job, "asks", no)
    source = tmp_path / "in.csv"
    # Line breaks within cells, and long rows behind the first ones: lines and bytes tell another number.
    source.write_text("text\n" + "".join(f'"{"long " * (n > 300)}\ntext {n}"\n' for n in range(600)) + '""\n')
    status, lines = ask("--pilot", 30, source=source)
    assert status == 3 and lines[0].startswith("pilot: 30 of 600 rows at random")
    assert lines[-3] == "stopped after the pilot; rows left out: 571"
    assert re.fullmatch(r"0 rows written in \d+\.\d s, requests sent: \d+, tokens: 90 in, \d+ out", lines[-2])


def status_of(cli, journal):
    return json.loads(cli("job", "status", journal, "--json").stdout)


def test_the_question_is_read_from_the_terminal(monkeypatch):
    ours, theirs = os.openpty()
    with open(theirs) as terminal, open(ours, "wb", buffering=0) as keys:
        for stream in ("stdin", "stderr"):
            monkeypatch.setattr(f"sys.{stream}", terminal)
        for typed, answer in ((b"y\n", True), (b"\n", False), (b"no\n", False)):
            keys.write(typed)
            assert asyncio.run(_pilot.asks()) is answer


def test_equal_rows_are_sent_once(ask, asked, out, tmp_path):
    source = write_rows(tmp_path / "equal.jsonl", [{"text": f"text {number % 50}"} for number in range(ROWS)])
    status, lines = ask("--pilot", 20, "--dedupe", "--param", "seed=1", source=source)
    sent = len({each["text"] for each in read_rows(out)})
    first = int(re.search(r"the other (\d+), by", lines[0])[1])
    assert (status, sent, sum(asked.prompts.values())) == (0, 50, 50) and 30 <= first < 40


def test_a_pilot_of_all_rows_leaves_nothing_to_ask(ask, asked, out):
    status, lines = ask("--pilot", ROWS)
    assert status == 0 and lines[0].startswith("pilot: 200 of 200 rows at random, in ")
    assert len(read_rows(out)) == ROWS and set(asked.prompts.values()) == {1}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"options": ["--pilot", 5, "--retry-failed"]}, "--pilot is for new rows; leave it out where rows of "),
        ({"options": ["--fail-if", "truncated>1%"], "call": "embed"}, "--fail-if: such as 'failed>1%'"),
        ({"options": ["--pilot", 1]}, "--pilot: at least 2 rows"),
        ({"options": ["--pilot", 5], "output": "-"}, "--pilot needs a journal"),
        ({"options": ["--audit", "1%"]}, "--audit is for texts generated with --temperature 0"),
        ({"options": ["--audit", "1%", "--temperature", 1]}, "--audit is for texts generated with --temperature 0"),
        ({"options": ["--audit", "1%"], "call": "embed"}, "--audit is for texts"),
        ({"options": ["--audit", "0%", "--temperature", 0]}, "--audit: a share of the rows, such as 0.5%"),
        ({"options": ["--audit", "5", "--temperature", 0]}, "--audit: a share of the rows, such as 0.5%"),
    ],
)
def test_what_cannot_be_is_refused(ask, asked, options, named):
    status, lines = ask(*options.pop("options"), **options)
    assert status == 2 and named in lines[0] and not asked.prompts


def test_after_a_pilot_the_time_left_has_bounds():
    now = [0.0]
    meter = Meter(30.0, lambda: now[0])
    now[0] = 10.0
    told = meter.describe(Snapshot(100, 0, 8, 8, 0, 0, spread=(0.9, 1.2)), 1100)
    assert "ETA 0:01:30 to 0:02:00" in told
    # Reused rows that wait for a row before them are no step back.
    now[0] = 60.0
    assert (
        "0 new rows/s" in (told := meter.describe(Snapshot(100, 0, 8, 8, 0, 0, reused=30), 1100)) and "ETA" not in told
    )


def test_an_estimated_total_looks_like_one():
    meter = Meter(30.0, lambda: 0.0)
    now = Snapshot(2066, 0, 8, 8, 0, 0)
    assert meter.describe(now, 21_811, about="~").startswith("9% 2,066/~21,811 rows · ")
    assert meter.describe(now, 21_811).startswith("9% 2,066/21,811 rows · ")


def test_a_pipe_is_read_once(ask, asked, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    status, lines = ask("--pilot", 5, source=tmp_path / "pipe")
    os.close(pipe)
    assert (status, lines) == (
        2,
        ["Error: --pilot reads all rows beforehand, and a pipe is read once: put them into a file"],
    )


def test_an_audit_finds_answers_that_are_others_now(ask, asked, out):
    asked.odd = set(range(0, ROWS, 2))
    status, lines = ask("--audit", "20%", "--temperature", 0)
    assert status == 0
    again = {int(prompt.split()[-1]) for prompt, count in asked.prompts.items() if count > 1}
    assert 20 <= len(again) <= 60 and max(asked.prompts.values()) == 2
    assert not any(isinstance(json.loads(each.body)["prompt"], list) for each in asked.asked[-len(again) :]), "alone"
    odd = len(again & asked.odd)
    assert lines[-6] == f"audit: {len(again)} of {len(again)} rows answered again, alone; other answers: {odd}"
    assert all(re.fullmatch(r"  line \d+, id \d+", line) for line in lines[-5:])
    assert [row["completion"] for row in read_rows(out)] == [f"yes {number}" for number in range(ROWS)]


def test_an_audit_draws_the_same_4096_rows_in_whatever_order_they_end():
    answer, drawn = Completion((Choice(0, "yes", "stop"),), Usage(4, 2)), []
    for numbers in (range(5000), range(4999, -1, -1)):
        audit = Audit(None, 1.0, None, lambda row: RowCall("complete", row["text"], {}), {})
        for number in numbers:
            row = Row({"text": f"\ud800 {number}"}, number + 1)
            audit.add(MapResult("\ud800", number, row, answer))
        assert audit.lines()[0].startswith("audit: 0 of 4,096 rows ")
        drawn.append([row.line for row, _ in audit.drawn])
    assert drawn[0] == drawn[1] == sorted(drawn[0])


def test_an_audit_draws_the_same_rows_of_the_whole_and_of_its_shards_whatever_their_ids(ask, asked, tmp_path, out):
    def audited(*options, **source):
        asked.prompts.clear()
        assert ask("--new", "--audit", "20%", "--temperature", 0, *options, **source)[0] == 0
        return {prompt for prompt, count in asked.prompts.items() if count > 1}

    whole, shards = audited("--unordered"), out.with_name("out-{shard}.jsonl")
    assert (
        audited("--shard", "0/2", output=shards) | audited("--shard", "1/2", output=shards) == whole
        and len(whole) >= 20
    )
    same = tmp_path / "same.jsonl"
    same.write_text("".join(json.dumps(row | {"id": "\ud800"}) + "\n" for row in rows_of(ROWS)))
    assert audited("--quiet", source=same) == whole


def test_a_finished_job_is_audited_from_its_journal(ask, asked, out):
    assert ask("--temperature", 0)[0] == 0
    before = out.read_bytes()
    status, lines = ask("--audit", "20%", "--temperature", 0)
    again = [prompt for prompt, count in asked.prompts.items() if count > 1]
    assert status == 0 and 20 <= len(again) <= 60 and sum(asked.prompts.values()) == ROWS + len(again)
    assert lines[-1] == f"audit: {len(again)} of {len(again)} rows answered again, alone; other answers: 0"
    assert out.read_bytes() == before


def test_after_a_kill_in_the_audit_the_audit_alone_is_made_up_for(ask, asked, out, monkeypatch):
    command, seen, run = ["--new", "--audit", "20%", "--temperature", 0], [], Audit.run

    async def killed(self):
        seen.append(sorted(path.name for path in out.parent.iterdir()))
        await run(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "run", killed)
        patch.setattr(Kept, "audited", lambda self: None)
        for _ in range(2):
            asked.prompts.clear()
            ask(*command)
        before = out.read_bytes()
    names = ["in.jsonl", "out.jsonl", "out.jsonl.journal"]
    assert seen == [[*names, "out.jsonl.journal.lease"]] * 2
    assert sorted(path.name for path in out.parent.iterdir()) == names
    asked.prompts.clear()
    assert ask(*command)[0] == 0 and out.read_bytes() == before
    assert 20 <= sum(asked.prompts.values()) <= 60
    # Once it is made, the command begins anew as ever.
    asked.prompts.clear()
    assert ask(*command)[0] == 0 and len(asked.prompts) == ROWS


def test_a_pilot_counts_rows_that_the_journal_sends_again(ask, asked, out):
    batches = ["--max-batch-size", 1, "--first", 60]
    asked.failing = {3: 404, 4: 400}
    assert ask(*batches)[0] == 1
    asked.prompts.clear()
    status, lines = ask("--pilot", 20, *batches, "--fail-if", "failed>10%", "--yes")
    assert status == 3 and lines[0].endswith("; the other 6, by 90 % intervals:"), "failed for now: every tenth"
    asked.failing = {}
    assert ask(*batches, "--retry-failed")[0] == 0
    # The truncated ones are not new, either.
    mends = ["--pilot", 20, "--retry-truncated", 1, "--max-tokens", 9]
    assert ask(*mends, "--new", *batches)[0] == 0
    status, lines = ask(*mends, "--max-tokens-at-most", 20, *batches)
    assert (status, lines) == (
        2,
        [f"Error: --pilot is for new rows; leave it out where rows of {out}.journal are asked again"],
    )


def test_a_pilot_whose_rows_are_refused_alike_ends_the_job(ask, asked, out):
    asked.failing = {None: 400}
    for pilot in (10, 40):
        asked.prompts.clear()
        status, lines = ask("--pilot", pilot, "--max-batch-size", 1, "--first", 40)
        assert (status, len(asked.prompts), os.path.lexists(f"{out}.journal")) == (1, pilot, False)
        assert lines[0].startswith(f"Error: stopped: no row succeeded, and {pilot} failed alike with BadRequest")
        assert "bad field" in lines[-1] and not any("the same command" in line for line in lines), lines


def test_a_pilot_of_few_rows_breaks_no_bound(ask, asked, out):
    status, lines = ask("--pilot", 10, "--fail-if", "truncated>1%")
    assert (status, len(asked.prompts), out.exists()) == (3, ROWS, True), "the job ends by its bound, all rows tried"
