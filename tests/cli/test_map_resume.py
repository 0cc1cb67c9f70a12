"""A map that goes on: with ``--resume``, after any end, and each row is in the output once."""

import asyncio
import gzip
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import time
from functools import partial
from itertools import accumulate

import pytest

from batchclient.cli import _run as run_module
from batchclient.cli._job import Job
from batchclient.journal.of_file import FileJournal
from batchclient.simulator import EmbeddedServer, expected_text

from .conftest import read_rows, write_rows


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def job(out):
    return out.with_name("out.jsonl.job")


def rows_of(*numbers):
    return [{"id": number, "text": f"text {number}"} for number in numbers]


def manifest_of(job):
    return json.loads((job / "done.json").read_text())


def counts_of(job):
    manifest = manifest_of(job)
    return tuple(manifest[name] for name in ("read", "answered", "failed", "filtered", "reused"))


def check_rows(out, numbers):
    rows = read_rows(out)
    assert [row["id"] for row in rows] == list(numbers)
    for row in rows:
        assert row["completion"] == expected_text(f"Say text {row['id']}", max_tokens=3, temperature=0)


def wait_for_rows(out, count, seconds=30):
    until = time.monotonic() + seconds
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.01)


@pytest.fixture
def server():
    """A server on which a job of 600 rows takes some seconds."""
    with EmbeddedServer("gpu") as running:
        yield running


SLOWLY = ["--concurrency", 16, "--max-batch-size", 4]


@pytest.fixture
def killed(spawn, tmp_path, out):
    """A job of 600 rows, killed with some rows in its output."""

    def run(*args, count=100):
        source = write_rows(tmp_path / "in.jsonl", rows_of(*range(600)))
        process = spawn(source, "-o", out, "--resume", *SLOWLY, *args)
        wait_for_rows(out, count)
        process.kill()
        process.wait()
        return source, SLOWLY

    return run


# A kill --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--unordered"], ["--dedupe"]])
def test_a_killed_job_goes_on_and_each_row_is_there_once(killed, cli_map, server, out, job, options):
    source, slowly = killed(*options)
    sent = server.requests
    assert not (job / "done.json").exists()
    done = cli_map(source, "-o", out, "--resume", *slowly, *options)
    assert done.exit_code == 0, done.stderr
    rows = read_rows(out)
    assert sorted(row["id"] for row in rows) == list(range(600))
    if "--unordered" not in options:
        check_rows(out, range(600))
    read, answered, failed, filtered, reused = counts_of(job)
    assert (read, failed, filtered) == (600, 0, 0)
    assert reused >= 100
    assert answered + reused == 600
    assert (server.requests > sent) == (answered > 0)
    assert sorted(os.listdir(out.parent)) == ["in.jsonl", "out.jsonl", "out.jsonl.job"]


def test_the_output_goes_on_in_its_place(killed, cli_map, out):
    source, slowly = killed()
    inode = out.stat().st_ino
    assert cli_map(source, "-o", out, "--resume", *slowly).exit_code == 0
    assert out.stat().st_ino == inode


def test_a_row_that_was_torn_is_cut_off(killed, cli_map, out):
    source, slowly = killed()
    with out.open("ab") as file:
        file.write(b'{"id": 17, "te')
    assert cli_map(source, "-o", out, "--resume", *slowly).exit_code == 0
    check_rows(out, range(600))


def test_the_output_of_a_killed_job_may_be_gone(killed, cli_map, out):
    source, slowly = killed()
    out.unlink()
    assert cli_map(source, "-o", out, "--resume", *slowly).exit_code == 0
    check_rows(out, range(600))


def test_a_signal_keeps_finished_rows_and_names_the_way_on(spawn, server, cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(600)))
    server.set_faults("stall,after=50")
    process = spawn(source, "-o", out, *SLOWLY)
    wait_for_rows(out, 100)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 143
    assert f"{job} has " in stderr.decode()
    assert "the same command with --resume goes on with its answers" in stderr.decode()
    assert 100 <= len(read_rows(out)) < 600
    server.set_faults()
    assert cli_map(source, "-o", out, "--resume", *SLOWLY).exit_code == 0
    check_rows(out, range(600))


