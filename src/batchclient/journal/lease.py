"""Who writes a journal: ``flock`` on its file, and always a lease beside it.

Many network mounts let ``flock`` succeed on each machine by itself. So the lease says who writes: a
file with its holder's name, and a counter that the holder moves on.

Rules:
- A lease of this machine whose ``flock`` is free is a dead process's, and taken at once.
- Any other lease is watched. If its counter moves, the journal is in use. If it stands still for 60
  s of the watcher's own clock, the lease is taken: clocks of two machines are never compared.
- Who takes a lease writes its token, waits 15 s and finds it still there: of two one wins.
- A holder renews every 10 s. If it could not for 40 s, or finds another's token, it has lost the
  journal for good.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from batchclient.errors import ConfigError
from batchclient.journal.lines import fields_in, line_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["CAREFULLY", "Lease", "LeaseFile", "System", "Times", "Watch", "leaving"]

CAREFULLY = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))
"""How files are opened: no link is followed, and no pipe waited for."""

_BEGINS = b'{"batchclient":"lease",'
_LONGEST = 4096
_BOOT = Path("/proc/sys/kernel/random/boot_id")
leaving: set[str] = set()
"""Tokens of the journals that this process is about to give back: its next map waits for them."""
Step = Literal["take", "take over", "wait", "in use"]


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


@dataclass(frozen=True, slots=True)
class System:
    """What a journal asks of its machine.

    Args:
        host, boot: the machine's name, and its start: processes of equal ones share ``flock``.
    """

    host: str = field(default_factory=socket.gethostname)
    boot: str = field(default_factory=lambda: _BOOT.read_text().strip() if _BOOT.exists() else "")

    def now(self) -> float:
        """Seconds, the machine's sleep included."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def sync(self, descriptor: int) -> None:
        """Wait until a file is on the disk itself."""
        os.fsync(descriptor)
        if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS an fsync may stop at the drive's memory
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

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
        counter: of the renewals; of one width, so that a renewal changes nothing else.
    """

    host: str
    boot: str
    pid: int
    since: str
    token: str
    counter: str = f"{0:012}"

    @property
    def name(self) -> str:
        """The holder's name, for people."""
        return f"pid {self.pid} on {self.host} since {self.since}"

    def line(self) -> bytes:
        """Return the lease as its file's only line."""
        return line_of({"batchclient": "lease", **asdict(self)})

    @classmethod
    def read(cls, line: bytes) -> Lease | None:
        """Return the lease of a line; ``None``: it is torn or damaged."""
        fields = fields_in(line)
        try:
            if int(fields["token"], 16) < 0 or type(fields["pid"]) is not int:
                return None
            return cls(**{name: fields[name] for name in cls.__slots__})
        except (KeyError, TypeError, ValueError):
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
        if line is None and is_locked is not False:
            return "take"
        lease = None if line is None else Lease.read(line)
        is_own = lease is not None and (lease.host, lease.boot) == (self._system.host, self._system.boot)
        if is_own and is_locked is not None:
            return "take" if is_locked else "in use"
        if self._seen is None or (self._seen[0] != line and line is None):
            # Who has the lock and no lease begins, or ends.
            self._seen = (line, now)
        elif self._seen[0] != line:
            return "in use"
        # Who makes a lease writes it at once: an empty one was left by a kill between the two.
        still_s = self._times.look_s if line == b"" and is_locked else self._times.still_s
        if now - self._seen[1] < still_s:
            return "wait"
        return "in use" if line is None else "take over"


class LeaseFile:
    """The lease of one journal, as one process holds it.

    Args:
        path: of the journal.
        system, times: as for ``HeldJournal``.

    Attributes:
        system, times: as given.
        path: of the lease.
        lease: this process's.
        lost: why the journal is no longer this process's; empty: it is.
    """

    def __init__(self, path: Path, system: System, times: Times) -> None:
        self.path: Path = path.with_name(f"{path.name}.lease")
        self.system: System = system
        self.times: Times = times
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self.lease: Lease = Lease(system.host, system.boot, os.getpid(), since, secrets.token_hex(8))
        self.lost: str = ""
        self._renewed_at = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def read(self) -> bytes | None:
        """Return the lease's line; ``None``: there is no lease.

        Raises:
            ConfigError: something else is in its place.
            OSError: it cannot be read.
        """
        try:
            file = os.open(self.path, os.O_RDONLY | CAREFULLY)
        except FileNotFoundError:
            return None
        try:
            line = os.read(file, _LONGEST) if stat.S_ISREG(os.fstat(file).st_mode) else b"?"
        finally:
            os.close(file)
        if not (line.startswith(_BEGINS) or _BEGINS.startswith(line)):
            raise ConfigError(f"journal: {self.path} is no lease of a journal, and left alone", field="journal")
        return line

    def take(self, *, is_there: bool) -> bool:
        """Write this process into the lease; ``False``: another one has just made or removed it."""
        began = self.system.now()
        try:
            self._write(self.lease.line(), 0 if is_there else os.O_CREAT | os.O_EXCL)
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError:
            if not is_there:  # a full disk: a lease without a name would be waited for
                self.path.unlink(missing_ok=True)
            raise
        self._renewed_at = began
        return True

    def _write(self, line: bytes, flags: int = 0) -> None:
        file = os.open(self.path, os.O_WRONLY | CAREFULLY | flags, 0o600)
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
            pause_s = self.times.renew_s
            try:
                self.renew()
            except (OSError, ConfigError):  # a mount that is away for a while
                pause_s = min(self.times.look_s, pause_s)

    def renew(self) -> None:
        """Move the counter on, unless another process has taken the lease.

        Raises:
            OSError: the lease cannot be read or written.
        """
        began = self.system.now()
        with self._lock:
            if self.is_ours():
                self.lease = replace(self.lease, counter=f"{int(self.lease.counter) + 1:012}")
                self._write(self.lease.line())
                self._renewed_at = began
            else:
                self.lost = "another process has taken it, or its lease was removed"

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

    def give_back(self, line: bytes | None = None) -> None:
        """Remove the lease, if it is still this process's; or leave it as it was before, in a line."""
        self._ended.set()
        with suppress(OSError, ConfigError):
            if self.is_held() and self.is_ours():
                self.path.unlink() if line is None else self._write(line)
