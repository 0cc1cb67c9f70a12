"""The embedded server without sockets or clock: engine, API server, wire format and faults.

Rules:
- ``receive``, ``disconnect`` and ``poll`` take the time; ``next_deadline`` says when ``poll`` has
  something new. ``now`` never goes back. A late ``poll`` loses nothing: every event has its time.
- The API server is a single-server queue before and after the engine: each request, prompt and
  event occupies the queue.
- Every request that is not disconnected ends with one part whose ``last`` is true, unless a fault
  leaves the request silent.
- A disconnected request's sequences leave the engine at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pydantic_core

from batchclient.simulator.engine import Engine, Progress, Sequence
from batchclient.simulator.faults import Fault, FaultInjector
from batchclient.simulator.guise import JSON_HEADERS, Guise, Reply, Route, Words, json_reply
from batchclient.simulator.guises import guise_of
from batchclient.simulator.open_request import OpenRequest, Part, part_of, replacement
from batchclient.simulator.profiles import Profile, profile
from batchclient.simulator.requests import Call, HttpError, Limits, read
from batchclient.simulator.statistics import Counters
from batchclient.simulator.text import OutputLengths

__all__ = ["Part", "SimulatedServer"]


_MOST_SEQUENCES = 131_072
"""Prompts times ``n``: each takes memory from the start."""


class SimulatedServer:
    """A whole server in virtual time.

    Args:
        profile: the costs, by name or as a ``Profile``.
        model: the served name.
        max_model_len_tokens: prompt and answer together; never above the profile's KV.
        output_lengths: ``"fixed"`` or ``"lognormal:MEAN:SIGMA"``.
        faults: see ``faults``.
        api_key: demanded of every ``/v1`` request if given.
        seed: of every random choice.
        speed: a factor on the profile's speed.
        max_queued: overrides the profile's: 503 above so many sequences.
        max_num_seqs: overrides the profile's.
        kv_tokens: overrides the profile's.
        epoch_s: Unix time at ``now`` 0, for ``created``.
        guise: the server whose paths, bodies and words are used: ``"vllm"``, ``"tgi"``, a ``Guise``
            of your own, or the place to import one from, as ``"package.module:NAME"``.
        max_body_bytes: 413 for a longer body; by default the guise's (64 MiB, or the most that the
            real server reads).
        is_strict: whether other models' names, tools and pictures are refused. If not, each model's
            name is served, a tool is called, and a picture is a word.
        thinking_tokens: of the thinking before each answer, between ``<think>`` and ``</think>``,
            which are two more; 0: the model does not think.
        reasoning_parser: whether the server runs with ``--reasoning-parser``: a chat's reasoning
            stands apart from its content, is counted, and is held to ``thinking_token_budget``,
            which is refused elsewhere.

    Raises:
        ValueError: an argument is wrong.
    """

    def __init__(
        self,
        profile: str | Profile = "gpu",
        *,
        model: str = "simulated",
        max_model_len_tokens: int = 32_768,
        output_lengths: str | OutputLengths = "fixed",
        faults: Iterable[str | Fault] = (),
        api_key: str | None = None,
        seed: int = 0,
        speed: float = 1.0,
        max_queued: int | None = None,
        max_num_seqs: int | None = None,
        kv_tokens: int | None = None,
        epoch_s: float = 0.0,
        guise: str | Guise = "vllm",
        max_body_bytes: int | None = None,
        is_strict: bool = True,
        thinking_tokens: int = 0,
        reasoning_parser: bool = False,
    ) -> None:
        if not model:
            raise ValueError("model: a name of at least one character")
        if max_queued is not None and max_queued < 0:
            raise ValueError(f"max_queued: at least 0, not {max_queued}")
        if thinking_tokens < 0:
            raise ValueError(f"thinking_tokens: at least 0, not {thinking_tokens}")
        if max_body_bytes is not None and max_body_bytes < 1:
            raise ValueError(f"max_body_bytes: at least 1, not {max_body_bytes}")
        self.guise: Guise = guise_of(guise)
        self.max_body_bytes: int = self.guise.max_body_bytes if max_body_bytes is None else max_body_bytes
        """A longer body is refused; its reader may stop there."""
        slots = self.guise.slots if max_num_seqs is None else max_num_seqs
        costs = _with_overrides(profile, max_queued=max_queued, max_num_seqs=slots, kv_tokens=kv_tokens)
        self.profile: Profile = costs.at_speed(speed)
        self.model = model
        self.engine: Engine = Engine(self.profile, random.Random(f"{seed}/engine"))  # noqa: S311
        self.counters: Counters = Counters()
        self.faults: FaultInjector = FaultInjector(faults, seed)
        lengths = OutputLengths.parse(output_lengths) if isinstance(output_lengths, str) else output_lengths
        self._lengths = lengths if lengths.given or lengths.mean_tokens is not None else None
        named = model if is_strict and not self.guise.any_model else None
        self.limits: Limits = Limits(
            named,
            min(max_model_len_tokens, self.profile.kv_tokens),
            is_strict=is_strict,
            thinking_tokens=thinking_tokens,
            reasoning_parser=reasoning_parser,
        )
        self._authorization = f"Bearer {api_key}".encode() if api_key else None
        self.epoch_s = epoch_s
        self._seed = seed
        self.ids: random.Random = random.Random(f"{seed}/ids")  # noqa: S311
        self._open: dict[int, OpenRequest] = {}
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._outbox: deque[tuple[float, Part]] = deque()
        self._api_free_at = -math.inf
        self._sequences = 0
        self._order = 0
        self._outstanding = 0

    def __repr__(self) -> str:
        return f"<SimulatedServer {self.profile.name} requests={len(self._open)} {self.engine!r}>"

    @property
    def most_outstanding(self) -> int | None:
        """Sequences waiting and running above which requests are refused; ``None``: no bound."""
        given = self.profile.max_queued
        return self.guise.max_concurrent if given is None else given

    # --- the shell's side ---

    def receive(
        self,
        request_id: int,
        method: str,
        path: str,
        body: bytes,
        now: float,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Take a whole request, by an id unique among those in work; ``poll`` returns the reply.

        The method is in upper case, header names are in lower case, and ``path`` has no query.
        """
        self._advance(now)
        route = self.guise.routes.get(path) if method == "POST" else None
        words = self.guise.words if route is None or route.words is None else route.words
        try:
            if len(body) > self.max_body_bytes:
                self._reply(request_id, self._too_large(words), now)
            elif not self._may_pass(path, route, named := dict(headers)):
                self._reply(request_id, Reply(401, JSON_HEADERS, self.guise.unauthorized), now)
            elif route is None:
                self._reply(request_id, self._handled(method, path, body), now)
            else:
                call = read(route.model, body, self.limits).call(self.limits)
                self._take(request_id, route, words, call, named, now)
        except HttpError as error:
            self._reply(request_id, words(error), now)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            # A schema of a form that nobody meant.
            self._reply(request_id, words(HttpError(400, "A field has a form that cannot be read.", "body")), now)

    def disconnect(self, request_id: int, now: float) -> None:
        """Forget the request of a client that has gone."""
        self._advance(now)
        opened = self._open.pop(request_id, None)
        if opened is None:
            return
        self.counters.disconnects += 1
        if not opened.is_over:
            self.counters.aborted_sequences += self._release(opened, now)

    def poll(self, now: float) -> list[Part]:
        """Return everything to send by ``now``, in order."""
        self._advance(now)
        outbox = self._outbox
        parts = []
        while outbox and outbox[0][0] <= now:
            parts.append(outbox.popleft()[1])
        return parts

    def next_deadline(self) -> float | None:
        """Return when ``poll`` has something to do; ``None``: not before the next request."""
        times = [self._agenda[0][0]] if self._agenda else []
        if self._outbox:
            times.append(self._outbox[0][0])
        if (engine_at := self.engine.next_deadline()) is not None:
            times.append(engine_at)
        return min(times, default=None)

    def set_faults(self, faults: Iterable[str | Fault]) -> None:
        """Replace the faults.

        Raises:
            ValueError: a text is not a fault; the old faults stay.
        """
        self.faults = FaultInjector(faults, self._seed)

    def statistics(self) -> dict[str, object]:
        """Return the contents of ``GET /simulator/statistics``."""
        engine = self.engine
        state = {"running": engine.running, "waiting": engine.waiting, "preemptions": engine.preemptions}
        hits = [{"kind": fault.kind, "hits": n} for fault, n in zip(self.faults.faults, self.faults.hits, strict=True)]
        return self.counters.snapshot() | state | {"open_requests": len(self._open), "faults": hits}

    # --- requests ---

    def _may_pass(self, path: str, route: Route | None, headers: Mapping[bytes, bytes]) -> bool:
        if self._authorization is None or headers.get(b"authorization") == self._authorization:
            return True
        return not path.startswith("/v1/") and (route is None or path in self.guise.unguarded)

    @staticmethod
    def _too_large(words: Words) -> Reply:
        reply = words(HttpError(413))
        return reply._replace(headers=(*reply.headers, ("connection", "close")))

    def _handled(self, method: str, path: str, body: bytes) -> Reply:
        """Answer a request that generates nothing, which takes none of the engine's time.

        ``POST /simulator/faults`` replaces all faults, or leaves them as they were.
        """
        handler = self.guise.handlers.get((method, path))
        if handler is not None:
            return handler(self, body)
        match method, path:
            case "GET", "/simulator/statistics":
                return json_reply(self.statistics())
            case "POST", "/simulator/faults":
                try:
                    self.set_faults([str(each) for each in pydantic_core.from_json(body)])
                except (TypeError, ValueError) as error:
                    raise HttpError(400, str(error)) from None
                return json_reply({})
        known = path in self.guise.routes or any(path == each for _, each in self.guise.handlers)
        words = self.guise.wrong_method if known else self.guise.not_found
        return Reply(405 if known else 404, JSON_HEADERS, words)

    def _take(
        self, request_id: int, route: Route, words: Words, call: Call, headers: Mapping[bytes, bytes], now: float
    ) -> None:
        if call.sequences > _MOST_SEQUENCES:
            raise HttpError(400, f"{call.sequences} sequences in one request are more than {_MOST_SEQUENCES}.", "n")
        self.counters.note(now, len(call.prompts), is_stream=call.stream)
        delay_s, fault = self.faults.choose(call) if self.faults.faults else (0.0, None)
        if fault is not None:
            parts = replacement(request_id, fault, words)
            if parts is not None:
                self._put(now + delay_s, partial(self._answer, parts))
                return
            if fault.kind == "first_only":
                del call.prompts[1:], call.prompt_tokens[1:]
        limit = self.most_outstanding
        if limit is not None and self._outstanding + call.sequences > limit:
            self.counters.rejections += call.sequences
            raise HttpError(self.guise.busy)
        given_id = headers.get(b"x-request-id")
        own_id = given_id.decode("latin-1") if given_id else format(self.ids.getrandbits(64), "016x")
        reply_id = f"{route.id_prefix}{own_id}"
        named = self.model if self.limits.is_strict else call.request.model or self.model
        writer = route.writer(call, reply_id, int(self.epoch_s + now), named)
        opened = OpenRequest(request_id, call, writer, route, words, fault.kind if fault else None)
        try:
            opened.decide(self._lengths, reply_id, self.limits)
        except HttpError as error:
            if (head := opened.begin()) is None:
                raise
            # The engine refuses it: by then the stream has begun.
            self._put(now, partial(self._answer, [head, *opened.refused(error)]))
            return
        self._open[request_id] = opened
        self._outstanding += call.sequences
        if delay_s:
            # Taken up later: until then the request occupies nobody.
            self._put(now + delay_s, partial(self._enter, opened))
        else:
            self._enter(opened, now)

    def _answer(self, parts: list[Part], now: float) -> None:
        """Send a fault's parts instead of a reply."""
        self._spend(self.profile.request_s, now)
        self._outbox_add(now, parts, is_free=True)

    def _enter(self, opened: OpenRequest, now: float) -> None:
        """Pass the request through the API server to the engine, prompt by prompt."""
        if opened.is_over:
            return
        ready_at = self._spend(self.profile.request_s, now)
        prompts = len(opened.call.prompts)
        prompt_s = self.profile.prompt_s
        self._api_free_at = ready_at + prompts * prompt_s
        if opened.fault == "serial":
            # The others follow one by one, as each is finished.
            self._put(ready_at + prompt_s, partial(self._submit, opened, range(1)))
            return
        if not prompt_s and ready_at <= now:
            self._submit(opened, range(prompts), now)
        elif not prompt_s:
            self._put(ready_at, partial(self._submit, opened, range(prompts)))
        else:
            for i in range(prompts):
                self._put(ready_at + (i + 1) * prompt_s, partial(self._submit, opened, range(i, i + 1)))

    def _submit(self, opened: OpenRequest, prompts: range, now: float) -> None:
        if opened.is_over:
            return
        call = opened.call
        if 0 in prompts and (head := opened.begin()) is not None:
            self._outbox_add(now, [head], is_free=True)
        interval = call.stream_interval if call.stream else 0
        for i in prompts:
            for index in range(i * call.n, (i + 1) * call.n):
                self._sequences += 1
                opened.sequence_ids.append(self._sequences)
                tokens = opened.generations[index].tokens
                sequence = Sequence(self._sequences, call.prompt_tokens[i], tokens, interval, (opened, index))
                self.engine.submit(sequence, now)

    def _release(self, opened: OpenRequest, now: float) -> int:
        """End the opened, and take its sequences out of the engine; return how many were left."""
        opened.is_over = True
        self._outstanding -= opened.unfinished
        left = sum(self.engine.abort(sequence_id, now) for sequence_id in opened.sequence_ids)
        opened.sequence_ids = []
        return left

    # --- time ---

    def _advance(self, now: float) -> None:
        """Let everything due by ``now`` happen, in order of time."""
        agenda = self._agenda
        engine = self.engine
        while True:
            engine_at = engine.next_deadline()
            if agenda and agenda[0][0] <= now and (engine_at is None or agenda[0][0] <= engine_at):
                at, _, action = heapq.heappop(agenda)
                action(at)
            elif engine_at is not None and engine_at <= now:
                for progress in engine.step(engine_at):
                    self._on_progress(progress)
            else:
                return

    def _on_progress(self, progress: Progress) -> None:
        owner: tuple[OpenRequest, int] = progress.sequence.owner  # type: ignore[assignment]  # put there by _submit
        opened, index = owner
        was_over = opened.is_over
        if progress.finished:
            if not was_over:
                # As vLLM counts its queue: choice by choice, not request by request.
                self._outstanding -= 1
                opened.unfinished -= 1
            self.counters.finish_reasons[opened.generations[index].finish_reason] += 1
        parts = opened.on_progress(progress, index)
        if opened.fault == "serial" and progress.finished and not opened.is_over:
            begun = len(opened.sequence_ids)
            if opened.call.sequences - opened.unfinished == begun:
                following = begun // opened.call.n
                self._submit(opened, range(following, following + 1), progress.at)
        if parts:
            self._outbox_add(progress.at, parts)
        if opened.is_over and not was_over:
            self._release(opened, progress.at)
            if parts and parts[-1].last:
                self._open.pop(opened.request_id, None)

    def _put(self, at: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at, self._order, action))

    def _spend(self, seconds: float, now: float) -> float:
        """Occupy the API server; return the time at which it is free."""
        self._api_free_at = max(now, self._api_free_at) + seconds
        return self._api_free_at

    def _outbox_add(self, now: float, parts: list[Part], *, is_free: bool = False) -> None:
        for part in parts:
            at = self._spend(0.0 if is_free else self.profile.event_s, now)
            self._outbox.append((at, part))

    def _reply(self, request_id: int, reply: Reply, now: float) -> None:
        self._spend(self.profile.request_s, now)
        self.counters.statuses[reply.status] += 1
        self._outbox_add(now, [part_of(request_id, reply)], is_free=True)


def _with_overrides(given: str | Profile, **overrides: int | None) -> Profile:
    costs = profile(given) if isinstance(given, str) else given
    given_ones: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return replace(costs, **given_ones)