# A finished job ------------------------------------------------------------------------------------------------------


def test_a_finished_job_sends_nothing_again(cli_map, server, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(50)))
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    before, sent = out.read_bytes(), server.requests
    done = cli_map(source, "-o", out, "--resume")
    assert done.exit_code == 0
    assert done.stderr.startswith(f"0 rows to {out} in ")
    assert "reused: 50" in done.stderr
    assert (out.read_bytes(), server.requests) == (before, sent)
    assert counts_of(job) == (50, 0, 0, 0, 50)


def test_rows_that_are_new_in_the_input_are_sent_alone(cli_map, server, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(50)))
    assert cli_map(source, "-o", out).exit_code == 0
    write_rows(source, rows_of(*range(60)))
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    check_rows(out, range(60))
    assert counts_of(job) == (60, 10, 0, 0, 50)


@pytest.mark.parametrize("options", [[], ["--unordered"]])
@pytest.mark.parametrize(
    "numbers", [[*range(40, 60), *range(40)], [*range(10, 50)], [*range(49, -1, -1)]], ids=["moved", "fewer", "turned"]
)
def test_the_input_may_change_and_unchanged_rows_are_reused(cli_map, tmp_path, out, job, numbers, options):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(50)))
    assert cli_map(source, "-o", out, *options).exit_code == 0
    write_rows(source, rows_of(*numbers))
    assert cli_map(source, "-o", out, "--resume", *options).exit_code == 0
    assert sorted(row["id"] for row in read_rows(out)) == sorted(numbers)
    if not options:
        check_rows(out, numbers)
    new = len(set(numbers) - set(range(50)))
    assert counts_of(job) == (len(numbers), new, 0, 0, len(numbers) - new)


def test_a_field_outside_the_prompt_may_change(cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [row | {"by": "a"} for row in rows_of(0, 1)])
    assert cli_map(source, "-o", out).exit_code == 0
    sent = server.requests
    write_rows(source, [row | {"by": "b"} for row in rows_of(0, 1)])
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    assert [row["by"] for row in read_rows(out)] == ["b", "b"]
    assert server.requests == sent


def test_other_columns_are_written_anew(cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0, 1))
    assert cli_map(source, "-o", out).exit_code == 0
    sent = server.requests
    assert cli_map(source, "-o", out, "--resume", "--columns", "id").exit_code == 0
    assert all("text" not in row for row in read_rows(out))
    assert server.requests == sent


def test_repeats_map_one_to_one(cli_map, server, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "same"}] * 5)
    assert cli_map(source, "-o", out, "--temperature", 1).exit_code == 0
    first = read_rows(out)
    write_rows(source, [{"text": "same"}] * 8)
    assert cli_map(source, "-o", out, "--temperature", 1, "--resume").exit_code == 0
    assert read_rows(out)[:5] == first
    assert counts_of(job) == (8, 3, 0, 0, 5)


# Rows that failed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retry", "again"), [("none", 0), ("transient", 1), ("all", 2)])
def test_failed_rows_run_again_as_asked(cli_map, server, tmp_path, out, job, retry, again):
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(0, 1), {"id": 2, "text": "word " * 40000}, *rows_of(3)])
    server.set_faults("stall,count=1")
    first = cli_map(source, "-o", out, "--max-batch-size", 1, "--timeout", 1)
    assert first.exit_code == 1
    assert sum("error" in row for row in read_rows(out)) == 2
    server.set_faults()
    done = cli_map(source, "-o", out, "--resume", "--retry-failed", retry, "--max-batch-size", 1, "--timeout", 30)
    assert done.exit_code == 1
    assert [row["id"] for row in read_rows(out)] == [0, 1, 2, 3]
    assert sum("error" in row for row in read_rows(out)) == (2 if retry == "none" else 1)
    # The long row fails again, if it runs again.
    assert counts_of(job) == (4, min(again, 1), max(again - 1, 0), 0, 4 - again)


