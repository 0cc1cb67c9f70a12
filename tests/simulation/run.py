"""One seed, one run: a real client on a virtual clock, simulated servers, callers, and a user who meddles.

``watch`` checks what must hold at every step, ``ends`` what must hold when it is over.
"""

import asyncio
import hashlib
import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from traceback import extract_tb

from batchclient import Server as Address
from tests.core import RequestState
from batchclient._settings import sending_of
from batchclient.client import BatchClient
from tests.fuzz import Outcome, SeededPolicy, guarded, replayable
from tests.shell.clocks import WatchedLoop
from tests.shell.scripted import answer_to
from tests.simulation.ends import check_call, check_histograms, check_nothing_is_left
from tests.simulation.pairs import Fault
from tests.simulation.plan import CallPlan, make_plan, make_server_plan
from tests.simulation.server import Server
from tests.simulation.watch import WatchedCore

__all__ = ["run_seed", "run_seeds"]

_BY_THE_USER = [RequestState.QUEUED, RequestState.BACKING_OFF, RequestState.IN_FLIGHT]


@dataclass
class Run(Outcome):
    """Also how often each (fault, state) was met, and a digest of all that happened: the same for the same seed."""

    met: Counter = field(default_factory=Counter)
    digest: str = ""


@dataclass
class Call:
    """One caller's side."""

    plan: CallPlan
    request: object = None
    task: object = None
    made_at: float = 0.0
    ended_at: float = 0.0
    result: object = None
    sends: int = 0
    moves: int = 0
    longest_list: int = 1
    hits: Counter = field(default_factory=Counter)
    refused_alone: bool = False
    cancelled: bool = False


