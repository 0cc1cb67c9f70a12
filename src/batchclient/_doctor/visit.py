"""A visit to a server: its pages, then the trials, in that order and one after the other.

Rules:
- A page is asked for once; the metrics page twice, before the trials and after them. A page that is
  missing is a fact. trtllm-serve's metrics page is left alone: reading empties it for others.
- ``/health`` is asked of servers where the page does no work. SGLang's generates a token, and a
  gateway's may call every model behind the gateway (LiteLLM's does).
- Nothing is tried without a model's name, nor after a page that refuses the key.
- The third request repeats a list that looked bad, so that no finding rests on chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.kinds import Kind
from batchclient._doctor.facts import Facts, Lists, Queue
from batchclient._doctor.faults import (
    fault_of_call,
    fault_of_connection,
    fault_of_health,
    fault_of_key,
    fault_of_pages,
    fault_of_readiness,
)
from batchclient._doctor.pages import busy_slots, queue_in, read_arguments, read_metrics
from batchclient._doctor.trials import LIST_SIZE, Trial, Trials
from batchclient._doctor.way import BelowV1, is_inside, proxies_in
from batchclient._shell.pages import FetchedPage, read_page
from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
from batchclient.dialects._metrics import EMPTIED_BY_READING
from batchclient.dialects._redaction import redact
from batchclient.dialects._replies import HTML_PAGE, error_in
from batchclient.errors import (
    BatchClientError,
    ReadTimedOut,
)
from batchclient.transport import Timeouts, Transport, WireRequest

__all__ = ["Patient", "visit"]

_PAGE_S = 10.0
_NOT_FOUND = 404
_NO_PAGE: FetchedPage = (0, {}, b"")
_MODELS_BELOW_V1 = WireRequest("GET", "/v1/models", from_root=True)
_METRICS = WireRequest("GET", "/metrics", from_root=True)
_HEALTH = WireRequest("GET", "/health", from_root=True)
_SLOTS = WireRequest("GET", "/slots", from_root=True)
_CONFIGURATION = WireRequest("GET", "/server_info?config_format=json", from_root=True)
_ARGUMENTS = ("/server_info", "/get_server_info")
_WITH_OWN_ROUTE = frozenset({"sglang", "llamacpp"})
"""Servers asked for completions beside ``/v1``."""
_HEALTH_OF = frozenset({"vllm", "tgi", "llamacpp", "trtllm", "tei"})
_OF_LISTS = frozenset(
    {
        FailureKind.LIST_REFUSED,
        FailureKind.LIST_TOO_LONG,
        FailureKind.BAD_CALL,
        FailureKind.MISMATCH,
        FailureKind.STREAM_REFUSED,
    }
)
"""Failures of a list whose members are good: a lone call like them was answered."""


@dataclass(frozen=True, slots=True)
class Patient:
    """The server that is visited.

    Args:
        url: the checked URL.
        shown: the URL as it may be shown.
        transport: to the URL.
        model: the model's name, if given.
        secrets: to cut out of all that the server says.
        has_key: whether a key is sent.
        timeout_s: the most time for a small request.
        proxy: the variable of a proxy in the environment that is not heeded, if any.
    """

    url: str
    shown: str
    transport: Transport = field(repr=False)
    model: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    has_key: bool = False
    timeout_s: float = 60.0
    proxy: str | None = None


async def visit(patient: Patient) -> Facts:
    """Ask a server for its pages, try three small requests at most, and return the facts."""
    return await _Visitor(patient).look()


class _Visitor:
    def __init__(self, patient: Patient) -> None:
        self._patient = patient
        self._transport: Transport = patient.transport
        self._is_below = patient.url.partition("?")[0].endswith("/v1")
        self._pages: dict[str, FetchedPage] = {}
        self._facts = Facts(patient.shown, tls_inside=patient.url.startswith("https:") and is_inside(patient.url))
        self._told = ServerFacts()
        self._model: str | None = patient.model

    async def look(self) -> Facts:
        """Return the facts; a fault ends the visit."""
        try:
            await self._find_out()
            self._facts = self._of_server()
            await self._read_pages()
        except BatchClientError as error:
            self._facts = replace(
                self._facts, fault=fault_of_connection(error, self._patient.secrets, self._patient.proxy)
            )
        if self._facts.fault is None and self._model is not None:
            await self._try(self._model)
            await self._look_again()
        return self._facts

    # --- pages ---

    async def _fetch(self, request: WireRequest) -> FetchedPage:
        """Fetch a page.

        Raises:
            BatchClientError: there is no connection, or no reply in time.
        """
        try:
            page = await read_page(self._transport, request, Timeouts(read_s=_PAGE_S), _PAGE_S, _PAGE_S)
        except TimeoutError:
            raise ReadTimedOut(f"no whole page within {_PAGE_S:g} s") from None
        seen = proxies_in(page[1])
        self._facts = replace(self._facts, proxies=tuple(dict.fromkeys(self._facts.proxies + seen)))
        return page

    async def _page(self, request: WireRequest) -> FetchedPage:
        """Fetch a page whose absence, or silence, is no fault."""
        try:
            page = await self._fetch(request)
        except BatchClientError:
            page = _NO_PAGE
        self._pages[request.path] = page
        return page

    async def _find_out(self) -> None:
        fingerprint = Fingerprint()
        while (request := fingerprint.next()) is not None:
            page = await self._fetch(request)
            self._pages[request.path] = page
            status, headers, body = page
            if status in (401, 403):
                fault = fault_of_key(status, body, self._patient.secrets, has_key=self._patient.has_key)
                self._facts = replace(self._facts, fault=fault)
            if not fingerprint.take(status, headers, body):
                fault = fault_of_readiness(request.path, page, self._patient.secrets)
                self._facts = replace(self._facts, fault=fault)
                break
            if not self._is_below and request.path == "/models" and not fingerprint.facts().models:
                below = await self._page(_MODELS_BELOW_V1)
                again = Fingerprint()
                again.next()
                if 200 <= below[0] < 300 and again.take(*below) and again.facts().models:
                    self._move()
                    fingerprint = again
        self._told = fingerprint.facts()

    def _move(self) -> None:
        """Go on below ``/v1``."""
        self._transport = BelowV1(self._transport)
        self._facts = replace(self._facts, lacks_v1=True)

    def _of_server(self) -> Facts:
        told, facts = self._told, self._facts
        names = told.base_models()
        if self._model is None and len(names) == 1:
            self._model = names[0]
        model = self._model
        lengths = [told.length_of(model)] if model is not None else []
        facts = replace(
            facts,
            # Some servers list no models; a model that is given can be tried.
            kind=told.dialect or ("openai" if self._patient.model and not self._is_html() else None),
            server=told.server,
            models=tuple(redact(name, (), self._patient.secrets) for name in names),
            model=None if model is None else redact(model, (), self._patient.secrets),
            max_len=next(iter(lengths), told.max_len),
            slots=told.slots if told.dialect in ("sglang", "llamacpp") else None,
            list_cap=None if told.singly else min(told.caps.values(), default=None),
            lists=Lists.UNTRIED if told.singly else None,
            list_size=1 if told.singly else None,
            refusal=told.singly,
        )
        if facts.fault is None:
            status = self._pages.get("/models", _NO_PAGE)[0]
            facts = replace(facts, fault=fault_of_pages(facts, status, is_html=self._is_html()))
        return facts

    def _is_html(self) -> bool:
        return any("html" in headers.get("content-type", "") for _, headers, _ in self._pages.values())

    async def _read_pages(self) -> None:
        facts = self._facts
        if facts.fault is not None or facts.kind is None:
            return
        if facts.kind in _HEALTH_OF:
            status, _, body = health = await self._page(_HEALTH)
            if status == 503 and error_in(body)[0] != HTML_PAGE:
                fault = fault_of_health(health, self._patient.secrets)
                self._facts = replace(facts, fault=fault)
                return
        if facts.kind == "vllm" and "?" not in self._patient.url:
            await self._page(_CONFIGURATION)
        for path in (*_ARGUMENTS, _CONFIGURATION.path):
            status, _, body = self._pages.get(path, _NO_PAGE)
            if status == 200:
                self._facts = read_arguments(self._facts, body)
        if facts.kind not in EMPTIED_BY_READING:
            status, _, body = await self._page(_METRICS)
            if status == 200:
                self._facts = read_metrics(self._facts, body, self._model)
                if facts.kind == "tei":
                    # TEI's load is read by no client: the page is all that can be asked for.
                    self._facts = replace(self._facts, tells_load=True)
            elif status:
                self._facts = replace(self._facts, tells_load=False)
        if facts.kind == "llamacpp" and self._facts.others is None:
            status, _, body = await self._page(_SLOTS)
            self._facts = replace(self._facts, others=busy_slots(body) if status == 200 else None)

    async def _look_again(self) -> None:
        status, _, before = self._pages.get(_METRICS.path, _NO_PAGE)
        if status != 200:
            return
        queue = queue_in(before, self._model)
        if queue is None:
            return
        status, _, after = await self._page(_METRICS)
        again = queue_in(after, self._model) if status == 200 else None
        if again is not None and again.running == queue.running:
            least = Queue(queue.running, min(queue.waiting, again.waiting), max(queue.kv_usage, again.kv_usage))
            self._facts = replace(self._facts, queue=least)

    # --- trials ---

    async def _try(self, model: str) -> None:
        trials = Trials(self._transport, self._facts.kind, model, self._patient.secrets, self._patient.timeout_s)
        call = Kind.EMBEDDING if self._facts.kind == "tei" else Kind.COMPLETION
        call, alone = await self._try_alone(trials, call)
        if alone.failure is not None and alone.failure.error is ReadTimedOut and self._facts.others:
            self._facts = replace(self._facts, is_crowded=True)
            return
        if not alone.is_whole:
            secrets, has_key = self._patient.secrets, self._patient.has_key
            fault = fault_of_call(alone.failure, model, self._told, secrets, has_key=has_key)
            self._facts = replace(self._facts, fault=fault)
            return
        if call is Kind.COMPLETION:
            self._facts = replace(self._facts, streams=alone.is_stream)
            if alone.is_stream and not self._facts.lacks_own_route:
                self._facts = replace(self._facts, events=alone.events, tokens=alone.tokens)
        if call is not Kind.CHAT:
            await self._try_list(trials, call, alone)

    async def _try_alone(self, trials: Trials, call: Kind) -> tuple[Kind, Trial]:
        """Return the kind of a lone call, and the call: another kind, place or form after a refusal."""
        streamed = call is Kind.COMPLETION
        alone = await trials.send(call, streamed=streamed)
        assert alone is not None, "the first request is within the bound"
        failure = alone.failure
        if failure is None:
            return call, alone
        if failure.kind is FailureKind.FIELDS_REFUSED:
            return call, await trials.send(call, streamed=streamed) or alone
        if streamed and failure.kind in (FailureKind.STREAM_REFUSED, FailureKind.BAD_CALL):
            return call, await trials.send(call, streamed=False) or alone
        if failure.status != _NOT_FOUND or _is_about_model(failure):
            return call, alone
        if not self._is_below and not self._facts.lacks_v1:
            again = await trials.send(call, streamed=streamed, below=True)
            if again is not None and again.is_whole:
                self._facts = replace(self._facts, lacks_v1=True)
            return call, again or alone
        if self._facts.kind in _WITH_OWN_ROUTE:
            trials.speak("openai")
            again = await trials.send(call, streamed=streamed)
            if again is not None and again.is_whole:
                self._facts = replace(self._facts, lacks_own_route=True)
                return call, again
        for other in (Kind.CHAT, Kind.EMBEDDING):
            tried = await trials.send(other, streamed=False)
            if tried is not None and tried.is_whole:
                self._facts = replace(self._facts, without_completions=other.value, refusal=failure.message)
                return other, tried
        return call, alone

    async def _try_list(self, trials: Trials, call: Kind, alone: Trial) -> None:
        size = 1 if self._told.singly else min(LIST_SIZE, self._facts.list_cap or LIST_SIZE)
        if size < 2:  # no list
            return
        streamed = alone.is_stream
        listed = await trials.send(call, size, streamed=streamed)
        if listed is None:
            return
        if listed.failure is not None:
            await self._judge_refusal(trials, call, listed, streamed=streamed)
            return
        self._facts = replace(self._facts, lists=Lists.TAKEN, list_size=size)
        pieces = [alone.came_in_one_piece, listed.came_in_one_piece]
        if None not in pieces and not self._facts.others:
            self._facts = replace(self._facts, held_back=all(pieces))
        serial = listed.is_one_by_one(alone)
        if serial and not self._facts.others:
            again = await trials.send(call, size, streamed=streamed)
            serial_again = None if again is None else again.is_one_by_one(alone)
            self._facts = replace(self._facts, serial=None if serial_again is None else 1 + serial_again)
        elif serial is not None:
            self._facts = replace(self._facts, serial=None if serial else 0)

    async def _judge_refusal(self, trials: Trials, call: Kind, listed: Trial, *, streamed: bool) -> None:
        failure = listed.failure
        assert failure is not None
        if failure.kind is FailureKind.REJECTED and self._facts.others == 0:
            again = await trials.send(call, listed.size, streamed=streamed)
            if again is not None and again.failure is not None and again.failure.kind is FailureKind.REJECTED:
                refusal = again.failure.message
                self._facts = replace(self._facts, lists=Lists.OVER_BOUND, list_size=listed.size, refusal=refusal)
            return
        if failure.kind not in _OF_LISTS:
            # Busy, broken off or silent: nothing is known of lists.
            return
        lists = Lists.REFUSED
        if failure.list_cap is not None:
            self._facts = replace(self._facts, list_cap=failure.list_cap)
            return
        if streamed:
            plain = await trials.send(call, listed.size, streamed=False)
            if plain is None or (plain.failure is not None and plain.failure.kind not in _OF_LISTS):
                return
            if plain.failure is None:
                lists = Lists.PLAIN
            else:
                failure = plain.failure
        if failure.kind is FailureKind.MISMATCH:
            lists = Lists.SOME_ANSWERED
        self._facts = replace(self._facts, lists=lists, list_size=listed.size, refusal=failure.message)


def _is_about_model(failure: Failure) -> bool:
    return "model" in failure.message.lower()