def test_unusable_rows_are_in_the_output_once(cli_map, server, tmp_path, out, job):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\nnonsense\nnonsense\n{"other": 1}\n{"text": "b"}\n')
    asked = []
    for options in ([], ["--resume"], ["--resume", "--unordered"], ["--resume"]):
        done = cli_map(source, "-o", out, *options)
        assert done.exit_code == 1
        assert "failed: 3" in done.stderr
        rows = read_rows(out)
        assert len(rows) == 5
        assert sorted(row.get("line", 0) for row in rows) == [0, 0, 0, 2, 3]
        asked.append(server.requests)
    # The first run asked for the usable rows. No later one asked for anything.
    assert len(set(asked)) == 1
    # They have failed for good: nothing runs again, and the output goes on in its place.
    inode = out.stat().st_ino
    assert cli_map(source, "-o", out, "--resume").exit_code == 1
    assert out.stat().st_ino == inode


# What is refused -----------------------------------------------------------------------------------------------------


def test_a_job_that_is_there_is_never_begun_anew_in_silence(killed, cli_map, server, out, job):
    source, slowly = killed()
    before, sent = out.read_bytes(), server.requests
    for options, named in (([], f"{job} has "), (["--overwrite"], "--overwrite: ")):
        refused = cli_map(source, "-o", out, *slowly, *options)
        assert refused.exit_code == 2
        assert refused.stderr.startswith(f"Error: {named}")
        assert " answers of an unfinished job" in refused.stderr
        assert "--resume goes on with it" in refused.stderr
    assert (out.read_bytes(), server.requests) == (before, sent)


def test_a_finished_job_is_replaced_if_asked(cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0, 1))
    assert cli_map(source, "-o", out).exit_code == 0
    refused = cli_map(source, "-o", out)
    assert refused.exit_code == 2
    assert f"{out}: its job is finished, and {job} has 2 answers" in refused.stderr
    write_rows(source, rows_of(5))
    assert cli_map(source, "-o", out, "--overwrite").exit_code == 0
    check_rows(out, [5])
    assert counts_of(job) == (1, 1, 0, 0, 0)
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.jsonl", "out.jsonl.job"]


@pytest.mark.parametrize(
    ("changed", "option"),
    [(["--max-tokens", "4"], "the template or the parameters differ"), (["--model", "other"], "the model (")],
)
def test_a_changed_job_is_refused_until_the_change_is_accepted(cli_map, tmp_path, out, job, changed, option):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(20)))
    assert cli_map(source, "-o", out).exit_code == 0
    before = out.read_bytes(), manifest_of(job)
    refused = cli_map(source, "-o", out, "--resume", *changed)
    assert refused.exit_code == 2
    assert option in refused.stderr
    assert "up to 20 rows would run again; --accept-changed runs them" in refused.stderr
    assert (out.read_bytes(), manifest_of(job)) == before


def test_an_accepted_change_runs_all_rows(cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(20)))
    assert cli_map(source, "-o", out).exit_code == 0
    done = cli_map(source, "-o", out, "--resume", "--accept-changed", prompt="Tell {text}")
    assert done.exit_code == 0
    assert [row["completion"] for row in read_rows(out)] == [
        expected_text(f"Tell text {number}", max_tokens=3, temperature=0) for number in range(20)
    ]
    assert counts_of(job) == (20, 20, 0, 0, 0)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:100], "has 100 bytes, and the job had written"),
        (lambda data: b"X" + data[1:], "was changed within the first"),
    ],
)
def test_an_output_that_was_changed_is_refused_and_published(cli, cli_map, server, tmp_path, out, job, damage, said):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(20)))
    assert cli_map(source, "-o", out).exit_code == 0
    out.write_bytes(damage(out.read_bytes()))
    sent = server.requests
    refused = cli_map(source, "-o", out, "--resume")
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert f"`batchclient job publish {job}` writes it anew from the journal" in refused.stderr
    published = cli("job", "publish", job)
    assert published.exit_code == 0, published.stderr
    check_rows(out, range(20))
    assert server.requests == sent
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    assert server.requests == sent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--resume", "--overwrite"], "--resume: goes on with OUT, and --overwrite replaces it"),
        (["--retry-failed", "all"], "--retry-failed: for a job that goes on: give --resume, too"),
        (["--accept-changed"], "--accept-changed: for a job that goes on"),
        (["--resume", "--retry-failed", "some"], "--retry-failed: one of none, transient, all, not 'some'"),
        (["--resume", "--no-journal"], "--resume: not with --no-journal"),
        (["--journal", "x", "--no-journal"], "--journal: not with --no-journal"),
        (["--journal", ""], "--journal is empty"),
        (["--disk-patience", "-1"], "--disk-patience: a number of seconds, at least 0, not -1"),
    ],
)
def test_wrong_options_are_refused(cli_map, server, tmp_path, out, options, said):
    refused = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(0)), "-o", out, *options)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert (server.requests, os.listdir(tmp_path)) == (0, ["in.jsonl"])


