"""How many requests of a group to send now: rules 2 to 4, 6, 7 and 9 of the scheduler."""

from __future__ import annotations

from typing import NamedTuple

from batchclient._core.conditions import HEAVY, PROOF, REFILL, Turn, Wait
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.learnt.proof import like_singles
from batchclient._core.messages import Request, Shape
from batchclient._core.servers.abilities import KindAbilities
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.late_lists import MISSED
from batchclient._core.settings import SchedulerSettings
from batchclient._core.waiting.queue import Group

__all__ = ["BatchingRule", "Terms"]

_ANY = 1 << 30
_ENDS_AT_ONCE_TOKENS = 4
"""Answers of at most so many tokens end together in any case, as labels do: their lists are not
streamed."""
_SOON_TOKENS = 1024
"""Lone answers of at most so many tokens may be plain: at 20 tokens a second they end before a
gateway cuts a silent connection (nginx after 60 s, by default)."""
_TOGETHER = 4
"""So many times as long may the answers be in a list which cannot stream, if they end together."""
_EVENTS_OF_A_REQUEST = 64
"""A request costs a server as much as so many events at most (vLLM: 20 to 60). Where each token is
an event, a longer answer is cheaper in a request of its own."""
_GUESTS_LOTS = 0.25
"""A guest's permits are held for lots of this share: no queue of its own in the server fills the
places until a lot is together."""
_SPARE_LIMIT = 512
"""From this limit on permits may idle: a plain list keeps all until its slowest member ends."""
_IDLE_SHARE = 4
"""Such a list has at most this share of the limit, divided by the tokens of an answer. Chosen by
draws."""
_PROOF, _BESIDE_PROOF = 8, 16
"""Prompts of the list by which a stranger proves its lists, and like singles under way beside it.
More would be refused sooner by servers that bear few requests."""


class Terms(NamedTuple):
    """How calls of a shape may go to an endpoint now.

    Args:
        abilities: what the server can do with such calls.
        cap: the longest list that the endpoint takes.
        plain_size: how long a list may go plain where a stream sends an event per token; 0: it is
            streamed.
        is_stranger: whether lists are to be proved first.
        alone: why the calls go singly; ``None``: they may share a list.
    """

    abilities: KindAbilities
    cap: int
    plain_size: int
    is_stranger: bool
    alone: str | None


