"""A server behind the ``Transport`` seam that does wrong things, as its plan says. Virtual time only.

What it answers holds the prompt, so that a swapped answer shows; what it is asked must be what the prompt says.
"""

import asyncio
import json
from random import Random

from batchclient.errors import ConnectFailed, ConnectionLost, ReadTimedOut
from tests.shell.scripted import Sent, error, plain, stream, stream_end
from tests.simulation.pairs import LISTS_ONLY, PLAIN_ONLY, STREAMED_ONLY, Fault, State

__all__ = ["Server"]

_SLOW_S = 1.5
"""Less than the read timeout."""
_MADE = object()
"""In a stream, before the event that ends a choice: the server works on one sequence less."""
_ENDED = b'>", "finish_reason": "length"'
_CUT_SHORT = b'", "finish_reason": "abort"'
_BEFORE_THE_RESPONSE = frozenset({Fault.REFUSED, Fault.RESET, Fault.SLOW, Fault.SILENT})
_RARE = frozenset(State) - {
    State.IN_FLIGHT, State.IN_LIST, State.ALONE, State.FIRST, State.AGAIN, State.HEALTHY
}  # fmt: skip
_OF_SOME = STREAMED_ONLY | PLAIN_ONLY | LISTS_ONLY
_INSTEAD_OF_ANSWERS = frozenset(
    {
        Fault.NO_LISTS, Fault.LISTS_FAIL, Fault.NO_STREAMS, Fault.TOO_LARGE, Fault.LIST_TOO_LONG,
        Fault.LIMITED, Fault.LIMITED_FOR, Fault.BROKEN, Fault.UNAVAILABLE, Fault.UNAVAILABLE_FOR,
    }
)  # fmt: skip


class Server:
    """One server.

    Args:
        world: the run; told of every fault that takes effect.
        name: its base URL.
        plan: how it behaves.
    """

    def __init__(self, world, name, plan):
        self.world = world
        self.name = name
        self.plan = plan
        self.rng = Random(plan.seed)
        self.requests = 0
        self.open = {}
        """Sequences it works on, by request."""
        self.closed = 0

    @property
    def sequences(self):
        return sum(self.open.values())

    async def send(self, request, timeouts):
        sent = Sent(self.requests, request, timeouts)
        self.requests += 1
        batch = self.world.arrived(self, sent)
        fault = self.draw(sent)
        if State.PROBING in self.world.states_of(batch) and self.rng.random() < 0.15:
            # A probe is soon over: the user meddles just then.
            self.world.meddle_soon(self.plan.connect_s / 2)
        await asyncio.sleep(self.plan.connect_s)
        fault = fault or self.draw_if_rare(sent, batch)
        if fault is Fault.REFUSED:
            self.world.hit(fault, batch)
            raise ConnectFailed("the connection was refused")
        self.open[sent.number] = len(sent.prompts) * (sent.body.get("n") or 1)
        try:
            await self.first_byte(sent, batch, fault)
        except BaseException:
            del self.open[sent.number]
            raise
        if fault in (None, Fault.SLOW):
            fault = self.draw_if_rare(sent, batch)
        if fault not in _INSTEAD_OF_ANSWERS and any(self.world.by_prompt[prompt].plan.bad for prompt in sent.prompts):
            fault = Fault.BAD_PROMPT
        return _Response(self, sent, batch, None if fault in _BEFORE_THE_RESPONSE else fault)

    async def first_byte(self, sent, batch, fault):
        """Wait for the response's headers."""
        if fault is Fault.SLOW:
            await asyncio.sleep(_SLOW_S)
            self.world.hit(fault, batch)
        elif fault is Fault.SILENT:
            await asyncio.sleep(sent.timeouts.read_s)
            self.world.hit(fault, batch)
            raise ReadTimedOut("the server was silent")
        else:
            await asyncio.sleep(self.plan.first_byte_s)
        if fault is Fault.RESET:
            self.world.hit(fault, batch)
            raise ConnectionLost("the connection was reset")

    def draw(self, sent):
        """What goes wrong with a request, if anything does."""
        plan, now_s = self.plan, self.world.now_s
        if now_s >= self.world.plan.heal_at_s:
            return None
        outage = next((one for one in plan.outages if one.begins_s <= now_s < one.ends_s), None)
        if outage is not None:
            return outage.fault
        if len(sent.prompts) > plan.longest_list:
            return Fault.LIST_TOO_LONG
        return self.one_of(plan.faults, sent) if self.rng.random() < plan.fault_ratio else None

    def draw_if_rare(self, sent, batch):
        """The same, where the request has come into a state in which little would go wrong by chance."""
        plan = self.plan
        if self.world.now_s >= self.world.plan.heal_at_s or not plan.fault_ratio or self.rng.random() < 0.2:
            return None
        if not _RARE & self.world.states_of(batch):
            return None
        if len(sent.prompts) > 1 and self.rng.random() < 0.5:
            return self.rng.choice([Fault.LIST_TOO_LONG, Fault.NO_LISTS, Fault.LISTS_FAIL])
        return self.one_of(plan.faults, sent)

    def one_of(self, faults, sent):
        """One of those that such a request can have."""
        not_for_it = PLAIN_ONLY if sent.streamed else STREAMED_ONLY
        if len(sent.prompts) == 1:
            not_for_it = not_for_it | LISTS_ONLY
        faults = [fault for fault in faults if fault not in not_for_it]
        # What few requests can have goes before what any can have.
        own = [fault for fault in faults if fault in _OF_SOME]
        if own and self.rng.random() < 0.5:
            faults = own
        return self.rng.choice(faults) if faults else None

    async def aclose(self):
        self.closed += 1


