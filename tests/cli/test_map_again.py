"""The same ``map`` again: it goes on after any end, and each row is in the output once."""

import gzip
import json
import os
import shutil
import signal
import socket
import time

import pytest

from batchclient.journal.held import HeldJournal
from batchclient.journal.lease import Lease
from batchclient.journal.lines import fields_in
from batchclient.simulator import EmbeddedServer, expected_text
from tests.fakes.pages import serving

from .conftest import PNG, has_rows, names, read_rows, rows_of, wait_for, write_rows

LONG = {"id": 2, "text": "word " * 40000}
"""Longer than the model takes."""


def check_rows(out, numbers, prompt="Say"):
    rows = read_rows(out)
    assert [row["id"] for row in rows] == list(numbers)
    for row in rows:
        assert row["completion"] == expected_text(f"{prompt} text {row['id']}", max_tokens=3, temperature=0)


@pytest.fixture
def run(cli, cli_map):
    """Run ``map``: its exit status, and rows read, answered, failed and reused of a run to the end."""

    def run(source, *args, **given):
        given.setdefault("catch_exceptions", False)
        run.said = (done := cli_map(source, *args, **given)).stderr
        place = next(
            (args[i + 1] for i, arg in enumerate(args) if arg == "--journal"), f"{args[args.index('-o') + 1]}.journal"
        )
        told = json.loads(cli("job", "status", place, "--json").stdout)["run"] or {}
        return (done.exit_code, *(told[name] for name in ("read", "answered", "failed", "reused") if told))

    return run


# After an end --------------------------------------------------------------------------------------------------------


def test_a_signal_keeps_finished_rows_and_the_same_command_goes_on(spawn, server, run, tmp_path, out, journal, part):
    source = write_rows(tmp_path / "in.jsonl", rows_of(600))
    server.set_faults("stall,after=50")
    slowly = ["--concurrency", 16, "--max-batch-size", 4]
    process = spawn(source, "-o", out, *slowly)
    # Requests before the server is known may have a row each.
    wait_for(lambda: has_rows(part, 30))
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 143
    assert f"{journal} has the answers: the same command goes on with them" in stderr.decode()
    kept = len(read_rows(part))
    assert 30 <= kept < 600 and not out.exists()
    server.set_faults()
    status, *counts = run(source, "-o", out, *slowly)
    assert (status, counts) == (0, [600, 600 - counts[3], 0, counts[3]])
    assert counts[3] >= kept
    check_rows(out, range(600))
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


def test_a_finished_job_has_nothing_to_do_without_a_server(cli, cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(50))
    assert cli_map(source, "-o", out).exit_code == 0
    before = out.stat()
    server.stop()
    for options in ([], ["--timeout", 5], ["--concurrency", 3, "--retry-failed"], ["--api-key", "k", "--price", "1/1"]):
        done = cli_map(source, "-o", out, *options)
        assert (done.exit_code, done.stderr) == (
            0,
            f"{out} is finished, with these settings and this input: nothing to do\n",
        )
    assert out.stat() == before


@pytest.mark.parametrize(
    ("numbers", "options"),
    [
        ([*range(40, 60), *range(40)], []),
        ([*range(40, 60), *range(40)], ["--unordered"]),
        ([*range(40, 10, -1)], ["--dedupe"]),
    ],
)
def test_the_input_may_change_and_answered_rows_are_not_sent_again(run, tmp_path, out, numbers, options):
    source = write_rows(tmp_path / "in.jsonl", rows_of(50))
    assert run(source, "-o", out, *options)[0] == 0
    write_rows(source, [{"id": number, "text": f"text {number}"} for number in numbers])
    new = len(set(numbers) - set(range(50)))
    assert run(source, "-o", out, *options) == (0, len(numbers), new, 0, len(numbers) - new)
    assert sorted(row["id"] for row in read_rows(out)) == sorted(numbers)
    if "--unordered" not in options:
        check_rows(out, numbers)


