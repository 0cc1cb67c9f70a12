"""What the fuzzers share: their command line, many seeds on all cores, and a run in which nothing fails unseen."""

import argparse
import asyncio
import contextlib
import logging
import os
from multiprocessing import get_context
from traceback import extract_tb

__all__ = ["guarded", "on_all_cores", "options", "replayable"]


def options(doc, seeds, **more):
    """The command line's options; ``more``: numbers beside the seeds, by name, with their help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone, and show all of it")
    for name, text in more.items():
        parser.add_argument(f"--{name}", type=int, default=0, help=text)
    return parser.parse_args()


def on_all_cores(run_seeds, first, seeds, at_a_time):
    """What ``run_seeds(range)`` returns, of so many seeds at a time, in the order in which they end."""
    last = first + seeds
    slices = [range(start, min(start + at_a_time, last)) for start in range(first, last, at_a_time)]
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        yield from pool.imap_unordered(run_seeds, slices)


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