def test_rows_to_a_pipe_have_no_journal_unless_it_is_named(cli_map, spawn, server, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0, 1))
    refused = cli_map(source, "--resume")
    assert refused.exit_code == 2
    assert "--resume: rows to stdout have no journal; give --journal DIR" in refused.stderr
    for _ in range(2):
        rows, stderr = spawn(source, "--journal", tmp_path / "kept", "--resume").communicate()
        assert [row["id"] for row in read_rows(rows)] == [0, 1], stderr
    assert server.requests == 1


def test_an_output_of_somebody_else_is_left_alone(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0, 1))
    out.write_text("precious")
    refused = cli_map(source, "-o", out, "--resume")
    assert refused.exit_code == 2
    assert "the file exists" in refused.stderr
    assert out.read_text() == "precious"


def of_version(path, version):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()


# Damage --------------------------------------------------------------------------------------------------------------


def test_one_damaged_row_runs_again_alone(cli_map, server, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(20)))
    assert cli_map(source, "-o", out).exit_code == 0
    with sqlite3.connect(job / "journal.sqlite") as connection:
        connection.execute("UPDATE row SET body = replace(body, 'length', 'lenght') WHERE seq = 7")
    connection.close()
    done = cli_map(source, "-o", out, "--resume")
    assert done.exit_code == 0
    assert "1 rows of the journal" in done.stderr
    assert counts_of(job) == (20, 1, 0, 0, 19)
    check_rows(out, range(20))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"nonsense" * 600), "is damaged, or is no journal"),
        (lambda path: of_version(path, 2), "made by a newer batchclient"),
    ],
    ids=["header", "newer"],
)
def test_a_journal_that_cannot_be_used_is_refused(cli_map, tmp_path, out, job, damage, said):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(20)))
    assert cli_map(source, "-o", out).exit_code == 0
    damage(job / "journal.sqlite")
    refused = cli_map(source, "-o", out, "--resume")
    assert refused.exit_code == 2
    assert said in refused.stderr
    check_rows(out, range(20))


# Places --------------------------------------------------------------------------------------------------------------


def test_the_journals_may_be_elsewhere(cli_map, tmp_path, out, monkeypatch):
    monkeypatch.setenv("BATCHCLIENT_JOURNAL_DIR", str(tmp_path / "journals"))
    (tmp_path / "journals").mkdir()
    source = write_rows(tmp_path / "in.jsonl", rows_of(0, 1))
    assert cli_map(source, "-o", out).exit_code == 0
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "journals", "out.jsonl"]
    (kept,) = (tmp_path / "journals").iterdir()
    assert kept.name.startswith("out.jsonl-")
    assert kept.name.endswith(".job")


def test_standard_input_is_kept_and_read_again(cli_map, server, tmp_path, out, job):
    rows = "".join(json.dumps(row) + "\n" for row in rows_of(0, 1, 2))
    assert cli_map("-", "-o", out, input=rows).exit_code == 0
    check_rows(out, range(3))
    assert (job / "input").read_text() == rows
    sent = server.requests
    for given in ("", rows):
        assert cli_map("-", "-o", out, "--resume", input=given).exit_code == 0
        check_rows(out, range(3))
    assert server.requests == sent


