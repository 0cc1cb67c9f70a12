"""Where a journal may lie, and who may write to it."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest
from tests.journal.jobs import answers, run_job, texts
from tests.shell.scripted import ScriptedTransport

from batchclient import ConfigError, JournalFailed
from batchclient.journal import place

LIBRARIES = ("asyncio",)
HOLDER = """
import asyncio, sys
from tests.shell.scripted import ScriptedTransport, make_client

async def main():
    async with make_client(ScriptedTransport()) as client:
        rows = client.stream_map((f"text {number}" for number in range(10**9)), "Say: {}", journal=sys.argv[1])
        for _ in range(40):
            await anext(rows)
        print("begun", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def refusal(path):
    server = ScriptedTransport()
    with pytest.raises((ConfigError, JournalFailed)) as refused:
        await run_job(["a"], path, server=server)
    assert server.sent == []
    return str(refused.value)


async def test_a_second_process_is_refused_by_the_name_of_the_first(path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "begun\n"
            said = await refusal(path)
            assert f"is in use by pid {holder.pid} on {os.uname().nodename} since 20" in said
            # By another name, too.
            path.with_name("link").symlink_to(path)
            assert f"pid {holder.pid}" in await refusal(path.with_name("link"))
        finally:
            holder.send_signal(signal.SIGKILL)
    rows, server = await run_job(texts(60), path, resume=True)
    assert len(answers(rows)) == 60 and sum(row.reused for row in rows) >= 40, "the lock goes with the process"


async def test_a_forked_child_keeps_no_lock(path):
    rows, _ = await run_job(texts(3), path)
    lock = place.Lock(path, lambda: False)
    child = os.fork()
    if child == 0:
        os._exit(1 if lock.is_held else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(ConfigError, match="in use"):
        place.Lock(path, lambda: False)
    lock.release()
    place.Lock(path, lambda: False).release()


@pytest.mark.parametrize("kind", sorted(set(place.NETWORK.values())))
async def test_network_file_systems_are_refused(path, kind, monkeypatch):
    monkeypatch.setattr(place, "file_system_of", lambda folder: kind)
    assert f"is on {kind}, where a journal cannot be trusted; give it a path on a local disk" in await refusal(path)
    assert not path.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="statfs is asked on Linux alone")
def test_the_type_of_a_file_system_is_read(path, monkeypatch):
    said = subprocess.run(["stat", "-f", "-c", "%t", path.parent], capture_output=True, text=True, check=True).stdout
    assert place.file_system_of(path.parent) == place.NETWORK.get(int(said, 16))
    monkeypatch.setattr(place, "NETWORK", {int(said, 16): "seen"})
    assert place.file_system_of(path.parent) == "seen"
    assert place.file_system_of(path.parent / "missing") is None


async def test_a_place_without_locks_is_refused(path, monkeypatch):
    def no_locks(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "has no locks (No locks available)" in await refusal(path)
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: None)
    assert "keeps no locks" in await refusal(path)


async def test_what_is_no_place_for_a_file_is_refused(path):
    assert "the folder of" in await refusal(path.parent / "missing" / "j")
    assert "is no regular file" in await refusal(path.parent)
    path.with_name("closed").mkdir(mode=0o700)
    (path.with_name("closed") / "j.lock").mkdir()
    assert "cannot be opened: Is a directory" in await refusal(path.with_name("closed") / "j")