def test_the_form_of_the_output_may_change(cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [row | {"by": "a"} for row in rows_of(2)])
    assert cli_map(source, "-o", out).exit_code == 0
    sent = server.requests
    for options in (["--columns", "by"], ["--unordered"], ["--first", 1], []):
        assert cli_map(source, "-o", out, *options).exit_code == 0
        rows = read_rows(out)
        assert len(rows) == (1 if "--first" in options else 2)
        assert all(("text" in row) == ("--columns" not in options) for row in rows)
    write_rows(source, [row | {"by": "b"} for row in rows_of(2)])
    assert cli_map(source, "-o", out).exit_code == 0
    assert [row["by"] for row in read_rows(out)] == ["b", "b"]
    assert server.requests == sent


def test_failed_rows_run_again_if_they_may_succeed_or_if_asked(run, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(2), LONG, {"id": 3, "text": "x"}])
    server.set_faults("stall,count=1")
    first, again = ["--max-batch-size", 1, "--timeout", 1], ["--max-batch-size", 1, "--timeout", 30]
    assert run(source, "-o", out, *first) == (1, 4, 2, 2, 0)
    assert "the same command runs 1 row again that may succeed now; --retry-failed runs 1 row again that" in run.said
    server.set_faults()
    # One row may succeed now. The long row never does.
    assert run(source, "-o", out, *again) == (1, 4, 1, 1, 3)
    assert [("error" in row) for row in read_rows(out)] == [False, False, True, False]
    assert run(source, "-o", out, *again)[0] == 1
    assert "nothing to do; 1 of its rows failed for good; --retry-failed runs them again" in run.said
    assert run(source, "-o", out, *again, "--retry-failed") == (1, 4, 0, 1, 3)


def test_a_row_that_fails_for_good_is_kept_though_all_others_were_reused(run, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    assert run(source, "-o", out)[0] == 0
    write_rows(source, [*rows_of(2), LONG])
    assert run(source, "-o", out) == (1, 3, 0, 1, 2)
    # As another output it is not sent again.
    assert run(source, "-o", out, "--columns", "id") == (1, 3, 0, 1, 3)
    assert "requests sent: 0" in run.said


def test_unusable_rows_are_in_the_output_once(cli_map, server, tmp_path, out):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\nnonsense\nnonsense\n{"other": 1}\n{"text": "b"}\n')
    asked = []
    for options in ([], ["--unordered"], []):
        done = cli_map(source, "-o", out, *options)
        assert done.exit_code == 1 and "failed: 3" in done.stderr
        assert sorted(row.get("line", 0) for row in read_rows(out)) == [0, 0, 0, 2, 3]
        asked.append(server.requests)
    assert len(set(asked)) == 1


def test_an_input_that_breaks_keeps_the_answers_before(run, tmp_path, out):
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in rows_of(6000)).encode())
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(whole[:-2000])
    assert run(source, "-o", out) == (1,) and not out.exists()
    assert "Error: the input cannot be read any further" in run.said
    source.write_bytes(whole)
    status, read, _, _, reused = run(source, "-o", out)
    assert (status, read) == (0, 6000) and reused >= 100


def test_a_pipe_goes_on_when_it_comes_again(spawn, server, tmp_path, out):
    os.mkfifo(tmp_path / "pipe")
    for numbers in (range(3000), range(3100)):
        process = spawn(tmp_path / "pipe", "-o", out)
        write_rows(tmp_path / "pipe", rows_of(len(numbers)))
        assert process.wait(20) == 0
        check_rows(out, numbers)
    assert b"reused: 3,000" in process.stderr.read()
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.journal", "pipe"]


# What is refused, and what begins anew -------------------------------------------------------------------------------


def test_another_job_is_refused_with_what_differs(run, cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(20))
    assert run(source, "-o", out)[0] == 0
    before, sent = out.read_bytes(), server.requests
    for name, options in {
        "template": ["--prompt", "Tell {text}"],
        "max_tokens": ["--max-tokens", 4],
        "model": ["--model", "other"],
        "call": ["--call", "chat"],
        "seed": ["--param", "seed=7"],
    }.items():
        refused = cli_map(source, "-o", out, *options)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert f"{out}.journal has 20 rows of another job, with another {name}" in refused.stderr
        assert "--new begins anew" in refused.stderr
    assert (out.read_bytes(), server.requests) == (before, sent)
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


@pytest.fixture
def killed(spawn, server, part):
    """Kill a job that has some of its rows."""

    def kill(source, *args, after=3, **given):
        server.set_faults(f"stall,after={after}")
        process = spawn(source, *args, **given)
        wait_for(lambda: has_rows(part, 1))
        process.kill()
        process.wait()
        server.set_faults()

    return kill


