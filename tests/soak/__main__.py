"""Mixed traffic with faults for as long as one likes; fails if memory, descriptors, sockets or tasks grow.

    python -m tests.soak --seconds 600 --cancellations 100000

The embedded server runs in another process and cuts connections, answers 503, goes silent, is slow, aborts, leaves choices out. Four
clients (by the direct way and by httpx) call it one by one, in lists and in maps, with deadlines, cancellations and maps that are left; every half
minute one of two of them is closed and made anew. Every answer is compared with what the server must say to that prompt. Once a second it
is noted what this process holds. After a warm-up (a quarter of the time) a line is fitted to memory and to half-closed sockets; what
it allows is in ``slope``. How many connections and tasks there are amid the traffic says how many requests are under way, and that no leak
is among them says only the rest: when all callers have ended and idle connections had their time, a call leaves each open client with no
task and a connection for each thing it asks for. At the end everything is closed and nothing may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from collections import Counter

from tests.soak.cancellations import cancel_many
from tests.soak.samples import descriptors, resident_bytes, sockets, tasks
from tests.soak.slope import LEAK_BYTES_PER_CALL, LEAK_CONNECTIONS, LEAST_BYTES, judge

from batchclient import BatchClient, BatchClientError, Batching, Http, Queue
from batchclient.simulator import EmbeddedServer, expected_text

FAULTS = (
    "disconnect,rate=0.01",
    "cut,rate=0.01",
    "status=503,rate=0.02,retry_after=0.05",
    "status=500,rate=0.01",
    "stall,rate=0.002",
    "stall_body,rate=0.002",
    "error_event,rate=0.005",
    "abort,rate=0.005",
    "drop_choice,rate=0.005",
    "garbage,rate=0.003",
    "slow=0.3,rate=0.02",
)
_REMAKE_EVERY_S = 30.0
_REST_S = 6.0
"""Servers close idle connections after 5 s, clients after 3 s."""
_CONNECTIONS_AT_REST = 3
"""Of a client: that of its last call, and those of the two pages that it asks for beside calls."""
_LONG_PROMPT = "the same long beginning, which the server's prefix cache may hold, " * 8


class Soak:
    """One run.

    Args:
        server: whom to call.
        seconds: for how long.
        seed: of what is asked when.
    """

    def __init__(self, server: EmbeddedServer, seconds: float, seed: int) -> None:
        self.server = server
        self.until = time.monotonic() + seconds
        self.rng = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: list[dict[str, float]] = []
        # The first two live as long as the soak: what a client forgets to forget must not go with it.
        self.clients = [self.make(backend) for backend in (None, "httpx") * 2]
        self.made = 0
        self.at_rest: dict[str, int] = {}
        """What open clients hold when nobody has called them for a while."""

    def make(self, backend: str | None) -> BatchClient:
        return BatchClient(
            self.server.base_url,
            model=self.server.model,
            http=Http(backend=backend, read_timeout_s=1.0),
            limit=32,
            batching=Batching(max_size=16, single_flight=True),
            queue=Queue(tenant_weights={"t0": 2.0}),
        )

    @property
    def going(self) -> bool:
        return time.monotonic() < self.until

    def prompt(self) -> str:
        self.made += 1
        return (_LONG_PROMPT if self.rng.random() < 0.1 else "") + f"prompt {self.made}"

    def check(self, prompt: str, text: str, max_tokens: int) -> None:
        if text != expected_text(prompt, max_tokens=max_tokens, temperature=0):
            self.wrong.append(prompt[-40:])

    async def call(self, client: BatchClient, prompt: str, **params: object) -> None:
        max_tokens = self.rng.choice((1, 4, 16))
        try:
            answer = await client.complete(prompt, max_tokens=max_tokens, temperature=0, **params)
        except BatchClientError as error:
            self.ends[type(error).__name__] += 1
        else:
            self.ends["answered"] += 1
            self.check(prompt, answer.text, max_tokens)

    async def caller(self) -> None:
        """Bursts of calls, some with deadlines, some for tenants, some equal."""
        while self.going:
            client, rng = self.rng.choice(self.clients), self.rng
            calls = []
            for _ in range(rng.randint(1, 24)):
                timeout_s = rng.choice((None, None, 5.0, 0.05, 0.005))
                tenant = rng.choice((None, None, f"t{rng.randrange(50)}"))
                prompt = "equal" if rng.random() < 0.05 else self.prompt()
                calls.append(self.call(client, prompt, timeout_s=timeout_s, tenant=tenant))
            await asyncio.gather(*calls)
            await asyncio.sleep(rng.uniform(0, 0.1))

    async def canceller(self) -> None:
        while self.going:
            client = self.rng.choice(self.clients)
            calls = [asyncio.ensure_future(self.call(client, self.prompt())) for _ in range(self.rng.randint(1, 12))]
            await asyncio.sleep(self.rng.uniform(0, 0.05))
            for call in calls:
                call.cancel()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, asyncio.CancelledError):
                    self.ends["cancelled"] += 1
                elif isinstance(outcome, BaseException):
                    raise outcome

    async def mapper(self) -> None:
        """Maps, half of which are left in the middle."""
        while self.going:
            client, count = self.rng.choice(self.clients), self.rng.randint(20, 300)
            documents = [self.prompt() for _ in range(count)]
            leave_at = self.rng.choice((None, self.rng.randrange(count)))
            rows = client.stream_map(iter(documents), "{}", max_tokens=1, temperature=0, timeout_s=10.0)
            try:
                async for row in rows:
                    if row.error is None:
                        self.ends["answered"] += 1
                        self.check(row.document, row.completion.text, 1)
                    else:
                        self.ends[type(row.error).__name__] += 1
                    if row.index == leave_at:
                        break
            finally:
                await rows.aclose()
            await asyncio.sleep(self.rng.uniform(0, 0.2))

    async def remaker(self) -> None:
        """Close a client over its calls and make it anew."""
        turn = 0
        while self.going:
            await asyncio.sleep(min(_REMAKE_EVERY_S, max(0.0, self.until - time.monotonic())))
            old, self.clients[2 + turn % 2] = self.clients[2 + turn % 2], self.make((None, "httpx")[turn % 2])
            await (old.aclose() if turn % 4 < 2 else old.drain())
            turn += 1

    async def sampler(self) -> None:
        began = time.monotonic()
        while self.going:
            held = descriptors()
            states = sockets(held)
            self.samples.append(
                {
                    "at": time.monotonic() - began,
                    "rss": resident_bytes(),
                    "descriptors": len(held),
                    "sockets": sum(states.values()),
                    "close_wait": states["close_wait"],
                    "tasks": tasks(),
                    "ends": sum(self.ends.values()),
                }
            )
            if len(self.samples) % 60 == 0:
                print(f"  {self.line()}", flush=True)
            await asyncio.sleep(1.0)

    def line(self) -> str:
        last = self.samples[-1]
        return (
            f"{last['at']:5.0f} s: {last['ends']:,.0f} calls ended, RSS {last['rss'] / 2**20:.1f} MiB, "
            f"{last['descriptors']:.0f} descriptors, {last['sockets']:.0f} sockets, {last['tasks']:.0f} tasks"
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (self.caller,) * 6 + (self.canceller,) * 3 + (self.mapper,) * 2:
                group.create_task(work())
            group.create_task(self.remaker())
            group.create_task(self.sampler())
        await self.rest()
        for client in self.clients:
            await client.drain()
            if client.statistics().in_flight:
                self.wrong.append(f"{client!r} has calls in flight after drain()")

    async def rest(self) -> None:
        """Let idle connections grow too old; a call closes those, whichever the way, and leaves its own."""
        await asyncio.sleep(_REST_S)
        for client in self.clients:
            await self.call(client, self.prompt())
        await asyncio.sleep(0.5)
        held = descriptors()
        self.at_rest = {"sockets": sum(sockets(held).values()), "tasks": tasks()}


def report(soak: Soak) -> bool:
    """Print what was held and how it grew; return whether all is well."""
    judged = soak.samples[len(soak.samples) // 4 :]
    times = [sample["at"] for sample in judged]
    calls = judged[-1]["ends"] - judged[0]["ends"]
    allowed = {"rss": max(LEAST_BYTES, LEAK_BYTES_PER_CALL * calls), "close_wait": LEAK_CONNECTIONS}
    print(f"\njudged: {len(judged)} samples over {times[-1] - times[0]:.0f} s, {calls:,.0f} calls")
    print(f"{'':12} {'first':>12} {'last':>12} {'per minute':>12} {'growth':>12} {'allowed':>12}")
    flat = True
    for name, most in allowed.items():
        verdict = judge(name, times, [sample[name] for sample in judged], most)
        scale = 2**20 if name == "rss" else 1
        figures = (verdict.first, verdict.last, 60 * verdict.per_s, verdict.growth, verdict.allowed)
        row = " ".join(f"{figure / scale:12,.2f}" for figure in figures)
        print(f"{name + (' MiB' if scale > 1 else ''):12} {row} {'' if verdict.flat else '  GROWS'}")
        flat = flat and verdict.flat
    print(f"open clients at rest hold: {soak.at_rest}")
    most = _CONNECTIONS_AT_REST * len(soak.clients)
    return flat and soak.at_rest["sockets"] <= most and not soak.at_rest["tasks"]


async def main(seconds: float, cancellations: int, seed: int) -> bool:
    well = True
    gc.collect()
    if cancellations:
        with EmbeddedServer(profile="instant", process=True) as server:
            for backend in (None, "httpx"):
                began = time.monotonic()
                left = await cancel_many(server.base_url, server.model, cancellations // 2, backend)
                print(f"{backend}: {left} in {time.monotonic() - began:.0f} s", flush=True)
                well = well and not (left.places or left.in_flight)
    gc.collect()
    before, tasks_before = len(descriptors()), tasks()
    with EmbeddedServer(profile="gpu", process=True, speed=4.0, faults=FAULTS, seed=seed) as server:
        soak = Soak(server, seconds, seed)
        await soak.run()
        hits: Counter[str] = Counter()
        for each in server.statistics()["faults"]:
            hits[each["kind"]] += each["hits"]
    print(f"calls by their end: {dict(soak.ends.most_common())}")
    print(f"faults that hit: {dict(hits)}")
    well = report(soak) and well
    await asyncio.sleep(0.1)
    gc.collect()
    left_over = len(descriptors()) - before, tasks() - tasks_before
    print(f"\nleft after closing: {left_over[0]} descriptors, {left_over[1]} tasks")
    if soak.wrong:
        print(f"WRONG: {soak.wrong[:10]}")
    print("flat" if well else "NOT flat")
    return well and max(left_over) <= 0 and not soak.wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cancellations", type=int, default=100_000, help="calls cancelled before the mixed traffic")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(0 if asyncio.run(main(given.seconds, given.cancellations, given.seed)) else 1)
