"""What an endpoint refuses whoever calls: the key (401, 403), a model it does not have (404), or calls of a shape. No hammering.

    ADMITTED ──401, 403 or 404──▶ IN DOUBT ──one call finds out: anything else──▶ ADMITTED
                                     ▲──────────the same again: all that is queued for the model fails──┘

Rules:
- Doubts are kept by model and kind of call: gateways give keys for some models only, servers lose single adapters, and one that serves
  embeddings does not find the path of completions.
- While a model is in doubt, one of its calls at a time is sent, by itself. If that one is refused as well, every call of the kind that
  waits for the model fails with the same error. Calls made later find out anew, with one call again.
- Where another endpoint is in use that has not refused the model, its calls go there, and the doubtful one is asked again every 30 s.
- A shape that its dialect has no form for, or that it answers with 405 or 501, goes to another endpoint in use that has not refused it; for
  30 s it is not tried here again. Where there is none, only the call itself fails: the next one may be another's to take.
- An answer to what was sent before the refusal removes no doubt: a key may have been taken away meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Shape

__all__ = ["Denials", "Subject", "is_of_shape", "is_refusal", "subject_of"]

Subject = tuple[str, Kind]
"""What is in doubt: calls of a kind for a model."""

_ASK_AGAIN_AFTER_S = 30.0
_MOST_MODELS = 1024
_MOST_SHAPES = 1024
_STATUSES = (401, 403, 404)
_NO_SUCH_CALL = (405, 501)
"""No such method on the route, not implemented (RFC 9110); llama.cpp says 501 to what it was not started for."""


def is_refusal(failure: Failure) -> bool:
    """Whether a failure concerns every call for its model alike."""
    return failure.kind is FailureKind.REFUSED and failure.status in _STATUSES


def is_of_shape(failure: Failure) -> bool:
    """Whether a failure concerns every call of its shape here, and no other server."""
    return failure.kind is FailureKind.UNSUPPORTED or failure.status in _NO_SUCH_CALL


def subject_of(shape: Shape) -> Subject:
    """What a call's refusal would put in doubt."""
    return shape.model, shape.kind


@dataclass(slots=True)
class _Doubt:
    since: float
    ask_again_at: float
    probe: int | None = None
    """The batch that finds out."""


class Denials:
    """One endpoint's."""

    __slots__ = ("models", "shapes")

    def __init__(self) -> None:
        self.shapes: dict[bytes, float] = {}
        """Shapes that it has no form for, and until when that is believed; empty as a rule, too."""
        self.models: dict[Subject, _Doubt] = {}
        """The models in doubt; empty as a rule, which is all that a call looks at."""

    def __repr__(self) -> str:
        return f"<Denials {sorted(self.models)}>"

    def doubt(self, batch: Batch, now: float) -> None:
        """A batch was refused."""
        subject = subject_of(batch.shape)
        doubt = self.models.get(subject)
        if doubt is None:
            if len(self.models) >= _MOST_MODELS:
                self.models.clear()
            self.models[subject] = _Doubt(now, now + _ASK_AGAIN_AFTER_S)
        elif doubt.probe is None:
            doubt.ask_again_at = now + _ASK_AGAIN_AFTER_S

    def lack(self, shape: Shape, now: float) -> None:
        """It takes no calls of this shape."""
        shapes = self.shapes
        shapes.pop(shape.answer_key, None)
        if len(shapes) >= _MOST_SHAPES:
            # The oldest: were all forgotten, two endpoints could send a call back and forth.
            del shapes[next(iter(shapes))]
        shapes[shape.answer_key] = now + _ASK_AGAIN_AFTER_S

    def lacks(self, shape: Shape, now: float) -> bool:
        """Whether it is believed to take no calls of this shape."""
        return now < self.shapes.get(shape.answer_key, now)

    def may_probe(self, subject: Subject, now: float, *, elsewhere: bool) -> bool:
        """Whether a call for a model in doubt may be sent to find out.

        Args:
            subject: of which model and kind.
            now: the time.
            elsewhere: whether another endpoint takes such calls.
        """
        doubt = self.models[subject]
        return doubt.probe is None and not (elsewhere and now < doubt.ask_again_at)

    def begin_probe(self, batch: Batch) -> None:
        """One call is sent to find out."""
        self.models[subject_of(batch.shape)].probe = batch.id

    def end_probe(self, batch: Batch) -> bool:
        """A batch has failed; return whether it was to find out. If it was and said nothing, another may be sent."""
        doubt = self.models.get(subject_of(batch.shape))
        if doubt is None or doubt.probe != batch.id:
            return False
        doubt.probe = None
        return True

    def answered(self, batch: Batch) -> None:
        """A batch has an answer."""
        doubt = self.models.get(subject_of(batch.shape))
        if doubt is not None and (batch.id == doubt.probe or batch.sent_at > doubt.since):
            del self.models[subject_of(batch.shape)]
