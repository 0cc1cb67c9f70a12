"""The benchmark that plays a trace, in small: it reads what a user brings, and its bars hold and can be missed."""

import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks" / "trace.py"


def lines_of(calls, *, seed=1):
    """Calls a few at a time, as on a chat page; prompts of 300 tokens and answers of 100 to 300."""
    rng, at_s = random.Random(seed), 0.0
    for _ in range(calls):
        at_s += rng.expovariate(1.0)
        seconds, rest = divmod(at_s, 60)
        yield f"2026-01-01 10:{int(seconds):02d}:{rest:010.7f},300,{rng.randrange(100, 300)}"


def written(trace, lines):
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    return str(trace)


def test_the_latency_preset_answers_as_soon_as_the_default_and_async_openai(tmp_path):
    options = ["--trace", written(tmp_path / "trace.csv", lines_of(240)), "--kind", "plain", "--loads", "0.9,1.1"]
    options += ["--arms", "default,latency,AsyncOpenAI"]
    command = [sys.executable, PROGRAM, "--processes", "1", *options]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Every bar is reached." in ran.stdout
    answered = re.findall(r"^\| trace \| (?:0.9|1.1) \| (\w+) .* (\d+) \|$", ran.stdout, re.MULTILINE)
    assert answered == [(arm, "240") for arm in ("default", "latency", "AsyncOpenAI")] * 2


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["2026-01-01 10:00:00,3,4", "2026-01-01 10:00:01,3"], "line 3: not a time and two numbers"),
        (["tomorrow,3,4"], "line 2: not a time and two numbers"),
        (["5.0,3,4", "4.0,3,4"], "no two calls in the order of their times"),
        (["5.0,3,4"], "no two calls in the order of their times"),
    ],
)
def test_a_file_that_is_no_trace_says_where(tmp_path, monkeypatch, capsys, lines, told):
    file = written(tmp_path / "trace.csv", lines)
    monkeypatch.setattr(sys, "argv", ["trace.py", "--trace", file])
    monkeypatch.syspath_prepend(PROGRAM.parent)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert told in capsys.readouterr().err
