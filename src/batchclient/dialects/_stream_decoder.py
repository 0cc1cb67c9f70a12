"""A reply that is a stream: all prompts' events come mixed, and a prompt's last choice completes
the answer.

Rules:
- Two events per choice and an event per token are both read.
- An event that comes twice is known by the count of tokens, which has not grown. A last event that
  comes twice is known by its choice, which is over.
- Once a choice is over, an event without a text is harmless. So is the last text with the first
  usage (LiteLLM's usage chunk).
- A list's first prompt has no answer before another prompt has begun. LiteLLM's proxy numbers the
  pieces of all prompts 0, and the first answer would hold all texts. A caller of several choices
  gets no pieces before a second choice has begun.
- If no other choice has begun before ``[DONE]``, or a choice has no end, the calls go again without
  streaming.
- An event without choices is no error: a ping, or a usage. A lone choice needs no ``index``. A last
  event needs no ``text``, if its usage tells no further tokens.
- An unreadable choice is over; the others are read to their ends.
- A JSON value in a stream's place is read as a plain reply, whatever the content type.
- An error in mid-stream is an event, followed by ``[DONE]``. Choices finished before are answered.
- A usage beside no choice comes after the last choice. A lone call waits for the usage. A list's
  usage is a sum, and no answer waits: each usage is estimated (``_shares``).
- A usage beside a choice is believed where it is known to be the choice's own. Otherwise the stream
  has to show as much: a running sum never has fewer tokens than choices that began.
"""

from __future__ import annotations

from dataclasses import replace
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
from batchclient.health import LONGEST_LOOP, is_runaway
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
"""A server sends at most an event per token. Many times as many for a choice would only fill the
client's memory.
"""


