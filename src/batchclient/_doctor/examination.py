"""An examination of a server: its pages, then a call and a list of eight, as any client makes them.

Rules:
- A page is asked for once; the metrics page again where it shows a queue. A page that is missing is
  a fact. trtllm-serve's metrics page is left alone: reading empties it for others.
- ``/health`` is asked of servers where the page does no work. SGLang's generates a token, and a
  gateway's may call every model behind the gateway (LiteLLM's does).
- No call is made after a page that says that the engine is dead.
- A list that took as long as its calls one after the other is sent once more, so that no finding
  rests on chance, and not at all where others use the server.
- Prompts differ from their first token, so that no cache of prefixes helps. None is sent again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from batchclient import (
    AuthenticationFailed,
    BadRequest,
    BatchClient,
    BatchClientError,
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    RateLimited,
    ReadTimedOut,
    ServerInfo,
)
from batchclient._doctor.facts import Facts, Finding, Weight
from batchclient._doctor.pages import proxies_in, queue_in, read_arguments, read_metrics
from batchclient.transport import WireRequest

__all__ = ["Page", "Target", "examine"]

LIST_SIZE = 8
TOKENS = 24
_FIXED_LENGTH = frozenset({"vllm", "sglang", "llamacpp", "trtllm"})
"""Servers that know ``ignore_eos``."""
_HEALTH_OF = frozenset({"vllm", "tgi", "llamacpp", "trtllm", "tei"})
_EVENTS_OF = frozenset({"vllm", "sglang"})
"""Servers that may be asked for fewer events than tokens."""
_SERIAL = 5.0
"""Times of a lone call from which on a list of eight was not served together."""
_SUBJECTS = ("rivers", "clocks", "bread", "whales", "glass", "maps", "moss", "bridges")
_NAMES = "--model, model=… or BATCHCLIENT_MODEL"
_LOG = "the server's log"
_CALL = "a small call"
_KEY = "--api-key or BATCHCLIENT_API_KEY"
Page = tuple[int, Mapping[str, str], bytes]
"""Status, headers with names in lower case, body."""
_NO_PAGE: Page = (0, {}, b"")
_MODELS = WireRequest("GET", "/models")
_HEALTH = WireRequest("GET", "/health", from_root=True)
_METRICS = WireRequest("GET", "/metrics", from_root=True)
_ARGUMENTS = {
    "vllm": ("/server_info?config_format=json",),
    "sglang": ("/server_info", "/get_server_info"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is examined.

    Args:
        url: the checked URL.
        shown: the URL as it may be shown.
        connect: returns a client of a URL, which tries each call once.
        fetch: returns a page below the URL; raises what a call of the client would.
        model: the model's name, if given.
        has_key: whether a key is sent.
        secrets: to cut out of names that the server says.
        timeout_s: the most time for a call.
        proxy: the variable of a proxy in the environment that is not heeded, if any.
    """

    url: str
    shown: str
    connect: Callable[[str], BatchClient] = field(repr=False)
    fetch: Callable[[WireRequest], Awaitable[Page]] = field(repr=False)
    model: str | None = None
    has_key: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    timeout_s: float = 60.0
    proxy: str | None = None


async def examine(target: Target) -> Facts:
    """Ask a server for its pages, make a call and a list of eight, and return the facts."""
    examination = _Examination(target)
    await examination.run()
    return examination.facts


