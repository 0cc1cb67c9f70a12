"""A job that is killed again and again, and the account of what it did.

    python -m tests.journal.killed FOLDER random KILLS SEED ROWS # at random times
    python -m tests.journal.killed FOLDER statements             # at each statement that goes to SQLite
    python -m tests.journal.killed FOLDER middle                 # in the middle of statements
    python -m tests.journal.killed FOLDER commits                # right before and after each commit

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
import shutil
import signal
import sqlite3
import sys
import time
from pathlib import Path
from random import Random

import anyio
from tests.shell.scripted import ScriptedTransport, answer_to, echo, make_client

from batchclient import Backoff, Journal
from batchclient.journal import file as journal_file

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
        journal = Journal(folder / "journal.sqlite", commit_rows=32, commit_s=0.02)
        async for row in client.stream_map(documents, "{}", journal=journal, resume=True, look_ahead=LOOK_AHEAD):
            assert row.error is None and row.answer.text == answer_to(row.document), row
            os.write(handed_out, f"{row.id}\n".encode())


def run_once(folder, rows, pause_s, kill_after_s=None, arm=None):
    """Run the job in a process; return whether it came to its end."""
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
        path = self.folder / "journal.sqlite"
        if not path.exists() or not path.stat().st_size:
            return 0
        # A copy, with what the killed process left beside it: the next run gets the files as they are.
        copy = self.folder / "copy"
        copy.mkdir()
        for each in self.folder.glob("journal.sqlite*"):
            shutil.copy(each, copy)
        connection = sqlite3.connect(copy / path.name)
        try:
            names = {f"{key[:8].hex()}-{n}" for key, n in connection.execute("SELECT key, n FROM row WHERE state = 1")}
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error), error
            return 0
        finally:
            connection.close()
            shutil.rmtree(copy)
        assert self._handed_out <= names, "a row was handed out and is not in the journal"
        return len(names)


def at_random(folder, kills, seed, rows):
    random = Random(seed)
    accounts = []
    while sum(account.kills for account in accounts) < kills:
        account = Account(folder / str(len(accounts)), rows)
        accounts.append(account)
        finished = False
        while not finished:
            left = sum(account.kills for account in accounts) < kills
            finished = run_once(account.folder, rows, 0.002, random.uniform(0.01, rows / 4000) if left else None)
            account.check(finished)
    return accounts


def at_each(folder, make_arm, rows=100):
    """Kill at the first point, then at the second, …; each time let the job run to its end."""
    accounts = []
    for point in range(1, 1000):
        account = Account(folder / str(point), rows)
        accounts.append(account)
        finished = run_once(account.folder, rows, 0.0, arm=make_arm(point))
        account.check(finished)
        if finished:
            return accounts
        account.check(run_once(account.folder, rows, 0.0))
    raise AssertionError("the points do not end")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def watch(install):
    """Let a function see each connection that is made."""
    connect = sqlite3.connect

    def connected(*args, **kwargs):
        connection = connect(*args, **kwargs)
        install(connection)
        return connection

    journal_file.sqlite3.connect = connected


def at_statement(point):
    def arm():
        seen = []

        def traced(statement):
            seen.append(statement)
            if len(seen) == point:
                die()

        watch(lambda connection: connection.set_trace_callback(traced))

    return arm


def in_the_middle(point):
    """SQLite asks after so many steps of its machine whether to go on: within statements, schema and inserts alike."""

    def arm():
        seen = []

        def asked():
            seen.append(None)
            if len(seen) == point:
                die()
            return 0

        watch(lambda connection: connection.set_progress_handler(asked, 300))

    return arm


def around_commit(point):
    def arm():
        commit = journal_file.JournalFile.commit
        seen = []

        def dying(self, records):
            seen.append(None)
            if len(seen) * 2 - 1 == point:
                die()
            commit(self, records)
            if len(seen) * 2 == point:
                die()

        journal_file.JournalFile.commit = dying

    return arm


async def warm_up():
    """Import all that a job imports, once."""
    import batchclient._maps.journaled
    import batchclient.journal.writer  # noqa: F401

    async with make_client(ScriptedTransport()) as client:
        await client.batch_map(["a"], "{}")


def main():
    asyncio.run(warm_up())
    folder, how = Path(sys.argv[1]), sys.argv[2]
    if how == "random":
        accounts = at_random(folder, *map(int, sys.argv[3:6]))
    else:
        arms = {"statements": at_statement, "middle": in_the_middle, "commits": around_commit}
        accounts = at_each(folder, arms[how])
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
