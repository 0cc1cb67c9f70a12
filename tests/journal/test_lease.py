"""Who writes a journal: the decisions with facts and times written out, and two holders on one file with a clock of the test's."""

import os
import re
import threading

import pytest
from tests.journal.jobs import Elsewhere

from batchclient import ConfigError
from batchclient.journal.held import HeldJournal, JournalInUse, JournalLost
from batchclient.journal.lease import Lease, LeaseFile, System, Times, Watch
from batchclient.journal.lines import line_of

LIBRARIES = ("asyncio",)
JOB = {"call": "complete", "settings": {}}
NEVER = Times(renew_s=1e6)
"""The test itself renews."""


def lease(host="other", boot="b", counter=0, token="12ab"):
    return Lease(host, boot, 7, "2026-11-27", token, f"{counter:012}").line()


def test_a_lease_of_this_machine_is_as_alive_as_its_lock():
    watch = Watch(System("here", "b"), Times())
    assert watch.look(None, 0.0, is_locked=True) == "take"
    assert watch.look(None, 0.0, is_locked=None) == "take"
    assert watch.look(lease("here"), 0.0, is_locked=True) == "take"
    assert watch.look(lease("here"), 0.0, is_locked=False) == "in use"


@pytest.mark.parametrize("is_locked", [True, False, None])
def test_a_lease_of_another_machine_is_taken_over_once_it_stood_still_for_60_s(is_locked):
    # A name alone is no machine: a pod has its name on the next node, too.
    for other in (lease(), lease("here", boot="a"), lease()[:20]):
        watch = Watch(System("here", "b"), Times())
        for now, step in [(100.0, "wait"), (159.9, "wait"), (160.0, "take over")]:
            assert watch.look(other, now, is_locked=is_locked) == step
    watch = Watch(System("here", "b"), Times())
    assert watch.look(lease(counter=1), 100.0, is_locked=is_locked) == "wait"
    assert watch.look(lease(counter=2), 109.0, is_locked=is_locked) == "in use"


def test_a_lease_that_stays_empty_was_left_by_a_kill_as_it_was_made():
    watch = Watch(System("here", "b"), Times())
    for now, step in [(100.0, "wait"), (100.9, "wait"), (101.0, "take over")]:
        assert watch.look(b"", now, is_locked=True) == step


def test_a_lock_without_a_lease_is_one_that_begins_or_ends_and_without_locks_the_counter_tells():
    watch = Watch(System("here", "b"), Times())
    for line, now, step in [(None, 0, "wait"), (lease("here"), 1, "in use"), (None, 2, "wait"), (None, 62, "in use")]:
        assert watch.look(line, float(now), is_locked=False) == step
    watch = Watch(System("here", "b"), Times())
    assert watch.look(lease("here"), 0.0, is_locked=None) == "wait"
    assert watch.look(lease("here"), 60.0, is_locked=None) == "take over"


def test_a_torn_lease_is_none():
    whole = lease(counter=3)
    for line in (b"", b"{}", b"[" * 90_000, whole[:-3], whole.replace(b"other", b"0ther")):
        assert Lease.read(line) is None
    assert Lease.read(whole) == Lease("other", "b", 7, "2026-11-27", "12ab", "000000000003")


@pytest.fixture
def clock():
    """Time that passes while somebody waits; and what happens then."""

    class Clock:
        now = 1000.0

        def __init__(self):
            self.events = []

        def wait(self, seconds):
            self.now += seconds
            for event in [event for event in self.events if self.now >= event[0]]:
                self.events.remove(event)
                event[1]()

    return Clock()


@pytest.fixture
def opened(path, clock):
    """Opens the journal on a machine of that name; the machines share no lock."""
    journals = []

    def opened(host, times=NEVER):
        class Machine(Elsewhere):
            def now(self):
                return clock.now

        journals.append(HeldJournal.open(path, system=Machine(host), times=times, wait=clock.wait))
        return journals[-1]

    yield opened
    for journal in journals:
        journal.close()


def record(n):
    return line_of({"key": f"{n:032x}", "n": 0, "state": "answered"})


def keys(journal):
    return [int(each["key"], 16) for each in journal.records()]


def test_a_dead_holders_journal_goes_on_elsewhere_after_75_s(path, clock, opened):
    first = opened("one")
    first.begin(JOB)
    first.append([record(1), record(2)])
    with path.open("ab") as file:
        file.write(record(3)[:-5])
    inode = path.stat().st_ino
    second = opened("two")
    assert clock.now == 1075.0 and path.stat().st_ino != inode, "60 s of a counter that stands still, and 15 s"
    assert second.job == JOB and keys(second) == [1, 2]
    second.append([record(4)])
    # The first one comes back.
    with pytest.raises(JournalLost, match="could not be renewed for 40 s"):
        first.append([record(5)])
    first.close()
    assert second.holder.startswith(f"pid {os.getpid()} on two since ")
    second.close()
    third = opened("three")
    assert clock.now == 1075.0 and keys(third) == [1, 2, 4], "a lease that was given back is none"
    assert {each.name for each in path.parent.iterdir()} == {"journal", "journal.lease"}


