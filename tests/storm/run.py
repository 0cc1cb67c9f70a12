"""One storm: callers, the user's functions, servers and the client's end go wrong at random, in virtual time; one seed is one storm.

What must hold, whatever happens:
- Nothing hangs: the run ends. (A loop in which all wait and no timer is set raises ``Stuck``.)
- Each call has one end. It is cancelled only if it was cancelled, or if the whole run was ended.
- Afterwards no timer, no task and no request is left, and no transport is open.
- Nothing is said by asyncio or the garbage collector: no task destroyed, no exception or coroutine forgotten.

``tests/simulation`` asks whether each end is the right one; a storm asks only whether there is one.
"""

import asyncio
import faulthandler
import gc
import logging
import sys
import warnings
from dataclasses import replace
from random import Random
from traceback import extract_tb

from tests.fuzz import Outcome
from tests.seams import connected
from tests.shell.clocks import WatchedLoop
from tests.shell.scripted import Answer, MetricsPage, Pages, Reply, ScriptedTransport, echo, error, stream
from tests.shell.test_detection import VLLM

from batchclient import Queue, Backoff, Batching, ConnectFailed, ConnectionLost, Http, ReadTimedOut

__all__ = ["run_seed", "run_seeds"]

_LASTS_S = 20.0
_LONGEST_S = 100_000.0
"""Of virtual time: what is still under way then goes on for ever."""
_LONGEST_REAL_S = 120.0
"""What spins in one instant of virtual time is shown with its stack."""
_CALLS = ("complete", "chat", "stream", "map", "map of async")


class Own(BaseException):
    """Of the user's; nobody's ``except Exception`` sees it."""


