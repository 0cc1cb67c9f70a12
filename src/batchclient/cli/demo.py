"""``batchclient demo``: 500 labels of four tokens, by this client and by ``AsyncOpenAI``.

Rules:
- The server is the embedded one, in a process of its own, whatever the environment says: a demo
  must not load a real server because a variable is set.
- All calls are made at once. ``AsyncOpenAI`` has a process of its own, so that it does not share
  this client's loop, and a semaphore, of three numbers: its best time counts. Between its runs this
  client has as many, of which the middle one counts.
- Times are compared only if the slowest run of this client was quicker than the best of
  ``AsyncOpenAI``: on a busy machine one run says nothing.
- The content of each answer is checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from batchclient import BatchClient
from batchclient.bench.openai_process import answers_in_process
from batchclient.bench.strategies import Target
from batchclient.cli._corpus import docstrings
from batchclient.cli._refusal import Refusal
from batchclient.cli._signals import until_signal
from batchclient.cli._words import put, say
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["demo"]

_TEXTS, _TOKENS = 500, 4
_TEMPLATE = "Classify: {}\nLabel:"
_IN_FLIGHT = (16, 64, 256)


@dataclass(frozen=True, slots=True)
class _Run:
    """All calls, once.

    Args:
        requests: HTTP requests with prompts.
        seconds: from the first call to the last answer.
        cpu_s: of the client's process.
    """

    requests: int
    seconds: float
    cpu_s: float

    def row(self, name: str) -> str:
        return f"{name:27}{self.requests:9}{self.seconds:10.2f}{self.cpu_s:14.2f}"


def demo() -> int:
    """Label 500 texts on a server of its own, with this client and with AsyncOpenAI."""
    from batchclient.simulator import EmbeddedServer, expected_text

    texts = docstrings(_TEXTS)
    prompts = [_TEMPLATE.format(text) for text in texts]
    expected = [expected_text(prompt, max_tokens=_TOKENS, temperature=0) for prompt in prompts]
    embedded = EmbeddedServer("gpu", process=True)
    try:
        embedded.start()
    except (ImportError, OSError, RuntimeError) as error:
        raise Refusal(f"the embedded server did not start: {error}", Status.FAILED) from None
    say("the embedded server, a model of vLLM, in a process of its own")
    try:
        stopped = until_signal(_compare(embedded.base_url, embedded.model, prompts, expected))
    finally:
        embedded.stop()
    return of_signal(stopped) if stopped else Status.OK


async def _compare(base_url: str, model: str, prompts: Sequence[str], expected: Sequence[str]) -> None:
    say(f"{len(prompts)} texts, {_TOKENS} tokens for each, all at once; this takes up to half a minute")
    # What is loaded at the first call is no part of a run.
    await _ours(base_url, model, prompts[:1])
    ours, theirs = [], []
    for in_flight in _IN_FLIGHT:
        ours.append(_checked(*await _ours(base_url, model, prompts), expected))
        texts, *spent = await answers_in_process(Target(base_url, model), prompts, _TOKENS, in_flight)
        theirs.append(_checked(texts, _Run(len(prompts), *spent), expected))
    middle = next(run for run in ours if run.seconds == median(each.seconds for each in ours))
    put(
        f"{'':27}{'requests':>9}{'seconds':>10}{'CPU seconds':>14}",
        middle.row("batchclient"),
        *(run.row(f"AsyncOpenAI, {number} in flight") for run, number in zip(theirs, _IN_FLIGHT, strict=True)),
        "Each text got its own answer, every time.",
        _gain(middle, max(run.seconds for run in ours), min(theirs, key=lambda run: run.seconds)),
    )


def _gain(ours: _Run, slowest_s: float, theirs: _Run) -> str:
    saved = f"batchclient sent {ours.requests} requests for {theirs.requests}"
    if slowest_s >= theirs.seconds:
        return f"{saved}. This machine was too busy to compare seconds: one run took {slowest_s:.2f}."
    times, share = theirs.seconds / ours.seconds, ours.cpu_s / theirs.cpu_s
    return f"{saved}: {times:.1f} times as fast as AsyncOpenAI at its best, for {100 * share:.0f} % of its CPU."


def _checked(answers: Sequence[str], run: _Run, expected: Sequence[str]) -> _Run:
    if answers != expected:
        raise Refusal("a text got an answer that is not its own", Status.FAILED)
    return run


async def _ours(base_url: str, model: str, prompts: Sequence[str]) -> tuple[list[str], _Run]:
    began_at, cpu_at = time.monotonic(), time.process_time()
    async with BatchClient(base_url, model=model, from_environment=False) as client:
        calls = [client.complete(prompt, max_tokens=_TOKENS, temperature=0) for prompt in prompts]
        answers = await asyncio.gather(*calls)
        requests = client.statistics().batches
    run = _Run(requests, time.monotonic() - began_at, time.process_time() - cpu_at)
    return [answer.text for answer in answers], run
