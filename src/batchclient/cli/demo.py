"""``batchclient demo``: a short measurement of this client beside ``AsyncOpenAI``, on real texts.

Rules:
- Without ``--base-url`` the server is the embedded one, in a process of its own, whatever the
  environment says: a demo must not load a real server because a variable is set.
- What is measured and said is ``bench``'s. On the embedded server the content of answers is
  checked, too.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from batchclient.bench.generator import Times
from batchclient.bench.strategies import Target
from batchclient.bench.sweep import settings_of
from batchclient.bench.workload import Workload
from batchclient.cli._bench_options import Question, seconds_from, target_from
from batchclient.cli._bench_outputs import Outputs
from batchclient.cli._bench_run import measure
from batchclient.cli._corpus import docstrings
from batchclient.cli._options import ApiKey, Model
from batchclient.cli._refusal import Refusal
from batchclient.cli._words import put, say
from batchclient.jobs.statuses import Status
from batchclient.sync import SyncBatchClient

__all__ = ["demo"]

_TEXTS, _MAPPED = 2000, 500
_TOKENS = 64
_TEMPLATE = "Summarise in one line: {}"


def demo(
    *,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A server's root with its /v1. Default: the embedded server.")
    ] = None,
    model: Model = None,
    api_key: ApiKey = None,
    window: Annotated[str, typer.Option("--for", metavar="TIME", help="The length of each measurement.")] = "3s",
) -> int:
    """Measure this client beside AsyncOpenAI on real texts, with a server of its own."""
    window_s = seconds_from("--for", window, may_be_zero=False)
    times = Times(warm_up_s=min(1.0, window_s), window_s=window_s, grace_s=10.0)
    settings = settings_of(["adaptive", "async-openai"], concurrency=[16])
    texts = docstrings(_TEXTS)
    workload = Workload(output_tokens=_TOKENS, prompts=texts)
    question = Question(settings, (), times, repeat=2)
    if base_url is not None:
        target, has_key = target_from([base_url], model, api_key, None)
        return measure(target, workload, question, Outputs(), has_key=has_key)
    from batchclient.simulator import EmbeddedServer

    embedded = EmbeddedServer("gpu", process=True)
    try:
        embedded.start()
    except (ImportError, OSError, RuntimeError) as error:
        raise Refusal(f"the embedded server did not start: {error}", Status.FAILED) from None
    say("the embedded server, a model of vLLM, in a process of its own")
    try:
        _map(embedded.base_url, embedded.model, texts[:_MAPPED])
        return measure(Target(embedded.base_url, embedded.model), workload, question, Outputs(), has_key=False)
    finally:
        embedded.stop()


def _map(base_url: str, model: str, texts: list[str]) -> None:
    """Map texts, and check whether each got its own answer.

    Raises:
        Refusal: a text got another one.
    """
    from batchclient.simulator import expected_text

    with SyncBatchClient(base_url, model=model) as client:
        began = time.monotonic()
        answers = client.batch_map(texts, _TEMPLATE, max_tokens=_TOKENS, temperature=0)
        seconds, requests = time.monotonic() - began, client.statistics().batches
    for text, answer in zip(texts, answers, strict=True):
        if answer.text != expected_text(_TEMPLATE.format(text), max_tokens=_TOKENS, temperature=0):
            raise Refusal("a text got an answer that is not its own", Status.FAILED)
    put(f"batch_map: {len(texts)} texts in {requests} requests and {seconds:.1f} s, each with its own answer")
