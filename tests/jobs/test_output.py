"""The output of a job: rows go into a file of its own, which takes the place of ``OUT``. Processes are in ``tests/cli``."""

import asyncio
import contextlib
import errno
import os
import stat
import threading

import pytest

from batchclient.errors import ConfigError
from batchclient.jobs.output import Output


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(output, *lines, before=None, note=lambda status: None, finish=True):
    """Give rows to an output, and let the file take its place."""

    async def main():
        await output.open("t0")
        for line in lines:
            await output.put(line)
        await output.flush()
        if before is not None:
            before()
        if finish:
            await output.finish(note)

    try:
        asyncio.run(main())
    finally:
        output.close()


def refused(path, **options):
    with pytest.raises(ConfigError) as caught:
        Output(str(path), **options)
    assert "\n" not in str(caught.value)
    return caught.value.message


def test_rows_are_beside_the_place_until_they_are_all_there(out):
    out.write_text("old")
    out.chmod(0o640)
    seen = []

    def look(status):
        seen.append((out.read_text(), out.with_name("out.jsonl.part").read_text(), status.st_size))

    output = Output(str(out))
    write(output, b"new\n", b"rows\n", note=look)
    assert seen == [("old", "new\nrows\n", 9)]
    assert (out.read_text(), stat.S_IMODE(out.stat().st_mode), output.written) == ("new\nrows\n", 0o640, 2)
    assert (names(out.parent), output.where) == (["out.jsonl"], str(out))


def test_a_job_that_ends_early_leaves_its_rows_beside_and_the_next_removes_them(out):
    out.write_text("old")
    output = Output(str(out))
    write(output, b"1\n", finish=False)
    assert output.where == f"{out}.part ({out} is as it was)"
    assert (out.read_text(), names(out.parent)) == ("old", ["out.jsonl", "out.jsonl.part", "out.jsonl.t0.part"])
    Output(str(out)).remove("out.jsonl.t0.part")
    assert names(out.parent) == ["out.jsonl"]
    # Before the first row there is nothing to be left.
    write(Output(str(out)), finish=False)
    assert names(out.parent) == ["out.jsonl"]


@pytest.mark.parametrize("place", ["out.jsonl.part", "out.jsonl.t0.part"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_others_have_put_beside_the_place_is_left_alone(out, tmp_path, place, kind):
    (tmp_path / "precious").write_text("precious")
    other = tmp_path / place
    other.symlink_to("precious") if kind == "link" else other.write_text("precious")
    output = Output(str(out))
    if place == "out.jsonl.part":
        write(output, b"1\n", finish=False)
        assert output.where == f"{out}.t0.part"
        output.remove("out.jsonl.t0.part")
        write(Output(str(out)), b"1\n")
        assert out.read_bytes() == b"1\n"
    else:
        with pytest.raises(ConfigError, match="File exists"):
            write(output, b"1\n")
        assert not out.exists()
    assert other.is_symlink() == (kind == "link")
    assert other.read_text() == (tmp_path / "precious").read_text() == "precious"


def test_an_output_that_appears_or_changes_meanwhile_is_left_alone(out):
    for number in range(2):
        with pytest.raises(OSError, match=r"changed while the job ran; the rows are in .*out\.jsonl\.t0\.part"):
            write(Output(str(out)), b"1\n", before=lambda number=number: out.write_text(f"precious {number}"))
        assert out.read_text() == f"precious {number}"
        Output(str(out)).remove("out.jsonl.t0.part")
    out.unlink()
    with pytest.raises(ConfigError, match="link"):
        write(Output(str(out)), b"1\n", before=lambda: out.symlink_to("elsewhere"))
    assert names(out.parent) == ["out.jsonl", "out.jsonl.part", "out.jsonl.t0.part"]


def test_rows_that_were_moved_meanwhile_are_not_put_in_place(out):
    with pytest.raises(OSError, match="moved or replaced"):
        write(Output(str(out)), b"1\n", before=lambda: out.with_name("out.jsonl.t0.part").rename(out.with_name("mine")))
    assert names(out.parent) == ["mine", "out.jsonl.part"]


def test_a_failed_sync_leaves_the_old_file(out, monkeypatch):
    def fail(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    out.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write(Output(str(out)), b"1\n")
    assert out.read_text() == "old"


def test_what_cannot_be_an_output_is_named(out, tmp_path):
    assert refused("") == "--output is empty; give a path, or - for stdout"
    assert refused(tmp_path) == f"{tmp_path}: Is a directory"
    assert refused(tmp_path / "missing" / "out") == f"{tmp_path}/missing/out: there is no directory {tmp_path}/missing"
    assert refused(tmp_path / ("x" * 300)).endswith(": File name too long")
    out.write_text("rows")
    assert "the same file" in refused(out, source=out.stat())
    for target in ("out.jsonl", "nowhere"):
        link = tmp_path / f"to {target}"
        link.symlink_to(target)
        assert refused(link) == f"{link}: a link to {target}; name the file itself"


# Pipes ---------------------------------------------------------------------------------------------------------------


async def test_a_slow_reader_holds_up_the_job_and_nothing_else(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    got = []

    def read(size):
        # The writer is another thread: there may be nothing to read yet.
        with contextlib.suppress(BlockingIOError):
            got.append(os.read(reading, size))

    output = Output(str(tmp_path / "pipe"), stall_s=0.05)
    await output.open()
    putting = asyncio.create_task(output.put(b"x" * 300_000))
    # The loop goes on meanwhile.
    await asyncio.sleep(0.05)
    assert not putting.done() and output.written == 0
    while not putting.done():
        read(1 << 16)
        await asyncio.sleep(0.001)
    # Whoever is in a hurry waits as long as the reader takes rows, and no longer.
    await output.put(b"y" * 250_000)
    output.in_a_hurry = lambda: True
    flushing = asyncio.create_task(output.flush())
    for _ in range(6):
        await asyncio.sleep(0.02)
        read(1 << 14)
    assert not flushing.done()
    await asyncio.wait_for(flushing, 20)
    assert output.is_given_up and output.written == 1
    # Nor does any further row wait, of however many bytes.
    for _ in range(3):
        await output.put(b"z" * 300_000)
    await output.flush()
    output.close()
    os.close(reading)
    assert len(b"".join(got)) >= 300_000 - 65_536


async def test_whoever_is_cancelled_loses_no_row_and_doubles_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    read = []

    def take():
        with os.fdopen(reading, "rb") as pipe:
            read.append(pipe.read())

    output = Output(str(tmp_path / "pipe"))
    await output.open()
    putting = asyncio.create_task(output.put(b"x" * 300_000))
    await asyncio.sleep(0.02)
    putting.cancel()
    await output.put(b"y")
    os.set_blocking(reading, True)
    thread = threading.Thread(target=take)
    thread.start()
    await output.flush()
    output.close()
    thread.join()
    assert read == [b"x" * 300_000 + b"y"]


async def test_a_reader_that_has_gone_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    output = Output(str(tmp_path / "pipe"))
    with pytest.raises(BrokenPipeError):
        await output.open()
        os.close(reading)
        await output.put(b"1\n")
        await output.flush()
    output.close()
