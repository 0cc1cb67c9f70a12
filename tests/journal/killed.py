"""A job that is killed again and again, and the account of what it did.

    python -m tests.journal.killed FOLDER random KILLS SEED ROWS # at random times
    python -m tests.journal.killed FOLDER calls STEP             # before, after and in the middle of each writing call
    python -m tests.journal.killed FOLDER takeovers STEP         # the same while another machine takes the journal over
    python -m tests.journal.killed FOLDER moves KILLS SEED ROWS  # at random times, and each run on another machine
    python -m tests.journal.killed FOLDER stopped                # on another machine, while the first is stopped

Each run of the job is a process, forked after the imports, and ended with SIGKILL. It writes what
it sends and what it is handed into files without a buffer; these are the account. The job runs
again until it is through; then the next begins.

Rules that are held after each kill and at each job's end:
- every row that was handed out is taken from the journal by the next run, with the same answer;
- a prompt is sent again only if its row was open at the kill: ``look_ahead`` of them at most;
- at the end every document has one row, and its right answer.
"""

import asyncio
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import anyio
from tests.shell.scripted import ScriptedTransport, answer_to, echo, make_client

from batchclient import Backoff, ConfigError, JournalFailed
from batchclient.journal import lease
from batchclient.journal.held import HeldJournal, JournalLost

LOOK_AHEAD = 128
BURST = 16


class Server(ScriptedTransport):
    """Answers after two milliseconds, and writes down which prompts came."""

    def __init__(self, account, pause_s):
        super().__init__()
        self.account = account
        self.pause_s = pause_s

    async def send(self, request, timeouts):
        prompts = json.loads(request.body)["prompt"]
        for prompt in prompts if isinstance(prompts, list) else [prompts]:
            os.write(self.account, f"{prompt}\n".encode())
        if self.pause_s:
            await anyio.sleep(self.pause_s)
        self.sent.clear()
        self.script = [echo]
        return await super().send(request, timeouts)