class World:
    """One storm."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.wrong = []
        self.calls = {}
        """Each call's task, and whether it was cancelled."""
        self.servers = []
        self.ends = []
        """What a user's function raised to end the program."""
        self.ended_in_a_call = False
        self.was_ended = False
        """Whether the whole run was ended, and with it every call."""
        rng = self.rng
        kinds = [ValueError, RuntimeError, asyncio.CancelledError, Own]
        ends = [SystemExit, KeyboardInterrupt] if rng.random() < 0.2 else []
        self.kinds = rng.sample(kinds, rng.randint(1, 3)) + ends
        self.faulty = rng.choice([0.0, 0.1, 0.5, 0.9])
        """How many requests go wrong."""

    # The user's functions ------------------------------------------------------------------------------------------

    def function(self, answer, *, in_a_call=False):
        """A function that answers, or raises now and then; ``in_a_call``: it is called in its caller's own task."""
        ratio = self.rng.choice([0.02, 0.2, 1.0])

        def function(*arguments):
            self.perhaps_raise(ratio, in_a_call)
            return answer(*arguments)

        return function

    def perhaps_raise(self, ratio, in_a_call):
        if self.rng.random() >= ratio:
            return
        raised = self.rng.choice(self.kinds)("of the user's")
        if isinstance(raised, (SystemExit, KeyboardInterrupt)):
            # ``asyncio.run`` itself is broken by a task that ends the program while it cancels tasks, as by a second Ctrl-C.
            if self.ended_in_a_call or (in_a_call and self.ends):
                return
            self.ended_in_a_call = in_a_call
            self.ends.append(raised)
        raise raised

    def policy(self):
        rng = self.rng
        backoff = Backoff(max_attempts=rng.choice([1, 3]), base_s=rng.choice([0.0, 1.0]))
        return _Policy(self.function(backoff.decide)) if rng.random() < 0.5 else backoff

    # The client and its servers ------------------------------------------------------------------------------------

    def make_client(self):
        rng = self.rng
        urls = [f"http://server-{n}/v1" for n in range(rng.choice([1, 1, 2]))]
        model, limit, max_size = rng.choice(["m", "m", None]), rng.choice(["auto", 1, 3, 30]), rng.choice([1, 4, 32])
        arguments = {
            "queue": Queue(max_calls=rng.choice([2, 1000]), when_full=rng.choice(["wait", "raise"])),
            "timeout_s": rng.choice([None, 5.0]),
            "outage_patience_s": rng.choice([1.0, 30.0]),
            "retry": self.policy(),
        }
        if rng.random() < 0.4:
            max_size = self.function(lambda depth: rng.choice([1, 4, None]))
        self.batching = Batching(max_size=max_size, single_flight=rng.random() < 0.3)
        return connected(
            urls,
            calls=lambda url: self.add(Server(self)),
            detection=lambda url: self.add(Pages(rng.choice([VLLM, dict.fromkeys(VLLM, "hangs")]))),
            metrics=lambda url: self.add(MetricsPage(reply=rng.choice([None, "hangs", Reply(500)]))),
            model=model,
            probe=True,
            limit=limit,
            batching=self.batching,
            http=Http(read_timeout_s=5.0),
            **arguments,
        )

    def add(self, server):
        self.servers.append(server)
        return server

    # The run -------------------------------------------------------------------------------------------------------

    async def run(self):
        asyncio.get_running_loop().set_exception_handler(self.on_unseen)
        self.client = client = self.make_client()
        rng = self.rng
        for number in range(rng.choice([1, 5, 40])):
            task = asyncio.create_task(self.one_call(number, rng.uniform(0.0, _LASTS_S) * rng.choice([0, 1])))
            self.calls[task] = False
        meddling = asyncio.create_task(self.meddle())
        ending = rng.choice(["wait", "wait", "aclose", "drain", "leave"])
        if ending != "wait":
            await asyncio.sleep(rng.uniform(0.0, _LASTS_S))
        if ending == "leave":
            # ``asyncio.run`` ends it.
            return
        if ending == "drain":
            client.resume()
            await self.perhaps_cancelled(client.drain())
        if ending == "aclose":
            await self.perhaps_cancelled(client.aclose())
        await meddling
        client.resume()
        async with asyncio.timeout(_LONGEST_S):
            await asyncio.wait(self.calls)
        await asyncio.sleep(rng.choice([0.0, 3.0]))
        await client.aclose()
        # Each step of tidying up takes a turn.
        await asyncio.sleep(2.0)
        alive = asyncio.get_running_loop().alive()
        if alive:
            self.wrong.append(f"alive after aclose: {alive}")

    async def perhaps_cancelled(self, closing):
        """Close, and perhaps cancel that in its midst, once or twice."""
        task = asyncio.ensure_future(closing)
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.1, 1.0]))
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()

    async def one_call(self, number, at_s):
        await asyncio.sleep(at_s)
        rng, client = self.rng, self.client
        prompt = f"prompt {number % 7} " + "x" * rng.choice([0, 30])
        asked = {"max_tokens": rng.choice([1, 64]), "timeout_s": rng.choice([None, 0.001, 2.0, 10.0])}
        if rng.random() < 0.3:
            asked["temperature"] = 0
        match rng.choice(_CALLS):
            case "complete":
                return await client.complete(prompt, **asked)
            case "chat":
                return await client.chat([{"role": "user", "content": prompt}], **asked)
            case "stream":
                left_after = rng.choice([0, 1, 99])
                taken = 0
                async with client.stream(prompt, **asked) as pieces:
                    async for _ in pieces:
                        taken += 1
                        if taken > left_after:
                            break
                return taken
            case form:
                return await self.map(form, prompt, asked)

    async def map(self, form, prompt, asked):
        rng, count = self.rng, self.rng.choice([1, 20])
        asked = {**asked, "ordered": rng.random() < 0.5, "look_ahead": rng.choice([1, 5, 100])}
        make = self.function(lambda number: f"{prompt} {number}", in_a_call=True)
        documents = self.documents(count) if form == "map of async" else range(count)
        rows = 0
        async for _ in self.client.stream_map(documents, make, **asked):
            rows += 1
            if rng.random() < 0.02:
                return None
        assert rows == count, f"{rows} rows of {count} documents"
        return rows

    async def documents(self, count):
        for number in range(count):
            await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.3]))
            yield number

    async def meddle(self):
        rng, client = self.rng, self.client
        for _ in range(rng.choice([0, 3, 30])):
            await asyncio.sleep(rng.uniform(0.0, _LASTS_S / 30) * rng.choice([0, 1, 1]))
            match rng.choice(["cancel", "cancel", "cancel", "pause", "resume", "resume", "abort", "retune"]):
                case "cancel":
                    task = rng.choice(list(self.calls))
                    if not task.done():
                        self.calls[task] = True
                        task.cancel()
                case "retune":
                    limit, max_size = rng.choice(["auto", 2, 20]), self.function(lambda depth: 3)
                    client.retune(limit=limit, batching=replace(self.batching, max_size=max_size))
                case action:
                    getattr(client, action)()

    # What is seen --------------------------------------------------------------------------------------------------

    def on_unseen(self, loop, context):
        # What a user's function raises out of nobody's call is told here, as asyncio does with any callback's.
        if not isinstance(context.get("exception"), Own):
            self.wrong.append(f"told to the loop: {context}")

    def check(self, loop):
        for task, cancelled in self.calls.items():
            if not task.done():
                self.wrong.append(f"a call has not ended: {task}")
            elif task.cancelled():
                if not (cancelled or self.was_ended):
                    self.wrong.append("a call was cancelled by nobody")
            elif isinstance(task.exception(), AssertionError):
                self.wrong.append(f"a map: {task.exception()}")
        timers = [each for each in loop.timers if not each.cancelled() and each.when() > loop.time()]
        if timers:
            self.wrong.append(f"timers are left: {timers}")
        for server in self.servers:
            if server.open:
                self.wrong.append(f"{server.open} requests are open at {server}")
            if not server.closed:
                self.wrong.append(f"{server} was not closed")


