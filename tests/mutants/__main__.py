"""Takes out one protection after the other, in a copy of the tree, and shows the test that notices.

python -m tests.mutants                                # all of them
python -m tests.mutants --only "a limit"               # those whose names match

An error: a mutant that no test notices, a test that does not pass on the code as it is, or a
protection that its function does not have once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.protections import PROTECTIONS

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 120.0
"""Seconds for one test."""
TESTS_FAILED = 1
"""pytest's exit status; 2 and more mean that the tests did not run."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression for their names")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    chosen = [each for each in PROTECTIONS if re.search(options.only, each.name)]
    if not chosen:
        parser.error(f"no protection is called {options.only!r}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="batchclient-mutants-") as folder:
        copies = SimpleQueue()
        for number in range(options.processes):
            copies.put(copy_tree(Path(folder) / str(number)))
        code, output, took_s = run_tests(copy_tree(Path(folder) / "as-it-is"), {each.test for each in chosen})
        if code != 0:
            print(output)
            print("the tests do not pass on the code as it is: nothing is shown by their failing without a protection")
            return 1
        print(f"{len(chosen)} protections; all their tests pass on the code as it is ({took_s:.0f} s)", flush=True)
        with ThreadPoolExecutor(options.processes) as pool:
            noticed = sum(pool.map(lambda each: try_without(each, copies), chosen))
    print(f"{noticed} of {len(chosen)} were noticed, {time.perf_counter() - began:.0f} s")
    return 0 if noticed == len(chosen) else 1


def copy_tree(copy):
    """What the tests need, without what was compiled of it."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def try_without(protection, copies):
    """Run a protection's test without it; return whether the test fails."""
    copy = copies.get()
    file, source = None, ""
    try:
        file = protection.path(copy)
        source = file.read_text()
        mutant = protection.take_out(source)
        compile(mutant, file, "exec")
        file.write_text(mutant)
        code, output, took_s = run_tests(copy, {protection.test})
    except (ValueError, SyntaxError) as error:
        code, output, took_s = None, str(error), 0.0
    finally:
        if file is not None:
            file.write_text(source)
        copies.put(copy)
    noticed = code == TESTS_FAILED
    verdict = "noticed by" if noticed else "SURVIVED" if code == 0 else "NOT TRIED:"
    print(
        f"{'ok' if noticed else 'WRONG':5} without {protection.name}: {verdict} {protection.test} ({took_s:.1f} s)",
        flush=True,
    )
    if not noticed:
        print(output[-2000:], flush=True)
    return noticed


def run_tests(copy, tests):
    """Return (exit status, output, seconds).

    Nothing compiled is kept: a mutant may be as old and as long as the module it replaces.
    """
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *sorted(tests)]
    longest_s = LONGEST_S * len(tests)
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=longest_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"ran for {longest_s:g} s", longest_s
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
