"""The libraries' pages and examples run as their readers would run them."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    "langchain": "langchain_openai",
    "instructor": "instructor",
    "litellm": "litellm",
    "frameworks": "pydantic_ai",
}
EXAMPLES = {
    "openai_client": ("httpx2", r"300 answers in [1-9]\d? requests\n1 streamed"),
    "langchain_abatch": ("langchain_openai", r"200 definitions in [1-9]\d? requests\n200 vectors in [1-9]\d? requests"),
    "instructor_extraction": ("instructor", r"100 people in [1-9]\d? requests: .*name="),
    "fastapi_service": ("fastapi", r"200 users answered in [1-9]\d? requests\nan empty question: 422"),
    "taskiq_worker": ("taskiq", r"300 tasks done in [1-9]\d? requests"),
    "celery_threads": ("celery", r"300 tasks done in [1-9]\d? requests"),
    "litellm_calls": ("litellm", r"200 answers in [1-9]\d? requests, \d+ tokens"),
}
ENVIRONMENT = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""LiteLLM's import asks the network otherwise."""


def needs(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: make test-extra WHICH=integrations")


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(name, tmp_path):
    needs(PAGES[name])
    (page,) = ROOT.glob(f"docs/*/{name}.md")
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    with EmbeddedServer("instant", model="m") as server:
        for number, block in enumerate(blocks):
            file = tmp_path / f"block{number}.py"
            file.write_text(block.replace("http://localhost:8000/v1", server.base_url))
            done = run(str(file))
            assert done.returncode == 0, done.stderr
        assert 0 < server.requests < server.prompts / 4


def test_every_example_is_tested():
    # Ray has an environment of its own, with tests/ray.
    assert {path.stem for path in (ROOT / "examples/integrations").glob("[!_]*.py")} == {*EXAMPLES, "ray_data"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_promises(name):
    package, promise = EXAMPLES[name]
    needs(package)
    done = run(str(ROOT / f"examples/integrations/{name}.py"))
    assert done.returncode == 0, done.stderr
    assert re.search(promise, done.stdout), done.stdout


MANY_THREADS = """
import threading

import celery_threads
from celery.contrib.testing.worker import start_worker

made, both = [], threading.Barrier(2)


class Client(celery_threads.SyncBatchClient):
    def __init__(self, **arguments):
        made.append(threading.current_thread())
        try:
            both.wait(0.5)  # for another thread that makes a client
        except threading.BrokenBarrierError:
            pass
        super().__init__(**arguments)


celery_threads.SyncBatchClient = Client
with start_worker(celery_threads.app, pool="threads", concurrency=8, perform_ping_check=False, loglevel="ERROR"):
    for task in [celery_threads.summarise.delay("text") for _ in range(8)]:
        task.get(timeout=60)
print(f"{len(made)} client")
"""


def test_the_threads_of_celerys_worker_have_one_client(tmp_path):
    needs("celery")
    file = tmp_path / "many_threads.py"
    file.write_text(MANY_THREADS)
    with EmbeddedServer("instant", model="m") as server:
        done = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, timeout=120,
            env=ENVIRONMENT | {
                "BATCHCLIENT_BASE_URL": server.base_url,
                "PYTHONPATH": os.pathsep.join(
                    [str(ROOT / "examples/integrations"), *filter(None, [os.environ.get("PYTHONPATH")])]
                ),
            },
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 client\n"
