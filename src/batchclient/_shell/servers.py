"""The servers of a runner: the ways to each, in which dialect it is spoken to, what was found out.

Rules:
- An endpoint has the given dialect, or else an assumed one, then, from the next batch after its
  server is known, the server's own. Batches under way go on as encoded.
- A dialect stays while its server is of the same sort, with all that it has learnt, but whether a
  budget for thinking was refused: that depends on how the server was started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from batchclient._core.kinds import Kind
from batchclient._core.limits import ServerLoad
from batchclient._core.messages import Batch, Failure, Shape
from batchclient._shell.faults import name_models, name_place
from batchclient._shell.log import EndpointLog
from batchclient._shell.pages import Page
from batchclient.dialects import make_dialect

if TYPE_CHECKING:
    from batchclient._shell.watcher import Watcher
    from batchclient.dialects._dialect import Dialect
    from batchclient.dialects._fingerprints import ServerFacts
    from batchclient.transport import Transport

__all__ = ["DialectChoice", "Server", "ServerInfo", "Servers", "info_of"]

_MOST_NAMED = 256


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What one of the client's servers is, as far as its own pages tell.

    Args:
        url: its base URL, without a query, which may hold a key.
        name: ``"vllm"``, ``"sglang"``, ``"tgi"``, ``"llamacpp"``, ``"trtllm"`` or ``"tei"``;
            ``None``: not one of these, or not known.
        version: as the server tells it.
        models: the names of what it serves, LoRA adapters too; empty: it tells none.
        max_model_len: prompt and answer together, tokens, of the client's model, or of the only
            one.
        slots: sequences that it takes or runs at once.
        load: how busy it is, as its metrics page says just now.
        answered: whether it answered a question just now. False: it refused, was silent, or loads
            its model; the rest is then what was known of it before.

    ``None`` stands for what is not known: the server does not tell it, cannot be reached, or is not
    to be asked (``probe=False``; a ``dialect``, an HTTP client or a transport given).
    """

    url: str
    name: str | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    slots: int | None = None
    load: ServerLoad | None = None
    answered: bool | None = None


def info_of(url: str, seen: tuple[ServerFacts | None, ServerLoad | None, bool | None], model: str | None) -> ServerInfo:
    """Return what is known of a server.

    Args:
        url: as it may be shown.
        seen: of its pages, if it may be asked: as ``Watcher.look`` returns it.
        model: the client's.
    """
    facts, load, answered = seen
    if facts is None:
        return ServerInfo(url, load=load, answered=answered)
    names = tuple(served.id for served in facts.models)
    bases = facts.base_models()
    length = facts.length_of(model if model is not None else bases[0] if len(bases) == 1 else "")
    return ServerInfo(url, facts.known, facts.version, names, length, facts.slots, load, answered)


class DialectChoice:
    """Which dialect a client's servers are spoken to in. Its runners share it.

    Args:
        given: the name; ``None``: to be found out.
        secrets: keys to cut out of servers' messages; more may be added.
        key_hint: added to the error of a server that asks for a key.

    Raises:
        ConfigError: no dialect has the name.
    """

    __slots__ = ("at_first", "given", "key_hint", "secrets")

    def __init__(self, given: str | None, secrets: tuple[str, ...], key_hint: str = "") -> None:
        self.given: str | None = given
        self.key_hint: str = key_hint
        self.secrets: tuple[str, ...] = secrets
        self.at_first: Dialect = self.make()
        """The dialect assumed for every server until the server is known."""

    def make(self) -> Dialect:
        """Return a fresh dialect for an unknown endpoint."""
        return make_dialect(self.given, self.secrets)

    def of(self, facts: ServerFacts) -> tuple[Dialect, Mapping[Kind, int]]:
        """Return a fresh dialect for a server, and its caps; stated caps come before usual ones."""
        # An unknown server may be a gateway in front of any other. The assumed dialect learns by
        # refusals, and so can do no less than a dialect that asks for nothing.
        dialect = make_dialect(self.given or facts.known, self.secrets, facts.lacks, facts.has, facts.thinks_in)
        caps = dict(dialect.caps)
        for kind, cap in facts.caps.items():
            # A 1 is no number of the server's: such lists are absent, or cannot be told apart.
            if caps.get(kind) != 1:
                caps[kind] = cap
        return dialect, caps