class World:
    """One run."""

    def __init__(self, seed):
        self.plan = make_plan(seed)
        self.rng = self.plan.rng
        self.batching, self.queue = self.plan.settings["batching"], self.plan.settings["queue"]
        self.wrong = []
        self.met = Counter()
        self.calls = [Call(each) for each in self.plan.calls]
        self.by_prompt = {call.plan.prompt: call for call in self.calls}
        self.by_seq = {}
        self.servers = {}
        """By base URL."""
        self.served = []
        """Base URLs that the client was given and not told to remove."""
        self.leaving = []
        """Those that it was told to remove."""
        self.watch = None
        self.client = None
        self.loop = None
        self.began_at = 0.0
        self.aborts = 0
        self.closed = False
        self.side_tasks = []

    @property
    def now_s(self):
        return self.loop.time() - self.began_at

    @contextmanager
    def guarded(self):
        """What is wrong is remembered: the client guards itself against exceptions, and would go on."""
        try:
            yield
        except BaseException as error:
            where = extract_tb(error.__traceback__)[-1]
            self.wrong.append(f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")
            raise

    # Told by the watch and the servers ---------------------------------------------------------------------------

    def submitted(self, request):
        call = self.by_prompt[json.loads(request.prompt)]
        assert call.request is None, "a call is submitted once"
        call.request = request
        # Its number is given when the core takes it.
        self.by_seq[len(self.watch.calls) - 1] = call

    def granted(self, batch):
        for request in batch.requests:
            call = self.by_seq[request.seq]
            call.sends += 1
            call.longest_list = max(call.longest_list, len(batch.requests))

    def not_sent(self, requests):
        for request in requests:
            self.by_seq[request.seq].sends -= 1

    def moved(self, requests):
        for request in requests:
            self.by_seq[request.seq].moves += 1

    def arrived(self, server, sent):
        """A request reached a server; return its batch."""
        with self.guarded():
            calls = [self.by_prompt[prompt] for prompt in sent.prompts]
            batches = {call.request.batch.id: call.request.batch for call in calls}
            assert len(batches) == 1, "the calls of a request are of one batch"
            (batch,) = batches.values()
            assert [call.request for call in calls] == batch.requests, "the prompts are those of the batch"
            assert self.server_of(batch.endpoint) is server, "it went to the endpoint it was granted on"
            assert sent.streamed == batch.streamed
            for call in calls:
                asked = {name: call.plan.params.get(name) for name in ("max_tokens", "n")}
                assert asked == {name: sent.body.get(name) for name in asked}, "another call's parameters"
                deadline = call.request.deadline
                assert deadline is None or self.loop.time() < deadline, "nothing starts after its deadline"
            return batch

    def hit(self, fault, batch):
        """A fault takes effect on what is left of a batch."""
        self.watch.hit(fault, self.watch.states_of_batch(batch))
        for request, answered in zip(batch.requests, batch.answered, strict=True):
            if not answered:
                call = self.by_seq[request.seq]
                call.hits[fault] += 1
                call.refused_alone |= fault is Fault.TOO_LARGE and len(batch.requests) == 1

    def states_of(self, batch):
        return self.watch.states_of_batch(batch) | self.watch.states_of_client()

    def count(self, fault, states):
        for state in states:
            self.met[fault, state] += 1

    def sequences_at(self, endpoint):
        return self.server_of(endpoint).sequences

    def server_of(self, endpoint):
        return self.servers[self.watch.endpoints[endpoint].base_url]

    def check_answer(self, request, completion):
        """An answer must be the call's own, and all of it."""
        call = self.by_seq[request.seq]
        texts = [answer_to(call.plan.prompt, k) for k in range(call.plan.params.get("n", 1))]
        assert [choice.text for choice in completion.choices] == texts, "another's answer, or half an answer"
        assert completion.attempts == call.sends
        assert not call.plan.bad, "the server never answered this prompt"

    # The run ---------------------------------------------------------------------------------------------------

    def make_client(self):
        plan = self.plan
        for number, server_plan in enumerate(plan.servers):
            self.add_server(number, server_plan)
        client = BatchClient(
            [Address(url, requests_per_minute=plan.requests_per_minute) for url in self.servers],
            model="m",
            retry=SeededPolicy(Random(plan.seed), max_attempts=plan.max_attempts),
            **{**plan.settings, "http": sending_of(plan.settings["http"], transport=lambda url, _: self.servers[url])},
        )
        # The one seam that is no argument: nobody else stands between the shell and the core.
        make_core = client._engine.make_core

        def make_watched_core():
            self.watch = WatchedCore(make_core(), self, plan.seed)
            return self.watch

        client._engine.make_core = make_watched_core
        return client

    def add_server(self, number, server_plan):
        url = f"http://server-{number}/v1"
        self.servers[url] = Server(self, url, server_plan)
        self.served.append(url)
        return url

    async def run(self):
        self.loop = asyncio.get_running_loop()
        self.began_at = self.loop.time()
        self.client = self.make_client()
        async with self.client:
            for call in self.calls:
                call.task = asyncio.create_task(self.one_call(call))
            meddling = asyncio.create_task(self.meddle())
            await self.end()
            await asyncio.gather(meddling, *(call.task for call in self.calls))
            while self.side_tasks:
                await self.side_tasks.pop()
        await asyncio.sleep(0)
        check_nothing_is_left(self)
        check_histograms(self)
        for call in self.calls:
            check_call(self, call)

    async def one_call(self, call):
        plan = call.plan
        try:
            await asyncio.sleep(plan.at_s)
            call.made_at = self.loop.time()
            call.result = await self.client.complete(plan.prompt, timeout_s=plan.timeout_s, **plan.params)
        except asyncio.CancelledError:
            assert call.cancelled, "nobody cancelled it"
        except Exception as error:
            call.result = error
        call.ended_at = self.loop.time()

    async def end(self):
        """Wait for what comes by itself, or end the run in the midst of it."""
        plan = self.plan
        if plan.ending == "wait":
            await asyncio.gather(*(call.task for call in self.calls))
        else:
            await asyncio.sleep(self.rng.uniform(0.3, 1.0) * plan.heal_at_s)
            if self.rng.random() < 0.3:
                self.remove_one(drain=True)
                await asyncio.sleep(0)
            if plan.ending == "drain":
                if self.rng.random() < 0.3:
                    self.client.pause()
                draining = [asyncio.create_task(self.drain()) for _ in range(self.rng.choice([1, 2]))]
                if self.rng.random() < 0.5:
                    await asyncio.sleep(self.rng.choice([0.0, 0.1, 1.0, 3.0]))
                    await self.aclose()
                await asyncio.gather(*draining)
        await self.aclose()

    async def drain(self):
        self.closed = True
        await self.client.drain()

    async def aclose(self):
        self.closed = True
        await self.client.aclose()

    # The user --------------------------------------------------------------------------------------------------

    async def meddle(self):
        for at_s, action in self.plan.actions:
            await asyncio.sleep(at_s - self.now_s)
            self.act(action)
        await asyncio.sleep(self.plan.heal_at_s - self.now_s)
        # Also what a last meddling paused.
        await asyncio.sleep(1.0)
        self.client.resume()

    def meddle_soon(self, after_s):
        """Do one thing more, in the midst of what happens now."""
        if self.now_s < self.plan.heal_at_s:
            self.side_tasks.append(asyncio.create_task(self.meddle_once(after_s)))

    async def meddle_once(self, after_s):
        await asyncio.sleep(after_s)
        self.act(self.rng.choice(["remove", "remove now", "cancel", "cancel", "pause", "abort", "add", "retune"]))

    def act(self, action):
        client, rng = self.client, self.rng
        match action:
            case "cancel":
                self.cancel_one()
            case "pause":
                client.pause()
            case "resume":
                client.resume()
            case "abort":
                self.aborts += 1
                client.abort()
            case "retune":
                change = rng.choice([{"limit": rng.choice([1, 4, 32])}, {"max_size": rng.choice([1, 4, 32])}])
                limit = change.pop("limit", None)
                self.batching = replace(self.batching, linger_s=rng.choice([0.0, 0.1]), **change)
                client.retune(
                    limit=limit, batching=self.batching, queue=replace(self.queue, max_calls=rng.choice([1, 5, 1000]))
                )
            case "add":
                if not self.closed and len(self.served) < 4:
                    url = self.add_server(len(self.servers), make_server_plan(rng, self.plan.heal_at_s))
                    client.add_endpoint(url)
            case _:
                self.remove_one(drain=action == "remove")

    def cancel_one(self):
        """Cancel a call: first a state is drawn, then a call in it, so that rare states are met, too."""
        by_state = {state: [] for state in _BY_THE_USER}
        for call in self.calls:
            if call.request is not None and call.request.state in by_state:
                by_state[call.request.state].append(call)
        states = [state for state in _BY_THE_USER if by_state[state]]
        if states:
            call = self.rng.choice(by_state[self.rng.choice(states)])
            call.cancelled = True
            call.task.cancel()

    def remove_one(self, *, drain):
        """Remove a server, one in a rare state if there is one, or one that is leaving already; perhaps end it all while it leaves."""
        rng, watch = self.rng, self.watch
        if len(self.served) < 2:
            return
        present = {endpoint.base_url: endpoint for endpoint in watch.endpoints.values()}
        leaving = [url for url in self.leaving if url in present and present[url].state == "leaving"]
        by_state = {}
        for url in self.served + leaving:
            state = (watch.state_of(present[url]).value, present[url].in_flight > 0)
            by_state.setdefault(state, []).append(url)
        # One that has nothing to do is gone at once.
        busy = [state for state in by_state if state[1]]
        url = rng.choice(by_state[rng.choice(sorted(busy if busy and rng.random() < 0.8 else by_state))])
        self.side_tasks.append(asyncio.create_task(self.remove(url, drain=drain)))
        if drain and rng.random() < 0.5:
            self.meddle_soon(0.05)

    async def remove(self, url, *, drain):
        if url in self.served and len(self.served) > 1:
            self.served.remove(url)
            self.leaving.append(url)
        await self.client.remove_endpoint(url, drain=drain)


def run_seed(seed):
    """Run one seed in virtual time; never raises for what goes wrong in it."""
    world = World(seed)
    guarded(world, WatchedLoop, world.run)
    transcript = world.watch.transcript if world.watch is not None else []
    digest = hashlib.sha256(repr(transcript).encode()).hexdigest()[:16]
    about = f"{len(world.calls)} calls, digest {digest}"
    return Run(seed, world.wrong, about, transcript, world.met, digest)


def run_seeds(seeds):
    """Run several."""
    return replayable(run_seed, seeds)