class _Response:
    """What one request is answered with."""

    def __init__(self, server, sent, batch, fault):
        self.server = server
        self.sent = sent
        self.batch = batch
        self.fault = fault
        self.finished = False
        refusal = _refusal(fault, server.plan, server.rng)
        self.status = 200 if refusal is None else refusal.status
        kind = "text/event-stream" if sent.streamed and refusal is None else "application/json"
        self.headers = {"content-type": kind, **({} if refusal is None else refusal.headers)}
        if refusal is not None:
            self.parts = [fault, *refusal.chunks]
        elif sent.streamed:
            self.parts = _streamed(sent, fault, server)
        else:
            self.parts = _whole(sent, fault, server)

    async def chunks(self):
        world, sent = self.server.world, self.sent
        for part in self.parts:
            if isinstance(part, Fault):
                world.hit(part, self.batch)
            elif part is _MADE:
                self.server.open[sent.number] -= 1
            elif isinstance(part, BaseException):
                self.finish()
                raise part
            elif isinstance(part, float):
                if part > sent.timeouts.read_s:
                    await asyncio.sleep(sent.timeouts.read_s)
                    world.hit(Fault.SILENT_IN_STREAM, self.batch)
                    self.finish()
                    raise ReadTimedOut("the server was silent")
                await asyncio.sleep(part)
            else:
                yield part
        self.finish()

    def finish(self):
        self.finished = True
        self.server.open.pop(self.sent.number, None)

    async def aclose(self):
        self.finish()


def _refusal(fault, plan, rng):
    """The reply whose status says it all; ``None`` for any other."""
    wish = {"retry-after": rng.choice(["1", "0.5", "3"])}
    match fault:
        case Fault.BAD_PROMPT:
            return error(400, "this text is not for me")
        case Fault.NO_LISTS:
            return error(400, "prompt must be a string")
        case Fault.NO_STREAMS:
            return error(400, "stream is not supported")
        case Fault.TOO_LARGE:
            return error(413, "payload too large")
        case Fault.LIST_TOO_LONG:
            stated = plan.longest_list
            said = f"maximum allowed batch size {stated}" if stated < 1000 else "batch size is too large"
            return error(422, said)
        case Fault.LIMITED:
            return error(429)
        case Fault.LIMITED_FOR:
            return error(429, headers=wish)
        case Fault.BROKEN | Fault.LISTS_FAIL:
            return error(500)
        case Fault.UNAVAILABLE:
            return error(503)
        case Fault.UNAVAILABLE_FOR:
            return error(503, headers=wish)
    return None


def _whole(sent, fault, server):
    """The parts of a reply in one object."""
    body = plain(sent)
    time_s = server.plan.per_prompt_s * len(sent.prompts)
    middle = len(body) // 2
    if fault is Fault.RESET_IN_BODY:
        return [time_s, body[:middle], fault, ConnectionLost("the connection was reset")]
    if fault is Fault.CUT_BODY:
        return [time_s, body[:middle], fault]
    if fault is Fault.WRONG_INDEX:
        if server.rng.random() < 0.5:
            return [time_s, fault, body.replace(b'"index": 0,', b'"index": 77,')]
        reply = json.loads(body)
        reply["choices"].pop()
        return [time_s, fault, json.dumps(reply).encode()]
    if fault is Fault.INDEX_TWICE:
        last = (len(sent.prompts) * (sent.body.get("n") or 1)) - 1
        other = b'"index": %d,' % (last - 1 if last else 0)
        twice = body.replace(b'"index": %d,' % last, other) if last else body.replace(b'"choices": [', _doubled(body))
        return [time_s, fault, twice]
    if fault is Fault.GENERATION_ABORTED:
        return [time_s, fault, body.replace(_ENDED, _CUT_SHORT, 1)]
    return [time_s, body]


def _doubled(body):
    """The beginning of ``choices`` with its one choice in it already."""
    start = body.index(b'"choices": [') + len(b'"choices": [')
    end = body.index(b'], "usage"')
    return b'"choices": [' + body[start:end] + b", "


def _streamed(sent, fault, server):
    """The parts of a stream; what goes wrong goes wrong somewhere in the midst of it."""
    events = stream(sent)
    choices = len(events) // 2
    step = [server.plan.per_prompt_s] if server.plan.per_prompt_s else []
    middle = server.rng.randrange(len(events))
    parts = []
    for place, event in enumerate(events):
        if place == middle:
            match fault:
                case Fault.RESET_IN_STREAM:
                    return [*parts, fault, ConnectionLost("the connection was reset")]
                case Fault.CUT_STREAM:
                    return [*parts, fault]
                case Fault.SILENT_IN_STREAM:
                    return [*parts, 1e9]
                case Fault.ERROR_EVENT:
                    return [*parts, fault, b'data: {"error": {"message": "no", "code": 500}}\n\n', *stream_end()]
                case Fault.WRONG_INDEX:
                    parts += [fault, event.replace(b'"index": ', b'"index": 77')]
                case Fault.GENERATION_ABORTED:
                    parts.append(fault)
        if place == len(events) - 1 and choices > 1 and fault is Fault.INDEX_TWICE:
            # The choice that ended first ends once more; the last one is still open.
            parts += [fault, events[choices]]
        if fault is Fault.GENERATION_ABORTED and place >= middle:
            event = event.replace(_ENDED, _CUT_SHORT)
        parts += [*step, *([_MADE] if place >= choices else []), event]
    if choices == 1 and fault is Fault.INDEX_TWICE:
        parts += [fault, events[-1]]
    return [*parts, *stream_end()]
