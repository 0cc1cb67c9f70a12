"""The thread that writes rows: bounded, prompt, whole rows alone."""

import asyncio
import os
import resource
import signal
import time

import pytest

from batchclient.jobs.output import Output
from batchclient.jobs.writer import Writer

ROW = b'{"text": "' + b"x" * 100 + b'"}\n'


def run(work, path, make_output=Output, **options):
    """Give ``work`` an open writer, and close it; the writer."""

    async def main():
        with make_output(str(path)) as output:
            writer = Writer(output, **options)
            await writer.open()
            is_hurried = await work(writer)
            await writer.close(is_complete=True, in_a_hurry=lambda: bool(is_hurried))
            return writer

    return asyncio.run(main())


@pytest.fixture
def pipe(tmp_path):
    """A named pipe with both ends open, that nobody reads."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reading
    os.close(reading)


def test_rows_come_out_in_order(tmp_path):
    lines = [b"%d\n" % number for number in range(5000)]

    async def work(writer):
        for line in lines:
            writer.put(line)
            if writer.is_full:
                await writer.room()

    writer = run(work, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"".join(lines)
    assert (writer.written, writer.error) == (5000, None)


def test_a_row_is_in_the_file_within_a_second(tmp_path):
    async def work(writer):
        writer.put(ROW)
        until = time.monotonic() + 1
        while not (tmp_path / "out").read_bytes():
            assert time.monotonic() < until
            await asyncio.sleep(0.01)

    run(work, tmp_path / "out")


def test_a_reader_that_reads_nothing_fills_the_queue(pipe):
    path, _ = pipe

    async def work(writer):
        put = 0
        while not writer.is_full:
            writer.put(ROW * 10)
            put += 1
            await asyncio.sleep(0)
        assert 100 <= put <= 100 + 2 * 65536 // len(ROW * 10) + 256
        waiting = asyncio.create_task(writer.room())
        # The loop goes on meanwhile.
        await asyncio.sleep(0.1)
        assert not waiting.done()
        os.read(pipe[1], 1 << 20)
        while not waiting.done():
            await asyncio.sleep(0.01)
            try:
                os.read(pipe[1], 1 << 20)
            except BlockingIOError:
                continue
        return True

    run(work, path, most_rows=100)


def test_many_rows_fill_the_queue(pipe):
    async def work(writer):
        for _ in range(200):
            writer.put(b"\n")
        # All are in the pipe after a moment, and the queue is empty.
        assert writer.is_full
        await writer.room()
        assert not writer.is_full

    assert run(work, pipe[0], most_rows=100).written == 200


def test_many_bytes_fill_the_queue_too(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def work(writer):
        for _ in range(17):
            writer.put(b"x" * (1 << 20) + b"\n")
        assert writer.is_full
        os.close(reading)
        await writer.room()

    assert run(work, path).error is not None


def test_whoever_is_in_a_hurry_leaves_a_reader_that_reads_nothing(pipe):
    async def work(writer):
        for _ in range(1000):
            writer.put(ROW * 10)
        return True

    started = time.monotonic()
    writer = run(work, pipe[0])
    assert writer.is_given_up
    assert 0.4 < time.monotonic() - started < 5
    assert writer.written < 1000


def test_whoever_is_in_a_hurry_waits_for_a_reader_that_reads_slowly(pipe):
    path, reading = pipe
    rows = 250

    async def drain(writer):
        data = b""
        while len(data) < rows * len(ROW * 10):
            await asyncio.sleep(0.07)
            try:
                data += os.read(reading, 20_000)
            except BlockingIOError:
                continue
        return data

    async def work(writer):
        for _ in range(rows):
            writer.put(ROW * 10)
        work.reader = asyncio.create_task(drain(writer))
        return True

    writer = run(work, path)
    assert (writer.written, writer.is_given_up) == (rows, False)


def test_a_reader_that_goes_away_is_an_error(pipe, tmp_path):
    path = tmp_path / "other"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def work(writer):
        os.close(reading)
        writer.put(ROW)

    writer = run(work, path)
    assert isinstance(writer.error, BrokenPipeError)
    assert writer.written == 0


def test_a_pipe_set_not_to_block_is_waited_for(pipe):
    path, reading = pipe

    class NotBlocking(Output):
        def open(self):
            file = super().open()
            os.set_blocking(file, False)
            return file

    async def work(writer):
        for _ in range(100):
            writer.put(ROW * 10)
        await asyncio.sleep(0.1)
        assert writer.error is None
        while writer.written < 100:
            await asyncio.sleep(0.01)
            try:
                os.read(reading, 1 << 20)
            except BlockingIOError:
                continue

    assert run(work, path, make_output=NotBlocking).written == 100


def test_a_full_disk_leaves_whole_rows(tmp_path):
    """A bound on the size of files stands for the disk: the write that passes it is cut, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    bound = 10 * len(ROW) + 7

    async def work(writer):
        resource.setrlimit(resource.RLIMIT_FSIZE, (bound, hard))
        for _ in range(50):
            writer.put(ROW)
        await asyncio.sleep(0.1)
        for _ in range(50):
            writer.put(ROW)

    try:
        writer = run(work, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert writer.error is not None
    assert writer.written == 10
    assert (tmp_path / "out").read_bytes() == ROW * 10


def test_an_opening_that_is_not_waited_for_leaves_no_file(tmp_path):
    async def main():
        with Output(str(tmp_path / "out")) as output:
            opening = asyncio.create_task(Writer(output).open())
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
