"""One steady call, traced: the seven files that a reader follows run in this order (CONTRIBUTING names them)."""

import asyncio
import sys
from pathlib import Path

import batchclient
from batchclient.testing import MockLLM

PACKAGE = Path(batchclient.__file__).parent
MAIN_PATH = [
    "client.py",
    "_calls/make.py",
    "_shell/runner.py",
    "_core/scheduler.py",
    "_core/granting.py",
    "_shell/exchange.py",
    "dialects/_routes.py",
]


MOST_FUNCTIONS, MOST_FILES = 173, 46
"""What is called and has nothing to do is asked for no more: a new function on the path wants a reason."""
OTHERS = ("simulator/", "testing/", "transport/")
"""The mocked server, and the way to it."""


async def traced(call):
    """Await a call; return the package's functions that ran, as (file, name), in the order of their first lines."""
    seen = {}

    def trace(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            seen.setdefault((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname), None)

    sys.setprofile(trace)
    try:
        await call
    finally:
        sys.setprofile(None)
    return [(file, name) for file, name in seen if not file.startswith(OTHERS)]


async def steady_call():
    async with MockLLM().client() as client:
        for _ in range(3):
            await client.complete("a prompt", max_tokens=16)
            # The end of the reply comes in later turns of the event loop.
            for _ in range(20):
                await asyncio.sleep(0)
        return await traced(client.complete("a prompt", max_tokens=16))


def test_a_steady_call_runs_through_the_seven_files_in_order():
    functions = asyncio.run(steady_call())
    files = list(dict.fromkeys(file for file, _ in functions))
    print(f"{len(functions)} functions in {len(files)} files ran for one steady call")
    assert len(functions) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES
    assert [file for file in files if file in MAIN_PATH] == MAIN_PATH


def test_contributing_names_them():
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    places = [page.index(f"`{file}`") for file in MAIN_PATH]
    assert places == sorted(places)