def test_an_input_that_can_be_read_once_is_kept_too(spawn, server, cli, tmp_path, out, job):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    rows = "".join(json.dumps(row) + "\n" for row in rows_of(*range(3000)))
    process = spawn(fifo, "-o", out)
    fifo.write_text(rows)
    assert process.wait(20) == 0
    check_rows(out, range(3000))
    assert (job / "input").read_text() == rows
    sent = server.requests
    assert cli("job", "publish", job).exit_code == 0
    check_rows(out, range(3000))
    assert server.requests == sent


def test_a_refused_command_leaves_the_kept_input_as_it_is(cli_map, cli, tmp_path, out, job):
    rows = "".join(json.dumps(row) + "\n" for row in rows_of(0, 1, 2))
    assert cli_map("-", "-o", out, input=rows).exit_code == 0
    before = {path.name for path in job.glob("[!j]*")}
    refused = cli_map("-", "-o", out, "--resume", input='{"text": "another"}\n', prompt="Tell {text}")
    assert refused.exit_code == 2
    assert (job / "input").read_text() == rows
    assert {path.name for path in job.glob("[!j]*")} == before == {"done.json", "input"}
    assert cli("job", "publish", job).exit_code == 0
    check_rows(out, range(3))


def test_a_folder_of_others_is_no_jobs(cli, cli_map, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    refused = cli_map(source, "-o", out, "--journal", precious)
    assert refused.exit_code == 2
    assert "there is a folder with other files, such as thesis.txt" in refused.stderr
    assert os.listdir(precious) == ["thesis.txt"]
    assert server.requests == 0
    # A file of others that comes later stays, too.
    assert cli_map(source, "-o", out).exit_code == 0
    (tmp_path / "out.jsonl.job" / "note.txt").write_text("x")
    assert cli("job", "rm", f"{out}.job").exit_code == 0
    assert os.listdir(tmp_path / "out.jsonl.job") == ["note.txt"]


def test_a_replaced_job_stays_aside_until_the_new_one_has_a_row(spawn, cli_map, server, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(5)))
    assert cli_map(source, "-o", out).exit_code == 0
    server.set_faults("stall")
    for _ in range(2):
        process = spawn(source, "-o", out, "--overwrite", prompt="Tell {text}")
        while not (job / "job.json").exists():
            time.sleep(0.01)
        process.kill()
        process.wait()
        (job / "job.json").unlink(missing_ok=True)
    check_rows(out, range(5))
    assert json.loads((job.with_name("out.jsonl.job.old") / "done.json").read_text())["answered"] == 5


def test_a_part_may_be_left_again_and_again(cli_map, server, tmp_path, out, job, monkeypatch):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(6000)))
    assert cli_map(source, "-o", out).exit_code == 0
    write_rows(source, rows_of(*reversed(range(6000))))
    part = out.with_name("out.jsonl.part")

    async def stop(size):
        while not part.exists() or part.stat().st_size <= size:
            await asyncio.sleep(0.001)
        signal.raise_signal(signal.SIGTERM)

    class Stopped(Job):
        async def run(self):
            stopping = asyncio.ensure_future(stop(part.stat().st_size if part.exists() else 0))
            await super().run()
            stopping.cancel()

    sent = server.requests
    with monkeypatch.context() as patched:
        patched.setattr(run_module, "Job", partial(Stopped, tick_s=0.001, mark_s=0.0))
        for _ in range(2):
            stopped = cli_map(source, "-o", out, "--resume")
            assert stopped.exit_code in (143, 0), stopped.stderr
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    check_rows(out, reversed(range(6000)))
    assert server.requests == sent