def test_new_begins_beside_the_job_and_replaces_it_in_the_end(killed, run, cli_map, tmp_path, out, journal):
    source = write_rows(tmp_path / "in.jsonl", rows_of(20))
    assert run(source, "-o", out)[0] == 0
    before = out.read_bytes(), journal.read_bytes()
    again = ["-o", out, "--new", "--max-batch-size", 2, "--concurrency", 2]
    killed(source, *again, prompt="Tell {text}")
    assert out.read_bytes() == before[0] and journal.read_bytes().startswith(before[1])
    # A command goes on with the job whose settings are its own; the new one's ``OUT`` is not there yet.
    assert "nothing to do" in cli_map(source, "-o", out).stderr
    refused = cli_map(source, "-o", out, prompt="Tell {text}")
    assert refused.exit_code == 2 and "a job begun with --new that is not finished; --new goes on" in refused.stderr
    assert out.read_bytes() == before[0]
    status, read, answered, _, reused = run(source, *again, prompt="Tell {text}")
    assert (status, read) == (0, 20) and reused >= 1 and answered == 20 - reused
    check_rows(out, range(20), "Tell")
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]
    assert run(source, "-o", out, prompt="Tell {text}")[0] == 0 and "nothing to do" in run.said
    # Nobody goes on with the older job; begun anew, it asks all rows.
    refused = cli_map(source, "-o", out)
    assert refused.exit_code == 2 and "has 20 rows of another job, with another template; --new" in refused.stderr
    assert run(source, "-o", out, "--new")[:3] == (0, 20, 20) == run(source, "-o", out, "--new")[:3]
    check_rows(out, range(20))


def test_of_two_jobs_with_equal_settings_each_command_goes_on_with_its_own(killed, run, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(20))
    assert run(source, "-o", out)[0] == 0
    again = ["-o", out, "--new", "--max-batch-size", 2, "--concurrency", 2]
    killed(source, *again)
    assert run(source, "-o", out)[0] == 0 and "nothing to do" in run.said
    write_rows(source, rows_of(21))
    assert run(source, "-o", out) == (0, 21, 1, 0, 20)
    # The new one has none of these answers, and those that it had before the kill.
    *_, read, answered, failed, reused = run(source, *again)
    assert (read, answered + reused, failed) == (21, 21, 0) and 1 <= reused < 20
    assert run(source, "-o", out)[0] == 0 and "nothing to do" in run.said
    check_rows(out, range(21))


@pytest.mark.parametrize("options", [["--new"], []])
def test_after_a_kill_behind_the_rename_nothing_is_to_do(run, server, tmp_path, out, journal, options):
    source = write_rows(tmp_path / "in.jsonl", rows_of(5))
    assert run(source, "-o", out)[0] == 0
    assert run(source, "-o", out, "--new", prompt="Tell {text}")[0] == 0
    data, sent = journal.read_bytes(), server.requests
    # What is written last says that the new ``OUT`` is in its place.
    journal.write_bytes(data[: data.index(b'{"note":"alone"')])
    if not options:
        assert run(source, "-o", out)[0] == 2 and "of another job, with another template" in run.said
    assert run(source, "-o", out, *options, prompt="Tell {text}")[0] == 0 and "nothing to do" in run.said
    assert server.requests == sent
    # Now the job is done.
    assert run(source, "-o", out)[0] == 2
    assert run(source, "-o", out, "--new", prompt="Tell {text}") == (0, 5, 5, 0, 0)


