"""Commands as processes, started by a ``starter``."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

__all__ = ["ALONE", "Commands"]

ALONE = "alone"
"""The host of a job that no living machine has: a lease that stands still is taken soon."""


class Commands:
    """Starts commands, with the library of ``calls`` if it was built, and kills what is left of them."""

    def __init__(self, library=None):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHCLIENT_")}
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        self.has_library = library is not None
        self._starter = subprocess.Popen(
            [sys.executable, "-m", "tests.crashes.starter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._answer() == "ready"
        self._running = []

    def _answer(self):
        line = self._starter.stdout.readline()
        assert line, "the starter ended"
        return json.loads(line)

    def ask(self, question):
        self._starter.stdin.write(json.dumps(question) + "\n")
        self._starter.stdin.flush()
        return self._answer()

    def start(self, arguments, folder, plan=None, host=""):
        """Start a command in a folder; ``host``: on another machine, with short times of leases."""
        said = folder / f".said-{len(self._running)}"
        given = {"arguments": [str(each) for each in arguments], "folder": str(folder), "said": str(said)}
        given |= {"plan": None if plan is None else asdict(plan), "host": host}
        command = Command(self, self.ask({"start": given}), said)
        self._running.append(command)
        return command

    def kill_all(self):
        """Kill whatever was not waited for."""
        for command in self._running:
            command.kill()
        self._running.clear()

    def end(self):
        """End the starter."""
        self.kill_all()
        self._starter.stdin.close()
        self._starter.stdout.close()
        self._starter.wait()


class Command:
    """A process under way. Once waited for it has a ``status``, negative for a signal, and its peak of memory."""

    def __init__(self, commands, pid, said):
        self.pid = pid
        self.status = None
        self.peak_kb = 0
        self._commands = commands
        self._said = Path(said)

    @property
    def said(self):
        """What it wrote to stdout and stderr."""
        return self._said.read_text(errors="replace") if self._said.exists() else ""

    @property
    def is_under_way(self):
        return self.status is None and self._commands.ask({"look": self.pid})

    def wait(self):
        """Wait for the end; return the status."""
        if self.status is None:
            self.status, self.peak_kb = self._commands.ask({"wait": self.pid})
        return self.status

    def stop(self):
        """Let it stand still, as a machine that sleeps."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        """End it with SIGKILL, unless it has ended; return the status."""
        if self.status is None:
            # Until it is waited for, its number is its own.
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()