def test_publishing_that_is_ended_leaves_the_output_as_it_is(cli, cli_map, tmp_path, out, job, monkeypatch):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(6000)))
    assert cli_map(source, "-o", out).exit_code == 0
    before = out.read_bytes(), manifest_of(job)
    part = out.with_name("out.jsonl.part")

    async def stop():
        while not part.exists() or not part.stat().st_size:
            await asyncio.sleep(0.001)
        signal.raise_signal(signal.SIGTERM)

    class Stopped(Job):
        async def run(self):
            stopping = asyncio.ensure_future(stop())
            await super().run()
            await stopping

    monkeypatch.setattr(run_module, "Job", Stopped)
    assert cli("job", "publish", job).exit_code == 143
    assert (out.read_bytes(), manifest_of(job)) == before
    monkeypatch.undo()
    done = cli_map(source, "-o", out, "--resume")
    assert done.exit_code == 0, done.stderr
    check_rows(out, range(6000))


def test_two_jobs_of_one_folder_are_told_apart(spawn, cli_map, server, tmp_path, out):
    server.set_faults("stall")
    source = write_rows(tmp_path / "in.jsonl", rows_of(0))
    process = spawn(source, "-o", out, "--journal", tmp_path / "kept")
    while not (tmp_path / "kept" / "job.json").exists():
        time.sleep(0.01)
    refused = cli_map(source, "-o", tmp_path / "other.jsonl", "--journal", tmp_path / "kept")
    assert refused.exit_code == 2
    assert f"another command is writing this file: pid {process.pid} " in refused.stderr


def test_a_replaced_job_is_not_reused_in_silence(cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0))
    assert cli_map(source, "-o", out).exit_code == 0
    refused = cli_map(source, "-o", out, "--overwrite", "--reuse", job)
    assert refused.exit_code == 2
    assert f"--reuse: {job} is this job's own folder" in refused.stderr
    assert counts_of(job)[1] == 1


def test_an_output_that_others_replace_meanwhile_has_no_manifest(spawn, server, cli_map, tmp_path, out, job):
    server.set_faults("stall,after=1")
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(8)))
    process = spawn(source, "-o", out, "--max-batch-size", 4, "--timeout", 3)
    wait_for_rows(out, 4)
    out.unlink()
    out.write_text("other")
    _, stderr = process.communicate()
    assert process.returncode == 4
    assert b"the file was moved or replaced while the job ran" in stderr
    assert not (job / "done.json").exists()
    assert out.read_text() == "other"


def test_without_a_server_the_status_says_so_beside_unusable_rows(cli, tmp_path, out):
    rows = [{"text": f"text {number}" if number % 10 else None} for number in range(1000)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    for count in (20, 1000):
        options = ["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--prompt", "{text}", "--first", count]
        assert cli("map", source, "-o", out, *options, "--resume").exit_code == 5


def test_an_overwrite_beside_a_running_job_is_refused_by_name(spawn, cli_map, server, tmp_path, out, job):
    server.set_faults("stall,after=1")
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(8)))
    process = spawn(source, "-o", out, "--max-batch-size", 4)
    wait_for_rows(out, 4)
    for options in (["--overwrite"], []):
        refused = cli_map(source, "-o", out, *options)
        assert refused.exit_code == 2
        assert f"another command is writing this file: pid {process.pid} " in refused.stderr


def test_answers_of_another_job_are_taken(cli_map, server, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(20)))
    assert cli_map(source, "-o", out).exit_code == 0
    sent = server.requests
    other = tmp_path / "other.jsonl"
    assert cli_map(source, "-o", other, "--reuse", job).exit_code == 0
    check_rows(other, range(20))
    assert server.requests == sent


def test_no_key_no_header_and_no_query_is_on_the_disk(cli, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0, 1))
    with EmbeddedServer("instant", api_key="hush-hush") as server:
        options = ["--model", server.model, "--prompt", "{text}", "--header", "X-Trace: canary-trace"]
        url = f"{server.base_url}?key=canary-query"
        done = cli("map", source, "-o", out, "--base-url", url, *options, "--api-key", "hush-hush")
        assert done.exit_code == 0, done.stderr
    for path in job.iterdir():
        for secret in (b"hush-hush", b"canary"):
            assert secret not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
    assert job.stat().st_mode & 0o077 == 0


