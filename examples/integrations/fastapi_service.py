"""A FastAPI service with many users at once.

python examples/integrations/fastapi_service.py [BASE_URL MODEL]

As a script it answers 200 users in its own process. As a service, in the folder of this file:

    BATCHCLIENT_BASE_URL=http://localhost:8000/v1 WEB_CONCURRENCY=2 uvicorn fastapi_service:app
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from http import HTTPStatus
from math import ceil
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from batchclient import (
    AuthenticationFailed,
    BadRequest,
    BatchClient,
    BatchClientError,
    CallAborted,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    NotFound,
    QueueFull,
    RateLimited,
    ReadTimedOut,
    RemoteError,
    TransportError,
)

log = logging.getLogger("service")
WORKERS = int(os.environ.get("WEB_CONCURRENCY", "1"))  # uvicorn starts as many
STATUSES = {
    QueueFull: 503,
    ClientClosed: 503,
    CallAborted: 503,
    RateLimited: 503,
    ConnectFailed: 503,
    DeadlineExceeded: 504,
    ReadTimedOut: 504,
    TransportError: 502,
    RemoteError: 502,
    BadRequest: 400,
    AuthenticationFailed: 500,
    NotFound: 500,
    ConfigError: 500,
    BatchClientError: 500,
}
"""By the nearest class: ``AuthenticationFailed`` is a ``BadRequest``, and not the user's fault."""


class Question(BaseModel):
    text: str = Field(min_length=1, max_length=4000)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one client for the life of a worker."""
    # The server's URL and model are in the environment.
    async with BatchClient(
        limit=max(1, 256 // WORKERS), timeout_s=30, outage_patience_s=5, max_queued=1000, when_full="raise"
    ) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(BatchClientError)
async def refuse(_: Request, error: BatchClientError) -> Response:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    if status >= 500:
        log.error("%s: %s", type(error).__name__, error)
    detail = error.message if status == 400 else HTTPStatus(status).phrase
    headers = {"Retry-After": str(ceil(error.retry_after_s or 1))} if status == 503 else {}
    return JSONResponse({"detail": detail}, status, headers)


@app.post("/answer")
async def answer(question: Question, request: Request) -> dict[str, str]:
    """Answer a question whole. Users who ask at the same time share requests."""
    call = request.app.state.client.complete(question.text, max_tokens=16)
    completion = await while_connected(request, call)
    return {"text": completion.text}


@app.post("/stream")
async def stream(question: Question, request: Request) -> StreamingResponse:
    """Answer a question piece by piece. Starlette ends the stream when the user leaves."""
    pieces = request.app.state.client.stream(question.text, max_tokens=200)
    # The status is sent before the first text: an error after that breaks the connection.
    first = await while_connected(request, anext(pieces))

    async def texts() -> AsyncIterator[str]:
        async with pieces:
            yield first.text
            async for piece in pieces:
                yield piece.text

    return StreamingResponse(texts(), media_type="text/plain")


async def while_connected(request: Request, call: Awaitable[Any]) -> Any:
    """Await a call; end the call when the user's connection closes, which FastAPI does not."""
    task, gone = asyncio.ensure_future(call), asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499)  # nobody reads it
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def main() -> None:
    # httpx's transport for applications leaves their lifespan to the caller.
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as users:
            questions = [{"text": f"Question {number}?"} for number in range(200)]
            replies = await asyncio.gather(*[users.post("/answer", json=each) for each in questions])
            refused = await users.post("/answer", json={"text": ""})
        answered = [reply for reply in replies if reply.status_code == 200]
        print(f"{len(answered)} users answered in {app.state.client.statistics().batches} requests")
        print(f"an empty question: {refused.status_code}")


if __name__ == "__main__":
    from _server import server

    with server() as (base_url, model):
        os.environ["BATCHCLIENT_BASE_URL"], os.environ["BATCHCLIENT_MODEL"] = base_url, model
        asyncio.run(main())
