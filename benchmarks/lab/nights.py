"""Nights on a shared server: is ``--finish-by`` in time, and what does it take from others?

    python benchmarks/lab/nights.py                      # seeds 20001 to 20040; exits with 1 past a bar

The real scheduler and the decision of ``finish_by_s``, against the laboratory's server in virtual
time. A night has 8 hours of 2 minutes, and the forecast is renewed each 6 s: 20 times an hour.

- The server runs 64 sequences. Hour by hour others come: chats at random (Poisson), which fill up
  to half of it, and in some hours a job of theirs with 16 or 32 in flight.
- Each night is lived through three times. As a guest and as usual, a job without an end says how
  many rows each would have had in each minute; then comes the job that has to be finished. It has
  0.35 to 1 times as many rows as usual would have by the end of the night.
- It *can* be kept where the job as usual, from the beginning, ends in time.
- *Taken* is the time of our sequences beyond those that a guest had in the same minute, as far as
  as many of others waited in the server's queue meanwhile: sequence-seconds.
- *Asked for* is what the 90 % bound asks for. A job that lives through the same minutes needs, in
  each of them, the upper bound of the rows' work that is left, divided by the time that is left. It
  is as usual in such a part of the minute that the rows of that minute, as a guest and as usual,
  make up that work, and takes that part of what the job as usual took in that minute. It changes
  within no time, and knows each minute's pace beforehand.

Bars: nine of ten in time where that can be kept, and at most 1.1 times as much taken as asked for,
over all nights. The constants of ``finish_by_s`` were chosen on seeds 20101 to 20136.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing import Pool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table, write_results
from benchmarks.lab.asker import client_setup
from benchmarks.lab.driver import Run
from benchmarks.lab.profiles import Scenario
from benchmarks.lab.server import ContinuousServer
from benchmarks.lab.workloads import Call, Calls, Lengths, Running
from tests.core import GuestChanged, Request

from batchclient._maps.finish_by import Pace
from batchclient._maps.forecast import Look, total
from batchclient.simulator import PROFILES
from batchclient.simulator.engine import Progress, Sequence

HOURS, HOUR_S, PERIOD_S = 8, 120.0, 6.0
NIGHT_S = HOURS * HOUR_S
LOOKS = 60
DEPTH = 512
SERVER = PROFILES["max-seqs-64"]
PROMPTS, ANSWERS, CHATS = Lengths(200, 0.6, 1024), Lengths(200, 0.6, 1024), Lengths(120, 0.5, 512)
MOST, IN_TIME, MOST_TAKEN = 2000, 0.9, 1.1


@dataclass(frozen=True)
class Night:
    """What others do: by the hour, the share of the server that chats fill, and the sequences of a job."""

    seed: int
    chats: tuple[float, ...]
    jobs: tuple[int, ...]
    length: float

    @classmethod
    def drawn(cls, seed: int) -> Night:
        rng = random.Random(f"{seed}/night")
        chats = tuple(rng.choice([0.0, 0.05, 0.15, 0.3, 0.5]) for _ in range(HOURS))
        jobs = tuple(rng.choice([0, 0, 0, 16, 32]) for _ in range(HOURS))
        return cls(seed, chats, jobs, rng.uniform(0.35, 1.0))


class NightServer(ContinuousServer):
    """The server, with what others send in a night."""

    def __init__(self, scenario: Scenario, night: Night) -> None:
        super().__init__(scenario, night.seed)
        self._others_rng = rng = random.Random(f"{night.seed}/others")
        self._job: set[int] = set()
        self._wanted = 0
        self._coming: list[tuple[float, int, int]] = []
        """(when, tokens of a chat's answer or 0, sequences of a job or -1)."""
        answer_s = CHATS.mean_tokens * SERVER.step_s
        for hour, share in enumerate(night.chats):
            at, until = hour * HOUR_S, (hour + 1) * HOUR_S
            self._coming.append((at, 0, night.jobs[hour]))
            while share and (at := at + rng.expovariate(share * SERVER.max_num_seqs / answer_s)) < until:
                self._coming.append((at, CHATS.draw(rng), -1))
        heapq.heapify(self._coming)

    def _engine_at(self) -> float:
        return min(super()._engine_at(), self._coming[0][0] if self._coming else math.inf)

    def _step(self, now: float) -> None:
        if self._coming and self._coming[0][0] <= now:
            _, tokens, wanted = heapq.heappop(self._coming)
            if wanted < 0:
                self._add(tokens, now)
            else:
                self._wanted = wanted
                self._fill(now)
            return
        super()._step(now)

    def _fill(self, now: float) -> None:
        while len(self._job) < self._wanted:
            self._job.add(self._add(CHATS.draw(self._others_rng), now))

    def _add(self, tokens: int, now: float) -> int:
        self._sequences += 1
        self.engine.submit(Sequence(self._sequences, PROMPTS.draw(self._others_rng), tokens), now)
        return self._sequences

    def _on_progress(self, progress: Progress) -> None:
        if progress.sequence.owner is not None:
            super()._on_progress(progress)
        elif progress.finished:
            self._job.discard(progress.sequence.sequence_id)
            self._fill(progress.at)

    def ours_and_waiting(self) -> tuple[int, int]:
        """Our sequences in the server, and those of others that wait there."""
        sequences = self.engine.sequences.values()
        ours = sum(sequence.owner is not None for sequence in sequences)
        others = [sequence for sequence in sequences if sequence.owner is None]
        return ours, sum(sequence.to_prefill == sequence.prompt_tokens for sequence in others)


@dataclass
class Minute:
    """A period: our sequences as a mean, the rows that ended, and what was taken."""

    in_flight: float = 0.0
    rows: int = 0
    taken: float = 0.0


@dataclass
class Told:
    """A night as one job lived through it."""

    minutes: list[Minute] = field(default_factory=list)
    ended_at: float = math.inf
    guest_s: float = 0.0
    turns: int = 0


@dataclass(frozen=True)
class Job:
    """A job of so many rows; ``pace`` decides, or else the manner."""

    rows: float
    is_guest: bool
    pace: Pace | None = None

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> JobRunning:
        return JobRunning(self, rng, submit)


class JobRunning(Running):
    """The job, which is looked at 60 times a period."""

    tell: Callable[[bool, float], None]
    server: NightServer
    queued: Callable[[], tuple[int, int]]
    as_guest: list[Minute] | None = None

    def __init__(self, job: Job, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(Calls(PROMPTS, ANSWERS, 1024, alone_reason="labels"), rng, submit)
        self.told = Told([Minute()])
        self._job, self._pace = job, job.pace
        self._asked = self._ended = self._looks = 0
        self._is_guest: bool | None = None
        self.next_at = 0.0

    def woke(self, now: float) -> None:
        pace, told = self._pace, self.told
        in_flight, queued = self.queued()
        if pace is not None:
            pace.look(Look(now, in_flight, queued))
        if self._looks:
            self._note(in_flight)
        if self._looks and self._looks % LOOKS == 0:
            told.minutes.append(Minute())
            if pace is not None:
                pace.decide(now, 1024, round(self._job.rows - self._ended))
        self._looks += 1
        self.next_at = self._looks * PERIOD_S / LOOKS
        is_guest = self._job.is_guest if pace is None else pace.is_guest
        if is_guest is not self._is_guest:
            told.turns += self._is_guest is not None
            self._is_guest = is_guest
            self.tell(is_guest, now)
        while queued < DEPTH and self._asked < self._job.rows:
            queued, self._asked = queued + 1, self._asked + 1
            self.ask(now)

    def _note(self, in_flight: int) -> None:
        told, number = self.told, len(self.told.minutes) - 1
        told.guest_s += PERIOD_S / LOOKS * bool(self._is_guest)
        told.minutes[-1].in_flight += in_flight / LOOKS
        if self.as_guest is not None:
            ours, waiting = self.server.ours_and_waiting()
            guests = self.as_guest[min(number, len(self.as_guest) - 1)].in_flight
            told.minutes[-1].taken += min(waiting, max(0.0, ours - guests)) * PERIOD_S / LOOKS

    def ended(self, call: Call, now: float) -> None:
        if call.failed:
            raise AssertionError("no row fails")
        self._ended += 1
        self.told.minutes[-1].rows += 1
        if self._pace is not None:
            self._pace.add(now, call.prompt_tokens, sum(call.outputs))
        if self._ended >= self._job.rows:
            self.over, self.told.ended_at = True, now


def live(night: Night, job: Job, as_guest: list[Minute] | None, until_s: float) -> Told:
    """Live through a night with a job."""
    scenario = Scenario("night", SERVER, job, until_s)
    run = Run(scenario, client_setup({"preset": "throughput"}), night.seed)
    run.server = run.front = server = NightServer(scenario, night)
    client = run.clients[0]
    running = client.workloads[0]
    assert isinstance(running, JobRunning)
    running.tell = lambda is_guest, now: client.core.handle(GuestChanged(is_guest), now)
    running.server, running.as_guest = server, as_guest

    def queued() -> tuple[int, int]:
        now = client.core.statistics()
        return now.in_flight, now.queued

    running.queued = queued
    run.run()
    return running.told


def asked_for(night: Night, rows: int, as_guest: list[Minute], as_usual: list[Minute]) -> float:
    """What the bound asks for: see the module."""
    rng = random.Random(f"{night.seed}/bound")
    answers = [(0.0, float(ANSWERS.draw(rng))) for _ in range(MOST)]
    left, asked = float(rows), 0.0
    for number, (guest, usual) in enumerate(zip(as_guest, as_usual, strict=False)):
        sample = answers[: max(2, min(MOST, round(rows - left)))]
        mean = sum(tokens for _, tokens in sample) / len(sample)
        bound = total(sample, max(round(left), 1), 0.0).high / max(left, 1.0) / mean if number else 1.0
        wanted = bound * left * PERIOD_S / (NIGHT_S - number * PERIOD_S)
        share = min(max(wanted - guest.rows, 0.0) / max(usual.rows - guest.rows, 1e-9), 1.0) if number else 0.0
        asked += share * usual.taken
        left -= guest.rows + share * (usual.rows - guest.rows)
        if left <= 0:
            break
    return asked


@dataclass(frozen=True)
class Outcome:
    """A night in figures."""

    seed: int
    rows: int
    length: float
    can: bool
    guest_can: bool
    late_s: float
    taken: float
    asked: float
    usual_taken: float
    guest_share: float
    turns: int


def night_of(seed: int) -> Outcome:
    """Live through a night three times."""
    night = Night.drawn(seed)
    guest = live(night, Job(math.inf, is_guest=True), None, NIGHT_S)
    usual = live(night, Job(math.inf, is_guest=False), guest.minutes, NIGHT_S)
    rows_usual = sum(each.rows for each in usual.minutes)
    rows = round(night.length * rows_usual)
    told = live(night, Job(rows, is_guest=True, pace=Pace(NIGHT_S, PERIOD_S)), guest.minutes, 1.5 * NIGHT_S)
    taken = sum(each.taken for each in told.minutes)
    asked = asked_for(night, rows, guest.minutes, usual.minutes)
    all_usual, ended = 0.0, 0
    for each in usual.minutes:
        all_usual += each.taken if ended < rows else 0.0
        ended += each.rows
    in_all = min(told.ended_at, 1.5 * NIGHT_S)
    return Outcome(
        seed, rows, night.length, rows <= rows_usual, rows <= sum(each.rows for each in guest.minutes),
        told.ended_at - NIGHT_S, taken, asked, all_usual, told.guest_s / in_all, told.turns,
    )  # fmt: skip


def summary(nights: list[Outcome]) -> str:
    """The nights as a table, by what could keep them."""
    kinds = {
        "a guest would be in time": [each for each in nights if each.guest_can],
        "as usual would be": [each for each in nights if each.can and not each.guest_can],
        "nobody would be": [each for each in nights if not each.can],
        "all": nights,
    }
    header = ["nights in which", "nights", "in time", "of the time as a guest", "taken", "asked for", "as usual"]
    return table(
        header,
        [
            [
                name,
                len(those),
                sum(each.late_s <= 0 for each in those),
                f"{sum(each.guest_share for each in those) / len(those):.0%}",
                *(f"{sum(getattr(each, what) for each in those):,.0f}" for what in ("taken", "asked", "usual_taken")),
            ]
            for name, those in kinds.items()
            if those
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=20_001)
    parser.add_argument("--nights", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the results for docs/guide/figures.md")
    options = parser.parse_args()
    nights: list[Outcome] = []
    with Pool(options.processes) as pool:
        for each in pool.imap(night_of, range(options.first_seed, options.first_seed + options.nights)):
            nights.append(each)
            print(each, flush=True)
    can = [each for each in nights if each.can]
    kept = sum(each.late_s <= 0 for each in can)
    taken, asked = sum(each.taken for each in nights), sum(each.asked for each in nights)
    data = machine()
    told = f"In time: {kept} of the {len(can)} that can be. Taken: {taken / asked:.2f} times what is asked for."
    text = "\n\n".join([summary(nights), told, provenance(data)])
    print(text)
    if options.write:
        write_results("nights", {"machine": data, "nights": [asdict(each) for each in nights]}, text)
    sys.exit(kept < math.ceil(IN_TIME * len(can)) or taken > MOST_TAKEN * asked)


if __name__ == "__main__":
    main()
