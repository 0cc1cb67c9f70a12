"""A FastAPI service: every user has an answer or a refusal in time (pip install fastapi uvicorn).

python examples/service.py    # 300 users at once, within this process
BATCHCLIENT_BASE_URL=http://localhost:8000/v1 uvicorn service:app    # in this folder: the service
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse

from batchclient import BatchClient, DeadlineExceeded, QueueFull
from batchclient.simulator import EmbeddedServer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One client for all users: those who ask at the same time share requests. A user waits for 2 s
    # at most, and 100 may wait at once; 30 s and 1,000 users are more usual.
    async with BatchClient(limit=16, timeout_s=2, max_queued=100, when_full="raise") as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/answer")
async def answer(request: Request, text: Annotated[str, Body(embed=True)]) -> dict[str, str]:
    return {"text": (await request.app.state.client.complete(text, max_tokens=64)).text}


@app.exception_handler(QueueFull)
async def overloaded(_: Request, __: QueueFull) -> JSONResponse:
    return JSONResponse({"detail": "Too many users at the moment"}, 503, {"Retry-After": "2"})


@app.exception_handler(DeadlineExceeded)
async def too_late(_: Request, __: DeadlineExceeded) -> JSONResponse:
    return JSONResponse({"detail": "No answer in time"}, 504)


async def main() -> None:
    users = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), users:
        replies = await asyncio.gather(*[users.post("/answer", json={"text": f"Question {n}?"}) for n in range(300)])
    print(dict(sorted(Counter(reply.status_code for reply in replies).items())))


if __name__ == "__main__":
    with EmbeddedServer("gpu") as server:
        os.environ["BATCHCLIENT_BASE_URL"] = server.base_url
        asyncio.run(main())