def test_a_living_holder_keeps_its_journal(clock, opened):
    first = opened("one")
    first.begin(JOB)
    clock.events.append((1009.0, first.lease.renew))
    with pytest.raises(JournalInUse, match="is in use by pid .* on one since"):
        opened("two")
    assert clock.now < 1011.0
    first.append([record(1)])
    assert first.still_held()


def test_a_holder_that_could_not_renew_for_40_s_writes_nothing_more(path, clock, opened):
    first = opened("one")
    first.begin(JOB)
    clock.now += 39.9
    first.append([record(1)])
    clock.now += 0.1
    size = path.stat().st_size
    for _ in range(2):
        with pytest.raises(JournalLost, match="could not be renewed for 40 s"):
            first.append([record(2)])
        first.lease.renew()
    assert path.stat().st_size == size and not first.still_held()


def test_of_two_that_take_a_journal_over_one_wins(path, clock, opened):
    first = opened("one")
    first.begin(JOB)
    # A third machine has looked at the same lease, and writes its token while the second one waits.
    third = LeaseFile(path, Elsewhere("three"), NEVER)
    clock.events.append((1065.0, lambda: third.take(is_there=True)))
    with pytest.raises(JournalInUse, match="is taken over by another process"):
        opened("two")
    assert third.is_ours()
    assert {each.name for each in path.parent.iterdir()} == {"journal", "journal.lease"}


def test_a_holder_whose_lease_another_has_taken_writes_nothing_more(clock, opened, path):
    first = opened("one")
    first.begin(JOB)
    LeaseFile(path, Elsewhere("two"), NEVER).take(is_there=True)
    first.lease.renew()
    with pytest.raises(JournalLost, match="another process has taken it"):
        first.append([record(1)])
    first.close()
    assert b'"host":"two"' in path.with_name("journal.lease").read_bytes(), "the other's lease stays"


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_file_that_is_gone_is_told_and_nothing_is_written(path, what):
    journal = HeldJournal.open(path)
    journal.begin(JOB)
    path.unlink()
    if what == "replaced":
        path.write_bytes(b"another's")
    with pytest.raises(JournalLost, match="its file was removed, or another is in its place"):
        journal.append([record(1)])
    journal.close()
    assert not path.exists() or path.read_bytes() == b"another's"


def test_the_lease_is_renewed_by_a_thread_of_its_own(path):
    times = Times(renew_s=0.01)
    journal = HeldJournal.open(path, times=times)
    done = threading.Event()
    watched = [journal.lease.read()]
    for _ in range(200):
        done.wait(0.01)
        watched.append(journal.lease.read())
        if len({*watched}) > 3:
            break
    journal.close()
    counters = [int(re.search(rb'"counter":"(\d+)"', line)[1]) for line in watched if Lease.read(line)]
    assert counters == sorted(counters) and counters[-1] >= 3
    assert not path.with_name("journal.lease").exists()


def test_a_lease_is_renewed_every_10_s_and_each_second_while_its_mount_is_away(path, monkeypatch):
    waited, over = [], threading.Event()

    class Ended:
        def wait(self, seconds):
            waited.append(seconds)
            if len(waited) == 3:
                path.with_name("journal.lease").unlink()
                path.with_name("journal.lease").mkdir()
            if len(waited) == 5:
                over.set()
            return len(waited) == 5

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Ended)
        lease = LeaseFile(path, Elsewhere("one"), Times())
    assert lease.take(is_there=False)
    lease.renew_always()
    assert over.wait(10) and waited == [10, 10, 10, 1, 1]


@pytest.mark.parametrize("foreign", ["file", "link", "folder", "pipe"])
def test_what_stands_in_the_leases_place_is_left_alone(path, foreign):
    place = path.with_name("journal.lease")
    target = path.with_name("target")
    target.write_text("mine")
    if foreign == "file":
        place.write_text("poetry's")
    elif foreign == "link":
        place.symlink_to(target)
    elif foreign == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    with pytest.raises(ConfigError, match=r"journal\.lease( is no lease of a journal, and left alone|: it is a link)"):
        HeldJournal.open(path, wait=lambda seconds: True)
    assert os.path.lexists(place) and target.read_text() == "mine"
    if foreign == "file":
        assert place.read_text() == "poetry's"