async def job(folder, rows, pause_s):
    sent = os.open(folder / "sent", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    handed_out = os.open(folder / "handed-out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    documents = (f"{number % (rows - rows // 10)}" for number in range(rows))
    async with make_client(Server(sent, pause_s), limit=BURST, retry=Backoff(max_attempts=1)) as client:
        async for row in client.stream_map(documents, "{}", journal=folder / "journal", look_ahead=LOOK_AHEAD):
            assert row.error is None and row.answer.text == answer_to(row.document), row
            os.write(handed_out, f"{row.id}\n".encode())


def run_once(folder, rows, pause_s, kill_after_s=None, arm=None, goes_on=lambda: True):
    """Run the job in a process; return whether it came to its end.

    The time to the kill begins once it goes on.
    """
    child = os.fork()
    if child == 0:
        try:
            if arm is not None:
                arm()
            asyncio.run(job(folder, rows, pause_s))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if kill_after_s is not None:
        while not goes_on():
            time.sleep(0.005)
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the job failed"
    return True


class Account:
    """What one job did over all its runs."""

    def __init__(self, folder, rows):
        folder.mkdir(parents=True)
        self.folder = folder
        self.rows = rows
        self.kills = 0
        self.sent_again = 0
        self._handed_out = set()

    def lines(self, name):
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def check(self, finished):
        """Hold one run against those before it."""
        sent = self.lines("sent")
        handed_out = self.lines("handed-out")
        if not finished:
            self.kills += 1
        else:
            last = handed_out[-self.rows :]
            assert len(set(last)) == self.rows, "each document has one row"
            assert self._handed_out <= set(last)
        self._handed_out |= set(handed_out)
        # A row is named by its content and its occurrence: what was sent more often than it occurs was sent again.
        again = max(0, len(sent) - self.rows)
        self.sent_again = again
        assert not finished or len(sent) >= self.rows
        assert again <= self.kills * LOOK_AHEAD, f"{again} sent again after {self.kills} kills"
        kept = self.kept()
        assert len(self._handed_out) <= kept, f"{len(self._handed_out)} handed out, {kept} kept"

    def kept(self):
        path = self.folder / "journal"
        if not path.exists() or not path.stat().st_size:
            return 0
        journal = HeldJournal.look_into(path)
        names = {f"{record['key'][:16]}-{record['n']}" for record in journal.records()}
        assert journal.damaged_count == 0
        journal.close()
        assert self._handed_out <= names, "a row was handed out and is not in the journal"
        return len(names)


def at_random(folder, kills, seed, rows, arm=None):
    random = Random(seed)
    accounts = []
    while sum(account.kills for account in accounts) < kills:
        account = Account(folder / str(len(accounts)), rows)
        accounts.append(account)
        finished = False
        while not finished:
            left = sum(account.kills for account in accounts) < kills
            after_s = random.uniform(0.01, rows / 4000) if left else None
            # On another machine a run waits first for the lease.
            before = len(account.lines("handed-out"))
            goes_on = (lambda before=before: len(account.lines("handed-out")) > before) if arm else lambda: True
            finished = run_once(account.folder, rows, 0.02 if arm else 0.002, after_s, arm, goes_on)
            account.check(finished)
    return accounts


def at_each(folder, step, rows=60, elsewhere=None):
    """Kill at the first call, then at the second, …; each time let the job run to its end.

    Elsewhere, another machine takes over what a run before has left, and is killed at its calls.
    """
    accounts = []
    for point in range(1, 1000, step):
        account = Account(folder / str(point), rows)
        accounts.append(account)
        if elsewhere is not None:
            begun = lambda account=account: len(account.lines("handed-out")) > 0
            account.check(run_once(account.folder, rows, 0.05, 0.0, elsewhere, begun))
        finished = run_once(account.folder, rows, 0.0, arm=partial(at_call, point, elsewhere))
        account.check(finished)
        if finished:
            return accounts
        account.check(run_once(account.folder, rows, 0.0, arm=elsewhere or hasten))
    raise AssertionError("the points do not end")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hasten():
    """Let a lease without a name be taken soon: its maker was killed between two calls."""
    lease.Times.__init__.__defaults__ = (0.05, 9.0, 0.3, 0.1, 0.01)


def at_call(point, elsewhere):
    """Let this process die at a writing call of the journal's."""
    if elsewhere is not None:
        elsewhere()
    seen = []

    def watched(call):
        def calling(*arguments, **named):
            if not sys._getframe(1).f_globals["__name__"].startswith("batchclient.journal"):
                return call(*arguments, **named)
            seen.append(call.__name__)
            if len(seen) == point:
                die()
            if call.__name__ in ("write", "pwrite"):
                seen.append("half")
                if len(seen) == point:
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
                    die()
            result = call(*arguments, **named)
            seen.append("after")
            if len(seen) == point:
                die()
            return result

        return calling

    for name in ("write", "pwrite", "fsync", "ftruncate"):
        setattr(os, name, watched(getattr(os, name)))


def elsewhere():
    """Another machine in each run: no lock of before says anything, and the lease of the dead is waited for."""
    hasten()
    name = f"machine {os.getpid()}"
    lease.System.__init__.__defaults__ = None
    lease.System.__init__ = lambda self: [object.__setattr__(self, each, name) for each in ("host", "boot")] and None
    lease.System.lock = lambda self, descriptor: True


def stopped(folder, rows=300):
    """A job that runs, one that begins on another machine, one that goes on there once the first is stopped."""
    account = Account(folder / "0", rows)

    def start(pause_s):
        child = os.fork()
        if child == 0:
            elsewhere()
            lease.Times.__init__.__defaults__ = (0.05, 9.0, 1.5, 0.1, 0.01)
            try:
                asyncio.run(job(account.folder, rows, pause_s))
            except (ConfigError, JournalFailed) as error:
                print(type(error).__name__, error, file=sys.stderr, flush=True)
                os._exit(3 if isinstance(error, JournalLost) else 4)
            os._exit(0)
        return child

    def status_of(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    first = start(0.05)
    while len(account.lines("handed-out")) < 50:
        time.sleep(0.01)
    assert status_of(start(0.0)) == 4, "the first lives"
    os.kill(first, signal.SIGSTOP)
    assert status_of(start(0.0)) == 0, "the first is dead, as far as anybody can see"
    os.kill(first, signal.SIGCONT)
    assert status_of(first) == 3, "the first has lost its journal"
    assert account.kept() == rows
    journal = HeldJournal.look_into(account.folder / "journal")
    assert journal.rows == rows and len((account.folder / "journal").read_bytes().splitlines()) == rows + 1
    return [account]


async def warm_up():
    """Import all that a job imports, once."""
    import batchclient._maps.journaled
    import batchclient.journal.thread  # noqa: F401

    async with make_client(ScriptedTransport()) as client:
        await client.batch_map(["a"], "{}")


def main():
    asyncio.run(warm_up())
    folder, how = Path(sys.argv[1]), sys.argv[2]
    if how in ("calls", "takeovers"):
        accounts = at_each(folder, int(sys.argv[3]), elsewhere=elsewhere if how == "takeovers" else None)
    elif how == "stopped":
        accounts = stopped(folder)
    else:
        accounts = at_random(folder, *map(int, sys.argv[3:6]), elsewhere if how == "moves" else None)
    print(
        json.dumps(
            {
                "jobs": len(accounts),
                "kills": sum(account.kills for account in accounts),
                "rows": sum(account.rows for account in accounts),
                "sent_again": sum(account.sent_again for account in accounts),
            }
        )
    )


if __name__ == "__main__":
    main()