class Server(ScriptedTransport):
    """Answers late, wrongly or never."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    async def send(self, request, timeouts):
        world, rng = self.world, self.world.rng
        await asyncio.sleep(rng.choice([0.0, 0.01, 0.5, 3.0]))
        if request.method == "GET":
            return Answer(VLLM["/models"])
        if rng.random() < 0.01:
            world.perhaps_raise(1.0, in_a_call=False)
        self.script = [self.answer if rng.random() >= world.faulty else self.fault]
        return await super().send(request, timeouts)

    def answer(self, sent):
        reply = echo(sent)
        pause = self.world.rng.choice([0.0, 0.1, 2.0])
        return Reply(chunks=[part for chunk in reply.chunks for part in (pause, chunk)])

    def fault(self, sent):
        rng = self.world.rng
        broken = Reply(chunks=[*stream(sent, last=False), ConnectionLost("reset")])
        endless = Reply(chunks=[*stream(sent, last=False), 6.0, ReadTimedOut("silent")])
        return rng.choice(
            [
                error(rng.choice([400, 404, 429, 500, 503]), headers=rng.choice([{}, {"retry-after": "3"}])),
                ConnectFailed("refused"),
                ConnectionLost("reset"),
                ReadTimedOut("silent"),
                Reply(chunks=[b"{"]),
                broken,
                endless,
            ]
        )

    async def aclose(self):
        await asyncio.sleep(self.world.rng.choice([0.0, 0.5]))
        await super().aclose()


class _Policy:
    def __init__(self, decide):
        self.decide = decide


def run_seed(seed):
    """Raise one storm."""
    return run_seeds([seed])[0]


def run_seeds(seeds):
    """Raise several storms. What is forgotten is told of the last: only then garbage is collected."""
    storms, forgotten = [], []
    log, unraisable = logging.getLogger("batchclient"), sys.unraisablehook
    # Much is said of what a user's function raises.
    before, log.disabled = log.disabled, True
    sys.unraisablehook = lambda told: forgotten.append(f"forgotten: {told}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in seeds:
                faulthandler.dump_traceback_later(_LONGEST_REAL_S, exit=True, file=sys.__stderr__)
                storms.append(Outcome(seed, _run(World(seed)), "a storm"))
            gc.collect()
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.unraisablehook, log.disabled = unraisable, before
    storms[-1].wrong += forgotten
    return storms


def _run(world):
    runner = asyncio.Runner(loop_factory=WatchedLoop)
    loop = runner.get_loop()
    try:
        with runner:
            runner.run(world.run())
            # From now on whoever is under way is cancelled.
            world.was_ended = True
            if world.ends:
                world.wrong.append(f"{world.ends} were raised, and the run went on")
    except (SystemExit, KeyboardInterrupt) as raised:
        world.was_ended = True
        if raised not in world.ends:
            world.wrong.append(f"{raised!r} came out, and nobody had raised it")
    except Exception as raised:
        where = extract_tb(raised.__traceback__)[-1]
        world.wrong.append(f"{raised!r} came out ({where.name}, line {where.lineno})")
    world.check(loop)
    return world.wrong
