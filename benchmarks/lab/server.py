"""The server of the laboratory: the simulator's engine behind an API server, without the wire.

Rules:
- The API server is a single-server queue before and after the engine, as in
  ``batchclient.simulator.server``. A request occupies the API server for
  ``request_s + prompts * prompt_s``, an event or a plain reply for ``event_s``. So replies and
  prompts leave the API server in order.
- A prompt's choices enter the engine when the API server is done with the prompt.
- A streamed batch reports each prompt's first token and its end. A plain batch reports the whole
  list when its last member ends.
- ``advance`` stops at the first reply, so that the client reacts before anything later happens.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import TYPE_CHECKING

from benchmarks.lab.exchange import Exchange, Reply
from benchmarks.lab.gateway import CallWindow
from benchmarks.lab.prefix_cache import CachingEngine, PrefixCache
from benchmarks.lab.workloads import Call, Lengths
from tests.core import (
    Batch,
    RequestState,
    ServerLoad,
)

from batchclient.dialects._status import failure_of
from batchclient.simulator.engine import Engine, Progress, Sequence
from batchclient.types import Choice, Completion, Usage

if TYPE_CHECKING:
    from benchmarks.lab.asker import Client
    from benchmarks.lab.profiles import Change, Scenario

_IN_FLIGHT = RequestState.IN_FLIGHT
_REPORT_FIRST = 1_000_000_000
_WEATHER_S = 1.0
"""How long an unsteady machine stays as slow as it is."""
_CHOICES = (Choice(0, "", "stop"),)


class LabServer:
    """A server in virtual time.

    Args:
        scenario: the server's profile and its changes.
        seed: of the engine's noise and of the other tenant's lengths.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.profile = scenario.server
        self.output_scale = 1.0
        self.outstanding = 0
        self.rejected = 0
        self._exchanges: dict[Batch, Exchange] = {}
        self._agenda: deque[tuple[float, Exchange, int]] = deque()
        self._outbox: deque[Reply] = deque()
        self._api_free_at = -math.inf
        self._tenant_rng = random.Random(f"{seed}/tenant")
        self._sequences = 0
        self._window = CallWindow(scenario.rate) if scenario.rate is not None else None

    # --- the client's side ---

    def send(self, batch: Batch, now: float) -> None:
        """Take a batch."""
        scenario, profile = self.scenario, self.profile
        size = len(batch.requests)
        sequences = size * batch.shape.weight
        ready_at = self._spend(profile.request_s, now)
        failure = None
        if scenario.list_cap is not None and size > scenario.list_cap:
            # TGI's words.
            said = f"batch size {size} > maximum allowed batch size {scenario.list_cap}"
            failure = failure_of(422, said, None, streamed=batch.streamed, retry_after_s=None)
        elif profile.max_queued is not None and self.outstanding + sequences > profile.max_queued:
            failure = failure_of(429, "overloaded", None, streamed=batch.streamed, retry_after_s=None)
        elif self._window is not None and (wait_s := self._window.refuses(size, now)) is not None:
            failure = failure_of(429, "too many calls", None, streamed=batch.streamed, retry_after_s=wait_s)
        if failure is not None:
            self.rejected += sequences
            self._outbox.append(Reply(ready_at, batch, [], True, failure))
            return
        exchange = Exchange(batch)
        self._exchanges[batch] = exchange
        self.outstanding += sequences
        self._api_free_at = ready_at + size * profile.prompt_s
        for position in range(size):
            self._agenda.append((ready_at + (position + 1) * profile.prompt_s, exchange, position))

    def abort(self, batch: Batch, now: float) -> None:
        """The client has closed the connection: no further reply of the batch reaches the client."""
        self._outbox = deque(reply for reply in self._outbox if reply.batch is not batch)
        exchange = self._exchanges.pop(batch, None)
        if exchange is None:
            return
        exchange.gone = True
        self.outstanding -= sum(exchange.unfinished)
        self._forget(exchange, now)

    @property
    def next_at(self) -> float:
        """When something next happens in it, or leaves it."""
        agenda_at = self._agenda[0][0] if self._agenda else math.inf
        return min(self._engine_at(), agenda_at, self._outbox[0].at if self._outbox else math.inf)

    def advance(self, until: float) -> list[Reply]:
        """Simulate up to ``until``; return when something first reaches the client."""
        agenda, outbox = self._agenda, self._outbox
        while True:
            engine_at = self._engine_at()
            agenda_at = agenda[0][0] if agenda else math.inf
            now = min(engine_at, agenda_at)
            if outbox and outbox[0].at <= now:
                at = outbox[0].at
                if at > until:
                    return []
                replies = [outbox.popleft()]
                while outbox and outbox[0].at <= at:
                    replies.append(outbox.popleft())
                return replies
            if now > until or now == math.inf:
                return []
            if agenda_at <= engine_at:
                _, exchange, position = agenda.popleft()
                if not exchange.gone:
                    self._enter(exchange, position, now)
            else:
                self._step(now)

    def apply(self, change: Change, now: float) -> None:
        """Something happens to the server."""
        if change.output_scale is not None:
            self.output_scale = change.output_scale

    def load(self) -> ServerLoad | None:
        """The load on the server's ``/metrics`` page now; ``None``: the server has no page."""
        return None

    @property
    def generated_tokens(self) -> int:
        """Everything it ever generated, wanted or not."""
        return 0

    def heard_at(self, batch: Batch, now: float) -> tuple[float, bool]:
        """Return when the last byte of a batch's reply left, and ``True``.

        Where no byte left, return when the batch was sent, and ``False``.
        """
        exchange = self._exchanges.get(batch)
        if exchange is None:
            # Its end is on its way.
            return now, True
        if exchange.plain is None and self._speaks(exchange):
            return now, True
        if exchange.heard_at is None:
            return batch.sent_at, False
        return exchange.heard_at, True

    def underway_tokens(self, now: float, client: Client | None = None) -> float:
        """Return the tokens so far of answers that are to come and that a caller waits for.

        ``client``: of this client's answers alone.
        """
        tokens = self._running_tokens(now, client)
        for exchange in self._exchanges.values():
            if client is not None and exchange.batch.requests[0].waiter.client is not client:
                continue
            if exchange.plain is not None or exchange.batch.shape.weight > 1:
                for request, made, unfinished in zip(
                    exchange.batch.requests, exchange.tokens, exchange.unfinished, strict=True
                ):
                    if made and (unfinished or exchange.plain is not None) and request.state is _IN_FLIGHT:
                        tokens += made
        return tokens

    # --- the engine's side ---

    def _running_tokens(self, now: float, client: Client | None) -> float:
        raise NotImplementedError

    def _speaks(self, exchange: Exchange) -> bool:
        """Whether tokens of a streamed reply are leaving just now."""
        raise NotImplementedError

    def _engine_at(self) -> float:
        raise NotImplementedError

    def _step(self, now: float) -> None:
        raise NotImplementedError

    def _enter(self, exchange: Exchange, position: int, now: float) -> None:
        raise NotImplementedError

    def _forget(self, exchange: Exchange, now: float) -> None:
        raise NotImplementedError

    def _spend(self, seconds: float, now: float) -> float:
        self._api_free_at = max(now, self._api_free_at) + seconds
        return self._api_free_at

    def _outputs(self, call: Call) -> tuple[int, ...]:
        scale = self.output_scale
        return call.outputs if scale == 1 else tuple(max(1, round(each * scale)) for each in call.outputs)

    def _first_token(self, exchange: Exchange, position: int, at: float) -> None:
        if exchange.plain is None and exchange.first_s[position] is None:
            batch = exchange.batch
            read_at = exchange.heard_at = self._spend(self.profile.event_s, at)
            exchange.first_s[position] = read_at - batch.sent_at

    def _finish(self, exchange: Exchange, position: int, tokens: int, at: float) -> None:
        """One choice has ended."""
        exchange.tokens[position] += tokens
        exchange.unfinished[position] -= 1
        self.outstanding -= 1
        if exchange.unfinished[position]:
            return
        batch = exchange.batch
        call: Call = batch.requests[position].waiter
        exchange.left -= 1
        ended = not exchange.left
        usage = Usage(call.prompt_tokens, exchange.tokens[position])
        answer = (position, Completion(_CHOICES, usage, 1, exchange.first_s[position]))
        if ended:
            del self._exchanges[batch]
        if exchange.plain is None:
            exchange.heard_at = self._spend(self.profile.event_s, at)
            self._outbox.append(Reply(exchange.heard_at, batch, [answer], ended))
            return
        exchange.plain.append(answer)
        if ended:
            self._outbox.append(Reply(self._spend(self.profile.event_s, at), batch, exchange.plain, ended))