class Server:
    """One server of a runner: the ways to it, its dialect, and what was found out about it.

    Args:
        transport: of its calls.
        dialect: assumed, or given.
        watcher: reads its pages.
    """

    __slots__ = (
        "_named", "dialect", "ending", "facts", "gone", "model", "most", "session_header", "transport", "under_way",
        "watcher",
    )  # fmt: skip

    def __init__(self, transport: Transport, dialect: Dialect, watcher: Watcher) -> None:
        self.transport = transport
        self.dialect = dialect
        self.watcher = watcher
        self.facts: ServerFacts | None = None
        self.model: str | None = None
        """The one model that it is asked for; ``None``: that of each call."""
        self._named: dict[Shape, Shape] = {}
        """Shapes of calls, and the same with its model."""
        self.session_header: str | None = None
        """By which the server is told a call's session."""
        self.gone = anyio.Event()
        """Set when nothing is left at a removed endpoint."""
        self.under_way = 0
        """Requests there now."""
        self.most = 0
        """The most that ever were."""
        self.ending = 0
        """Answered requests whose bodies have not ended."""

    @property
    def is_unheard(self) -> bool:
        """Whether it is still to say which server it is."""
        return self.dialect.is_assumed and self.watcher.is_unheard

    def asked(self, batch: Batch, model: str) -> Batch:
        """Return a batch as this server is asked: for its own ``model``."""
        shape = batch.shape
        if shape.model == model:
            return batch
        named = self._named.get(shape)
        if named is None:
            # Pydantic's reader comes with the first client, not with the package.
            from batchclient.dialects._bodies import with_model

            if len(self._named) >= _MOST_NAMED:
                self._named.clear()
            named = self._named[shape] = replace(shape, model=model, body=with_model(shape.body, model))
        asked = copy(batch)
        asked.shape = named
        return asked


class Servers(dict[int, Server]):
    """The servers of a runner, by endpoint. An endpoint's id is given once.

    Args:
        choice: makes an endpoint's dialect.
        make_watcher: makes an endpoint's watcher, of its id and the transports of its pages.
        url_of: returns an endpoint's base URL as it may be shown, or an empty text.
        endpoint_log: logs events of endpoints.
    """

    def __init__(
        self,
        choice: DialectChoice,
        make_watcher: Callable[[int, Mapping[Page, Transport]], Watcher],
        url_of: Callable[[int], str],
        endpoint_log: EndpointLog,
    ) -> None:
        super().__init__()
        self._choice = choice
        self._make_watcher = make_watcher
        self._url_of = url_of
        self._log = endpoint_log
        self._made = 0

    def add(self, transport: Transport, pages: Mapping[Page, Transport]) -> int:
        """Serve another endpoint; return its id."""
        number = self._made
        self._made += 1
        self[number] = Server(transport, self._choice.make(), self._make_watcher(number, pages))
        return number

    def learn(self, endpoint: int, facts: ServerFacts) -> Mapping[Kind, int]:
        """Take in which server an endpoint is; return how many prompts it takes per request."""
        server, before = self[endpoint], self[endpoint].facts
        dialect, caps = self._choice.of(facts)
        if (before.known if before is not None else None) != facts.known:
            server.dialect = dialect
        if before != facts:
            server.facts = facts
            self._log("server_known", endpoint, "endpoint %d is %s", endpoint, facts, server=facts.server)
            if facts.singly:
                message = "endpoint %d takes no lists, and gets calls singly: %s"
                self._log("no_lists", endpoint, message, endpoint, facts.singly, reason=facts.singly)
        return caps

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut further secrets out of every server's messages."""
        for server in self.values():
            server.dialect.hide(secrets)

    @property
    def mixes_queries(self) -> bool:
        """Whether, as far as known, every server scores pairs of several queries in a request."""
        return all(server.dialect.mixes_queries for server in self.values())

    @property
    def continues_chats(self) -> bool:
        """Whether every server is known to go on with a conversation's last message."""
        return all(server.dialect.continues_chats for server in self.values())

    @property
    def heard(self) -> list[Dialect]:
        """The dialects of the servers, without those that are still to say which they are."""
        return [server.dialect for server in self.values() if not server.is_unheard]

    def explain(self, batch: Batch, failure: Failure) -> Failure:
        """Add to a failure: to a 401 the key's lack or refusal, to a 404 the server's models, if
        known, or what model such calls need, and to an HTML page the page's place.
        """
        if failure.status == 401:
            return replace(failure, message=failure.message + self._choice.key_hint)
        failure = name_place(failure, self._url_of, batch.endpoint)
        kind = batch.shape.kind
        if failure.message.endswith(f"the server has no {kind} calls"):
            is_right = self._url_of(batch.endpoint).endswith("/v1")
            why = "" if is_right else ", or base_url does not end in /v1"
            if is_right and kind not in (Kind.CHAT, Kind.TOKENS):
                why = f"; {'an' if kind is Kind.EMBEDDING else 'a'} {kind} model has to be served"
            failure = replace(failure, message=failure.message + why)
        server = self.get(batch.endpoint)
        model = batch.shape.model if server is None else server.model or batch.shape.model
        return name_models(failure, model, None if server is None else server.facts, self._choice.secrets)
