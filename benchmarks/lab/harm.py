"""The search for harm: the default beside a naive client, at servers of manners drawn at random.

    python -m benchmarks.lab.harm --seeds 1 500                 # draws of one to three manners
    python -m benchmarks.lab.harm --seeds 1 60 --only own,seqs  # these two in each of them
    python -m benchmarks.lab.harm --seeds 1 1 --alone 60        # and each manner alone, 60 draws from seed 1 on
    python -m benchmarks.lab.harm --draw 17 [--only own]        # one of them again, with all there is to say
    python -m benchmarks.lab.harm --seeds 20001 21000 --alone 60 --check

Each draw on which the default does harm is a line, and what follows ``--draw`` in it runs it again.
``--check`` says which bars are missed, and exits with 1 if any is. ``--write`` writes the tables
into ``benchmarks/notes/harm.md``. Virtual time gives the same figures on every machine.
``harm_score`` has the rules, ``harm_draws`` the manners and their ranges, ``harm_clients`` the
clients, ``harm_server`` the server.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks._common import HERE, commit, merged
from benchmarks.lab.drawn_check import Finding
from benchmarks.lab.harm_draws import MANNERS, draw
from benchmarks.lab.harm_score import HARMED, Score, check, check_alone, judge, table

_PAGE = HERE / "notes" / "harm.md"
_AT_A_TIME = 4
_Job = tuple[int, tuple[str, ...]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "LAST"), help="these draws, the last included")
    what.add_argument("--draw", type=int, metavar="N", help="this draw, in detail")
    parser.add_argument("--only", default="", metavar="MANNER[,MANNER]", help="these manners instead of drawn ones")
    parser.add_argument("--alone", type=int, default=0, metavar="N", help="and so many draws of each manner alone")
    parser.add_argument("--check", action="store_true", help="say which bars are missed, and exit with 1 if any is")
    parser.add_argument("--write", action="store_true", help="write the tables into the page of notes")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.only = tuple(filter(None, options.only.split(",")))
    for name in options.only:
        if name not in MANNERS:
            parser.error(f"--only: no manner {name!r}; there are: {', '.join(MANNERS)}")
    if options.seeds is not None and options.seeds[0] > options.seeds[1]:
        parser.error("--seeds: the first is not after the last")
    return options


def main() -> int:
    """Run the draws, and return the exit status."""
    options, began = _options(), time.perf_counter()
    if options.draw is not None:
        return _one(options.draw, options.only)
    first, last = options.seeds
    jobs = [(number, options.only) for number in range(first, last + 1)]
    scores = _judged(jobs, options.processes)
    tables = [f"Seeds {first} to {last}:\n\n{table(scores)}"]
    findings = list(check(scores))
    if options.alone:
        jobs = [(number, (name,)) for name in MANNERS for number in range(first, first + options.alone)]
        alone = _judged(jobs, options.processes)
        tables.append(f"Each manner alone, {options.alone} draws from seed {first} on:\n\n{table(alone)}")
        findings += check_alone(alone)
    print("\n\n".join(tables) + "\n")
    for finding in findings:
        print(finding)
    if options.write:
        _write(sys.argv[1:], tables, findings)
    print(f"{time.perf_counter() - began:.0f} s")
    return int(options.check and not all(finding.reached for finding in findings))


def _one(number: int, only: tuple[str, ...]) -> int:
    score = judge(number, only)
    print(draw(number, only))
    for name, run in {"ours": score.ours, **{f"naive {many}": run for many, run in score.naive.items()}}.items():
        print(f"{name}: {run}")
    print(f"score {score.ratio:.3f}, of the best of three {score.to_best:.3f}, lost more {score.lost_more}")
    return int(score.is_harmed)


def _judged(jobs: Sequence[_Job], processes: int) -> list[Score]:
    """The scores of these draws; each that is harmed is said as soon as it is known."""
    scores = []
    for score in _scores(jobs, processes):
        scores.append(score)
        if score.is_harmed:
            print(score, flush=True)
    harmed = sum(score.is_harmed for score in scores)
    print(
        f"{len(scores)} draws, {harmed} harmed: a score below {HARMED}, a call lost or given up too early\n", flush=True
    )
    return scores


def _scores(jobs: Sequence[_Job], processes: int) -> Iterator[Score]:
    if processes == 1:
        yield from map(_judge, jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_judge, jobs, chunksize=_AT_A_TIME)


def _judge(job: _Job) -> Score:
    return judge(*job)


def _write(arguments: Sequence[str], tables: Sequence[str], findings: Sequence[Finding]) -> None:
    missed = [f"- {finding.described}" for finding in findings if not finding.reached]
    reached = f"Of {len(findings)} bars {len(findings) - len(missed)} are reached."
    said = f"{reached} Missed:\n\n" + "\n".join(missed) if missed else reached
    command = f"`python -m benchmarks.lab.harm {' '.join(arguments)}` at commit `{commit()}`."
    _PAGE.write_text(merged(_PAGE.read_text(), "harm", "\n\n".join([command, *tables, said])))


if __name__ == "__main__":
    sys.exit(main())