class BatchingRule:
    """The rule, with its numbers and the learnt output lengths. Deciding changes nothing."""

    def __init__(self, settings: SchedulerSettings, lengths: Lengths) -> None:
        self._settings = settings
        self._lengths = lengths

    def terms(self, shape: Shape, endpoint: Endpoint, now: float) -> Terms:
        """Return how calls of a shape may go: asked once for each batch."""
        abilities = endpoint.abilities.of(shape.kind)
        most = endpoint.abilities.max_size if shape.numbers is None else shape.numbers.max_size
        cap = abilities.list_cap(most, now)
        plain_size = self._plain_size(shape, endpoint, abilities)
        alone = shape.alone_reason
        if alone is None:
            alone = self._only_single(shape, endpoint, now) if cap == 1 else self._better_alone(shape, plain_size)
        return Terms(abilities, cap, plain_size, endpoint.abilities.is_stranger(shape.kind, now), alone)

    def size(self, turn: Turn, group: Group, oldest: Request) -> tuple[int, Terms] | Wait:
        """Decide how many requests of a group to send now: at least one, and how; or why they wait.

        A group above the lowest class in use neither lingers nor is held.
        """
        settings, endpoint, now = group.shape.numbers or self._settings, turn.endpoint, turn.now
        room = endpoint.free
        if turn.reserve is not None or group.has_families:
            left = turn.room(group)
            if isinstance(left, Wait):
                return left
            room = left
        terms = self.terms(group.shape, endpoint, now)
        if endpoint.abilities.late_lists.shapes and self._would_be_late(terms, oldest, endpoint, now):
            terms = terms._replace(alone=MISSED)
        weight = group.shape.weight
        free = room // weight
        longest = self._longest_list(terms, group, endpoint, now)
        if longest > 1 and terms.is_stranger and not group.sealed:
            longest = self._at_stranger(group, endpoint, longest, free, now)
            if longest > max(1, free):
                return Wait(PROOF, blocks=True)
            if not longest and endpoint.abilities.proof is not None:
                # Whatever else it waits for comes back when singles end.
                return Wait(PROOF, endpoint.abilities.proof.alone_until)
        want = min(group.size, longest)
        if endpoint.in_flight == 0:
            return max(1, min(want, free)), terms
        if free < (want if group.whole else 1):
            return Wait(HEAVY, blocks=now >= oldest.queued_at + settings.starvation_s)
        size = min(want, free)
        if turn.reserve is not None and turn.is_urgent(group):
            return size, terms
        if not group.sealed and want < free and group.size < longest:
            until = oldest.queued_at + settings.linger_s
            if now < until:
                return Wait("for company", until)
        ratio = settings.refill_ratio * (_GUESTS_LOTS if endpoint.limit.is_guest else 1.0)
        quantum = max(1, int(endpoint.limit.limit * ratio)) // weight
        if free < min(want, quantum):
            until = (now if endpoint.held_since is None else endpoint.held_since) + settings.refill_s
            if now < until:
                return Wait(REFILL, until, blocks=True)
        return size, terms

    def _would_be_late(self, terms: Terms, oldest: Request, endpoint: Endpoint, now: float) -> bool:
        """Whether calls with deadlines share no request that is answered as a whole."""
        if oldest.deadline is None and oldest.timeout_s is None:
            return False
        plain = not self.wants_stream(terms, oldest.shape, 2, endpoint, now)
        return terms.alone is None and plain and endpoint.abilities.late_lists.sends_singly(oldest.shape, now)

    def _longest_list(self, terms: Terms, group: Group, endpoint: Endpoint, now: float) -> int:
        if terms.alone is not None:
            return 1
        if group.sealed:
            # The rest of a list which was sent already.
            return terms.cap
        most = min(terms.cap, terms.plain_size or terms.cap)
        if group.shape.numbers is not None:
            return most
        if self._settings.size_for is not None:
            chosen = self._settings.size_for(group.size)
            if chosen is not None:
                return max(1, min(chosen, endpoint.abilities.list_cap(now, group.shape.kind, _ANY)))
        return most

    def _at_stranger(self, group: Group, endpoint: Endpoint, longest: int, free: int, now: float) -> int:
        """How many calls share a request where lists are not proved; 0: none may go now."""
        size = min(_PROOF, longest, endpoint.limit.limit // (2 * group.shape.weight))
        if endpoint.abilities.proof is None and not 1 < size <= group.size:
            return 1
        singles = like_singles(endpoint.open, group.shape)
        if endpoint.abilities.proof is not None:
            return int(singles < _BESIDE_PROOF or now >= endpoint.abilities.proof.alone_until)
        # The singles beside it are under way, or go with it.
        lacking = max(0, size - singles)
        goes = size <= group.size - lacking and (not lacking or size + lacking <= free)
        return size if goes else 1

    @staticmethod
    def _only_single(shape: Shape, endpoint: Endpoint, now: float) -> str:
        """Why an endpoint takes no lists of such calls."""
        abilities = endpoint.abilities.of(shape.kind)
        if not abilities.lists.allows(now):
            return "lists refused"
        if abilities.serves_lists(now) is False:
            return "lists are served one prompt after another"
        return "no lists of this kind" if abilities.known_cap == 1 else "max_size is 1"

    def _better_alone(self, shape: Shape, plain_size: int) -> str | None:
        """Why such calls had better go singly, or ``None``."""
        longest, expected = self._settings.list_tokens, self._lengths.expected(shape)
        if not shape.lists_plain:
            if expected > longest:
                return "long output expected"
        elif expected > self._settings.chat_list_tokens and not self._end_together(shape, expected):
            return "long output expected" + (", and the list cannot stream" if expected <= longest else "")
        return "a stream would send an event per token" if plain_size == 1 else None

    def _end_together(self, shape: Shape, expected: int) -> bool:
        """Whether a plain list costs its members no time: all answers end together."""
        short = expected <= _TOGETHER * self._settings.chat_list_tokens
        return short and self._lengths.fills(shape)

    def _plain_size(self, shape: Shape, endpoint: Endpoint, abilities: KindAbilities) -> int:
        """How long a list may go plain where a stream sends an event per token; 0: it is streamed."""
        settled = shape.lists_plain or shape.plain_only or shape.echo or not self._settings.streams_lists
        if settled or not abilities.event_per_token or not self._ends_soon(shape, abilities):
            return 0
        if self._lengths.fills(shape):
            return _ANY
        # An answer of which none was seen yet is taken for half of what it may be.
        expected = min(self._lengths.expected(shape), (shape.max_output_tokens or 0) // 2)
        limit = endpoint.limit.limit // shape.weight
        if expected <= _EVENTS_OF_A_REQUEST and limit < _SPARE_LIMIT:
            return 0
        return max(1, limit // (_IDLE_SHARE * max(1, expected)))

    def _ends_soon(self, shape: Shape, abilities: KindAbilities) -> bool:
        """Whether a plain reply does no harm: it ends before a gateway cuts the silence, and no
        objective needs the time of a first token.
        """
        most = shape.max_output_tokens
        cut = abilities.plain_cut or self._settings.watches_first_tokens
        return most is not None and most <= _SOON_TOKENS and not cut

    def wants_stream(self, terms: Terms, shape: Shape, size: int, endpoint: Endpoint, now: float) -> bool:
        """Whether to stream a batch, as far as failures of such calls allow.

        Plain go members that finish together, and requests that cannot be streamed. Where a stream
        sends an event per token, it costs client and server many times the CPU of a plain answer:
        lists of ``plain_size`` go plain there, and so do lone calls, unless a plain one was given
        up for its silence. The first lone call on an idle server is streamed, which tells which
        server that is.
        """
        if size == 1 and shape.verbatim:
            return False
        if size > 1 and (shape.lists_plain or not self._settings.streams_lists):
            return False
        most, costly = shape.max_output_tokens, terms.abilities.event_per_token
        together = bool(shape.labels) or (most is not None and most <= _ENDS_AT_ONCE_TOKENS)
        if size > 1:
            together = together or size <= terms.plain_size
        elif costly or (costly is None and endpoint.in_flight > 0):
            together = together or self._ends_soon(shape, terms.abilities)
        if shape.to_caller or (shape.echo and most):
            # The caller wants every piece; or a plain list cannot both echo and count tokens.
            together = False
        return not (together or shape.plain_only) and terms.abilities.streaming.allows(now)
