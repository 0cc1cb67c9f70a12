"""Real processes, interrupted by real signals at random moments: each ends soon, with Python's own exit status, and with nothing said but
``KeyboardInterrupt``.

SIGTERM is not handled by Python: it is here so that no handler of ours is. Where SIGINT comes while the interpreter ends, Python itself says
more; the programs never end by themselves.
"""

import signal
import subprocess
import sys
import time
from random import Random

from tests.storm.program import WORKS
from tests.fakes.raw import answers_in_a_process

__all__ = ["interrupt_many"]

_ENDS_WITHIN_S = 10.0
_LATEST_S = 0.5
_AT_A_TIME = 4
_MAY_BE_SAID = ("KeyboardInterrupt", "asyncio.exceptions.CancelledError")
_OF_A_TRACEBACK = (" ", "Traceback (most recent", "During handling of the above", "The above exception was")


def interrupt_many(seeds):
    """Interrupt a process per seed; give what each was, and what was wrong with its end."""
    seeds = list(seeds)
    with answers_in_a_process() as (url, _):
        for start in range(0, len(seeds), _AT_A_TIME):
            processes = [_Process(seed, url) for seed in seeds[start : start + _AT_A_TIME]]
            for process in processes:
                yield process.name, process.interrupt()


class _Process:
    def __init__(self, seed, url):
        works = list(WORKS)
        self.rng = Random(seed)
        self.signal = self.rng.choice([signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        work = works[seed % len(works)]
        self.name = f"{seed}: {self.signal.name} in {work}"
        command = [sys.executable, "-m", "tests.storm.program", work, url]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def interrupt(self):
        """Send the signal once it works; return what was wrong with its end."""
        process = self.process
        if "begun" not in process.stdout.readline():
            return f"it never began: {process.communicate()[1]}"
        time.sleep(self.rng.uniform(0.0, _LATEST_S))
        process.send_signal(self.signal)
        try:
            _, said = process.communicate(timeout=_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            process.kill()
            return f"it did not end within {_ENDS_WITHIN_S:g} s: {process.communicate()[1]}"
        if process.returncode != -self.signal:
            return f"exit status {process.returncode}: {said}"
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith(_OF_A_TRACEBACK)]
        expected = {"KeyboardInterrupt"} if self.signal == signal.SIGINT else set()
        if not expected <= set(lines) or not all(line.startswith(_MAY_BE_SAID) for line in lines):
            return f"it said: {said}"
        return None
