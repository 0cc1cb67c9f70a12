"""A reply that is a stream of events, those of all prompts mixed: each prompt is answered when its last choice has finished.

Rules:
- Two events per choice or one per token: both are read. An event that comes twice is known by its count of tokens, which has not grown, or, if it was the
  last, by what it repeats being over. What repeats a choice that is over without a text, or with its last text and a usage for the first time (LiteLLM's
  usage chunk), is no such event.
- A list's first prompt has no answer before another has begun: LiteLLM's proxy numbers the pieces of all prompts 0, and its answer would be theirs.
  Nor has a caller the pieces of several choices before. Where no other has begun before ``[DONE]``, or a choice has no end, the calls go plain.
- An event without choices is no error: a ping, or a usage. A lone choice needs no ``index``, and a choice's last event no ``text``,
  if no tokens are told that would be in it.
- A choice that cannot be read is over; the others are read to their ends.
- One JSON value where a stream was asked for is read as that, whatever its content type.
- An error in mid-stream is an event of its own, followed by ``[DONE]``. What had finished before it is answered.
- A usage that does not stand beside its choice comes after the last one. A lone call's is waited for. A list's is one sum, for which no answer
  waits: what each has is estimated (``_shares``).
- A usage beside a choice is believed where it is known to be that choice's. Else it has to be seen: a running sum never has fewer tokens
  than choices that began.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._decoder import (
    ABORTED,
    ReplyDecoder,
    about_reply,
    error_of,
    is_aborted,
    malformed,
    mismatch,
    spoilt,
    text_of,
    usage_in,
    usage_together,
)
from batchclient.dialects._plain_decoder import PlainDecoder
from batchclient.dialects._reader import BAD_FORM, Reader, UsageWatch, index_of
from batchclient.dialects._shares import estimated_tokens, size_of
from batchclient.dialects._sse import EventStream
from batchclient.dialects._surrogates import MendingReader, mend, read_odd
from batchclient.dialects._verbatim import join_pieces, own_body
from batchclient.errors import DemuxError
from batchclient.types import Choice, Completion, Delta, Reply, Usage

__all__ = ["StreamDecoder", "decoder_of"]

_BOM = b"\xef\xbb\xbf"
_LONGEST_PING = 32
_NO_EVENT: dict[str, Any] = {}
_NOT_STREAMED = Failure(
    FailureKind.STREAM_REFUSED,
    DemuxError,
    "the server ended a stream in which a choice has no end, or no number of its own",
    once=True,
)
_EVENTS_PER_TOKEN = 4
_FEWEST_EVENTS = 4096
"""A server sends an event per token at most. One that sends many times as many for a choice would only fill our memory."""


class StreamDecoder(ReplyDecoder):
    """A reply that is a stream of events, those of all prompts mixed."""

    _needs_text = True
    """Whether an event that tells of tokens has a ``text``."""

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self._events = EventStream()
        self._opening = True
        """Whether nothing but blanks came yet, or what came is no stream."""
        self._begin = b""
        """What may be half a byte-order mark."""
        self._whole: ReplyDecoder | None = None
        """Reads what is no stream."""
        self._watch = UsageWatch(batch, self._reader)
        self._held: Completion | None = None
        """A lone call's answer that waits for its usage."""
        self._first: tuple[int, Completion] | None = None
        """The first prompt's answer, which waits until another has begun."""
        self._doubtful: list[Delta] | None = [] if self._n > 1 else None
        """The first choice's pieces, which wait in the same way; ``None``: they need not."""
        self._is_done = False
        """Whether the server has said that the stream is over."""
        self._pieces: dict[int, list[dict[str, Any]]] = {}
        self._finished: dict[int, Choice] = {}
        self._usage: dict[int, Usage] = {}
        self._verbatim: dict[int, dict[str, Any]] = {}
        self._about: dict[str, Any] = {}
        """What the events say beside their choices, which is the same for all calls."""
        self._first_at: dict[int, float] = {}
        self._tokens: dict[int, int] = {}
        """Of each choice, as the last event said."""
        self._over: dict[int, dict[str, Any] | None] = {}
        """The last event of each choice that has ended, if it had no usage; ``None``: the choice cannot be read."""
        self._lost: dict[int, Failure] = {}
        """Why calls have no answer though all of it came: the server gave up, or it cannot be read."""
        self._failure: Failure | None = None
        self.deltas: list[Delta] = []
        """What came since they were taken away, where a caller waits for each."""
        tokens = batch.shape.max_output_tokens
        self._most_events = max(_FEWEST_EVENTS, _EVENTS_PER_TOKEN * tokens) if tokens is not None else 1 << 20

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Return the answers that some bytes completed."""
        if self._opening:
            return self._open(chunk, now)
        return self._take(self._events.feed(chunk), now)

    def _open(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        if self._whole is None:
            chunk = self._begin + chunk
            if _BOM.startswith(chunk):
                self._begin = chunk
                return []
            chunk, self._begin = chunk.removeprefix(_BOM), b""
            first = chunk.lstrip()[:1]
            if self.other is None or first not in (b"{", b"["):
                self._opening = not first
                return self._take(self._events.feed(chunk), now)
            self._whole = self.other(self._batch, self._secrets, self._content_type, self._reader)
        return self._whole.feed(chunk, now)

    def _take(self, payloads: list[bytes], now: float) -> list[tuple[int, Completion]]:
        answers: list[tuple[int, Completion]] = []
        for payload in payloads:
            if self._failure is not None:
                break
            if payload == b"[DONE]":
                self.complete = self._is_done = True
                self._release(answers)
                continue
            try:
                try:
                    event = from_json(payload)
                except ValueError:
                    event = self._parse_odd(payload, answers)
                if event is None:
                    # llama.cpp opens its streams with ``data: null``.
                    continue
                if event.get("error") is not None or "choices" not in event:
                    error = error_of(event)
                    if error is not None:
                        self._failure = self._error_reply(mend(error))
                        break
                event = self._reader.event(event)
                held = self._held
                for piece in event.get("choices") or ():
                    self._on_piece(piece, event, now, answers)
                if held is not None and usage_in(event.get("usage")) is not None:
                    self._release(answers, event["usage"])
            except DemuxError as error:
                self._failure = mismatch(error)
            except BAD_FORM as error:
                self._failure = malformed("an event is not what such a server sends", error)
        self.failed: bool = self._failure is not None
        return answers

    def _parse_odd(self, payload: bytes, answers: list[tuple[int, Completion]]) -> Any:
        """Read what is no JSON to pydantic: a ping without data or with a word, the end with blanks, half a surrogate pair."""
        said = payload.strip()
        if said == b"[DONE]":
            self.complete = self._is_done = True
            self._release(answers)
        if said in (b"", b"[DONE]") or (len(said) <= _LONGEST_PING and said.isalpha()):
            return None
        event = read_odd(payload)
        if not isinstance(self._reader, MendingReader):
            self._reader = MendingReader(self._reader)
        return event

    def _on_piece(
        self, piece: dict[str, Any], event: dict[str, Any], now: float, answers: list[tuple[int, Completion]]
    ) -> None:
        index = piece.get("index")
        if type(index) is not int:
            index = index_of(index, self._size if len(event["choices"]) == 1 else None)
        try:
            self._demux.check(index)
        except DemuxError:
            if type(index) is int and index in self._over:
                if self._says_nothing_new(index, piece, event):
                    return
                self._take_back(index // self._n, answers)
            raise
        self.events += 1
        pieces = self._pieces.get(index)
        if pieces is None:
            self._pieces[index] = pieces = []
            self._first_at.setdefault(index // self._n, now)
            self.begun: bool = len(self._first_at) == len(self._batch.requests)
            if self._first is not None:
                answers.append(self._first)
                self._first = None
            if index and self._doubtful is not None:
                self.deltas += self._doubtful
                self._doubtful = None
            if not self._extra:
                self._extra = about_reply(event)
        pieces.append(piece)
        told = event.get("usage")
        try:
            reason = piece.get("finish_reason")
            if self._batch.shape.to_caller and reason not in ABORTED:
                delta = self._delta(piece, index % self._n)
                (self.deltas if self._doubtful is None else self._doubtful).append(delta)
            if len(pieces) > self._most_events:
                raise ValueError("more events than tokens")
            usage = self._watch.usage(index, usage_in(told))
            # TGI says "" until it has finished.
            if not reason:
                if reason is not None and reason != "":
                    raise TypeError("a reason to finish is no string")
                if usage is not None:
                    self._check_growth(index, pieces, usage)
                return
            if reason in ABORTED:
                self._lost[index // self._n] = self._aborted_by(piece)
            if usage is not None and self._needs_text and piece.get("text") is None:
                self._check_silence(index, usage)
            choice = self._choice(pieces, index % self._n)
            if self._batch.shape.verbatim:
                self._verbatim[index] = self._verbatim_choice(pieces, choice)
                self._about.update({name: v for name, v in event.items() if v is not None or name not in self._about})
        except BAD_FORM as error:
            self._give_up(index, error)
            return
        if usage is None and self._watch.sum_comes_last:
            usage = self._estimate(index, pieces, choice)
        if usage is not None:
            self._usage[index] = usage
        del self._pieces[index]
        self._over[index] = event if told is None else _NO_EVENT
        self._finished[index] = choice
        position = self._demux.finish(index)
        if position is not None:
            self.complete = self._demux.complete
        if position is not None and position not in self._lost:
            made = self._completion(position)
            if made.usage is None and self._watch.comes_last:
                self._held = made
            elif position == 0 and len(self._first_at) == 1 < len(self._batch.requests):
                self._first = position, made
            else:
                answers.append((position, made))

    def _give_up(self, index: int, error: Exception) -> None:
        """A choice that cannot be read is over, whatever comes of it."""
        self._pieces.pop(index, None)
        self._over[index] = None
        self._demux.finish(index)
        self.complete: bool = self._demux.complete
        self._lost.setdefault(index // self._n, spoilt(error))
        if len(self._lost) == len(self._batch.requests) and all(lost.final for lost in self._lost.values()):
            once = len(self._batch.requests) == 1
            self._failure = malformed("an event is not what such a server sends", error, once=once)

    def _says_nothing_new(self, index: int, piece: dict[str, Any], event: dict[str, Any]) -> bool:
        """Whether an event of a choice that is over leaves it as it was."""
        over = self._over[index]
        if over is None:
            return True
        if is_aborted(piece):
            return False
        brings = self._brings(piece)
        if not brings:
            return True
        lasts = over.get("choices", ()) if event.get("usage") is not None else ()
        return any(brings == self._brings(last) for last in lasts if index_of(last.get("index"), self._size) == index)

    @staticmethod
    def _brings(piece: dict[str, Any]) -> dict[str, Any]:
        """What an event adds to its choice."""
        return {name: piece[name] for name in ("text", "token_ids") if piece.get(name)}

    @staticmethod
    def _verbatim_choice(pieces: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
        """The choice as a plain reply would have it."""
        return join_pieces(pieces, choice.text, choice.logprobs)

    def _may_be_empty(self, pieces: list[dict[str, Any]]) -> bool:
        # LiteLLM leaves out a text that is empty. What has another form is not empty.
        return not any(name in piece for piece in pieces for name in ("text", "delta", "message"))

    def _check_growth(self, index: int, pieces: list[dict[str, Any]], usage: Usage) -> None:
        """Refuse an event that brings the text of the one before it, and no token: it is the same. A last one may bring text that was held back."""
        text = self._text_in(pieces[-1])
        if text and 0 < usage.completion_tokens <= self._tokens.get(index, 0) and text == self._text_in(pieces[-2]):
            raise DemuxError(f"the server sent a piece of choice {index} twice")
        self._tokens[index] = usage.completion_tokens

    def _check_silence(self, index: int, usage: Usage) -> None:
        """Refuse a last event without a text that had one: one token may be the end's own, more are of a text that was lost on its way."""
        if usage.completion_tokens > self._tokens.get(index, 0) + 1:
            raise TypeError("an event has tokens and no text")

    @staticmethod
    def _text_in(piece: dict[str, Any]) -> Any:
        """The text that an event brings."""
        return piece.get("text")

    def _estimate(self, index: int, pieces: list[dict[str, Any]], choice: Choice) -> Usage:
        """What a choice of a list probably took, where the server tells no more than a sum, later."""
        shape, ids = self._batch.shape, choice.token_ids
        events = sum(bool(self._text_in(piece)) for piece in pieces)
        tokens = estimated_tokens(size_of(choice.text), events, choice.finish_reason, shape.max_output_tokens)
        prompt_tokens = self._batch.requests[index // self._n].prompt_tokens
        return Usage(prompt_tokens, tokens if ids is None else len(ids), True, ids is None)

    def _take_back(self, position: int, answers: list[tuple[int, Completion]]) -> None:
        """More of a choice has come after its end: what came of it in the same read is not handed out yet, and may be spoilt, too."""
        self._held = self._first = None
        answers[:] = [answer for answer in answers if answer[0] != position]

    def _release(self, answers: list[tuple[int, Completion]], told: Any = None) -> None:
        """Hand out what waited for its usage."""
        held = self._held
        if held is not None:
            held.usage = usage_in(told)
            if held.reply is not None and told is not None:
                held.reply.body["usage"] = told
            answers.append((0, held))
            self._held = None

    def _delta(self, piece: dict[str, Any], index: int) -> Delta:
        """One event for the caller who waits for each."""
        ids = piece.get("token_ids") if self._keep_ids else None
        return Delta(
            text_of(piece) or "",
            index,
            piece.get("finish_reason"),
            piece.get("logprobs"),
            None if ids is None else tuple(ids),
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
            completion.reply = Reply(body, source=(self._batch.id, 0), alone=self._batch.alone)
        return completion

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """The stream is over: whatever has no ``finish_reason`` was cut off."""
        if self._whole is not None:
            return self._whole.end(now)
        answers = self._take(self._events.end(), now)
        self._release(answers)
        if self._failure is not None:
            return answers, self._failure
        again = next((lost for lost in self._lost.values() if not lost.final), None)
        if again is not None:
            return answers, again
        if not self._demux.complete:
            if self._size > 1 and self._is_done and (self._pieces or self._over.keys() == {0}):
                return answers, _NOT_STREAMED
            if self.events and not self._pieces:
                return answers, mismatch(DemuxError(self._demux.missing()))
            if not self.events and self._content_type not in ("", "text/event-stream"):
                return answers, malformed(
                    f"server-sent events were expected, and {self._clean(self._content_type)} came"
                )
            return answers, malformed("the stream ended before every choice had finished")
        return answers, next(iter(self._lost.values()), None)


def decoder_of(
    batch: Batch,
    secrets: tuple[str, ...],
    content_type: str,
    reader: Reader | None = None,
    forms: tuple[type[PlainDecoder], type[StreamDecoder]] = (PlainDecoder, StreamDecoder),
) -> PlainDecoder | StreamDecoder:
    """Return a fresh decoder for a batch's reply, in the form that was asked for if nothing says otherwise; its first bytes have the last word."""
    plain, streamed = forms
    decoder: PlainDecoder | StreamDecoder
    if batch.streamed and not content_type.lower().startswith("application/json"):
        decoder = streamed(batch, secrets, content_type, reader)
        decoder.other = plain
    else:
        decoder = plain(batch, secrets, content_type, reader)
        decoder.other = streamed
    return decoder