class StreamDecoder(ReplyDecoder):
    """A reply that is a stream of events, mixed from all prompts."""

    _needs_text = True
    """Whether an event with tokens has a ``text``."""

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self._events = EventStream()
        self._opening = True
        """Whether only blanks came so far, or the reply is no stream."""
        self._begin = b""
        """Bytes that may begin a byte-order mark."""
        self._whole: ReplyDecoder | None = None
        """Reads a reply that is no stream."""
        self._watch = UsageWatch(batch, self._reader)
        self._held: Completion | None = None
        """A lone call's answer, waiting for its usage."""
        self._first: tuple[int, Completion] | None = None
        """The first prompt's answer, waiting until another prompt has begun."""
        self._doubtful: list[Delta] | None = [] if self._n > 1 else None
        """The first choice's pieces, waiting until another choice has begun; ``None``: no wait."""
        self._guarded = batch.shape.guarded and self._size == 1
        self._tail = ""
        """Where it is guarded, the end of the text."""
        self._is_done = False
        """Whether the server has ended the stream with ``[DONE]``."""
        self._pieces: dict[int, list[dict[str, Any]]] = {}
        self._finished: dict[int, Choice] = {}
        self._usage: dict[int, Usage] = {}
        self._verbatim: dict[int, dict[str, Any]] = {}
        self._about: dict[str, Any] = {}
        """The events' fields beside ``choices``, equal for all calls."""
        self._first_at: dict[int, float] = {}
        self._tokens: dict[int, int] = {}
        """Tokens of each choice, as of its last event."""
        self._over: dict[int, dict[str, Any] | None] = {}
        """By finished choice: the last event, empty if a usage came; ``None``: unreadable."""
        self._lost: dict[int, Failure] = {}
        """By position: why a call has no answer. The server gave up, or a choice is unreadable."""
        self._failure: Failure | None = None
        self.deltas: list[Delta] = []
        """Pieces since the last taking, where a caller waits for each."""
        tokens = batch.shape.max_output_tokens
        self._most_events = max(_FEWEST_EVENTS, _EVENTS_PER_TOKEN * tokens) if tokens is not None else 1 << 20

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Take in bytes; return the answers that are now complete."""
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
                if "choices" not in event or event.get("error") is not None:
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
                self._failure = self._mismatch(error)
            except BAD_FORM as error:
                self._failure = malformed("an event is not what such a server sends", error)
        self.failed: bool = self._failure is not None
        return answers

    def _parse_odd(self, payload: bytes, answers: list[tuple[int, Completion]]) -> Any:
        """Read a payload refused by pydantic: a ping without data or with a word, ``[DONE]`` with
        blanks, half a surrogate pair.
        """
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
            # TGI sends "" until the choice has finished.
            if not reason:
                if reason is not None and reason != "":
                    raise TypeError("a reason to finish is no string")
                if usage is not None:
                    self._check_growth(index, pieces, usage)
                if not (self._guarded and self._goes_round(piece)):
                    return
                self.cut = True
            if reason in ABORTED:
                self._lost[index // self._n] = self._aborted_by(piece)
            if usage is not None and self._needs_text and piece.get("text") is None:
                self._check_silence(index, usage)
            choice = self._choice(pieces, index % self._n)
            if index % self._n:
                self._batch.wire.learnt.ignored_n = 0
            if self._batch.shape.verbatim:
                self._verbatim[index] = self._verbatim_choice(pieces, choice)
                self._about.update({name: v for name, v in event.items() if v is not None or name not in self._about})
        except BAD_FORM as error:
            self._give_up(index, error)
            return
        if usage is None and (self._watch.sum_comes_last or self.cut):
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
        """Give an unreadable choice up: it is over, whatever still comes."""
        self._pieces.pop(index, None)
        self._over[index] = None
        self._demux.finish(index)
        self.complete: bool = self._demux.complete
        self._lost.setdefault(index // self._n, spoilt(error))
        if len(self._lost) == len(self._batch.requests) and all(lost.final for lost in self._lost.values()):
            once = len(self._batch.requests) == 1
            self._failure = malformed("an event is not what such a server sends", error, once=once)

    def _says_nothing_new(self, index: int, piece: dict[str, Any], event: dict[str, Any]) -> bool:
        """Whether an event of a finished choice leaves the choice as it was."""
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
        """Return an event's text and token ids, if any."""
        return {name: piece[name] for name in ("text", "token_ids") if piece.get(name)}

    @staticmethod
    def _verbatim_choice(pieces: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
        """Return the choice in a plain reply's form."""
        return join_pieces(pieces, choice.text, choice.logprobs)

    def _may_be_empty(self, pieces: list[dict[str, Any]]) -> bool:
        # LiteLLM leaves out an empty text. A choice of another form is not empty.
        return not any(name in piece for piece in pieces for name in ("text", "delta", "message"))

    def _check_growth(self, index: int, pieces: list[dict[str, Any]], usage: Usage) -> None:
        """Refuse an event that repeats the previous event's text and has no new token.

        Last events are exempt: a last event may bring text that was held back.
        """
        text = self._text_in(pieces[-1])
        if text and 0 < usage.completion_tokens <= self._tokens.get(index, 0) and text == self._text_in(pieces[-2]):
            raise DemuxError(f"the server sent a piece of choice {index} twice")
        self._tokens[index] = usage.completion_tokens

    def _check_silence(self, index: int, usage: Usage) -> None:
        """Refuse a last event with tokens but no text: only a single token may be the end's own.

        More tokens belong to a text that was lost on the way.
        """
        if usage.completion_tokens > self._tokens.get(index, 0) + 1:
            raise TypeError("an event has tokens and no text")

    def _goes_round(self, piece: dict[str, Any]) -> bool:
        """Whether the lone choice has run into a loop, in its text or its reasoning."""
        told = piece.get("delta") or piece
        said = [told.get(name) for name in ("text", "content", "reasoning", "reasoning_content")]
        self._tail = (self._tail + "".join([text for text in said if isinstance(text, str)]))[-LONGEST_LOOP:]
        return is_runaway(self._tail)

    @staticmethod
    def _text_in(piece: dict[str, Any]) -> Any:
        """Return an event's text."""
        return piece.get("text")

    def _estimate(self, index: int, pieces: list[dict[str, Any]], choice: Choice) -> Usage:
        """Estimate the usage of a list's choice, where the server tells only a sum, later."""
        shape, ids = self._batch.shape, choice.token_ids
        events = sum(bool(self._text_in(piece)) for piece in pieces)
        tokens = estimated_tokens(size_of(choice.text), events, choice.finish_reason, shape.max_output_tokens)
        prompt_tokens = self._batch.requests[index // self._n].prompt_tokens
        return Usage(prompt_tokens, tokens if ids is None else len(ids), True, ids is None)

    def _take_back(self, position: int, answers: list[tuple[int, Completion]]) -> None:
        """Withhold an answer from the same read: more came after its end, so it may be spoilt."""
        self._held = self._first = None
        answers[:] = [answer for answer in answers if answer[0] != position]

    def _release(self, answers: list[tuple[int, Completion]], told: Any = None) -> None:
        """Hand out the answer that waited for its usage."""
        held = self._held
        if held is not None:
            held.usage = usage_in(told)
            if held.reply is not None and told is not None:
                held.reply.body["usage"] = told
            answers.append((0, held))
            self._held = None

    def _delta(self, piece: dict[str, Any], index: int) -> Delta:
        """Return an event for a caller who waits for each."""
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
            fixed_length=self._batch.requests[position].shape.fixed_length,
        )
        if self._verbatim:
            choices = [self._verbatim.pop(index) for index in indices]
            body = own_body(self._batch, self._about, "choices", choices, completion.usage)
            completion.reply = Reply(body, source=(self._batch.id, 0), alone=self._batch.alone)
        return completion

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """End the stream: a choice without ``finish_reason`` was cut off."""
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
                return answers, self._mismatch(self._demux.missing())
            if not self.events and self._content_type not in ("", "text/event-stream"):
                said = f"server-sent events were expected, and {self._clean(self._content_type)} came"
                return answers, replace(malformed(said), is_page="html" in self._content_type)
            return answers, malformed("the stream ended before every choice had finished")
        return answers, next(iter(self._lost.values()), None)

    def lost_tokens(self) -> int:
        """Return the output tokens that came of unfinished answers, and of those held back.

        A choice's tokens are told by its last usage, or else estimated from its events and text.
        """
        if self._whole is not None:
            return self._whole.lost_tokens()
        held = [self._held, None if self._first is None else self._first[1]]
        lost = sum(answer.output_tokens or 0 for answer in held if answer is not None)
        for index, choice in self._finished.items():
            usage = self._usage.get(index)
            lost += estimated_tokens(size_of(choice.text), 0, None, None) if usage is None else usage.completion_tokens
        return lost + sum(self._tokens.get(index) or self._tokens_of(pieces) for index, pieces in self._pieces.items())

    def _tokens_of(self, pieces: list[dict[str, Any]]) -> int:
        """Estimate the tokens of an unfinished choice."""
        try:
            events = sum(bool(self._brings(piece)) for piece in pieces)
            size = sum(size_of(self._text_in(piece)) for piece in pieces)
        except BAD_FORM:
            return 0
        return estimated_tokens(size, events, None, self._batch.shape.max_output_tokens)


def decoder_of(
    batch: Batch,
    secrets: tuple[str, ...],
    content_type: str,
    reader: Reader | None = None,
    forms: tuple[type[PlainDecoder], type[StreamDecoder]] = (PlainDecoder, StreamDecoder),
) -> PlainDecoder | StreamDecoder:
    """Return a fresh decoder for a batch's reply, in the requested form or the content type's.

    The reply's first bytes have the last word.
    """
    plain, streamed = forms
    decoder: PlainDecoder | StreamDecoder
    if batch.streamed and not content_type.lower().startswith("application/json"):
        decoder = streamed(batch, secrets, content_type, reader)
        decoder.other = plain
    else:
        decoder = plain(batch, secrets, content_type, reader)
        decoder.other = streamed
    return decoder
