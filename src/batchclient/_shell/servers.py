"""A runner's knowledge of its servers: each endpoint's dialect, and the facts found out.

Rules:
- An endpoint has the assumed dialect, then, from the next batch after its server is known, the
  server's own. Batches under way go on as encoded.
- A dialect stays while its server is of the same sort, with all that it has learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from batchclient._core.kinds import Kind
from batchclient._core.limits import ServerLoad
from batchclient._core.messages import Batch, Failure
from batchclient._shell.dialect_choice import DialectChoice
from batchclient._shell.log import log

if TYPE_CHECKING:
    from batchclient.dialects._fingerprints import ServerFacts

__all__ = ["ServerInfo", "Servers", "info_of"]


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

    ``None`` stands for what is not known: the server does not tell it, cannot be reached, or is not
    to be asked (``detect=False``, ``server_metrics=False``, a ``dialect``, a ``transport`` or an
    ``http_client`` given).
    """

    url: str
    name: str | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    slots: int | None = None
    load: ServerLoad | None = None


def info_of(url: str, facts: ServerFacts | None, load: ServerLoad | None, model: str | None) -> ServerInfo:
    """Return what is known of a server.

    Args:
        url: as it may be shown.
        facts, load: of its pages, if it may be asked.
        model: the client's.
    """
    if facts is None:
        return ServerInfo(url, load=load)
    names = tuple(served.id for served in facts.models)
    bases = facts.base_models()
    length = facts.length_of(model if model is not None else bases[0] if len(bases) == 1 else "")
    return ServerInfo(url, facts.known, facts.version, names, length, facts.slots, load)


class Servers:
    """The servers of a runner.

    Args:
        choice: makes an endpoint's dialect.
        count: the number of endpoints at first; their ids begin at 0.
        url_of: returns an endpoint's base URL as it may be shown, or an empty text.
    """

    def __init__(
        self,
        choice: DialectChoice,
        count: int,
        url_of: Callable[[int], str],
    ) -> None:
        self._choice = choice
        self._url_of = url_of
        self.dialects = {number: choice.make() for number in range(count)}
        """By endpoint."""
        self._facts: dict[int, ServerFacts] = {}

    def add(self, endpoint: int) -> None:
        """Serve another endpoint."""
        self.dialects[endpoint] = self._choice.make()

    def remove(self, endpoint: int) -> None:
        """Serve an endpoint no more."""
        self.dialects.pop(endpoint, None)
        self._facts.pop(endpoint, None)

    def learn(self, endpoint: int, facts: ServerFacts) -> Mapping[Kind, int]:
        """Take in which server an endpoint is; return the caps of lists there."""
        dialect, caps = self._choice.of(facts)
        before = self._facts.get(endpoint)
        if (before.known if before is not None else None) != facts.known:
            self.dialects[endpoint] = dialect
        if before != facts:
            self._facts[endpoint] = facts
            log(
                "server_known",
                "endpoint %d is %s",
                endpoint,
                facts,
                endpoint=self._url_of(endpoint),
                server=facts.server,
            )
            if facts.singly:
                message, url = "endpoint %d takes no lists, and gets calls singly: %s", self._url_of(endpoint)
                log("no_lists", message, endpoint, facts.singly, endpoint=url, reason=facts.singly)
        return caps

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut further secrets out of every server's messages."""
        for dialect in self.dialects.values():
            dialect.hide(secrets)

    @property
    def mixes_queries(self) -> bool:
        """Whether, as far as known, every server scores pairs of several queries in a request."""
        return all(getattr(dialect, "mixes_queries", False) for dialect in self.dialects.values())

    @property
    def continues_chats(self) -> bool:
        """Whether every server is known to go on with a conversation's last message."""
        return all(getattr(dialect, "continues_chats", False) for dialect in self.dialects.values())

    def explain(self, batch: Batch, failure: Failure) -> Failure:
        """Add to a failure: to a 401 the key's lack or refusal, to a 404 the server's models, if
        known, and to an HTML page the page's place.
        """
        if failure.status == 401:
            return replace(failure, message=failure.message + self._choice.key_hint)
        from batchclient._shell.model_question import name_models, name_place

        failure = name_place(failure, self._url_of, batch.endpoint)
        return name_models(failure, batch.shape.model, self._facts.get(batch.endpoint), self._choice.secrets)
