"""A FastAPI service: every user has an answer or a refusal in time (pip install fastapi uvicorn).

python examples/service.py    # 1,500 users at once, within this process
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

from batchclient import BatchClient, DeadlineExceeded, Queue, QueueFull
from batchclient.simulator import EmbeddedServer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One client for all users: those who ask at the same time share requests. Its queue holds the
    # calls per second that the server answers, times the seconds that a user may wait: 250 × 4.
    async with BatchClient(limit=256, timeout_s=4, queue=Queue(max_calls=1000, when_full="raise")) as client:
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
async def too_late(_: Request, error: DeadlineExceeded) -> JSONResponse:
    if error.is_early:  # its turn came so late that the call was not sent
        return JSONResponse({"detail": "Too many users at the moment"}, 503, {"Retry-After": "2"})
    return JSONResponse({"detail": "No answer in time"}, 504)


async def main() -> None:
    users = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), users:
        replies = await asyncio.gather(*[users.post("/answer", json={"text": f"Question {n}?"}) for n in range(1500)])
    print(dict(sorted(Counter(reply.status_code for reply in replies).items())))


if __name__ == "__main__":
    with EmbeddedServer("gpu") as server:
        os.environ.setdefault("BATCHCLIENT_BASE_URL", server.base_url)
        asyncio.run(main())
