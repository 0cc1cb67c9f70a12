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

from batchclient.simulator.engine import Engine, Progress, Sequence
from batchclient.simulator.exchange import JSON_HEADERS, Exchange, Headers, Part, replacement
from batchclient.simulator.faults import Fault, FaultInjector
from batchclient.simulator.guise import Guise, Route
from batchclient.simulator.guises import guise_of
from batchclient.simulator.pages import load_headers, page_of
from batchclient.simulator.profiles import Profile, profile
from batchclient.simulator.statistics import Counters
from batchclient.simulator.text import OutputLengths
from batchclient.simulator.validation import CompletionCall, HttpError, Limits, bad_request

__all__ = ["Part", "SimulatedServer"]


_UNGUARDED = frozenset({"/classify", "/rerank", "/score"})
"""vLLM asks for a key below ``/v1`` alone; other guises have no such routes."""
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
    ) -> None:
        if not model:
            raise ValueError("model: a name of at least one character")
        if max_queued is not None and max_queued < 0:
            raise ValueError(f"max_queued: at least 0, not {max_queued}")
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
        self._lengths = None if lengths.mean_tokens is None else lengths
        self.limits: Limits = Limits(model, min(max_model_len_tokens, self.profile.kv_tokens), is_strict=is_strict)
        self._authorization = f"Bearer {api_key}".encode() if api_key else None
        self.epoch_s = epoch_s
        self._seed = seed
        self.ids: random.Random = random.Random(f"{seed}/ids")  # noqa: S311
        self._exchanges: dict[int, Exchange] = {}
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._outbox: deque[tuple[float, Part]] = deque()
        self._api_free_at = -math.inf
        self._sequences = 0
        self._order = 0
        self._outstanding = 0
        self.pieces_by_id: dict[int, str] = {}
        """By id: tokenized pieces of text, for the way back; at most as many as there are ids."""

    def __repr__(self) -> str:
        return f"<SimulatedServer {self.profile.name} requests={len(self._exchanges)} {self.engine!r}>"

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
        try:
            if len(body) > self.max_body_bytes:
                raise HttpError(413, self.guise.too_large, (("connection", "close"),))
            route = self.guise.routes.get(path) if method == "POST" else None
            if route is None:
                if path.startswith("/v1/"):
                    self._check_key(dict(headers))
                self._reply(request_id, *page_of(self, method, path, body), now)
                return
            named = dict(headers)
            if path not in _UNGUARDED:
                self._check_key(named)
            call = route.parse(body, self.limits)
            if call.sequences > _MOST_SEQUENCES:
                raise bad_request(f"{call.sequences} sequences in one request are more than {_MOST_SEQUENCES}.", "n")
            self.counters.note(now, len(call.prompts), is_stream=call.stream)
            self._take(request_id, route, call, named, now)
        except HttpError as error:
            self._reply(request_id, error.status, JSON_HEADERS + error.headers, error.body, now)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            # A schema or a message of a form that nobody meant.
            odd = bad_request("A field has a form that cannot be read.", "body")
            self._reply(request_id, odd.status, JSON_HEADERS + odd.headers, odd.body, now)

    def disconnect(self, request_id: int, now: float) -> None:
        """Forget the request of a client that has gone."""
        self._advance(now)
        exchange = self._exchanges.pop(request_id, None)
        if exchange is None:
            return
        self.counters.disconnects += 1
        if not exchange.is_over:
            self.counters.aborted_sequences += self._release(exchange, now)

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
        return self.counters.snapshot() | state | {"open_requests": len(self._exchanges), "faults": hits}

    # --- requests ---

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        if self._authorization is not None and headers.get(b"authorization") != self._authorization:
            raise HttpError(401, self.guise.unauthorized)

    def _take(
        self, request_id: int, route: Route, call: CompletionCall, headers: Mapping[bytes, bytes], now: float
    ) -> None:
        limit = self.most_outstanding
        delay_s, fault = self.faults.choose(call) if self.faults.faults else (0.0, None)
        if fault is not None:
            parts = replacement(request_id, fault)
            if parts is not None:
                self._put(now + delay_s, partial(self._answer, parts))
                return
            if fault.kind == "first_only":
                del call.prompts[1:]
        if limit is not None and self._outstanding + call.sequences > limit:
            self.counters.rejections += call.sequences
            raise self.guise.busy
        given_id = headers.get(b"x-request-id")
        reply_id = (
            f"{route.id_prefix}{given_id.decode('latin-1') if given_id else format(self.ids.getrandbits(64), '016x')}"
        )
        named = self.model if self.limits.is_strict else call.fields.get("model") or self.model
        writer = route.writer(call, reply_id, int(self.epoch_s + now), named)
        extra = (
            load_headers(self.engine, headers) if b"endpoint-load-metrics-format" in headers and not call.stream else ()
        )
        exchange = Exchange(request_id, call, writer, route, fault.kind if fault else None, extra)
        exchange.decide(self._lengths, reply_id)
        self._exchanges[request_id] = exchange
        self._outstanding += call.sequences
        if delay_s:
            # Taken up later: until then the request occupies nobody.
            self._put(now + delay_s, partial(self._enter, exchange))
        else:
            self._enter(exchange, now)

    def _answer(self, parts: list[Part], now: float) -> None:
        """Send a fault's parts instead of a reply."""
        self._spend(self.profile.request_s, now)
        self._outbox_add(now, parts, is_free=True)

    def _enter(self, exchange: Exchange, now: float) -> None:
        """Pass the request through the API server to the engine, prompt by prompt."""
        if exchange.is_over:
            return
        ready_at = self._spend(self.profile.request_s, now)
        prompts = len(exchange.call.prompts)
        prompt_s = self.profile.prompt_s
        self._api_free_at = ready_at + prompts * prompt_s
        if exchange.fault == "serial":
            # The others follow one by one, as each is finished.
            self._put(ready_at + prompt_s, partial(self._submit, exchange, range(1)))
            return
        if not prompt_s and ready_at <= now:
            self._submit(exchange, range(prompts), now)
        elif not prompt_s:
            self._put(ready_at, partial(self._submit, exchange, range(prompts)))
        else:
            for i in range(prompts):
                self._put(ready_at + (i + 1) * prompt_s, partial(self._submit, exchange, range(i, i + 1)))

    def _submit(self, exchange: Exchange, prompts: range, now: float) -> None:
        if exchange.is_over:
            return
        call = exchange.call
        if 0 in prompts and (head := exchange.begin()) is not None:
            self._outbox_add(now, [head], is_free=True)
        interval = call.stream_interval if call.stream else 0
        for i in prompts:
            for index in range(i * call.n, (i + 1) * call.n):
                self._sequences += 1
                exchange.sequence_ids.append(self._sequences)
                tokens = exchange.generations[index].tokens
                sequence = Sequence(self._sequences, call.prompt_tokens[i], tokens, interval, (exchange, index))
                self.engine.submit(sequence, now)

    def _release(self, exchange: Exchange, now: float) -> int:
        """End the exchange, and take its sequences out of the engine; return how many were left."""
        exchange.is_over = True
        self._outstanding -= exchange.unfinished
        left = sum(self.engine.abort(sequence_id, now) for sequence_id in exchange.sequence_ids)
        exchange.sequence_ids = []
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
        owner: tuple[Exchange, int] = progress.sequence.owner  # type: ignore[assignment]  # put there by _submit
        exchange, index = owner
        was_over = exchange.is_over
        if progress.finished:
            if not was_over:
                # As vLLM counts its queue: choice by choice, not request by request.
                self._outstanding -= 1
                exchange.unfinished -= 1
            self.counters.finish_reasons[exchange.generations[index].finish_reason] += 1
        parts = exchange.on_progress(progress, index)
        if exchange.fault == "serial" and progress.finished and not exchange.is_over:
            begun = len(exchange.sequence_ids)
            if exchange.call.sequences - exchange.unfinished == begun:
                following = begun // exchange.call.n
                self._submit(exchange, range(following, following + 1), progress.at)
        if parts:
            self._outbox_add(progress.at, parts)
        if exchange.is_over and not was_over:
            self._release(exchange, progress.at)
            if parts and parts[-1].last:
                self._exchanges.pop(exchange.request_id, None)

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

    def _reply(self, request_id: int, status: int, headers: Headers, body: bytes, now: float) -> None:
        self._spend(self.profile.request_s, now)
        self.counters.note_status(status)
        self._outbox_add(now, [Part(request_id, status, headers, body, last=True)], is_free=True)


def _with_overrides(given: str | Profile, **overrides: int | None) -> Profile:
    costs = profile(given) if isinstance(given, str) else given
    given_ones: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return replace(costs, **given_ones)
