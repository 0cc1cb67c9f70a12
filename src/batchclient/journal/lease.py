"""Who writes a journal: ``flock`` on its file, and always a lease beside it.

Many network mounts let ``flock`` succeed on each machine by itself. So the lease says who writes: a
file with its holder's name, and a counter that the holder moves on.

Rules:
- A lease of this machine whose ``flock`` is free is a dead process's, and taken at once.
- Any other lease is watched. If its counter moves, the journal is in use. If it stands still for 60
  s of the watcher's own clock, the lease is taken: clocks of two machines are never compared.
- Who takes a lease writes its token, waits 15 s and finds it still there: of two one wins. Then it
  goes on in a copy of the journal: what the holder before may still write goes into the old file.
- A holder renews every 10 s. If it could not for 40 s, or finds another's token, it has lost the
  journal for good, and writes nothing more.
- Times of a holder count a machine's sleep.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from batchclient.errors import ConfigError, JournalFailed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["JournalInUse", "JournalLost", "Lease", "LeaseFile", "System", "Times", "Watch"]

_BEGINS = b'{"batchclient":"lease",'
_LONGEST = 4096
Step = Literal["take", "take over", "wait", "in use"]


class JournalInUse(ConfigError):
    """Another process, or another map of this one, writes the journal."""


class JournalLost(JournalFailed):
    """The journal is another process's now, or its file is gone: nothing more is written."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a lease, seconds.

    Args:
        renew_s: how often the holder moves the counter on.
        lost_s: how long a holder may be without a renewal.
        still_s: how long a counter stands still before another takes the lease.
        settle_s: how long who has taken it waits for others.
        look_s: how often who waits looks at the lease.
    """

    renew_s: float = 10.0
    lost_s: float = 40.0
    still_s: float = 60.0
    settle_s: float = 15.0
    look_s: float = 1.0


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@dataclass(frozen=True, slots=True)
class System:
    """What a journal asks of its machine.

    Args:
        host, boot: the machine's name, and its start: processes of equal ones share ``flock``.
    """

    host: str = field(default_factory=socket.gethostname)
    boot: str = field(default_factory=_boot_id)

    def now(self) -> float:
        """Seconds, a machine's sleep included."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def lock(self, descriptor: int) -> bool | None:
        """Lock a file; ``False``: another has. ``None``: the file system keeps no locks."""
        if fcntl is None:
            raise ConfigError("journal: journals need Linux or macOS", field="journal")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it is in its file.

    Args:
        host, boot, pid, since: of the holder.
        token: of this holding; hexadecimal digits.
        counter: of the renewals.
    """

    host: str
    boot: str
    pid: int
    since: str
    token: str
    counter: int

    @property
    def name(self) -> str:
        """The holder's name, for people."""
        return f"pid {self.pid} on {self.host} since {self.since}"

    def line(self) -> bytes:
        """Return the lease as its file's only line."""
        fields = {"host": self.host, "boot": self.boot, "pid": self.pid, "since": self.since, "token": self.token}
        body = _BEGINS + json.dumps(fields)[1:-1].encode() + b',"counter":"%012d"' % self.counter
        return body + b',"crc":"%08x"}\n' % zlib.crc32(body)

    @classmethod
    def read(cls, line: bytes) -> Lease | None:
        """Return the lease of a line; ``None``: it is torn or damaged."""
        body, _, _ = line.rpartition(b',"crc"')
        try:
            fields = json.loads(line)
            if int(fields.pop("crc"), 16) != zlib.crc32(body):
                return None
            del fields["batchclient"]
            counter = int(fields.pop("counter"))
            if not all(isinstance(fields[name], str) for name in ("host", "boot", "since", "token")):
                return None
            int(fields["token"], 16)
            return cls(**fields, counter=counter)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None


