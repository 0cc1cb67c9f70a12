"""Refusals by one endpoint of every call alike: a key, a model, a shape. No hammering.

    ADMITTED ──401, 403 or 404──▶ IN DOUBT ──one call finds out: anything else──▶ ADMITTED
                                     ▲────the same again: all calls queued for the model fail────┘

Rules:
- A refused key is a 401 or 403, a missing model a 404. Doubts are kept by model and kind of call:
  gateways give keys for some models only, servers lose single adapters, and a server of embeddings
  has no path for completions.
- While a model is in doubt, one call for the model is sent at a time, in a batch of its own. If the
  endpoint refuses again, every waiting call of the kind for the model fails with the same error.
  Later calls find out anew, again with one call. No reply, a full server (429, 503) and a gateway
  (502, 504) say nothing of the call: then another call finds out.
- If another endpoint is in use and has not refused the model, the model's calls go there. The
  doubtful endpoint is asked again every 30 s.
- A refused shape has no form in the endpoint's dialect, or was answered with 405 or 501. Its calls
  go to another endpoint in use which has not refused the shape, and are not tried here again for
  30 s. Without such an endpoint only the refused call fails: another endpoint may be there for the
  next call.
- An answer to a batch sent before the refusal removes no doubt: a key may be revoked meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Shape

__all__ = ["Denials", "Subject", "is_of_shape", "is_refusal", "subject_of"]

Subject = tuple[str, Kind]
"""The subject of a doubt: calls of a kind for a model."""

_ASK_AGAIN_AFTER_S = 30.0
_MOST_MODELS = 1024
_MOST_SHAPES = 1024
_STATUSES = (401, 403, 404)
_NO_SUCH_CALL = (405, 501)
"""Method not allowed, not implemented (RFC 9110); llama.cpp answers 501 to kinds of calls which it
was not started for."""


def is_refusal(failure: Failure) -> bool:
    """Whether a failure concerns every call for the model alike."""
    return failure.kind is FailureKind.REFUSED and failure.status in _STATUSES


def is_of_shape(failure: Failure) -> bool:
    """Whether a failure concerns every call of the shape on this server, and no other server."""
    return failure.kind is FailureKind.UNSUPPORTED or failure.status in _NO_SUCH_CALL


def subject_of(shape: Shape) -> Subject:
    """The model and kind of call which a refusal puts in doubt."""
    return shape.model, shape.kind


@dataclass(slots=True)
class _Doubt:
    since: float
    ask_again_at: float
    probe: int | None = None
    """The id of the batch sent to find out."""


class Denials:
    """The refusals of one endpoint."""

    __slots__ = ("models", "shapes")

    def __init__(self) -> None:
        self.shapes: dict[bytes, float] = {}
        """Refused shapes (``answer_key``), each with the end of its 30 s; empty as a rule."""
        self.models: dict[Subject, _Doubt] = {}
        """The models in doubt. Empty as a rule: a call then pays for one look at an empty table."""

    def __repr__(self) -> str:
        return f"<Denials {sorted(self.models)}>"

    def doubt(self, batch: Batch, now: float) -> None:
        """Note the refusal of a batch."""
        subject = subject_of(batch.shape)
        doubt = self.models.get(subject)
        if doubt is None:
            if len(self.models) >= _MOST_MODELS:
                self.models.clear()
            self.models[subject] = _Doubt(now, now + _ASK_AGAIN_AFTER_S)
        elif doubt.probe is None:
            doubt.ask_again_at = now + _ASK_AGAIN_AFTER_S

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

    def may_probe(self, subject: Subject, now: float, *, elsewhere: bool) -> bool:
        """Whether a call may be sent to find out; ``elsewhere``: others take such calls."""
        doubt = self.models[subject]
        return doubt.probe is None and not (elsewhere and now < doubt.ask_again_at)

    def begin_probe(self, batch: Batch) -> None:
        """Note a batch of one call, sent to find out."""
        self.models[subject_of(batch.shape)].probe = batch.id

    def end_probe(self, batch: Batch, failure: Failure) -> bool:
        """Return whether a failed batch was to find out, and did not; another call may then be sent."""
        doubt = self.models.get(subject_of(batch.shape))
        if doubt is None or doubt.probe != batch.id:
            return False
        says_nothing = failure.kind is FailureKind.REJECTED or failure.status in (None, 502, 504)
        if not (says_nothing or is_refusal(failure)):
            del self.models[subject_of(batch.shape)]
            return False
        doubt.probe = None
        return True

    def answered(self, batch: Batch) -> None:
        """Remove the doubt of an answered batch's model."""
        doubt = self.models.get(subject_of(batch.shape))
        if doubt is not None and (batch.id == doubt.probe or batch.sent_at > doubt.since):
            del self.models[subject_of(batch.shape)]
