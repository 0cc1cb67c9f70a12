"""``AsyncOpenAI`` in a process of its own, so that it does not share this client's event loop.

Rules:
- What the process is to do, the key above all, goes through a pipe and stands in no list of
  processes.
- The process ends with its job: a cancelled job kills it, and one whose parent is gone ends itself.
  Ctrl-C reaches the parent alone.
- As this client it follows no redirect, and takes no proxy unasked. It makes no retries: these
  would be uncounted requests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from batchclient.bench.arrivals import Closed, Load, Poisson
from batchclient.bench.calls import Calls
from batchclient.bench.generator import Times, Window, generate
from batchclient.bench.strategies import Target
from batchclient.bench.workload import Workload

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["answers_in_process", "main", "openai_client", "window_in_process"]

_COMMAND = (sys.executable, "-c", "from batchclient.bench.openai_process import main; main()")
_ANY_NUMBER = 1 << 30


def openai_client(base_url: str, api_key: str | None, headers: Mapping[str, str]) -> AsyncOpenAI:
    """Return a client of ``openai`` that makes no further request."""
    import openai

    http = openai.DefaultAsyncHttpxClient(follow_redirects=False, trust_env=False, timeout=3600)
    return openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key or "none", default_headers=dict(headers), max_retries=0, http_client=http
    )


async def window_in_process(
    target: Target, workload: Workload, load: Load, limit: int | None, times: Times, seed: int, first_number: int
) -> Window:
    """Make the calls of one measurement.

    Args:
        target: the server; its model is named.
        workload: the calls.
        load, times, seed: as for ``generate``.
        limit: calls in flight; ``None``: any number.
        first_number: of the first prompt.

    Raises:
        RuntimeError: the process failed.
    """
    done = await _in_process(
        job="window",
        target=_server_of(target),
        workload={each.name: getattr(workload, each.name) for each in fields(workload)},
        load=asdict(load),
        limit=limit,
        times=asdict(times),
        seed=seed,
        first_number=first_number,
    )
    calls = Calls(errors={int(place): error for place, error in done.pop("errors").items()})
    for name, values in done.pop("calls").items():
        getattr(calls, name).extend(values)
    return Window(calls, lags=array("d", done.pop("lags")), **done)


async def answers_in_process(
    target: Target, prompts: Sequence[str], max_tokens: int, in_flight: int
) -> tuple[list[str], float, float]:
    """Complete prompts, so many at once; return the texts, the seconds and the CPU seconds for all.

    What is loaded at the first call belongs to neither.

    Raises:
        RuntimeError: the process failed.
    """
    server = _server_of(target)
    done = await _in_process(
        job="answers", target=server, prompts=list(prompts), max_tokens=max_tokens, in_flight=in_flight
    )
    return done["texts"], done["seconds"], done["cpu_s"]


def _server_of(target: Target) -> dict[str, Any]:
    named = ("base_url", "model", "api_key")
    return {
        **{each: getattr(target, each) for each in named},
        "headers": dict(target.headers),
        "fields": dict(target.fields),
    }


async def _in_process(**job: Any) -> dict[str, Any]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=pipe, stdout=pipe, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # The pipe stays open: its end says that the parent is gone.
        process.stdin.write(json.dumps(job).encode() + b"\n")
        done = await process.stdout.read()
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    finally:
        # One that ended by itself is not killed: that would take its status from whoever waits.
        await process.wait()
    if not done:
        raise RuntimeError("the process of AsyncOpenAI has failed")
    result: dict[str, Any] = json.loads(done)
    return result


# In that process --------------------------------------------------------------------------------------------------


def main() -> None:
    """Do the job that standard input names."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    done = asyncio.run(_JOBS[job.pop("job")](Target(**job.pop("target")), **job))
    sys.stdout.write(json.dumps(done))
    sys.stdout.flush()
    # The ends of idle connections are not worth waiting for.
    os._exit(0)


def _end_with_parent() -> None:
    # Not ``sys.stdin``: an interpreter that ends for another reason waits for its lock.
    while os.read(0, 1024):
        pass
    os._exit(1)


async def _window(
    target: Target,
    *,
    workload: dict[str, Any],
    load: dict[str, Any],
    limit: int | None,
    times: dict[str, float],
    seed: int,
    first_number: int,
) -> dict[str, Any]:
    calls_of, free, loop = Workload(**workload), asyncio.Semaphore(limit or _ANY_NUMBER), asyncio.get_running_loop()
    length = {} if calls_of.call == "embed" else {"max_tokens": calls_of.output_tokens}
    shared = {"model": target.model or "", **length, "extra_body": dict(target.fields)}
    async with openai_client(target.base_url, target.api_key, target.headers) as client:

        async def call(prompt: str, calls: Calls, place: int) -> None:
            async with free:
                calls.sent[place] = loop.time()
                calls.attempts[place] = 1
                try:
                    answer = await _ask(client, calls_of.call, prompt, shared)
                    usage = answer.usage
                except Exception as error:
                    # Not only its own: a page in place of JSON raises what it happens to raise.
                    calls.failed(place, loop.time(), error)
                    return
            counts = [getattr(usage, name, None) or 0 for name in ("prompt_tokens", "completion_tokens")]
            calls.answered(place, loop.time(), *counts, is_bad=calls_of.call != "embed" and _is_empty(answer))

        prompts = map(calls_of.prompt, itertools.count(first_number))
        kind: Load = Closed(**load) if "callers" in load else Poisson(**load)
        window = await generate(call, kind, prompts, Times(**times), seed)
    calls = window.calls
    return {
        "calls": {each.name: getattr(calls, each.name).tolist() for each in fields(calls) if each.name != "errors"},
        "errors": calls.errors,
        "begins": window.begins,
        "ends": window.ends,
        "cpu_share": window.cpu_share,
        "lags": window.lags.tolist(),
    }


async def _ask(client: AsyncOpenAI, call: str, prompt: str, params: dict[str, Any]) -> Any:
    if call == "chat":
        return await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **params)
    if call == "embed":
        return await client.embeddings.create(input=prompt, **params)
    return await client.completions.create(prompt=prompt, **params)


def _is_empty(answer: Any) -> bool:
    """Whether there is neither a text, nor reasoning, nor a call of a tool."""
    choice = answer.choices[0] if getattr(answer, "choices", None) else None
    said = getattr(choice, "message", choice)
    parts = (getattr(said, name, None) for name in ("text", "content", "reasoning_content", "reasoning", "tool_calls"))
    return not any(part.strip() if isinstance(part, str) else part for part in parts)


async def _answers(target: Target, *, prompts: Sequence[str], max_tokens: int, in_flight: int) -> dict[str, Any]:
    free = asyncio.Semaphore(in_flight)

    async def complete(client: AsyncOpenAI, prompt: str) -> str:
        async with free:
            answer = await client.completions.create(
                model=target.model or "", prompt=prompt, max_tokens=max_tokens, temperature=0
            )
        return answer.choices[0].text

    async with openai_client(target.base_url, target.api_key, target.headers) as client:
        await complete(client, prompts[0])
    began_at, cpu_at = time.monotonic(), time.process_time()
    async with openai_client(target.base_url, target.api_key, target.headers) as client:
        texts = await asyncio.gather(*(complete(client, prompt) for prompt in prompts))
    return {"texts": texts, "seconds": time.monotonic() - began_at, "cpu_s": time.process_time() - cpu_at}


_JOBS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {"window": _window, "answers": _answers}
