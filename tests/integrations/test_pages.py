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
PAGES = {"migrate": ("langchain_openai",), "libraries": ("instructor", "litellm", "pydantic_ai"), "labels": ("pandas",)}
EXAMPLES = {
    "langchain_drop_in": ("langchain_openai", r"200 definitions and 200 vectors; (3[5-9]\d|400) of 400 calls shared"),
    "service": ("fastapi", r"\{200: \d+, 503: \d{3,4}(, 504: \d+)?\}"),
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
    for package in PAGES[name]:
        needs(package)
    blocks = BLOCK.findall((ROOT / f"docs/guide/{name}.md").read_text())
    assert blocks
    with EmbeddedServer("instant", model="m") as server, EmbeddedServer("instant", model="m") as other:
        for number, block in enumerate(blocks):
            file = tmp_path / f"block{number}.py"
            # A script as it was before the move shares nothing.
            url = server.base_url if "batchclient" in block else other.base_url
            file.write_text(block.replace("http://localhost:8000/v1", url))
            done = run(str(file))
            assert done.returncode == 0, done.stderr
        assert 0 < server.requests < server.prompts / 4


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_promises(name):
    package, promise = EXAMPLES[name]
    needs(package)
    done = run("-W", "error", str(ROOT / f"examples/{name}.py"))
    assert done.returncode == 0, done.stderr
    assert re.search(promise, done.stdout), done.stdout
