"""OpenAI's requests as calls of ours, and our answers as OpenAI's replies; every drop-in uses both.

Rules:
- ``read_body`` reads a request that can be shared. For any other request the function returns
  ``None``, and the drop-in sends the request untouched: only the server judges the request. The
  same holds for a request that batchclient would refuse or does not know.
- A body with several prompts or inputs becomes several calls, which travel with any other calls.
  The body's reply is put together from the calls' replies.
- Replies are the server's own (``dialects._verbatim``). An error has the server's own reply, where
  the server sent a reply (``error.reply``).
- ``max_attempts`` is the one owner of retries: a drop-in retries nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchclient._calls.call import Call, Manner
from batchclient._calls.fan_out import call_together
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient.dialects._fields import FIELDS, FIELDS_OF_KIND, Role
from batchclient.dialects._verbatim import ESTIMATED
from batchclient.errors import BadRequest, ConfigError
from batchclient.types import NOT_GIVEN, Reply

if TYPE_CHECKING:
    from batchclient import BatchClient

__all__ = ["PATHS", "WireCalls", "make_calls", "read_body"]

PATHS = {
    "/completions": (Kind.COMPLETION, "prompt"),
    "/chat/completions": (Kind.CHAT, "messages"),
    "/embeddings": (Kind.EMBEDDING, "input"),
}
"""Of requests to coalesce, by path below the base URL: the kind of call, and its main field."""


@dataclass(slots=True)
class WireCalls:
    """The calls of a body.

    Args:
        kind: of all calls.
        items: per call a prompt, a conversation or an input.
        model: as the body names the model.
        params: the body's other fields.
    """

    kind: Kind
    items: list[Any] = field(repr=False)
    model: str
    params: dict[str, Any] = field(repr=False)

    def call(self, place: int, timeout_s: float | None, max_attempts: int | None) -> Call:
        """Return the call at a place."""
        return Call(
            self.kind,
            self.items[place],
            self.params,
            self.model,
            NOT_GIVEN if timeout_s is None else timeout_s,
            manner=Manner(verbatim=True, max_attempts=max_attempts),
        )


def read_body(path: str, body: object) -> WireCalls | None:
    """Return the calls of a request's body; ``None`` if the request cannot be shared.

    Args:
        path: below the base URL, such as ``"/completions"``.
        body: the parsed JSON, or an object to be written as JSON.
    """
    kind_and_field = PATHS.get(path)
    if kind_and_field is None or not isinstance(body, Mapping):
        return None
    kind, field = kind_and_field
    model, given = body.get("model"), body.get(field)
    if not isinstance(model, str) or not model or body.get("stream"):
        return None
    items = _items(kind, given)
    if items is None:
        return None
    params = {name: value for name, value in body.items() if name not in (field, "model", "stream")}
    ours = FIELDS_OF_KIND.get(kind, {})
    if any((ours.get(name) or FIELDS.get(name) or _JOINS)[0] is Role.OURS for name in params):
        return None
    return WireCalls(kind, items, model, params)


_JOINS = (Role.JOINS, "")


def _items(kind: Kind, given: Any) -> list[Any] | None:
    """The subjects of the calls: per call a prompt, a conversation or an input."""
    if kind is Kind.CHAT:
        return [given] if isinstance(given, list) and given else None
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        return None
    kinds = {str if issubclass(each, str) else each for each in map(type, given)}
    if kinds == {int}:
        return [given]
    if kinds == {str} or (kinds == {list} and all(each and set(map(type, each)) == {int} for each in given)):
        return list(given)
    return None


async def make_calls(
    client: BatchClient, calls: WireCalls, timeout_s: float | None = None, max_attempts: int | None = None
) -> Reply | None:
    """Make the calls of a body and wait for their answers.

    Args:
        client: makes the calls.
        calls: as ``read_body`` returned them.
        timeout_s: the whole time, seconds; ``None``: the client's.
        max_attempts: the most requests for each call; ``None``: the client's retry policy decides.

    Returns:
        The reply that the body alone would have had. ``None`` if batchclient refuses a call that
        the server may take; nothing was sent then.

    Raises:
        BatchClientError: of the first call that failed; ``reply`` is the server's own. A refused
            call with ``thinking_tokens``, which no server has by this name, is a ``BadRequest``.
    """
    engine = client._engine
    runner = engine.start()
    if len(calls.items) > 1:
        now = runner.backend.now()

        def make(place: int, waiter: Any) -> Request:
            return engine.calls.make(calls.call(place, timeout_s, max_attempts), waiter, now)

        try:
            answers = await call_together(runner, len(calls.items), make)
        except ConfigError as error:
            _refuse_ours(calls, error)
            return None
        for answer in answers:
            answer.reply.attempts = answer.attempts
        return _join([answer.reply for answer in answers], "data" if calls.kind is Kind.EMBEDDING else "choices")
    try:
        answer = await engine.call(calls.call(0, timeout_s, max_attempts))
    except ConfigError as error:
        _refuse_ours(calls, error)
        return None
    reply: Reply = answer.reply
    reply.attempts = answer.attempts
    return reply


def _refuse_ours(calls: WireCalls, error: ConfigError) -> None:
    """Raise for a parameter of ours: any other the server may take."""
    if calls.params.get("thinking_tokens") is not None:
        raise BadRequest(error.message) from error


def _join(replies: Sequence[Reply], holder: str) -> Reply:
    """The reply to several prompts, made of the replies to each prompt."""
    first = replies[0]
    items = [item for reply in replies for item in reply.body[holder]]
    body = {**first.body, holder: [{**item, "index": index} for index, item in enumerate(items)]}
    body["usage"] = usage = _sum([reply.body.get("usage") for reply in replies])
    if usage is not None and not usage.keys().isdisjoint(ESTIMATED):
        met = Counter(reply.source for reply in replies)
        if all(count == size for (_, size), count in met.items()):
            # Nobody else's calls were in the requests: the shares add up to the server's count.
            for mark in ESTIMATED:
                usage.pop(mark, None)
    alone = first.alone if all(reply.alone for reply in replies) else ""
    return Reply(body, first.headers, first.status, attempts=max(reply.attempts for reply in replies), alone=alone)


def _sum(usages: Sequence[Any]) -> dict[str, Any] | None:
    if not all(isinstance(usage, dict) for usage in usages):
        return None
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            if type(value) is int:
                total[name] = (total.get(name) or 0) + value
            else:
                total.setdefault(name, value if value is True else None)
    return total
