"""What the suite protects: each line of promises.tsv is a promise, a change of the source that breaks it, and the test that notices.

python -m tests.promises                        # does each line still fit the tree?
python -m tests.promises --run                  # break each promise in a copy of the tree: its test must fail
python -m tests.promises --run --only deadline  # those whose promise, module or test matches a pattern
python -m tests.promises --run --sample 25      # some, drawn at random; --seed draws the same again
"""

import argparse
import csv
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 120.0
"""Seconds for one test."""
TESTS_FAILED = 1
"""pytest's exit status; 2 and more mean that the tests did not run."""


class Line(NamedTuple):
    """One line of the table; in ``old`` and ``new``, ``\\n`` stands for a line break and ``\\\\`` for a backslash."""

    promise: str
    module: str
    old: str
    new: str
    test: str

    def broken(self, root):
        """The module's path, its text as it is and its text without the promise; ValueError where the line does not fit."""
        path = root / "src" / "batchclient" / self.module
        text = path.read_text() if path.is_file() else ""
        old, new = (re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), field) for field in (self.old, self.new))
        if text.count(old) != 1:
            raise ValueError(f"{self.module} has {text.count(old)} times: {self.old}")
        return path, text, text.replace(old, new)


def table():
    text = (ROOT / "tests/promises.tsv").read_text()
    return [Line(**row) for row in csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)]


def faults(lines):
    """What does not fit the tree, in a sentence for each."""
    for number, line in enumerate(lines, 2):
        try:
            line.broken(ROOT)
        except ValueError as error:
            yield f"line {number}, {line.promise!r}: {error}"
        file, _, test = line.test.partition("::")
        if not (ROOT / file).is_file() or not re.search(rf"(?m)^(async )?def {test}\(", (ROOT / file).read_text()):
            yield f"line {number}, {line.promise!r}: there is no test {line.test}"


def run_tests(copy, tests):
    """Return (exit status, output)."""
    redis = os.environ.get("BATCHCLIENT_REDIS_DIR") or str(ROOT / ".cache/redis")
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "BATCHCLIENT_REDIS_DIR": redis}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    kept = {"cwd": copy, "env": environment, "capture_output": True, "text": True, "check": False}
    try:
        done = subprocess.run(command, timeout=LONGEST_S * len(tests), **kept)
    except subprocess.TimeoutExpired:
        return None, f"longer than {LONGEST_S:g} s a test"
    return done.returncode, done.stdout + done.stderr


def verdict(line, copy):
    path, text, changed = line.broken(copy)
    path.write_text(changed)
    code, output = run_tests(copy, [line.test])
    path.write_text(text)
    if code == TESTS_FAILED:
        return "noticed", ""
    if code == 0:
        return ("SURVIVED" if " passed" in output else "skipped"), output
    return "NOT RUN", output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="break the promises, one after the other")
    parser.add_argument("--only", default="", metavar="PATTERN", help="those whose promise, module or test matches")
    parser.add_argument("--sample", type=int, metavar="N", help="as many, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draws the same sample again")
    options = parser.parse_args()
    lines = [each for each in table() if re.search(options.only, f"{each.promise}\t{each.module}\t{each.test}")]
    if wrong := list(faults(lines)):
        sys.exit("\n".join(wrong))
    if not options.run:
        print(f"{len(lines)} promises fit the tree")
        return 0
    if options.sample is not None and options.sample < len(lines):
        lines = random.Random(options.seed).sample(lines, options.sample)
        print(f"a sample of {len(lines)}, --seed {options.seed}", flush=True)
    began, said = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="batchclient-promises-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"), symlinks=True)
        # What is compiled goes by the text: a mutant may be as old and as long as the module that it replaces.
        compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", copy / "src"]
        subprocess.run(compile_all, check=True)
        code, output = run_tests(copy, sorted({each.test for each in lines}))
        if code != 0:
            sys.exit(f"{output}\nThe tests do not pass on the code as it is: their failing would show nothing.")
        for line in lines:
            at = time.monotonic()
            said.append(verdict(line, copy))
            print(f"{said[-1][0]:8} {line.promise}: {line.test} ({time.monotonic() - at:.1f} s)", flush=True)
            print(end="" if said[-1][0] in ("noticed", "skipped") else said[-1][1][-2000:], flush=True)
    counts = {word: sum(word == each for each, _ in said) for word in ("noticed", "skipped", "SURVIVED", "NOT RUN")}
    print(", ".join(f"{number} {word}" for word, number in counts.items()), f"in {time.monotonic() - began:.0f} s")
    return 0 if counts["SURVIVED"] == counts["NOT RUN"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