# The commands for a job ----------------------------------------------------------------------------------------------


def test_status_failures_and_export_only_look(cli, cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(0, 1), {"id": 2, "text": "word " * 40000}])
    assert cli_map(source, "-o", out, "--max-batch-size", 1).exit_code == 1
    before = {path.name: path.read_bytes() for path in job.iterdir()}
    told = json.loads(cli("job", "status", job, "--json").stdout)
    assert (told["state"], told["answered"], told["failed"], told["may_be_tried"]) == ("finished", 2, 1, 0)
    assert told["output_bytes"] == out.stat().st_size
    assert "answered: 2\n" in cli("job", "status", job).stdout
    assert cli("job", "failures", job).stdout.startswith("2\tBadRequest: 400: ")
    assert json.loads(cli("job", "failures", job, "--json").stdout)["id"] == "2"
    exported = read_rows(cli("job", "export", job).stdout.encode())
    exported.sort(key=lambda row: row["id"])
    assert [row["state"] for row in exported] == [1, 1, 2]
    assert exported[0]["answer"]["choices"][0]["finish_reason"] == "length"
    assert {path.name: path.read_bytes() for path in job.iterdir()} == before


def test_the_failures_name_lines_and_no_text_of_a_row(cli, cli_map, tmp_path, out, job, monkeypatch):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\nsecret nonsense\n{"other": "secret"}\n')
    assert cli_map(source, "-o", out).exit_code == 1
    monkeypatch.chdir(tmp_path)
    told = cli("job", "failures", "out.jsonl.job").stdout
    unusable, incomplete = sorted(told.splitlines())
    assert unusable.startswith("-\tBadRow: line 2 is not JSON")
    assert incomplete.startswith("-\tConfigError: line 3: ")
    assert "secret" not in told


def test_an_input_that_breaks_keeps_the_answers_before(cli_map, server, tmp_path, out, job):
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in rows_of(*range(6000))).encode())
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(whole[:-2000])
    options = ["--price", "0/1000000", "--max-cost", 300]
    stopped = cli_map(source, "-o", out, *options, "--max-batch-size", 4)
    assert stopped.exit_code in (1, 3), stopped.stderr
    assert "Traceback" not in stopped.stderr
    source.write_bytes(whole)
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    check_rows(out, range(6000))
    assert counts_of(job)[4] >= 100


def test_a_dedupe_counts_rows_of_the_journal_as_reused(cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", [{"text": f"text {number % 4}"} for number in range(12)])
    assert cli_map(source, "-o", out, "--dedupe").exit_code == 0
    assert counts_of(job) == (12, 12, 0, 0, 0)
    assert cli_map(source, "-o", out, "--dedupe", "--resume").exit_code == 0
    assert counts_of(job) == (12, 0, 0, 0, 12)


def test_a_job_may_move_with_its_files(cli, cli_map, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_rows(tmp_path / "here" / "in.jsonl", rows_of(*range(5)))
    assert cli_map("in.jsonl", "-o", "out.jsonl").exit_code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "there" / "out.jsonl").unlink()
    assert cli("job", "publish", "there/out.jsonl.job").exit_code == 0
    check_rows(tmp_path / "there" / "out.jsonl", range(5))
    assert os.listdir(tmp_path) == ["there"]


def test_a_job_that_is_not_finished_is_published_and_goes_on(killed, cli, cli_map, server, out, job):
    source, slowly = killed(count=150)
    sent = server.requests
    published = cli("job", "publish", job)
    assert published.exit_code == 1
    assert "not in the journal, and left out: " in published.stderr
    assert "the map with --resume goes on with its answers" in published.stderr
    rows = read_rows(out)
    assert 150 <= len(rows) < 600
    assert server.requests == sent
    assert json.loads(cli("job", "status", job, "--json").stdout)["state"] == "unfinished"
    assert cli_map(source, "-o", out, "--resume", *slowly).exit_code == 0
    check_rows(out, range(600))


def test_a_job_is_removed_and_an_unfinished_one_only_by_force(killed, cli, cli_map, out, job):
    source, _ = killed()
    refused = cli("job", "rm", job)
    assert refused.exit_code == 2
    assert " answers of an unfinished job; --force gives them up" in refused.stderr
    assert cli("job", "rm", job, "--force").exit_code == 0
    assert not job.exists()
    assert out.exists()
    assert cli_map(source, "-o", out, "--overwrite").exit_code == 0
    assert cli("job", "rm", job).exit_code == 0
    check_rows(out, range(600))


@pytest.mark.parametrize("command", ["status", "publish", "failures", "export", "rm"])
def test_what_is_no_job_is_named(cli, tmp_path, command):
    refused = cli("job", command, tmp_path / "missing")
    assert refused.exit_code == 2
    assert f"{tmp_path / 'missing'}: there is no job's folder; it is beside its output" in refused.stderr


def test_the_output_of_a_job_is_answered_with_its_folder(cli, cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0))
    assert cli_map(source, "-o", out).exit_code == 0
    assert f"{out}: there is no job's folder; {job} is one" in cli("job", "status", out).stderr
    refused = cli_map(source, "-o", tmp_path / "other.jsonl", "--reuse", out)
    assert f"--reuse: {out} is no job's folder; {job} is one" in refused.stderr
    assert cli_map(source, "-o", out, "--resume", "--dry-run").exit_code == 0


