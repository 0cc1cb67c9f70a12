"""One seed, one run: a client, a server whose one reply is mutated, and the calls before, with and after it, in virtual time.

What must hold:
- Each call ends once, within its deadline, with its own answer or a ``BatchClientError``; none has a letter of another's.
- Whoever's bytes were not touched (``Mutation.tainted``) has exactly the right answer in the end. Only one who takes pieces may have an error.
- Who has nothing to do with what was touched (``Mutation.spared``) has it without a second request.
- Afterwards nothing is queued or in flight, no task is left, and the next calls have their right answers.
"""

import asyncio
from dataclasses import dataclass
from random import Random

from batchclient import BatchClientError, DeadlineExceeded, Http
from tests.core import Kind
from batchclient.integrations.form import WireCalls, make_calls
from tests.fuzz import Outcome, SeededPolicy, guarded, replayable
from tests.mutations.answers import foreign, prompt_of, right_answer, text_told
from tests.mutations.cases import all_cases
from tests.mutations.mutate import draw
from tests.mutations.server import Server, whole
from tests.mutations.sockets import PairLoop, on_the_loops_clock
from tests.seams import connected

__all__ = ["World", "run_seed", "run_seeds", "run_world"]

_TIMEOUT_S = 120.0
_SHORT_TIMEOUT_S = 2.0
"""Shorter than the longest silence that is borne."""
_READ_TIMEOUT_S = 5.0
_LATE_S = 0.001
_LONGEST_SILENCE_S = 250.0
_LONGEST_RUN_S = 2000.0
_PAUSE_S = 2.5
"""Between the calls with the mutated reply and those after it: what still has to be closed is closed by then."""


@dataclass
class Mutated(Outcome):
    """Also the kind of mutation."""

    kind: str = ""


