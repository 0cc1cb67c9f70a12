"""The files of a job: copied, torn, damaged, and the files of others beside them."""

import pytest
from tests.crashes.states import HELD, ROWS, stopped
from tests.crashes.watch import Watch


@pytest.fixture
def job(states, tmp_path, server, commands):
    return states.get(stopped).job(tmp_path / "job")


def test_a_job_goes_on_from_a_copy_of_its_files(job):
    # This one is a copy.
    kept = job.kept()
    assert job.run().status == 0
    assert job.server.run.came.total() == ROWS - kept.total
    assert Watch(job).finish() == 0


def test_a_torn_end_and_a_damaged_line_cost_their_rows(job):
    data = job.place.read_bytes()
    place = data.index(b"<text 7>")
    job.place.write_bytes(data[:place] + b"<text 8>" + data[place + 8 :] + b'{"key":"0011')
    command = job.run()
    assert command.status == 0, command.said
    assert job.server.run.came == {"text 7": 1, f"text {HELD}": 1}
    assert "damaged" in command.said and "line" in command.said
    job.check_whole()


@pytest.mark.parametrize("name", ["part", "journal", "journal.lease"])
def test_what_others_have_put_there_stays(job, name):
    place = job.folder / f"out.jsonl.{name}"
    place.unlink(missing_ok=True)
    place.write_text("precious")
    command = job.run()
    # Only the journal and its lease are needed.
    assert command.status == (2 if name in ("journal", "journal.lease") else 0), command.said
    assert command.status == 0 or (place.name in command.said and command.said.count("\n") == 1), command.said
    assert place.read_text() == "precious"


def test_the_input_may_be_called_as_a_part(job):
    source = job.folder / "out.jsonl.part"
    source.unlink()
    job.source.rename(source)
    job.source = source
    data = source.read_bytes()
    assert job.run("--format", "jsonl").status == 0
    job.check_whole()
    assert source.read_bytes() == data