def test_new_goes_on_with_what_failed_for_now_and_begins_anew_without_its_output(run, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(2), LONG, {"id": 3, "text": "x"}])
    assert run(source, "-o", out)[0] == 1
    again = ["--max-batch-size", 1, "--new"]
    server.set_faults("stall,count=1")
    assert run(source, "-o", out, *again, "--timeout", 0.5) == (1, 4, 2, 2, 0)
    server.set_faults()
    assert run(source, "-o", out, *again) == (1, 4, 1, 1, 3)
    assert "--retry-failed without --new runs 1 row again that failed for good" in run.said
    # What is left failed for good: the job is done.
    assert run(source, "-o", out)[0] == 1 and "nothing to do; 1 of its rows failed for good" in run.said
    assert run(source, "-o", out, *again) == (1, 4, 3, 1, 0)
    server.set_faults("stall,count=1")
    assert run(source, "-o", out, *again, "--timeout", 0.5) == (1, 4, 2, 2, 0)
    server.set_faults()
    out.unlink()
    assert run(source, "-o", out, *again) == (1, 4, 3, 1, 0)
    out.write_text("notes of mine")
    assert run(source, "-o", out, *again) == (1, 4, 3, 1, 0)
    write_rows(source, rows_of(2))
    assert run(source, "-o", out, *again) == (0, 2, 2, 0, 0)
    assert run(source, "-o", out, *again) == (0, 2, 2, 0, 0)
    out.unlink()
    assert run(source, "-o", out, *again) == (0, 2, 2, 0, 0)


def test_a_killed_new_job_goes_on_where_there_was_none_before(killed, run, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(20))
    killed(source, "-o", out, "--new", "--max-batch-size", 2, "--concurrency", 2)
    status, read, _, _, reused = run(source, "-o", out, "--new")
    assert (status, read) == (0, 20) and reused >= 1
    check_rows(out, range(20))
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


def test_what_a_killed_job_left_goes_with_the_new_one(killed, cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(8))
    killed(source, "-o", out, "--max-batch-size", 4, after=1)
    assert cli_map(source, "-o", out, "--new", prompt="Tell {text}").exit_code == 0
    check_rows(out, range(8), "Tell")
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


def test_a_job_that_ends_while_its_journal_is_waited_for_is_finished(cli_map, monkeypatch, tmp_path, out):
    source, opened = write_rows(tmp_path / "in.jsonl", rows_of(2)), HeldJournal.open

    def open_late(*args):
        monkeypatch.setattr(HeldJournal, "open", opened)
        assert cli_map(source, "-o", out).exit_code == 0
        return opened(*args)

    monkeypatch.setattr(HeldJournal, "open", open_late)
    done = cli_map(source, "-o", out)
    assert done.exit_code == 0 and "nothing to do" in done.stderr


def test_an_output_of_others_is_refused_unless_it_may_be_replaced(cli_map, tmp_path, out, journal):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    out.write_text("precious")
    refused = cli_map(source, "-o", out)
    assert refused.exit_code == 2
    assert refused.stderr == f"Error: {out}: the file exists, and {journal} does not; --new replaces it in the end\n"
    assert (out.read_text(), names(tmp_path)) == ("precious", ["in.jsonl", "out.jsonl"])
    assert cli_map(source, "-o", out, "--new").exit_code == 0
    check_rows(out, [0, 1])
    # It was changed afterwards: the journal has its answers still.
    out.write_text("notes of mine")
    write_rows(source, rows_of(3))
    for options, said in (
        ([], "has changed since the job wrote it; move it away"),
        (["-o", out, "--journal", source], "no journal"),
    ):
        refused = cli_map(source, "-o", out, *options)
        assert refused.exit_code == 2 and said in refused.stderr
        assert out.read_text() == "notes of mine"
    out.rename(tmp_path / "notes")
    assert cli_map(source, "-o", out).exit_code == 0
    check_rows(out, [0, 1, 2])


def test_of_two_commands_the_second_is_refused_by_name(spawn, cli_map, server, tmp_path, out, part):
    server.set_faults("stall")
    source = write_rows(tmp_path / "in.jsonl", rows_of(8))
    first = spawn(source, "-o", out)
    wait_for(part.exists)
    for options in ([], ["--new"], ["-o", tmp_path / "other.jsonl", "--journal", f"{out}.journal"]):
        second = cli_map(source, "-o", out, *options)
        assert second.exit_code == 2
        assert f"is in use by pid {first.pid} on " in second.stderr