class _Examination:
    def __init__(self, target: Target) -> None:
        self._target = target
        self.facts = Facts(target.shown, model=target.model)

    async def run(self) -> None:
        """Find the facts; a fault ends the examination."""
        facts, target = self.facts, self._target
        try:
            self._models_page = await self._fetch(_MODELS)
        except BatchClientError as error:
            facts.fault = self._fault_of(error, "the first page")
            return
        path, question, query = target.url.partition("?")
        urls = [target.url] if path.endswith("/v1") else [target.url, f"{path}/v1{question}{query}"]
        async with AsyncExitStack() as clients:
            found: dict[str, tuple[BatchClient, ServerInfo]] = {}
            for url in urls:
                client = await clients.enter_async_context(target.connect(url))
                [info] = await client.servers()
                found[url] = client, info
                # TEI tells its model at any URL.
                if info.models and info.name != "tei":
                    found = {url: found[url]}
                    break
            for url, (client, info) in found.items():
                fault = await self._look(client, info)
                facts.lacks_v1 = url != target.url and fault is None
                # Where no URL works, the given one tells why.
                facts.fault = fault and (facts.fault or fault)
                if fault is None:
                    break

    async def _look(self, client: BatchClient, info: ServerInfo) -> Finding | None:
        """Take in what the server tells and does; return why calls fail, if they do."""
        facts = self.facts
        self._take(info)
        if info.name in _HEALTH_OF:
            status, headers, _ = await self._page(_HEALTH)
            if status == 503 and "html" not in headers.get("content-type", ""):
                sentence = "The server is not healthy: its /health answers 503."
                return _broken("not-healthy", sentence, f"{_LOG}; a restart", "/health")
        await self._read_pages(info)
        if facts.model is None and not info.models:
            return self._fault_of_models()
        try:
            lone_s = await self._call(client)
        except ConfigError:
            # The client cannot choose.
            facts.needs_model, facts.model = True, None
            return None
        except BatchClientError as error:
            return self._fault_of(error, _CALL)
        if facts.calls == "completion":
            await self._send_lists(client, lone_s)
        if facts.queue is not None:
            await self._look_again(client)
        return None

    # --- pages ---

    async def _fetch(self, request: WireRequest) -> Page:
        page = await self._target.fetch(request)
        self.facts.proxies = tuple(dict.fromkeys(self.facts.proxies + proxies_in(page[1])))
        return page

    async def _page(self, request: WireRequest) -> Page:
        """Fetch a page that may be missing, or not answer."""
        try:
            return await self._fetch(request)
        except BatchClientError:
            return _NO_PAGE

    def _take(self, info: ServerInfo) -> None:
        facts, load = self.facts, info.load
        facts.kind = info.name or ("openai" if info.models or facts.model else None)
        facts.server = None if info.name is None else self._hidden(f"{info.name} {info.version or ''}".strip())
        facts.models = tuple(map(self._hidden, info.models))
        if self._target.model is None:
            facts.model = facts.models[0] if len(info.models) == 1 else None
        facts.max_len, facts.slots = info.max_model_len, info.slots if info.name in ("sglang", "llamacpp") else None
        if load is not None:
            facts.preempted = None if load.preemptions is None else int(load.preemptions)
            if load.running is not None or load.waiting is not None:
                facts.others = int((load.running or 0) + (load.waiting or 0))

    async def _read_pages(self, info: ServerInfo) -> None:
        facts = self.facts
        # A query may be a key, which the page's own query would replace.
        for path in _ARGUMENTS.get(facts.kind or "", ()) if "?" not in self._target.url else ():
            status, _, body = await self._page(WireRequest("GET", path, from_root=True))
            if status == 200:
                read_arguments(facts, body)
                break
        if facts.kind not in (None, "trtllm"):
            status, _, body = await self._page(_METRICS)
            if status == 200:
                read_metrics(facts, body)
                facts.queue = queue_in(info.load, body)
            if status:
                # TEI's load is read by no client: the page is all that can be asked for.
                facts.tells_load = info.load is not None or (facts.kind == "tei" and status == 200)

    async def _look_again(self, client: BatchClient) -> None:
        """Keep the queue that was seen if there is one of as many sequences still."""
        before, self.facts.queue = self.facts.queue, None
        [info] = await client.servers()
        status, _, body = await self._page(_METRICS)
        again = queue_in(info.load, body) if status == 200 else None
        if before is not None and again is not None and again.running == before.running:
            waiting, usage = min(before.waiting, again.waiting), max(before.kv_usage, again.kv_usage)
            self.facts.queue = replace(before, waiting=waiting, kv_usage=usage)

    def _hidden(self, text: str) -> str:
        for secret in self._target.secrets:
            text = text.replace(secret, "[key]")
        return text

    # --- calls ---

    def _params(self) -> dict[str, Any]:
        params = {"max_tokens": TOKENS, "temperature": 0, "timeout_s": self._target.timeout_s}
        return params | ({"ignore_eos": True} if self.facts.kind in _FIXED_LENGTH else {})

    async def _call(self, client: BatchClient) -> float:
        """Make a call of the first kind that the server has; return how long it took, seconds.

        Raises:
            BatchClientError: the call failed.
        """
        text, timeout_s = "Nine things that are true of maps, each in a sentence:", self._target.timeout_s
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "completion": lambda: (
                self._count_events(client, text)
                if self.facts.kind in _EVENTS_OF
                else client.complete(text, **self._params())
            ),
            "chat": lambda: client.chat([{"role": "user", "content": text}], **self._params()),
            "embedding": lambda: client.embed(text, timeout_s=timeout_s),
        }
        refused: BatchClientError | None = None
        for kind, call in calls.items():
            began = anyio.current_time()
            try:
                await call()
            except BadRequest as error:
                refused = refused or error
                is_absent = error.status is None or (error.status == 404 and "model" not in error.message.lower())
                if not is_absent:
                    break
            else:
                self.facts.calls = kind
                return anyio.current_time() - began
        assert refused is not None, "no call was answered"
        raise refused

    async def _count_events(self, client: BatchClient, text: str) -> None:
        """Make a streamed call that asks for few events."""
        events = 0
        async with client.stream(text, stream_interval=10 * TOKENS, **self._params()) as deltas:
            async for _ in deltas:
                events += 1
        self.facts.event_per_token = events >= 0.9 * TOKENS

    async def _send_lists(self, client: BatchClient, lone_s: float) -> None:
        """Send a list, and once more if it seemed to be served one prompt after the other."""
        facts = self.facts
        for number in range(2):
            began = anyio.current_time()
            texts = [f"{LIST_SIZE * number + place} things about {name}:" for place, name in enumerate(_SUBJECTS)]
            answers = await client.batch_map(texts, "{}", return_exceptions=True, **self._params())
            took_s = anyio.current_time() - began
            statistics = client.statistics()
            endpoint = statistics.endpoints[0]
            if endpoint.lists_refused:
                facts.refusal = f"a list of {LIST_SIZE} was refused, or some of its prompts had no answer"
            elif endpoint.batch_size_cap == 1:
                facts.refusal = "its pages: such a server takes none"
            elif max(statistics.list_sizes, default=1) > 1 and not any(isinstance(each, Exception) for each in answers):
                facts.refusal, facts.list_cap = "", endpoint.batch_size_cap
                if not facts.others:
                    facts.serial = (facts.serial or 0) + (took_s >= _SERIAL * lone_s)
            if facts.serial != 1:
                break

    # --- faults ---

    def _fault_of_models(self) -> Finding:
        """Return the fault of a place that names no model; none was given."""
        status, headers, _ = self._models_page
        if status in (401, 403):
            return self._fault_of_key(str(status), "/models")
        if status == 503:
            return _broken("not-ready", "The server is not ready: 503.", "wait, then ask again", "/models")
        if self.facts.kind is not None or (status == 200 and "html" not in headers.get("content-type", "")):
            return _broken("no-model", f"The server does not say which model it serves ({status}).", _NAMES, "/models")
        reply = "an HTML page" if "html" in headers.get("content-type", "") else f"{status} for /models"
        sentence = f"No LLM server answers at this URL: the reply is {reply}."
        return _broken("no-llm-server", sentence, "base_url: an LLM server's address with its /v1", "/models")

    def _fault_of_key(self, said: str, seen: str) -> Finding:
        if self._target.has_key:
            return _broken("key-refused", f"The server refuses the key: {said}.", _KEY, seen)
        sentence = f"The server wants a key, and none was given: {said}."
        return _broken("key-missing", sentence, f"{_KEY} (OPENAI_API_KEY is not read)", seen)

    def _fault_of(self, error: BatchClientError, seen: str) -> Finding:
        """Return the fault of an error; its words are the client's, which hides keys in them."""
        said = error.message.rstrip(".")
        match error:
            case AuthenticationFailed():
                return self._fault_of_key(said.partition(";")[0], seen)
            case CertificateRefused():
                setting = "SSL_CERT_FILE with Http(trust_env=True), or a certificate that this machine trusts"
                return _broken("certificate", f"The server's certificate is refused: {said}.", setting, seen)
            case ConnectFailed():
                setting = "the host and the port of base_url; whether the server runs"
                if (proxy := self._target.proxy) is not None:
                    setting = (
                        f"Http(trust_env=True), since {proxy} is set and a client does not heed it; else {setting}"
                    )
                return _broken("unreachable", f"The server cannot be reached: {said}.", setting, seen)
            case ReadTimedOut() | DeadlineExceeded() if self.facts.others:
                sentence = f"A small call had no answer while {self.facts.others} sequences of others ran or waited."
                return _broken("busy", sentence, "another time or server; --timeout, for a longer wait", seen)
            case ReadTimedOut() | DeadlineExceeded():
                return _broken("silent", f"The server takes connections and does not answer: {said}.", _LOG, seen)
            case ConnectionLost() if seen != _CALL:
                setting = "the scheme, the host and the port of base_url"
                return _broken("no-http", f"The reply cannot be read: {said}.", setting, seen)
            case NotFound() if "model" in said.lower():
                sentence = f"The server has no such model: {said}."
                return _broken("model-unknown", sentence, f"{_NAMES}: one of the names", seen)
        if isinstance(error, RateLimited) or error.status in (503, 529):
            if self._models_page[0] == 503:
                return _broken("not-ready", f"The server is not ready: {said}.", "wait, then ask again", seen)
            setting = "a larger bound of the queue, or fewer calls of others"
            return _broken("busy", f"The server refuses work for now: {said}.", setting, seen)
        setting = "base_url; the gateway before the server" if "html" in said.lower() else _LOG
        return _broken("calls-fail", f"A small call fails: {said}.", setting, seen)


def _broken(id_: str, sentence: str, setting: str, seen: str) -> Finding:
    return Finding(id_, Weight.BROKEN, sentence, setting, seen)
