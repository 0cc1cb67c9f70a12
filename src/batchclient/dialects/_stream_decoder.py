"""A reply that is a stream of events, those of all prompts mixed: each prompt is answered when its last choice has finished.

Rules:
- Two events per choice or one per token: both are read. An event that comes twice is known by its count of tokens, which has not grown, or, if it was the
  last, by what it repeats being over.
- An error in mid-stream is an event of its own, followed by ``[DONE]``. What had finished before it is answered.
- Without ``continuous_usage_stats`` a list's usage is one sum, which belongs to nobody. A lone call's comes after its last choice, and is waited for.
- A usage beside a choice is believed where it is known to be that choice's. Else it has to be seen: a running sum never has fewer tokens
  than choices that began.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from batchclient._core.messages import Batch, Failure
from batchclient.dialects._decoder import (
    ABORTED,
    ReplyDecoder,
    about_reply,
    malformed,
    mismatch,
    usage_in,
    usage_together,
)
from batchclient.dialects._reader import Reader, UsageWatch
from batchclient.dialects._sse import EventStream
from batchclient.dialects._verbatim import join_pieces, own_body
from batchclient.errors import DemuxError
from batchclient.types import Choice, Completion, Delta, Reply, Usage

__all__ = ["StreamDecoder"]

_EVENTS_PER_TOKEN = 4
_FEWEST_EVENTS = 4096
"""A server sends an event per token at most. One that sends many times as many for a choice would only fill our memory."""


class StreamDecoder(ReplyDecoder):
    """A reply that is a stream of events, those of all prompts mixed."""

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self._events = EventStream()
        self._watch = UsageWatch(batch, self._reader)
        self._held: Completion | None = None
        """A lone call's answer that waits for its usage."""
        self._pieces: dict[int, list[dict[str, Any]]] = {}
        self._finished: dict[int, Choice] = {}
        self._usage: dict[int, Usage] = {}
        self._verbatim: dict[int, dict[str, Any]] = {}
        self._about: dict[str, Any] = {}
        """What the events say beside their choices, which is the same for all calls."""
        self._first_at: dict[int, float] = {}
        self._tokens: dict[int, int] = {}
        """Of each choice, as the last event said."""
        self._aborted: dict[int, Failure] = {}
        self._failure: Failure | None = None
        self.deltas: list[Delta] = []
        """What came since they were taken away, where a caller waits for each."""
        tokens = batch.shape.max_output_tokens
        self._most_events = max(_FEWEST_EVENTS, _EVENTS_PER_TOKEN * tokens) if tokens is not None else 1 << 20

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Return the answers that some bytes completed."""
        return self._take(self._events.feed(chunk), now)

    def _take(self, payloads: list[bytes], now: float) -> list[tuple[int, Completion]]:
        answers: list[tuple[int, Completion]] = []
        index: object = None
        for payload in payloads:
            if self._failure is not None:
                break
            if payload == b"[DONE]":
                self._release(answers)
                continue
            try:
                event = from_json(payload)
                if event is None:
                    # llama.cpp opens its streams with ``data: null``.
                    continue
                if event.get("error") is not None:
                    self._failure = self._error_reply(event["error"])
                    break
                event = self._reader.event(event)
                pieces = event["choices"]
                for piece in pieces:
                    index = piece["index"]
                    self._on_piece(piece, event, now, answers)
                if not pieces and self._held is not None:
                    self._release(answers, usage_in(event.get("usage")))
            except DemuxError as error:
                self._failure = mismatch(error)
                self._take_back(index, answers)
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                self._failure = malformed("an event is not what such a server sends", error)
        self.failed = self._failure is not None
        return answers

    def _on_piece(
        self, piece: dict[str, Any], event: dict[str, Any], now: float, answers: list[tuple[int, Completion]]
    ) -> None:
        index = self._demux.check(piece["index"])
        self.events += 1
        pieces = self._pieces.get(index)
        if pieces is None:
            self._pieces[index] = pieces = []
            self._first_at.setdefault(index // self._n, now)
            self.begun = len(self._first_at) == len(self._batch.requests)
            if not self._extra:
                self._extra = about_reply(event)
        pieces.append(piece)
        if self._batch.shape.to_caller and piece.get("finish_reason") not in ABORTED:
            self.deltas.append(self._delta(piece, index % self._n))
        if len(pieces) > self._most_events:
            raise ValueError("more events than tokens")
        usage = self._watch.usage(index, usage_in(event.get("usage")))
        # TGI says "" until it has finished.
        if not piece.get("finish_reason"):
            if usage is not None:
                self._check_growth(index, pieces, usage)
            return
        if usage is not None:
            self._usage[index] = usage
        if piece["finish_reason"] in ABORTED:
            self._aborted[index // self._n] = self._aborted_by(piece)
        whole = self._pieces.pop(index)
        self._finished[index] = choice = self._choice(whole, index % self._n)
        if self._batch.shape.verbatim:
            self._verbatim[index] = join_pieces(whole, choice.logprobs)
            self._about.update({name: v for name, v in event.items() if v is not None or name not in self._about})
        position = self._demux.finish(index)
        if position is not None and position not in self._aborted:
            made = self._completion(position)
            if made.usage is None and self._watch.comes_last:
                self._held = made
            else:
                answers.append((position, made))

    def _check_growth(self, index: int, pieces: list[dict[str, Any]], usage: Usage) -> None:
        """Refuse an event that brings the text of the one before it, and no token: it is the same. A last one may bring text that was held back."""
        text = self._text_in(pieces[-1])
        if text and 0 < usage.completion_tokens <= self._tokens.get(index, 0) and text == self._text_in(pieces[-2]):
            raise DemuxError(f"the server sent a piece of choice {index} twice")
        self._tokens[index] = usage.completion_tokens

    @staticmethod
    def _text_in(piece: dict[str, Any]) -> Any:
        """The text that an event brings."""
        return piece.get("text")

    def _take_back(self, index: object, answers: list[tuple[int, Completion]]) -> None:
        """More of a choice has come after its end: what came of it in the same read is not handed out yet, and may be spoilt, too."""
        if type(index) is int:
            self._held = None
            answers[:] = [answer for answer in answers if answer[0] != index // self._n]

    def _release(self, answers: list[tuple[int, Completion]], usage: Usage | None = None) -> None:
        """Hand out what waited for its usage."""
        if self._held is not None:
            self._held.usage = usage
            answers.append((0, self._held))
            self._held = None

    def _delta(self, piece: dict[str, Any], index: int) -> Delta:
        """One event for the caller who waits for each."""
        ids = piece.get("token_ids") if self._keep_ids else None
        text = piece["text"]
        if type(text) is not str:
            raise TypeError("a choice's text is no string")
        return Delta(
            text, index, piece.get("finish_reason"), piece.get("logprobs"), None if ids is None else tuple(ids)
        )

    def _completion(self, position: int) -> Completion:
        n = self._n
        indices = range(position * n, position * n + n)
        usages = [self._usage.get(index) for index in indices]
        completion = Completion(
            tuple([self._finished.pop(index) for index in indices]),
            usages[0] if n == 1 else usage_together(usages),
            self._batch.requests[position].attempts,
            self._first_at[position] - self._batch.sent_at,
            self._extra.copy(),
        )
        if self._verbatim:
            choices = [self._verbatim.pop(index) for index in indices]
            body = own_body(self._batch, self._about, "choices", choices, completion.usage)
            completion.reply = Reply(body, source=(self._batch.id, len(self._batch.requests)))
        return completion

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """The stream is over: whatever has no ``finish_reason`` was cut off."""
        answers = self._take(self._events.end(), now)
        self._release(answers)
        if self._failure is not None:
            return answers, self._failure
        if self._aborted:
            return answers, next(iter(self._aborted.values()))
        if not self._demux.complete:
            if self.events and not self._pieces:
                return answers, mismatch(DemuxError(self._demux.missing()))
            if not self.events and self._content_type not in ("", "text/event-stream"):
                return answers, malformed(
                    f"server-sent events were expected, and {self._clean(self._content_type)} came"
                )
            return answers, malformed("the stream ended before every choice had finished")
        return answers, None
