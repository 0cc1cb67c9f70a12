"""The output of a job: rows go into a file of its own, which takes the place of ``OUT``. Processes are in ``tests/cli``."""

import asyncio
import contextlib
import errno
import os
import stat
import threading
from zlib import crc32

import pytest

from batchclient.errors import ConfigError
from batchclient.jobs.output import Output


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(output, *lines, before=None, note=lambda status: None, finish=True, head=b""):
    """Give rows to an output, and let the file take its place."""

    async def main():
        await output.open("f00df00df00df00d")
        for line in lines:
            await output.put(line)
        await output.flush()
        if before is not None:
            before()
        if finish:
            await output.finish(note, head)

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
    assert output.checksum == crc32(b"new\nrows\n")
    write(headed := Output(str(out)), b"new\n", b"rows\n", head=b"NEW")
    assert (out.read_text(), headed.checksum) == ("NEW\nrows\n", crc32(b"NEW\nrows\n"))


def test_a_job_that_ends_early_leaves_its_rows_beside_and_the_next_removes_them(out):
    out.write_text("old")
    output = Output(str(out))
    write(output, b"1\n", finish=False)
    assert output.where == f"{out}.part ({out} is as it was)"
    assert (out.read_text(), names(out.parent)) == (
        "old",
        ["out.jsonl", "out.jsonl.f00df00df00df00d.part", "out.jsonl.part"],
    )
    Output(str(out)).remove("out.jsonl.f00df00df00df00d.part")
    assert names(out.parent) == ["out.jsonl"]
    # Before the first row there is nothing to be left.
    write(Output(str(out)), finish=False)
    assert names(out.parent) == ["out.jsonl"]


@pytest.mark.parametrize("place", ["out.jsonl.part", "out.jsonl.f00df00df00df00d.part"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_others_have_put_beside_the_place_is_left_alone(out, tmp_path, place, kind):
    (tmp_path / "precious").write_text("precious")
    other = tmp_path / place
    other.symlink_to("precious") if kind == "link" else other.write_text("precious")
    output = Output(str(out))
    if place == "out.jsonl.part":
        write(output, b"1\n", finish=False)
        assert output.where == f"{out}.f00df00df00df00d.part"
        output.remove("out.jsonl.f00df00df00df00d.part")
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
        with pytest.raises(
            OSError, match=r"changed while the job ran; the rows are in .*out\.jsonl\.f00df00df00df00d\.part"
        ):
            write(Output(str(out)), b"1\n", before=lambda number=number: out.write_text(f"precious {number}"))
        assert out.read_text() == f"precious {number}"
        Output(str(out)).remove("out.jsonl.f00df00df00df00d.part")
    out.unlink()
    with pytest.raises(OSError, match="changed while the job ran"):
        write(Output(str(out)), b"1\n", before=lambda: out.symlink_to("elsewhere"))
    assert str(out.readlink()) == "elsewhere"
    assert names(out.parent) == ["out.jsonl", "out.jsonl.f00df00df00df00d.part", "out.jsonl.part"]


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.rename(part.with_name("mine")),
        lambda part: os.truncate(part, 0),
        lambda part: part.write_bytes(part.read_bytes() + b"mine\n"),
        lambda part: part.with_name("mine").replace(part) if part.with_name("mine").write_text("1\n") else None,
    ],
    ids=["moved", "cut", "longer", "replaced"],
)
def test_rows_that_were_moved_or_changed_meanwhile_are_not_put_in_place(out, change):
    part = out.with_name("out.jsonl.part")
    with pytest.raises(OSError, match="moved, replaced or changed while the job ran"):
        write(Output(str(out)), b"1\n", before=lambda: change(part.with_name(os.readlink(part))))
    assert not out.exists()


def test_of_two_jobs_on_one_output_the_second_is_refused(out):
    def second():
        with pytest.raises(ConfigError, match=r"another job writes it, and has its rows in .*out\.jsonl\.part"):
            Output(str(out)).check_free()

    write(Output(str(out)), b"1\n", before=second, finish=False)
    Output(str(out)).check_free()


@pytest.mark.parametrize(
    ("name", "is_removed"),
    [
        ("out.jsonl.f00df00df00df00d.part", True),
        ("out.jsonl.errors.f00df00df00df00d.part", True),
        ("out.jsonl.other.f00df00df00df00d.part", False),
        ("out.jsonl.f00d.part", False),
        ("other.f00df00df00df00d.part", False),
        ("out.jsonl.part", False),
        ("in.jsonl", False),
    ],
)
def test_nothing_is_removed_but_what_took_rows_of_this_output(out, tmp_path, name, is_removed):
    (tmp_path / name).write_text("precious")
    for each in (name, f"../{name}", f"./{name}", ".", ""):
        Output(str(out)).remove(each)
    assert (tmp_path / name).exists() != is_removed


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