class ContinuousServer(LabServer):
    """Continuous batching: the simulator's engine, a tenant beside us, a prefix cache."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        rng = random.Random(f"{seed}/engine")
        self._cache: PrefixCache | CachingEngine | None = None
        if scenario.cache is not None and scenario.cache.shared:
            self.engine: Engine = CachingEngine(self.profile, rng, scenario.cache.found_tokens)
            self._cache = self.engine
        else:
            self.engine = Engine(self.profile, rng)
            if scenario.cache is not None:
                self._cache = PrefixCache(scenario.cache)
        self._slowdown = 1.0
        self._weather_rng = random.Random(f"{seed}/weather")
        self._weather = 0.0
        self._weather_at = 0.0
        self._tenant: tuple[Lengths, Lengths] | None = None

    def apply(self, change: Change, now: float) -> None:
        super().apply(change, now)
        if change.slowdown is not None:
            self._slowdown = self.engine.slowdown = change.slowdown
        if change.tenant_sequences:
            calls = self.scenario.workload.calls
            self._tenant = (calls.prompts, calls.outputs)
            for _ in range(change.tenant_sequences):
                self._submit_tenant(now)

    def load(self) -> ServerLoad:
        engine = self.engine
        hits, queries = (self._cache.hits, self._cache.queries) if self._cache else (None, None)
        return ServerLoad(
            engine.running,
            engine.waiting,
            engine.kv_usage_ratio,
            engine.preemptions,
            engine.generation_tokens,
            hits,
            queries,
        )

    @property
    def generated_tokens(self) -> int:
        return self.engine.generation_tokens

    def _speaks(self, exchange: Exchange) -> bool:
        running = map(self.engine.sequences.get, exchange.sequences)
        return any(sequence is not None and sequence.decodes for sequence in running)

    def _running_tokens(self, now: float, client: Client | None) -> float:
        tokens = 0
        for sequence in self.engine.sequences.values():
            if sequence.owner is None:
                continue
            exchange, position = sequence.owner
            request = exchange.batch.requests[position]
            if request.state is _IN_FLIGHT and (client is None or request.waiter.client is client):
                tokens += self.engine.generated(sequence)
        return tokens

    def _engine_at(self) -> float:
        at = self.engine.next_deadline()
        return math.inf if at is None else at

    def _step(self, now: float) -> None:
        if self.scenario.unsteadiness:
            self.engine.slowdown = self._slowdown * math.exp(self._wander(now))
        for progress in self.engine.step(now):
            self._on_progress(progress)

    def _wander(self, now: float) -> float:
        """The logarithm of the machine's slowness now: an Ornstein-Uhlenbeck process."""
        kept = math.exp(-(now - self._weather_at) / _WEATHER_S)
        self._weather_at = now
        spread = self.scenario.unsteadiness * math.sqrt(1 - kept * kept)
        self._weather = kept * self._weather + spread * self._weather_rng.gauss(0.0, 1.0)
        return self._weather

    def _on_progress(self, progress: Progress) -> None:
        owner = progress.sequence.owner
        if owner is None:
            if progress.finished:
                self._submit_tenant(progress.at)
            return
        exchange, position = owner  # type: ignore[misc]
        if exchange.plain is None and progress.generated == 1:
            self._first_token(exchange, position, progress.at)
        if progress.finished:
            self._finish(exchange, position, progress.generated, progress.at)

    def _enter(self, exchange: Exchange, position: int, now: float) -> None:
        call: Call = exchange.batch.requests[position].waiter
        prompt_tokens = call.prompt_tokens
        if isinstance(self._cache, PrefixCache):
            prompt_tokens = self._cache.uncached(call)
        report_every = 0 if exchange.plain is not None else _REPORT_FIRST
        for tokens in self._outputs(call):
            self._sequences += 1
            exchange.sequences.append(self._sequences)
            self.engine.submit(
                Sequence(self._sequences, prompt_tokens, tokens, report_every, (exchange, position)), now
            )

    def _forget(self, exchange: Exchange, now: float) -> None:
        for sequence in exchange.sequences:
            self.engine.abort(sequence, now)

    def _submit_tenant(self, now: float) -> None:
        assert self._tenant is not None
        prompts, outputs = self._tenant
        self._sequences += 1
        rng = self._tenant_rng
        tokens = max(1, round(outputs.draw(rng) * self.output_scale))
        self.engine.submit(Sequence(self._sequences, prompts.draw(rng), tokens), now)
