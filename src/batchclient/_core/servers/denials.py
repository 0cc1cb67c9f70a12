"""Refusals by one endpoint of every call alike: a key, a model, a shape. No hammering.

    ADMITTED ──401, 403 or 404──▶ IN DOUBT ──one call finds out: anything else──▶ ADMITTED
                                     ▲────the same again: all calls queued for the model fail────┘

Rules:
- A refused key is a 401 or 403, a missing model a 404, or a 400 that says so. Doubts are kept by
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
- A refused shape has no form in the endpoint's dialect, or was answered with 405 or 501. Its calls
  go to another endpoint in use which has not refused the shape, and are not tried here again for
  30 s. Without such an endpoint only the refused call fails: another endpoint may be there for the
  next call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from batchclient._core.failures import Failure
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Shape
from batchclient._core.servers.pace import HELD_RATIO, Pace

__all__ = ["Denials", "Doubt", "Subject", "pause_s"]

Subject = tuple[str, Kind]
"""The subject of a doubt: calls of a kind for a model."""

_ASK_AGAIN_AFTER_S = 30.0
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_SHORTEST_HOLD_S = 0.1
_DOUBTED_AFTER = 3
_MOST_MODELS = 1024
_MOST_SHAPES = 1024


def pause_s(since_s: float) -> float:
    """The pause before another try, so long after the first refusal."""
    return min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, since_s / 2))


@dataclass(slots=True)
class Doubt:
    """The refusals of calls for a model, with no answer to what was sent since the first."""

    since: float
    sent_at: float
    """When the first refused call was sent."""
    refusals: int = 0
    evidence: int = 0
    """How much they say of other calls."""
    probe: int | None = None
    """The id of the batch sent to find out."""
    ask_again_at: float = 0.0
    """When to send another, if calls wait or go elsewhere."""
    held_s: float = 0.0
    """How long a call is under way that was taken on."""
    held_at: float = math.inf
    """When one sent since will have been so long; ``inf``: none is under way."""


class Denials:
    """The refusals of one endpoint."""

    __slots__ = ("models", "shapes")

    def __init__(self) -> None:
        self.shapes: dict[bytes, float] = {}
        """Refused shapes (``answer_key``), each with the end of its 30 s; empty as a rule."""
        self.models: dict[Subject, Doubt] = {}
        """The refused models. Empty as a rule: a call then pays for one look at an empty table."""

    def __repr__(self) -> str:
        return f"<Denials {sorted(self.models)}>"

    def doubt(self, batch: Batch, under_way: Iterable[Batch], now: float, *, elsewhere: bool = False) -> Doubt:
        """Note a batch's refusal beside those ``under_way``; ``elsewhere``: others take such calls."""
        subject = batch.shape.subject
        doubt = self.models.get(subject)
        if doubt is None:
            if len(self.models) >= _MOST_MODELS:
                self.models.clear()
            self.models[subject] = doubt = Doubt(now, batch.sent_at)
        if doubt.probe is None:
            doubt.ask_again_at = now + (_ASK_AGAIN_AFTER_S if elsewhere else pause_s(now - doubt.since))
        doubt.refusals += _DOUBTED_AFTER if elsewhere else 1
        doubt.held_s = max(_SHORTEST_HOLD_S, HELD_RATIO * (now - batch.sent_at))
        since = [one.sent_at for one in under_way if one.shape.subject == subject]
        doubt.held_at = min((at for at in since if at >= doubt.sent_at), default=math.inf) + doubt.held_s
        return doubt

    def lack(self, shape: Shape, now: float) -> None:
        """Note the refusal of a shape."""
        shapes = self.shapes
        shapes.pop(shape.answer_key, None)
        if len(shapes) >= _MOST_SHAPES:
            # The oldest goes: if all went, two endpoints could send a call back and forth.
            del shapes[next(iter(shapes))]
        shapes[shape.answer_key] = now + _ASK_AGAIN_AFTER_S

    def lacks(self, shape: Shape, now: float) -> bool:
        """Whether the endpoint refused this shape in the last 30 s."""
        return now < self.shapes.get(shape.answer_key, now)

    def probes_at(self, subject: Subject, pace: Pace, now: float, *, elsewhere: bool, patient: bool) -> float | None:
        """When to look whether a call may find out about a model. By now: it may; ``None``: no doubt.

        Args:
            pace: of the model's calls.
            elsewhere: whether others take such calls: nobody waits then.
            patient: whether the call waits for a model that was answered.
        """
        doubt, served = self.models.get(subject), pace.is_known
        if doubt is not None and served and now >= doubt.held_at:
            pace.answered_from = max(pace.answered_from, doubt.sent_at)
            del self.models[subject]
            return None
        if doubt is None or not self.is_doubted(subject, pace):
            return None
        if elsewhere:
            return now if doubt.probe is None and now >= doubt.ask_again_at else math.inf
        at = math.inf if doubt.probe is not None else doubt.ask_again_at if patient and served else now
        return min(at, doubt.held_at) if served else at

    def is_doubted(self, subject: Subject, pace: Pace) -> bool:
        """Whether a call is to find out about a model; ``pace``: of the model's calls."""
        doubt = self.models.get(subject)
        return doubt is not None and not (pace.is_known and doubt.refusals < _DOUBTED_AFTER)

    def begin_probe(self, batch: Batch) -> None:
        """Note a batch of one call, sent to find out."""
        doubt = self.models[batch.shape.subject]
        doubt.probe = batch.id
        doubt.held_at = min(doubt.held_at, batch.sent_at + doubt.held_s)

    def end_probe(self, batch: Batch, failure: Failure) -> bool:
        """End a probe by its failure; return whether a model that was answered is refused once more."""
        subject = batch.shape.subject
        doubt = self.models.get(subject)
        if doubt is None or doubt.probe != batch.id:
            return False
        doubt.probe = None
        if not (failure.says_nothing or failure.refuses_model):
            del self.models[subject]
            return False
        return not failure.says_nothing and batch.pace.is_known

    def answered(self, batch: Batch) -> None:
        """Remove the doubt of an answered batch's model, unless the batch was sent before."""
        doubt = self.models.get(batch.shape.subject)
        if doubt is not None and batch.sent_at >= doubt.sent_at:
            del self.models[batch.shape.subject]
