"""What the suite protects: each promise is broken in a copy of the tree, and its test must fail.

python -m tests.promises                           # does each promise fit the tree?
python -m tests.promises --run --area wire         # break an area; --area may be given several times
python -m tests.promises --run --only deadline     # those whose promise, file or test matches a pattern
python -m tests.promises --run --sample 25         # some, drawn at random; --seed draws the same again
python -m tests.promises --run --since HEAD~3      # the areas that were changed since, and a sample of the others
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.promises.table import AREAS, ROOT, area_of, faults, promises

LONGEST_S = 240.0
"""Seconds for one test."""
NOT_RUN = range(2, 6)
"""pytest's exit statuses where no test ran: interrupted, its own error, wrong arguments, none found.

Any other but 0 is a notice: a test failed, died by a signal, or never ended.
"""
OF_THE_OTHERS = 25


def run_tests(copy, tests, processes=0):
    """Return (exit status, output)."""
    redis = os.environ.get("BATCHCLIENT_REDIS_DIR") or str(ROOT / ".cache/redis")
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "BATCHCLIENT_REDIS_DIR": redis}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-n",
        str(processes),
        *tests,
    ]
    kept = {"cwd": copy, "env": environment, "capture_output": True, "text": True, "check": False}
    try:
        done = subprocess.run(command, timeout=LONGEST_S * len(tests), **kept)
    except subprocess.TimeoutExpired:
        return None, f"longer than {LONGEST_S:g} s a test"
    return done.returncode, done.stdout + done.stderr


def verdict(promise, copy):
    """The worst of the breaks: what became of the test, and its output."""
    path, text = promise.read(copy)
    said = "noticed", ""
    for new in promise.breaks:
        path.write_text(text.replace(promise.old, new))
        code, output = run_tests(copy, [promise.node])
        path.write_text(text)
        if code == 0:
            return ("SURVIVED" if " passed" in output else "skipped"), f"{new}\n{output}"
        if code in NOT_RUN:
            said = "NOT RUN", f"{new}\nexit status {code}\n{output}"
        elif said[0] == "noticed" and (code is None or code < 0):
            # A worse test than one that fails: the line says so.
            said = "noticed", "it never ended" if code is None else f"it died by signal {-code}"
    return said


def copy_tree(copy):
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"), symlinks=True)
    # What is compiled goes by the text: a mutant may be as old and as long as the module that it replaces.
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", copy / "src"]
    subprocess.run(compile_all, check=True)
    return copy


def run(table, processes, ends_at):
    """Break the promises one after the other, in so many copies at a time.

    Return what became of each by its word, and the lines of those that were not noticed.
    """
    missed = []
    counts = dict.fromkeys(("noticed", "skipped", "SURVIVED", "NOT RUN", "not tried"), 0)
    with tempfile.TemporaryDirectory(prefix="batchclient-promises-") as folder:
        copies = SimpleQueue()
        for number in range(processes):
            copies.put(copy_tree(Path(folder) / f"tree{number}"))
        copy = copies.get()
        code, output = run_tests(copy, sorted({each.node for each in table}), processes)
        copies.put(copy)
        if code != 0:
            sys.exit(f"{output}\nThe tests do not pass on the code as it is: their failing would show nothing.")

        def judge(promise):
            if time.monotonic() > ends_at:
                counts["not tried"] += 1
                return
            at, copy = time.monotonic(), copies.get()
            word, output = verdict(promise, copy)
            copies.put(copy)
            counts[word] += 1
            shown = f"{word:8} {promise.says}: {promise.test} ({time.monotonic() - at:.1f} s)"
            if word == "noticed" and output:
                shown += f": {output}"
            if word not in ("noticed", "skipped"):
                shown += f"\n{output[-2000:]}"
                missed.append(shown)
            print(shown, flush=True)

        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(judge, table))
    return counts, missed


def changed_areas(base):
    """The areas of which a module, or the file of promises, was changed since a commit; none if git knows no such one."""
    command = ["git", "diff", "--name-only", base or "an unknown commit"]
    files = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout.split()
    of_package = [file.removeprefix("src/batchclient/") for file in files if file.startswith("src/batchclient/")]
    of_promises = [Path(file).stem for file in files if file.startswith("tests/promises/") and file.endswith(".toml")]
    return {area_of(file) for file in of_package} | (set(of_promises) & AREAS.keys())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="break the promises; without it: only look whether they fit")
    parser.add_argument("--area", action="append", choices=list(AREAS), help="those of this area")
    parser.add_argument("--only", default="", metavar="PATTERN", help="those whose promise, file or test matches")
    parser.add_argument("--sample", type=int, metavar="N", help="as many, drawn at random")
    parser.add_argument(
        "--since", metavar="COMMIT", help="the areas changed since, and a sample of the others; empty: unknown"
    )
    parser.add_argument("--minutes", type=float, help="begin with no other after so long")
    parser.add_argument("--processes", type=int, default=1, help="trees that are broken at a time")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draws the same sample again")
    return parser.parse_args()


def main():
    options = arguments()
    began = time.monotonic()
    table = [
        each
        for each in promises(options.area or AREAS)
        if re.search(options.only, f"{each.says}\t{each.file}\t{each.test}")
    ]
    if wrong := list(faults(table)):
        sys.exit("\n".join(wrong))
    if not options.run:
        print(f"{len(table)} promises fit the tree")
        return 0
    dice = random.Random(options.seed)
    if options.since is not None:
        areas = changed_areas(options.since)
        changed = [each for each in table if area_of(each.file) in areas]
        others = [each for each in table if area_of(each.file) not in areas]
        dice.shuffle(changed)
        table = dice.sample(others, min(OF_THE_OTHERS, len(others))) + changed
        print(
            f"changed since {options.since or 'an unknown commit'}: {', '.join(sorted(areas)) or 'nothing'}", flush=True
        )
    if options.sample is not None:
        table = dice.sample(table, min(options.sample, len(table)))
    print(f"{len(table)} promises, --seed {options.seed}", flush=True)
    counts, missed = run(table, options.processes, began + 60 * (options.minutes or 1e6))
    # Again, where a reader of the last lines sees it.
    print("".join(f"{line}\n" for line in missed), end="")
    said = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"{said} in {time.monotonic() - began:.0f} s")
    return 0 if counts["SURVIVED"] == counts["NOT RUN"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
