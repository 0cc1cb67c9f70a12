"""A process that starts commands: each is a fork, with all imports done and its own arguments.

    python -m tests.crashes.starter   # {"start": …}, {"look": pid} or {"wait": pid} on stdin

A command that begins with the interpreter takes half a second before its first line. Hundreds of
them are killed here. What such a process does from then on is the command line's own ``main``.
"""

import contextlib
import gc
import io
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from functools import partial
from pathlib import Path

from tests.crashes import functions
from tests.crashes.calls import Plan, arm
from tests.crashes.commands import ALONE
from tests.fakes.raw import nobody_listens


def warm_up():
    """Import all that the command imports: let it run once, where no server is."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        source.write_text('{"text": "x"}\n')
        arguments = ["map", source, "-o", source.with_name("out.jsonl"), "--base-url", nobody_listens(), "--model", "m"]
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = command([*map(str, arguments), "--prompt", "{text}", "--wait-for-server", "0", "--quiet"])
    assert status == 5, f"without a server the command ended with {status}: {said.getvalue()}"
    # For Parquet; after the command, which says how it takes memory.
    import pyarrow.parquet  # noqa: F401

    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()


def command(arguments):
    """Be the command, or a function of rows; return its exit status."""
    from batchclient_script import main

    if arguments[0] == "run":
        return functions.main(*arguments[1:])

    sys.argv = sys.orig_argv = ["batchclient", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


def move_to(host):
    """Be on another machine, with the times of leases a twentieth; ``ALONE``: less, since nobody else lives there."""
    from batchclient.journal import held

    held.System = partial(held.System, host=host, boot=host)
    times = {"renew_s": 0.1, "lost_s": 1, "still_s": 1.5, "settle_s": 0.4}
    if host == ALONE:
        # Without renewals a busy machine makes the same calls as another.
        times = {"still_s": 0.2, "settle_s": 0.05}
    held.Times = partial(held.Times, **times, look_s=0.05)


def start(arguments, folder, said, plan, host):
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.chdir(folder)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 64)
        if plan is not None:
            arm(Plan(**plan))
        if host:
            move_to(host)
        status = command(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main():
    answers = os.fdopen(os.dup(1), "w")
    warm_up()
    # A collection in a fork would copy every page that it looks at.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        match json.loads(line):
            case {"start": given}:
                answer = start(**given)
            case {"look": pid}:
                answer = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            case {"wait": pid}:
                _, status, used = os.wait4(pid, 0)
                answer = [os.waitstatus_to_exitcode(status), used.ru_maxrss]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
