"""Refusals by one endpoint of every call for a model: a key, a missing model. No hammering.

    CLOSED ──401, 403 or 404──▶ OPEN ──one call finds out: anything else──▶ CLOSED
                                  ▲────the same again: all calls queued for the model fail────┘

Rules:
- A refused key is a 401 or 403, a missing model a 404, or a 400 that says so. Refusals are kept by
  model and kind of call: gateways give keys for some models only, servers lose single adapters, and
  a server of embeddings has no path for completions.
- While a model is in doubt, one call for the model is sent at a time, in a batch of its own. If the
  endpoint refuses again, every waiting call of the kind for the model fails with the same error.
  Later calls find out anew, again with one call. No reply, a full server (429, 503) and a gateway
  (502, 504) say nothing of the call: then another call finds out.
- If another endpoint is in use and has not refused the model, the model's calls go there. The
  doubtful endpoint is asked again every 30 s.
- An answer to a call sent no earlier than the first refused one ends the doubt: the refusals were
  those calls' own. While such a call is under way, nothing is concluded. An answer to an older call
  says nothing: a key may be revoked meanwhile.
- A model that was answered before is in doubt from the third refusal in a row on. That doubt ends,
  too, once such a call is under way for far longer than refusals take: it was taken on.
- A 403 may be a firewall's word on one prompt: only six in a row are believed.
- Calls of maps wait for a model that was answered before (``outcomes``). They find out at growing
  pauses, since accounts are locked by repeated wrong keys, those first which were not refused yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from batchclient._core.failures import Failure
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch
from batchclient._core.servers.breaker import Breaker
from batchclient._core.servers.pace import HELD_RATIO, Pace

__all__ = ["ModelBreaker", "Models", "Subject", "pause_s"]

Subject = tuple[str, Kind]
"""What is refused: calls of a kind for a model."""

_ASK_AGAIN_AFTER_S = 30.0
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_SHORTEST_HOLD_S = 0.1
_DOUBTED_AFTER = 3
_MOST_MODELS = 1024


def pause_s(since_s: float) -> float:
    """The pause before another try, so long after the first refusal."""
    return min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, since_s / 2))


class ModelBreaker(Breaker):
    """The refusals of calls for a model, with no answer to what was sent since the first.

    Args:
        since: when the first was refused.
        sent_at: when that call was sent.
    """

    __slots__ = ("evidence", "held_at", "held_s", "is_told", "refusals", "sent_at", "since")

    def __init__(self, since: float, sent_at: float) -> None:
        super().__init__()
        self.is_closed = False
        self.since = since
        self.sent_at = sent_at
        self.refusals = 0
        self.evidence = 0
        """How much they say of other calls."""
        self.held_s = 0.0
        """How long a call is under way that was taken on."""
        self.is_told = False
        """Whether it was said that calls wait for the model, while others are answered."""
        self.held_at = math.inf
        """When one sent since will have been so long; ``inf``: none is under way."""


class Models:
    """What one endpoint refuses for key or model."""

    def __init__(self) -> None:
        self.refused: dict[Subject, ModelBreaker] = {}
        """Empty as a rule: a call then pays for one look at an empty table."""

    def __repr__(self) -> str:
        return f"<Models refused: {sorted(self.refused)}>"

    def refuse(self, batch: Batch, under_way: Iterable[Batch], now: float, *, elsewhere: bool = False) -> ModelBreaker:
        """Note a batch's refusal beside those ``under_way``; ``elsewhere``: others take such calls."""
        subject = batch.shape.subject
        model = self.refused.get(subject)
        if model is None:
            if len(self.refused) >= _MOST_MODELS:
                self.refused.clear()
            self.refused[subject] = model = ModelBreaker(now, batch.sent_at)
        if model.trial is None:
            model.until = now + (_ASK_AGAIN_AFTER_S if elsewhere else pause_s(now - model.since))
        model.refusals += _DOUBTED_AFTER if elsewhere else 1
        model.held_s = max(_SHORTEST_HOLD_S, HELD_RATIO * (now - batch.sent_at))
        since = [one.sent_at for one in under_way if one.shape.subject == subject]
        model.held_at = min((at for at in since if at >= model.sent_at), default=math.inf) + model.held_s
        return model

    def ready_at(self, subject: Subject, pace: Pace, now: float, *, elsewhere: bool, patient: bool) -> float | None:
        """When to look whether a call may find out about a model. By now: it may; ``None``: no doubt.

        Args:
            pace: of the model's calls.
            elsewhere: whether others take such calls: nobody waits then.
            patient: whether the call waits for a model that was answered.
        """
        model, served = self.refused.get(subject), pace.is_known
        if model is not None and served and now >= model.held_at:
            pace.answered_from = max(pace.answered_from, model.sent_at)
            del self.refused[subject]
            return None
        if model is None or not self.is_doubted(subject, pace):
            return None
        if elsewhere:
            return now if model.allows(now) else math.inf
        at = math.inf if model.trial is not None else model.until if patient and served else now
        return min(at, model.held_at) if served else at

    def is_doubted(self, subject: Subject, pace: Pace) -> bool:
        """Whether a call is to find out about a model; ``pace``: of the model's calls."""
        model = self.refused.get(subject)
        return model is not None and not (pace.is_known and model.refusals < _DOUBTED_AFTER)

    def begin(self, batch: Batch) -> None:
        """Note a batch of one call, sent to find out."""
        model = self.refused[batch.shape.subject]
        model.begin(batch.id)
        model.held_at = min(model.held_at, batch.sent_at + model.held_s)

    def end(self, batch: Batch, failure: Failure) -> bool:
        """End a try by its failure; return whether a model that was answered is refused once more."""
        subject = batch.shape.subject
        model = self.refused.get(subject)
        if model is None or not model.end(batch.id):
            return False
        if not (failure.says_nothing or failure.refuses_model):
            del self.refused[subject]
            return False
        return not failure.says_nothing and batch.pace.is_known

    def answered(self, batch: Batch) -> None:
        """Remove the doubt of an answered batch's model, unless the batch was sent before."""
        model = self.refused.get(batch.shape.subject)
        if model is not None and batch.sent_at >= model.sent_at:
            del self.refused[batch.shape.subject]
