"""The drop-in and the transports as users make them. It is never run: type checkers read it."""

from __future__ import annotations

import httpx
import httpx2
from openai.types import Completion
from openai.types.chat import ChatCompletion

from batchclient import AdaptiveLimit, Batching, Http, Queue, Telemetry
from batchclient.integrations import httpx as below_httpx
from batchclient.integrations import httpx2 as below_httpx2
from batchclient.openai import AsyncOpenAI, OpenAI


async def key() -> str:
    return "key"


clients = [
    AsyncOpenAI(api_key="k", base_url="http://a/v1", max_retries=4, timeout=30.0, default_headers={"x": "y"}),
    AsyncOpenAI(api_key=key, base_url=["http://a/v1", "http://b/v1"], ignored_headers=["x-user"], preset="throughput"),
    AsyncOpenAI(limit=AdaptiveLimit(max=64), batching=Batching(max_size=8), queue=Queue(order="deadline")),
    AsyncOpenAI(telemetry=Telemetry(client_name="mine")),
    AsyncOpenAI(http=Http(read_timeout_s=5), http_client=httpx2.AsyncClient(), dialect="vllm"),
]
blocking = OpenAI(api_key="k", organization="o", project="p", limit=3, http_client=httpx2.Client())
AsyncOpenAI(limits=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
AsyncOpenAI(preset="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
OpenAI(max_list=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

transports = [
    below_httpx2.BatchTransport(preset="latency", limit="auto", timeout_s=5, max_attempts=3),
    below_httpx2.BatchTransport(httpx2.AsyncHTTPTransport(), base_url="http://a/v1", ignored_headers=["x-user"]),
]
httpx.AsyncClient(transport=below_httpx.BatchTransport(batching=Batching(linger_s=0.01)))
below_httpx.BatchTransport(model="m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def calls() -> None:
    answer: ChatCompletion = await clients[0].chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hello"}], max_tokens=8
    )
    text: Completion = blocking.completions.create(model="m", prompt="Hello")
    print(answer.choices[0].message.content, text.choices[0].text)
