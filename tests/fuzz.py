"""What the fuzzers share: their command line, many seeds on all cores, a run in which nothing fails unseen, and what it came to."""

import argparse
import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from traceback import extract_tb

from batchclient import Backoff

__all__ = ["Outcome", "SeededPolicy", "guarded", "options", "replay", "replayable", "search"]


@dataclass
class Outcome:
    """What one run came to.

    Args:
        seed: its seed.
        wrong: what was wrong, in the order in which it was seen; empty if nothing was.
        about: what the run was of, in a few words.
        transcript: everything that happened.
    """

    seed: int
    wrong: list
    about: str = ""
    transcript: list = field(default_factory=list, repr=False)


class SeededPolicy:
    """The default retry policy with its jitter from a seed."""

    def __init__(self, rng, **backoff):
        self._backoff = Backoff(**backoff)
        self._rng = rng

    def decide(self, failure, attempt, elapsed_s, rng):
        return self._backoff.decide(failure, attempt, elapsed_s, self._rng)


def options(doc, seeds, **more):
    """The command line's options; ``more``: numbers beside the seeds, by name, with their help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone, and show all of it")
    for name, text in more.items():
        parser.add_argument(f"--{name}", type=int, default=0, help=text)
    return parser.parse_args()


def replay(outcome):
    """Show one run; return the exit status."""
    for line in outcome.transcript:
        print(*line)
    for each in outcome.wrong:
        print("WRONG:", each)
    print(f"seed {outcome.seed}: {outcome.about}")
    return 1 if outcome.wrong else 0


def search(name, run_seeds, first, seeds, at_a_time, take=lambda outcome: None):
    """Run many seeds on all cores; show what was wrong, and the command that shows all of it; return how many were.

    Args:
        name: of the fuzzer's module.
        run_seeds: what it returns of a range are outcomes; ``take`` gets each of them.
        at_a_time: how long the ranges are.
    """
    began, failed, last = time.perf_counter(), 0, first + seeds
    slices = [range(start, min(start + at_a_time, last)) for start in range(first, last, at_a_time)]
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for outcome in (each for outcomes in pool.imap_unordered(run_seeds, slices) for each in outcomes):
            take(outcome)
            if outcome.wrong:
                failed += 1
                print(f"seed {outcome.seed}: {outcome.about}: {outcome.wrong[0]}")
                print(f"  to see it again: python -m tests.{name} --seed {outcome.seed}", flush=True)
    print(f"{seeds} seeds in {time.perf_counter() - began:.0f} s; {failed} failed")
    return failed


def replayable(run_seed, seeds):
    """Outcomes without their transcripts, which are long and can be had again."""
    outcomes = [run_seed(seed) for seed in seeds]
    for outcome in outcomes:
        outcome.transcript = []
    return outcomes


class _Errors(logging.Handler):
    """What the client logs as an error is wrong: it says so where it guards itself."""

    def __init__(self, wrong):
        super().__init__(logging.ERROR)
        self.wrong = wrong

    def emit(self, record):
        cause = record.exc_info[1] if record.exc_info else None
        self.wrong.append(f"logged: {record.getMessage()} ({cause!r})")


def guarded(world, loop_factory, main, around=contextlib.nullcontext):
    """Run ``main()`` to its end in a loop; never raises for what goes wrong, which joins ``world.wrong``."""
    log, errors = logging.getLogger("batchclient"), _Errors(world.wrong)
    log.addHandler(errors)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.get_loop().set_exception_handler(
                lambda loop, context: world.wrong.append(f"unseen: {context.get('exception') or context['message']!r}")
            )
            with around(runner.get_loop()):
                runner.run(main())
    except Exception as error:
        where = extract_tb(error.__traceback__)[-1]
        world.wrong.append(f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")
    finally:
        log.removeHandler(errors)