class World:
    """One run.

    Args:
        case: whose reply it is.
        rng: decides all that is left open.
        draw: ``(rng, reply) -> Mutation``; ``None``: nothing is done to the reply.
        backend: ``Http(backend=…)``.
        warm: how many lists the client is answered before.
        timeout_s: every call's.
    """

    def __init__(self, case, rng, draw=None, backend=None, warm=0, timeout_s=_TIMEOUT_S):
        self.case = case
        self.rng = rng
        self.draw = draw
        self.backend = backend
        self.warm = warm
        self.timeout_s = timeout_s
        self.mutation = None
        self.wrong = []
        self.transcript = []
        self.calls_made = 0

    async def run(self):
        loop = asyncio.get_running_loop()
        self.server = server = Server(loop, self.case)
        # The recordings are of lists: their servers have proved them.
        client = connected(
            "http://127.0.0.1:8000/v1",
            model=self.case.model,
            dialect=self.case.dialect,
            retry=SeededPolicy(self.rng),
            http=Http(backend=self.backend, read_timeout_s=_READ_TIMEOUT_S),
            timeout_s=self.timeout_s,
            probe=False,
        )
        for _ in range(self.warm):
            self.check_right(await self.wave(client), "before")
        server.arm(self.mutate)
        first_request = len(server.requests)
        told = await self.wave(client)
        self.note("requests", server.requests[first_request:])
        if server.is_armed:
            self.wrong.append("the reply was never asked for")
        elif self.mutation is not None:
            self.check_mutated(told, server.requests[first_request:])
        else:
            self.check_right(told, "untouched")
        # What is out of step stays so: the second list after would have the first one's answers.
        twice = self.mutation is not None and self.mutation.leaves_bytes
        for after in ("first after", "second after")[: 1 + twice]:
            await asyncio.sleep(_PAUSE_S)
            self.check_empty(client)
            told = await self.wave(client)
            if self.case.to_caller and self.mutation is not None and self.mutation.then is not None:
                # Spoilt, too, and pieces of it were taken: an error is all that can be said.
                told = {call: answer for call, answer in told.items() if not isinstance(answer, BatchClientError)}
            self.check_right(told, after)
        await client.aclose()
        await asyncio.sleep(_LONGEST_SILENCE_S)
        if server.open:
            self.wrong.append(f"{server.open} connections are open after aclose")
        self.wrong += server.problems

    def mutate(self, reply):
        if self.draw is None:
            return [whole(reply)]
        self.mutation = self.draw(self.rng, reply, self.strangers())
        self.server.then = self.mutation.then
        self.note("mutation", self.mutation.what)
        for step in self.mutation.steps:
            self.note("step", step)
        return self.mutation.steps

    def strangers(self):
        """Calls that nobody makes, for replies to others."""
        return list(range(30, 30 + self.case.size))

    # Calls -------------------------------------------------------------------------------------------------------

    async def wave(self, client):
        """Make a list's calls together; return {call: answer or error}."""
        calls = range(self.calls_made, self.calls_made + self.case.size)
        self.calls_made += self.case.size
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        told = dict(zip(calls, await asyncio.gather(*(self.one_call(client, call) for call in calls)), strict=True))
        if loop.time() > began_at + self.timeout_s + _LATE_S:
            self.wrong.append(f"calls ended {loop.time() - began_at:g} s after they were made")
        for call, answer in told.items():
            self.note("call", call, answer)
            if isinstance(answer, Exception):
                if not isinstance(answer, BatchClientError):
                    self.wrong.append(f"call {call} ended with {answer!r}")
            elif others := foreign(self.case.kind, call, answer):
                self.wrong.append(f"call {call} has {others} of another's answer: {answer!r}")
        return told

    async def one_call(self, client, call):
        kind, params, prompt = self.case.kind, self.case.params, prompt_of(call)
        messages = [{"role": "user", "content": prompt}]
        try:
            if kind == "embed":
                return list((await client.embed(prompt)).vector)
            if kind == "score":
                return (await client.score("which", prompt)).score
            if kind == "classify":
                return list((await client.classify(prompt)).probabilities)
            if kind == "drop_in":
                reply = await make_calls(client, WireCalls(Kind.COMPLETION, [prompt], self.case.model, params))
                return [choice.get("text") for choice in reply.body["choices"]]
            if kind in ("complete", "chat"):
                answer = await (
                    client.complete(prompt, **params) if kind == "complete" else client.chat(messages, **params)
                )
                return [text_told(choice) for choice in answer.choices]
            stream = client.stream(prompt, **params) if kind == "stream" else client.stream_chat(messages, **params)
            async with stream as pieces:
                text = "".join([delta.text async for delta in pieces])
            if text != pieces.completion.text:
                self.wrong.append(f"call {call} has the pieces {text!r} of {pieces.completion.text!r}")
            return [text_told(choice) for choice in pieces.completion.choices]
        except Exception as error:
            return error

    # What must hold ------------------------------------------------------------------------------------------------

    def right(self, call):
        return right_answer(self.case.kind, call, self.case.n)

    def check_right(self, told, when):
        for call, answer in told.items():
            if answer != self.right(call):
                self.wrong.append(f"{when}: call {call} should have {self.right(call)!r} and has {answer!r}")

    def check_mutated(self, told, requests):
        mutation = self.mutation
        for call, answer in told.items():
            failed = isinstance(answer, Exception)
            is_late = isinstance(answer, DeadlineExceeded) and self.timeout_s < _TIMEOUT_S
            may_fail = call in mutation.tainted or self.case.to_caller or is_late
            if failed and (call in mutation.spared or not may_fail):
                self.wrong.append(f"call {call} was not answered: {answer!r}")
            elif not failed and call not in mutation.tainted and answer != self.right(call):
                self.wrong.append(f"call {call} should have {self.right(call)!r} and has {answer!r}")
            sent = sum(call in each for each in requests)
            if call in mutation.spared and sent > 1:
                self.wrong.append(f"call {call} was sent {sent} times, and nothing of its answer was touched")

    def check_empty(self, client):
        now = client.statistics()
        left = {name: getattr(now, name) for name in ("queued", "waiting", "backing_off", "in_flight", "abandoned")}
        if any(left.values()):
            self.wrong.append(f"something is left: {left}")
        if now.submitted != now.succeeded + now.failed + now.cancelled:
            self.wrong.append(f"{now.submitted} calls, and {now.succeeded} + {now.failed} + {now.cancelled} ended")
        tasks = asyncio.all_tasks() - {asyncio.current_task()} - self.server.tasks
        if tasks:
            self.wrong.append(f"tasks are left: {tasks}")

    def note(self, *words):
        self.transcript.append(words)


async def _in_time(run):
    async with asyncio.timeout(_LONGEST_RUN_S):
        await run


def run_world(world):
    """Run it to its end; never raises for what goes wrong in it."""
    guarded(world, PairLoop, lambda: _in_time(world.run()), on_the_loops_clock)
    return world


def run_seed(seed):
    rng = Random(seed)
    case = rng.choice(all_cases())
    backend = "httpx" if rng.random() < 0.2 else None
    timeout_s = _SHORT_TIMEOUT_S if rng.random() < 0.15 else _TIMEOUT_S
    world = run_world(World(case, rng, draw, backend, warm=rng.choice((0, 0, 1)), timeout_s=timeout_s))
    what, kind = (world.mutation.what, world.mutation.kind) if world.mutation is not None else ("none", "none")
    way = backend or "connections of our own"
    about = f"{case.name} as {case.dialect} by {way}: {what}"
    return Mutated(seed, world.wrong, about, world.transcript, kind)


def run_seeds(seeds):
    """Run several."""
    return replayable(run_seed, seeds)