def test_damaged_settings_are_named(cli, cli_map, tmp_path, out, job):
    source = write_rows(tmp_path / "in.jsonl", rows_of(0))
    assert cli_map(source, "-o", out).exit_code == 0
    for text in ("nonsense", "{}"):
        (job / "job.json").write_text(text)
        refused = cli("job", "publish", job)
        assert refused.exit_code == 2
        assert "job.json is damaged" in refused.stderr


def test_a_running_job_is_said_to_run(spawn, server, cli, cli_map, tmp_path, out, job):
    server.set_faults("stall")
    source = write_rows(tmp_path / "in.jsonl", rows_of(0))
    process = spawn(source, "-o", out)
    while not (job / "job.json").exists():
        time.sleep(0.01)
    assert json.loads(cli("job", "status", job, "--json").stdout)["state"] == "running"
    for command in (["rm", "--force"], ["publish"]):
        refused = cli("job", command[0], job, *command[1:])
        assert refused.exit_code == 2
    process.kill()
    process.wait()
    assert json.loads(cli("job", "status", job, "--json").stdout)["state"] == "unfinished"
    server.set_faults()
    assert cli_map(source, "-o", out, "--resume").exit_code == 0
    shutil.rmtree(job)


# Marks ---------------------------------------------------------------------------------------------------------------


def test_each_mark_tells_the_rows_that_are_before_it(cli_map, tmp_path, out, monkeypatch):
    """Also while a resume passes the rows that the output has, and while rows are written anew."""
    marks = []
    note = FileJournal.note

    def noted(self, name, value):
        marks.append(json.loads(value))
        note(self, name, value)

    monkeypatch.setattr(FileJournal, "note", noted)
    monkeypatch.setattr(run_module, "Job", partial(Job, tick_s=0.001, mark_s=0.0))
    source = write_rows(tmp_path / "in.jsonl", rows_of(*range(2000)))
    for count, options in ((3000, []), (4000, ["--resume"]), (3500, ["--resume"])):
        marks.clear()
        before = out.read_bytes() if options else b""
        write_rows(source, rows_of(*range(count)))
        assert cli_map(source, "-o", out, *options).exit_code == 0
        assert len(read_rows(out)) == count
        assert len(marks) > 2
        for mark in marks:
            # With fewer rows in the input the first mark is of the output that is replaced.
            written = out.read_bytes() if mark["rows"] <= count else before
            ends = [0, *accumulate(map(len, written.splitlines(keepends=True)))]
            assert mark["size"] == ends[mark["rows"]], mark
            assert mark["sha256"] == hashlib.sha256(written[: mark["size"]]).hexdigest()
    assert any(mark["replaces"] for mark in marks)