class Watch:
    """What a process does that comes upon a journal, by what it sees and when. No I/O.

    Args:
        system: its own machine.
        times: of leases.
    """

    def __init__(self, system: System, times: Times) -> None:
        self._system = system
        self._times = times
        self._seen: tuple[bytes | None, float] | None = None

    def look(self, line: bytes | None, now: float, *, is_locked: bool | None) -> Step:
        """Decide.

        Args:
            line: of the lease; ``None``: there is none.
            now: seconds, of a clock of this process.
            is_locked: whether this process has the lock; ``None``: there are no locks.
        """
        lease = None if line is None else Lease.read(line)
        is_own = lease is not None and (lease.host, lease.boot) == (self._system.host, self._system.boot)
        if is_locked is not False and line is None:
            return "take"
        if is_own and is_locked is not None:
            return "take" if is_locked else "in use"
        if self._seen is None:
            self._seen = (line, now)
        elif self._seen[0] != line:
            # Its holder lives; one who is about to leave takes the lease with it.
            self._seen = (line, now)
            return "wait" if line is None else "in use"
        if now - self._seen[1] < self._times.still_s:
            return "wait"
        return "in use" if line is None else "take over"


class LeaseFile:
    """The lease of one journal, as one process holds it.

    Args:
        path: of the lease.
        system, times: as for ``HeldJournal``.

    Attributes:
        system, times: as given.
        lease: this process's.
        lost: why the journal is no longer this process's; empty: it is.
    """

    def __init__(self, path: Path, system: System, times: Times) -> None:
        self._path = path
        self.system: System = system
        self.times: Times = times
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self.lease: Lease = Lease(system.host, system.boot, os.getpid(), since, secrets.token_hex(8), 0)
        self.lost: str = ""
        self._renewed_at = 0.0
        self._ended = threading.Event()

    def read(self) -> bytes | None:
        """Return the lease's line; ``None``: there is no lease.

        Raises:
            ConfigError: something else is in its place.
            OSError: it cannot be read.
        """
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            line = os.read(file, _LONGEST) if stat.S_ISREG(os.fstat(file).st_mode) else b"?"
        finally:
            os.close(file)
        if not (line.startswith(_BEGINS) or _BEGINS.startswith(line)):
            raise ConfigError(f"journal: {self._path} is no lease of a journal, and left alone", field="journal")
        return line

    def take(self, *, is_there: bool) -> bool:
        """Write this process into the lease; ``False``: another one has just made it."""
        began = self.system.now()
        made = 0 if is_there else os.O_CREAT | os.O_EXCL
        try:
            self._write(self.lease.line(), made)
        except (FileExistsError, FileNotFoundError):
            return False
        self._renewed_at = began
        return True

    def _write(self, line: bytes, flags: int = 0) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        try:
            os.pwrite(file, line, 0)
            os.ftruncate(file, len(line))
            os.fsync(file)
        finally:
            os.close(file)

    def renew_always(self) -> None:
        """Renew the lease in a thread of its own, until it is given back or lost."""
        threading.Thread(target=self._renew_always, name="batchclient-lease", daemon=True).start()

    def _renew_always(self) -> None:
        pause_s = self.times.renew_s
        while not self._ended.wait(pause_s) and not self.lost:
            try:
                self.renew()
                pause_s = self.times.renew_s
            except (OSError, ConfigError):  # a mount that is away for a while
                pause_s = min(self.times.look_s, self.times.renew_s)

    def renew(self) -> None:
        """Move the counter on, unless another process has taken the lease.

        Raises:
            OSError: the lease cannot be read or written.
        """
        began = self.system.now()
        if not self.is_ours():
            self.lost = "another process has taken it, or its lease was removed"
            return
        lease = self.lease
        lease = Lease(lease.host, lease.boot, lease.pid, lease.since, lease.token, lease.counter + 1)
        self._write(lease.line())
        self.lease, self._renewed_at = lease, began

    def is_ours(self) -> bool:
        """Whether the file has this process's token.

        Raises:
            OSError: it cannot be read.
        """
        found = Lease.read(self.read() or b"")
        return found is not None and found.token == self.lease.token

    def is_held(self) -> bool:
        """Whether this process still holds the journal."""
        if not self.lost and self.system.now() - self._renewed_at >= self.times.lost_s:
            self.lost = f"its lease could not be renewed for {self.times.lost_s:.0f} s"
        return not self.lost

    def give_back(self) -> None:
        """Remove the lease, if it is still this process's."""
        self._ended.set()
        with suppress(OSError, ConfigError):
            if self.is_held() and self.is_ours():
                self._path.unlink()

    def put_back(self, line: bytes) -> None:
        """Leave the lease as it was: the journal was not taken over."""
        self._ended.set()
        with suppress(OSError, ConfigError):
            if self.is_ours():
                self._write(line)

    def leave(self) -> None:
        """Renew no more: a forked child has a copy of its parent's."""
        self._ended.set()
