"""Marks: what a journal says about a file, and whether the file is so."""

import hashlib
import os
from dataclasses import replace

import pytest

from batchclient.errors import ConfigError
from batchclient.jobs.marks import Mark, OutputChanged, hash_of, stamp_of
from batchclient.jobs.output import Output
from batchclient.jobs.plan import Plan, anew, plan_of
from batchclient.journal.of_file import Coverage

ROWS = b'{"id": 1}\n{"id": 2}\n'
COVERED = Coverage(2, b"0123456789abcdef")


def mark_of(data=ROWS, *, replaces=False, inode=0, form="f", rows=2, failed=1, replaced=""):
    digest = COVERED.digest.hex()
    return Mark(
        replaces, len(data), hashlib.sha256(data).hexdigest(), inode, form, rows, digest, failed, replaced, "out.jsonl"
    )


def test_a_mark_is_read_as_it_was_written():
    assert Mark.read(mark_of().write()) == mark_of()
    assert mark_of().covered == COVERED
    assert mark_of(rows=None).covered is None


@pytest.mark.parametrize("text", [None, 7, "", "nonsense", "[1, 2]", '{"size": 3}', '{"another": 1}'])
def test_what_is_no_mark_is_none(text):
    assert Mark.read(text) is None


def test_the_hash_goes_on_where_the_mark_ends(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(ROWS + b'{"torn')
    found = mark_of().check(path)
    found.update(b"more")
    assert found.hexdigest() == hashlib.sha256(ROWS + b"more").hexdigest()
    assert hash_of(path, len(ROWS)).hexdigest() == mark_of().sha256


@pytest.mark.parametrize(
    ("data", "said"),
    [(ROWS[:-1], "has 19 bytes, and the job had written 20"), (b"X" + ROWS, "was changed within the first 20 bytes")],
)
def test_a_file_that_is_another_is_refused(tmp_path, data, said):
    path = tmp_path / "out"
    path.write_bytes(data)
    with pytest.raises(OutputChanged, match=said):
        mark_of().check(path)


def test_a_file_without_a_marked_row_is_known_by_its_inode(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"rows that were not synced")
    mark_of(b"", inode=path.stat().st_ino).check(path)
    with pytest.raises(OutputChanged, match="is a file of somebody else's"):
        mark_of(b"", inode=path.stat().st_ino + 1).check(path)
    path.write_bytes(b"")
    mark_of(b"", inode=path.stat().st_ino + 1).check(path)


# Plans ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def part(tmp_path):
    return tmp_path / "out.jsonl.part"


def planned(out, mark, form="f"):
    with Output(str(out), continues=True) as output:
        plan = plan_of(output, mark, form=form, job="JOB")
    digest = None if plan.sha256 is None else plan.sha256.hexdigest()
    return plan.replaces, plan.at, digest, plan.covered, plan.failed


def going_on(*, replaces):
    return replaces, len(ROWS), hashlib.sha256(ROWS).hexdigest(), COVERED, 1


ANEW = (False, None, None, Coverage(), 0)
ANEW_BESIDE = (True, None, None, Coverage(), 0)


def test_rows_go_on_where_the_mark_says(out, part):
    out.write_bytes(ROWS + b'{"torn')
    assert planned(out, mark_of()) == going_on(replaces=False)
    part.write_bytes(ROWS)
    out.write_bytes(b"old")
    assert planned(out, mark_of(replaces=True, replaced=stamp_of(out))) == going_on(replaces=True)


def test_a_part_that_was_renamed_is_the_output(out):
    out.write_bytes(ROWS)
    assert planned(out, mark_of(replaces=True)) == going_on(replaces=False)


def test_rows_are_written_anew_where_the_mark_does_not_say_which_are_there(out):
    out.write_bytes(ROWS)
    assert planned(out, mark_of(rows=None)) == ANEW_BESIDE
    assert planned(out, mark_of(), form="another") == ANEW_BESIDE


def test_an_output_that_is_gone_is_written_anew(out):
    assert planned(out, mark_of()) == ANEW
    assert planned(out, mark_of(replaces=True)) == ANEW
    assert planned(out, None) == ANEW


def test_rows_of_others_behind_a_finished_job_are_refused(out):
    out.write_bytes(ROWS + b'{"mine": 1}\n')
    with Output(str(out), continues=True) as output, pytest.raises(ConfigError, match="has 12 bytes more than the job"):
        plan_of(output, mark_of(), form="f", job="JOB", is_finished=True)


def test_a_part_of_others_is_refused(out, part):
    out.write_bytes(b"X")
    part.write_bytes(b"precious")
    with Output(str(out), continues=True) as output:
        anew(output, mark_of()).choose(output)
        with pytest.raises(ConfigError, match="rows go there first, and the file exists; move it away"):
            output.open()
        assert part.read_bytes() == b"precious"
        anew(output, mark_of(replaces=True)).choose(output)
        os.close(output.open())


def test_a_part_of_other_bytes_is_written_anew(out, part):
    out.write_bytes(b"old")
    part.write_bytes(b"nonsense" * 20)
    assert planned(out, mark_of(replaces=True, replaced=stamp_of(out))) == ANEW_BESIDE
    part.unlink()
    assert planned(out, mark_of(replaces=True, replaced=stamp_of(out))) == ANEW_BESIDE


@pytest.mark.parametrize("has_part", [True, False])
def test_an_output_that_the_job_was_not_to_replace_is_refused(out, part, has_part):
    out.write_bytes(b"precious")
    if has_part:
        part.write_bytes(ROWS)
    with pytest.raises(ConfigError, match=r"out\.jsonl"):
        planned(out, mark_of(replaces=True, replaced="3 1"))
    assert out.read_bytes() == b"precious"


def test_an_output_of_other_bytes_is_refused_with_the_way_out(out):
    out.write_bytes(b"X" + ROWS)
    with pytest.raises(
        ConfigError, match=r"was changed .*; `batchclient job publish JOB` writes it anew from the jour"
    ):
        planned(out, mark_of())


def test_an_output_of_another_name_is_refused_with_the_jobs_own(out):
    out.write_bytes(b"X" + ROWS)
    other = replace(mark_of(), name="other.jsonl")
    with pytest.raises(ConfigError, match=r"out\.jsonl is not the output of JOB, which is other\.jsonl$"):
        planned(out, other)
    out.write_bytes(ROWS)
    assert planned(out, other) == going_on(replaces=False)


def test_an_output_that_the_job_has_not_written_is_refused(out):
    out.write_bytes(b"precious")
    with pytest.raises(ConfigError, match="the file exists, and JOB has not written it; move it away"):
        planned(out, None)
    out.write_bytes(b"")
    assert planned(out, None) == ANEW_BESIDE


def test_a_plan_tells_the_output(out):
    out.write_bytes(ROWS + b'{"torn')
    with Output(str(out), continues=True) as output:
        plan_of(output, mark_of(), form="f", job="JOB").choose(output)
        output.open()
        assert out.read_bytes() == ROWS
        assert output.sha256.hexdigest() == mark_of().sha256
        output.close(is_complete=True)
    with Output(str(out), continues=True) as output:
        assert anew(output, mark_of()) == Plan(replaces=True, part_is_own=False)
