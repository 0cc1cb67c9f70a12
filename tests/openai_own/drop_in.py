"""A pytest plugin for openai-python's own tests: they get the drop-in's classes in the place of openai's.

Rules:
- ``openai.OpenAI`` and ``openai.AsyncOpenAI`` are replaced before their tests are imported. openai's package itself keeps its own.
- A test that differs is in ``differ.txt`` under its reason. One that is there and passes fails the run, and so does one that is there and is no more:
  the list only shrinks.
"""

import os
import re
from pathlib import Path

import openai
import pytest

import batchclient.openai
from stand_in import stand_in

OPENAIS = os.environ.get("OPENAIS_OWN_CLASSES") == "1"
"""Run with openai's own classes: what fails then is the stand-in's fault."""
LEFT_OUT = re.compile("retries_taken|retrying|retry_count_header")
"""Their mock counts openai's own loop and its headers, and answers without a body. Retries are batchclient's here, and ``tests/drop_in`` has tests for them."""
LIST = Path(__file__).with_name("differ.txt")


def read_list(text):
    """Return the reason for each test's id: a line that begins with ``#`` is the reason of the ids after it."""
    reasons, reason = {}, ""
    for line in text.splitlines():
        if line.startswith("#"):
            reason = line.lstrip("# ")
        elif line:
            if line in reasons:
                raise pytest.UsageError(f"{LIST.name}: {line} is there twice")
            reasons[line] = reason
    return reasons


def pytest_load_initial_conftests(early_config):
    # Before their conftest is imported, which takes both from the environment.
    serving = stand_in()
    os.environ["TEST_API_BASE_URL"] = serving.__enter__()
    early_config.add_cleanup(lambda: serving.__exit__(None, None, None))
    # Without a client of their own, so that blocking calls share requests, too.
    os.environ["OPENAI_TEST_HTTP_CLIENT"] = "default"
    if not OPENAIS:
        openai.OpenAI = openai.Client = batchclient.openai.OpenAI
        openai.AsyncOpenAI = openai.AsyncClient = batchclient.openai.AsyncOpenAI


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    # Their conftest has read it; their tests take it for the name of the HTTP library.
    os.environ["OPENAI_TEST_HTTP_CLIENT"] = "httpx2"
    left_out = [item for item in items if LEFT_OUT.search(item.name)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    reasons = read_list(LIST.read_text())
    for item in items:
        reason = reasons.pop(item.nodeid, None)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
    is_part = config.getoption("keyword") or any("::" in each for each in config.args)
    files = {item.nodeid.partition("::")[0] for item in items}
    gone = [each for each in reasons if each.partition("::")[0] in files and not is_part]
    if gone:
        raise pytest.UsageError(f"{LIST.name} names tests that are no more: {', '.join(gone)}")