def test_a_command_that_cannot_begin_leaves_nothing(cli, cli_map, server, models, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    for options in (
        ["--param", "timeout_s=1"],
        ["--metrics-port", server.base_url.rpartition(":")[2].partition("/")[0]],
    ):
        assert cli_map(source, "-o", out, *options).exit_code == 2
    assert cli("map", source, "-o", out, "--base-url", models.url, "--prompt", "{text}").exit_code == 2
    for place in (tmp_path / "missing" / "j", tmp_path, out, "", ".", "/"):
        refused = cli_map(source, "-o", out, "--journal", place)
        assert refused.exit_code == 2 and str(place) in refused.stderr and refused.stderr.count("\n") == 1
    assert (server.requests, names(tmp_path)) == (0, ["in.jsonl"])


# A journal of another name -------------------------------------------------------------------------------------------


def test_a_trial_and_its_job_may_share_a_journal(run, cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(50))
    trial, shared = tmp_path / "try.jsonl", ["--journal", tmp_path / "j"]
    assert run(source, "-o", trial, "--first", 20, *shared) == (0, 20, 20, 0, 0)
    assert run(source, "-o", out, *shared) == (0, 50, 30, 0, 20)
    # Each output is known still. A third one is not.
    assert run(source, "-o", trial, "--first", 20, *shared)[0] == 0 and "nothing to do" in run.said
    assert run(source, "-o", out, *shared)[0] == 0 and "nothing to do" in run.said
    # The answers of one go with no new one, and a new output takes the place of none.
    for name, others in {"try.jsonl": "out.jsonl", "new.jsonl": "try.jsonl, out.jsonl"}.items():
        new = cli_map(source, "-o", tmp_path / name, "--new", *shared, prompt="Tell {text}")
        also = f"--new: {tmp_path / 'j'} has the answers of {others}, too; name another file with --journal"
        assert new.exit_code == 2 and also in new.stderr
    (tmp_path / "third").write_text("precious")
    refused = cli_map(source, "-o", tmp_path / "third", *shared)
    assert refused.exit_code == 2 and "has not written this file" in refused.stderr
    assert (tmp_path / "third").read_text() == "precious"
    assert run(source, "-o", out, *shared)[0] == 0 and "nothing to do" in run.said


def test_rows_to_a_pipe_have_a_journal_if_it_is_named(cli, spawn, server, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    for _ in range(2):
        rows, stderr = spawn(source, "--journal", tmp_path / "kept").communicate()
        assert [row["id"] for row in read_rows(rows)] == [0, 1], stderr
    assert server.requests == 1
    told = json.loads(cli("job", "status", tmp_path / "kept", "--json").stdout)
    assert (told["state"], told["output"]) == ("finished", "/dev/stdout")


def test_a_job_that_can_no_longer_be_watched_ends(cli_map, monkeypatch, tmp_path, out):
    def is_reached(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr("batchclient.cli._cost.Cost.is_reached", is_reached)
    source = write_rows(tmp_path / "in.jsonl", rows_of(2000))
    done = cli_map(source, "-o", out, "--concurrency", 1, "--max-cost", 1, "--price", "1/1", catch_exceptions=True)
    assert isinstance(done.exception, RuntimeError) and not out.exists()


def test_a_job_may_move_with_its_files(run, server, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_rows(tmp_path / "here" / "in.jsonl", rows_of(5))
    assert run("in.jsonl", "-o", "out.jsonl")[0] == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").rename(tmp_path / "there")
    assert run("there/in.jsonl", "-o", "there/out.jsonl")[0] == 0 and "nothing to do" in run.said


def test_a_signal_while_the_journal_is_opened_gives_the_lease_back(cli_map, monkeypatch, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    assert cli_map(source, "-o", out).exit_code == 0
    out.unlink()
    sent = server.requests

    def interrupted(line):
        os.kill(os.getpid(), signal.SIGTERM)
        return fields_in(line)

    monkeypatch.setattr("batchclient.journal.held.fields_in", interrupted)
    assert cli_map(source, "-o", out).exit_code == 143
    assert (names(tmp_path), server.requests) == (["in.jsonl", "out.jsonl.journal"], sent)
    monkeypatch.undo()
    assert cli_map(source, "-o", out).exit_code == 0 and server.requests == sent


@pytest.mark.parametrize("form", ["jsonl", "batch"])
def test_a_copy_or_another_name_is_the_same_job(cli_map, server, tmp_path, form):
    """``cp -r`` keeps no times; a file of its length with other contents is another's."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    options = ["--output-form", form]
    source = write_rows(tmp_path / "in.jsonl", rows_of(5))
    assert cli_map(source, "-o", here / "out", *options).exit_code == 0
    shutil.copytree(here, there, copy_function=shutil.copyfile)
    shutil.copymode(here / "out.journal", there / "out.journal")
    sent = server.requests
    assert "nothing to do" in cli_map(source, "-o", there / "out", *options).stderr
    for name in names(there):
        (there / name).rename(there / name.replace("out", "new"))
    assert "nothing to do" in cli_map(source, "-o", there / "new", *options).stderr
    whole = (there / "new").read_bytes()
    (there / "new").write_bytes(whole[:-2] + b"x\n")
    assert "has not written this file" in cli_map(source, "-o", there / "new", *options).stderr
    for name in ("new", "new.errors"):
        (there / name).unlink(missing_ok=True)
    assert cli_map(source, "-o", there / "new", *options).exit_code == 0
    assert ((there / "new").read_bytes(), server.requests) == (whole, sent)


def test_a_whole_folder_that_is_copied_without_its_times_is_finished(cli, tmp_path):
    """``IN`` and the pictures are known by what they hold; where one is another, the job is not finished."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "in").mkdir(parents=True)
    choice = {"index": 0, "message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}
    for name in "ab":
        (here / f"{name}.png").write_bytes(PNG + name.encode())
        write_rows(
            here / "in" / f"{name}.jsonl", [{"picture": f"{name}.png", "text": f"{name} {each}"} for each in "xy"]
        )
    with serving(lambda asked: (200, {"id": "1", "choices": [choice]})) as asked:

        def run(folder, source="in"):
            chats = ["--prompt", "{text}", "--image", "picture", "--call", "chat", "--media-root", folder]
            command = [folder / source, "-o", folder / f"{source[:4].replace('/', '-')}.jsonl", *chats]
            return cli("map", *command, "--base-url", asked.url, "--model", "m", "--dialect", "vllm")

        for source in ("in", "in/a.jsonl"):
            assert run(here, source).exit_code == 0
        shutil.copytree(here, there, copy_function=shutil.copyfile)
        for path in there.rglob("*.journal"):
            path.chmod(0o600)
        sent, inode = len(asked.asked), (there / "in.jsonl").stat().st_ino
        for source in ("in", "in/a.jsonl"):
            assert "nothing to do" in run(there, source).stderr
        assert (len(asked.asked), (there / "in.jsonl").stat().st_ino) == (sent, inode)
        for name, old, new in (("b.png", b"b", b"c"), ("in/b.jsonl", b'"b ', b'"c ')):
            whole = (there / name).read_bytes()
            (there / name).write_bytes(whole.replace(old, new))
            assert "nothing to do" not in run(there).stderr, name
            (there / name).write_bytes(whole)
            assert run(there).exit_code == 0
        assert "nothing to do" in run(there, "in/a.jsonl").stderr


def test_no_key_no_header_and_no_query_is_on_the_disk(cli, tmp_path, out, journal):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    with EmbeddedServer("instant", api_key="hush-hush") as server:
        options = ["--model", server.model, "--prompt", "{text}", "--header", "X-Trace: canary-trace"]
        url = f"{server.base_url}?key=canary-query"
        done = cli("map", source, "-o", out, "--base-url", url, *options, "--api-key", "hush-hush")
        assert done.exit_code == 0, done.stderr
    assert not any(secret in journal.read_bytes() for secret in (b"hush-hush", b"canary"))
    assert journal.stat().st_mode & 0o077 == 0


# The commands for a job ----------------------------------------------------------------------------------------------


def test_status_and_export_only_look(cli, cli_map, tmp_path, out, journal):
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(2), LONG])
    assert cli_map(source, "-o", out, "--max-batch-size", 1, "--price", "1000000/0").exit_code == 1
    before = journal.read_bytes()
    for _ in range(2):
        told = json.loads(cli("job", "status", journal, "--json").stdout)
        assert (told["state"], told["answered"], told["failed"], told["may_be_tried"]) == ("finished", 2, 1, 0)
        assert (told["output"], told["input"], told["call"]) == (str(out), str(source), "complete")
        assert told["cost"] == told["prompt_tokens"] > 0 and told["completion_tokens"] == 6
        assert "answered: 2\n" in cli("job", "status", journal).stdout
        exported = sorted(read_rows(cli("job", "export", journal).stdout.encode()), key=lambda row: row["id"])
        assert [row["state"] for row in exported] == ["answered", "answered", "failed"]
        assert exported[0]["completion"]["choices"][0]["finish_reason"] == "length"
        assert cli("job", "status", out, "--json").stdout == cli("job", "status", journal, "--json").stdout
        assert journal.read_bytes() == before
        # Also after a run that sent nothing.
        out.unlink()
        assert cli_map(source, "-o", out, "--price", "1000000/0").exit_code == 1
        before = journal.read_bytes()


def test_the_status_says_how_many_of_its_rows_the_output_has_not(cli, cli_map, tmp_path, out, journal):
    def told():
        return json.loads(cli("job", "status", journal, "--json").stdout)

    assert cli_map(write_rows(tmp_path / "in.jsonl", [*rows_of(5), {"text": None}]), "-o", out).exit_code == 1
    assert (told()["answered"], told()["not_in_output"]) == (5, None)
    write_rows(tmp_path / "in.jsonl", [{"text": None}, *rows_of(3), *rows_of(2, "other")])
    assert cli_map(tmp_path / "in.jsonl", "-o", out).exit_code == 1
    assert (told()["answered"], told()["run"]["read"], told()["not_in_output"]) == (7, 6, 2)
    assert "answered: 7\nfailed: 0\nmay be tried: 0\nnot in output: 2\n" in cli("job", "status", out).stdout


def test_a_running_job_is_said_to_run(spawn, server, cli, tmp_path, out, journal, part):
    server.set_faults("stall")
    process = spawn(write_rows(tmp_path / "in.jsonl", rows_of(1)), "-o", out)
    wait_for(part.exists)
    told = json.loads(cli("job", "status", journal, "--json").stdout)
    assert told["state"] == "running" and told["holder"].startswith(f"pid {process.pid} on ")
    process.kill()
    process.wait()
    assert json.loads(cli("job", "status", journal, "--json").stdout)["state"] == "unfinished"


@pytest.mark.parametrize(
    ("host", "age_s", "state"), [("", 0, "finished"), ("elsewhere", 0, "running"), ("elsewhere", 90, "finished")]
)
def test_a_lease_that_stands_still_is_nobodys(cli, cli_map, tmp_path, out, journal, host, age_s, state):
    """After a reboot of this machine, or once another one has died."""
    assert cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), "-o", out).exit_code == 0
    lease = journal.with_name(f"{journal.name}.lease")
    lease.write_bytes(Lease(host or socket.gethostname(), "another start", os.getpid(), "since", "f00d").line())
    os.utime(lease, times=(time.time() - age_s,) * 2)
    assert json.loads(cli("job", "status", out, "--json").stdout)["state"] == state
    lease.unlink()
    lease.symlink_to("elsewhere")
    assert json.loads(cli("job", "status", out, "--json").stdout)["state"] == "finished"


_FORMS = [
    *({name: 5} for name in ("part", "beside", "facts", "out", "was", "broken", "bad", "input")),
    *({name: "x"} for name in ("seconds", "status", "failed", "price", "may_be_tried", "not_sent", "read")),
    *({"part": name} for name in ("in.jsonl", "../x", ".", "", "a/b.f00df00df00df00d.part")),
    *({"price": price} for price in ({"a": 1}, {"per_hour": "1"}, [])),
    *({"facts": facts} for facts in ({}, {"read": 5}, {"in": None, "read": {"shard": 7}})),
    *({"beside": beside} for beside in ({".x": {}}, {".errors": 5}, {".errors": {"part": "in.jsonl"}})),
    *({"bad": bad} for bad in ({"truncated": "5"}, [1])),
]


@pytest.mark.parametrize("note", _FORMS, ids=str)
def test_a_note_of_another_form_is_none(cli, cli_map, server, tmp_path, out, journal, note):
    """A journal of another's hand, whose checksums are right."""
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    assert cli_map(source, "-o", out).exit_code == 0
    sent = server.requests
    opened = HeldJournal.open(journal)
    told = opened.notes["outputs"]["out.jsonl"]
    opened.note("outputs", {"out.jsonl": told | note})
    opened.note("pilot", ["a", {}])
    opened.close()
    before = out.read_bytes()
    assert cli("job", "status", out).exit_code == 0
    refused = cli_map(source, "-o", out)
    assert (refused.exit_code, out.read_bytes(), source.exists()) == (2, before, True)
    assert "has not written this file" in refused.stderr
    out.unlink()
    assert cli_map(source, "-o", out).exit_code == 0
    assert (names(tmp_path), server.requests) == (["in.jsonl", "out.jsonl", "out.jsonl.journal"], sent)


def test_what_is_no_journal_is_named(cli, cli_map, tmp_path, out, journal):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    assert cli_map(source, "-o", out).exit_code == 0
    os.mkfifo(tmp_path / "pipe")
    deep = tmp_path / "deep"
    deep.write_bytes(b"[" * 1_000_000 + b"\n")
    there = f"in.jsonl is no journal, and there is no {source}.journal: give the path that --journal or journal= has"
    said = {"missing": "there is no journal; it is beside its output", "in.jsonl": there}
    said |= {"pipe": "", "deep": "", "": ""}
    for name, words in said.items():
        refused = cli("job", "export" if name == "pipe" else "status", tmp_path / name)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert str(tmp_path / name) in refused.stderr and words in refused.stderr


def vllm(version, longest, refuse):
    """A server that says to be vLLM, and its length; ``refuse`` tells why it refuses a body, if it does."""

    def answer(asked):
        if asked.path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": longest()}]}
        if asked.path == "/version":
            return 200, {"version": version}
        if asked.method == "GET":
            return 404, {}
        prompts = asked.json["prompt"] if isinstance(asked.json["prompt"][0], list) else [asked.json["prompt"]]
        if (why := refuse(asked.json, prompts)) is not None:
            return 400, {"error": {"message": why, "type": "BadRequestError", "code": 400}}
        choices = [{"index": place, "text": "a", "finish_reason": "length"} for place in range(len(prompts))]
        return 200, {"choices": choices, "usage": {"prompt_tokens": 8, "completion_tokens": 1}}

    return serving(answer)


def test_a_row_that_is_too_long_costs_no_other_row_and_fails_for_good(cli, tmp_path, out):
    """vLLM 0.15 tells what ``max_tokens`` left of the model's length as the model's length."""
    told = "This model's maximum context length is 3 tokens. However, you requested 2045 output tokens and your prompt has 8."
    # More than are read ahead.
    rows = [{"id": number, "prompt": [1] * 8, "max_tokens": 2045 if number == 20 else 1} for number in range(3000)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    with vllm("0.15.0", lambda: 2048, lambda body, prompts: told if body["max_tokens"] == 2045 else None) as server:
        options = ["--base-url", server.url, "--model", "m", "--row-params", "take", "-o", out]
        done = cli("map", source, *options)
    assert done.exit_code == 1
    failed = {row["id"]: row["error"] for row in read_rows(out) if row.get("error") is not None}
    assert failed == {20: {"type": "BadRequest", "message": f"400: {told}"}}
    assert "--retry-failed runs 1 row again that failed for good" in done.stderr


def test_rows_that_the_servers_length_excludes_may_be_tried_again(cli, tmp_path, out):
    """The same address may be another server's by then."""
    longest = 16

    def refuse(body, prompts):
        return "too long" if max(map(len, prompts)) >= longest else None

    # Far more than are read ahead: those at the end are read once the length is known.
    source = write_rows(
        tmp_path / "in.jsonl", [{"id": n, "prompt": [n] * (20 if n > 5_990 else 8)} for n in range(6_000)]
    )
    with vllm("0.27.0", lambda: longest, refuse) as server:
        options = ["--base-url", server.url, "--model", "m", "--max-tokens", 1, "-o", out]
        done = cli("map", source, *options)
        assert done.exit_code == 1
        errors = [row["error"]["message"] for row in read_rows(out) if row.get("error") is not None]
        assert len(errors) == 9
        assert (
            errors[-1]
            == "line 6000: the prompt has 20 tokens, and the model's length is 16 with at least one for the answer"
        )
        assert "the same command runs 9 rows again that may succeed now" in done.stderr
        assert "mend the input" not in done.stderr
        longest = 64
        again = cli("map", source, *options)
    assert again.exit_code == 0
    assert not [row for row in read_rows(out) if row.get("error") is not None]
