"""A reply that is a stream: all prompts' events come mixed, and a prompt's last choice completes
the answer.

Rules:
- Two events per choice and an event per token are both read.
- A piece that comes twice is known by its usage, which has not grown: a mismatch.
- A choice ends with its ``finish_reason``. Then an event without a text is harmless, and so is the
  last text again beside the first usage (LiteLLM's usage chunk). Any other is a mismatch.
- A list's first prompt has no answer before another prompt has begun. LiteLLM's proxy numbers the
  pieces of all prompts 0, and the first answer would hold all texts. A caller of several choices
  gets no pieces before a second choice has begun.
- If no other choice has begun before ``[DONE]``, or a choice has no end, the calls go again without
  streaming. A stream that breaks off before that is no answer.
- An event without choices is no error: a ping, or a usage. A lone choice needs no ``index``.
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

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._choices import ABORTED, TextPieces, is_aborted
from batchclient.dialects._decoder import (
    Answers,
    PlainDecoder,
    ReplyDecoder,
    about_reply,
    spoilt,
    usage_in,
    usage_together,
)
from batchclient.dialects._readers import BAD_FORM, Reader, UsageWatch, index_of
from batchclient.dialects._replies import error_of, malformed
from batchclient.dialects._shares import estimated_tokens, size_of
from batchclient.dialects._sse import EventStream
from batchclient.dialects._surrogates import mend, read_odd
from batchclient.dialects._verbatim import own_body
from batchclient.errors import DemuxError
from batchclient.health import LONGEST_LOOP, is_runaway
from batchclient.types import Choice, Completion, Delta, Reply, Usage

__all__ = ["StreamDecoder", "decoder_of"]

_BOM = b"\xef\xbb\xbf"
_LONGEST_PING = 32
_SPOKEN = ("text", "content", "reasoning", "reasoning_content")
_NOT_STREAMED = Failure(
    FailureKind.STREAM_REFUSED,
    DemuxError,
    "the server ended a stream in which a choice has no end, or no number of its own",
    once=True,
)


class StreamDecoder(ReplyDecoder):
    """A reply that is a stream of events, mixed from all prompts.

    Attributes:
        deltas: pieces since the last taking, where a caller waits for each.
    """

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self.deltas: list[Delta] = []
        self._events = EventStream()
        self._plain: PlainDecoder | None = None
        """Reads a reply that is no stream."""
        self._begin: bytes | None = b""
        """Bytes that may begin a byte-order mark; ``None``: the stream has begun."""
        self._watch = UsageWatch(batch, self._reader)
        self._is_lone = len(batch.requests) == 1
        self._guarded = batch.shape.guarded and self._size == 1
        self._tail = ""
        """Where it is guarded, the end of the text."""
        self._parts: dict[int, TextPieces] = {}
        """By index, the choices that have begun, and are in no answer yet."""
        self._over: dict[int, dict[str, Any] | None] = {}
        """By index of a choice that is over: what its last piece brought, if no usage came with it;
        ``None``: unreadable.
        """
        self._first_at: dict[int, float] = {}
        """By position, when the first piece came."""
        self._lost: dict[int, Failure] = {}
        """By position: why a call has no answer. The server gave up, or a choice is unreadable."""
        self._held: tuple[int, Completion] | None = None
        """A lone call's answer waits for its usage, a list's first one until another prompt begins."""
        self._doubtful: list[Delta] | None = [] if self._n > 1 else None
        """The first choice's pieces, waiting until another choice has begun; ``None``: no wait."""
        self._about: dict[str, Any] = {}
        """The events' fields beside ``choices``, equal for all calls, where replies are handed on."""
        self._is_done = False
        """Whether the server has ended the stream with ``[DONE]``."""
        self._is_odd = False
        """Whether half a character came."""
        self._is_in_doubt = False
        """Whether the choices are not those asked for: an answer that waits is nobody's."""
        self._failure: Failure | None = None

    def feed(self, chunk: bytes, now: float) -> Answers:
        """Take in bytes; return the answers that are now complete."""
        if self._plain is not None:
            return self._plain.feed(chunk, now)
        if self._begin is not None:
            chunk = self._begin + chunk
            if _BOM.startswith(chunk):
                self._begin = chunk
                return []
            chunk = chunk.removeprefix(_BOM)
            first = chunk.lstrip()[:1]
            if first in (b"{", b"["):
                self._plain = PlainDecoder(self._batch, self._secrets, self._content_type, self._reader)
                return self._plain.feed(chunk, now)
            self._begin = None if first else b""
        return self._take(self._events.feed(chunk), now)

    def _take(self, payloads: list[bytes], now: float) -> Answers:
        answers: Answers = []
        if self._failure is not None:
            return answers
        for payload in payloads:
            try:
                try:
                    event = from_json(payload)
                except ValueError:
                    event = self._parse_odd(payload, answers)
                # llama.cpp opens its streams with ``data: null``.
                if event is not None:
                    self._on_event(event, now, answers)
            except DemuxError as error:
                self._failure = self._mismatch(error)
                self._is_in_doubt = True
            except BAD_FORM as error:
                self._failure = malformed("an event is not what such a server sends", error)
            if self._failure is not None:
                self.failed = True
                break
        return answers

    def _parse_odd(self, payload: bytes, answers: Answers) -> Any:
        """Read a payload refused by pydantic: ``[DONE]``, a ping without data or with a word, half a
        character.
        """
        said = payload.strip()
        if said == b"[DONE]":
            self.complete = self._is_done = True
            self._release(answers)
            return None
        if not said or (len(said) <= _LONGEST_PING and said.isalpha()):
            return None
        event = read_odd(payload)
        self._is_odd = True
        return event

    def _on_event(self, event: Any, now: float, answers: Answers) -> None:
        if "choices" not in event or event.get("error") is not None:
            error = error_of(event)
            if error is not None:
                self._failure = self._error_reply(mend(error))
                return
        event = self._reader.event(event)
        is_waiting = self._held is not None
        for piece in event.get("choices") or ():
            self._on_piece(piece, event, now, answers)
        if is_waiting and usage_in(event.get("usage")) is not None:
            self._release(answers, event["usage"])

    def _on_piece(self, piece: dict[str, Any], event: dict[str, Any], now: float, answers: Answers) -> None:
        index = piece.get("index")
        if type(index) is not int:
            index = index_of(index, self._size if len(event["choices"]) == 1 else None)
        if type(index) is int and index in self._over:
            if self._says_nothing_new(index, piece, event):
                return
            # More came after its end: what was read with it may be spoilt.
            answers[:] = [answer for answer in answers if answer[0] != index // self._n]
        self._demux.check(index)
        self.events += 1
        position, k = divmod(index, self._n)
        part = self._parts.get(index) or self._begin_choice(index, event, now, answers)
        told = self._watch.usage(index, usage_in(event.get("usage")))
        try:
            before = part.usage
            if told is not None and before is not None and told.completion_tokens <= before.completion_tokens:
                self._check_is_new(piece, part, told)
            part.add(piece)
            part.usage = told
            if self._batch.shape.to_caller and part.reason not in ABORTED:
                (self.deltas if self._doubtful is None else self._doubtful).append(part.delta(piece, k))
            # TGI sends "" until the choice has finished.
            if not part.reason:
                if not (self._guarded and self._goes_round(piece)):
                    return
                self.cut = True
            if part.reason in ABORTED:
                self._lost[position] = self._aborted_by(piece)
            part.finish(k, odd=self._is_odd)
        except BAD_FORM as error:
            self._give_up(index, error)
            return
        if k:
            self._batch.wire.learnt.heeds_n = True
        if self._batch.shape.verbatim:
            self._about.update({name: v for name, v in event.items() if v is not None or name not in self._about})
        if part.usage is None and (self._watch.sum_comes_last or self.cut):
            part.usage = self._estimate(position, part)
        self._over[index] = part.brings(piece) if event.get("usage") is None else {}
        if not self._demux.finish(index):
            return
        self.complete = self._demux.complete
        if position in self._lost:
            return
        made = self._completion(position)
        waits = self._watch.comes_last and made.usage is None
        if waits or (position == 0 and len(self._first_at) == 1 < len(self._batch.requests)):
            self._held = position, made
        else:
            answers.append((position, made))

    def _begin_choice(self, index: int, event: dict[str, Any], now: float, answers: Answers) -> TextPieces:
        shape = self._batch.shape
        self._parts[index] = part = self._form(keeps_ids=self._keeps_ids, verbatim=shape.verbatim)
        self._first_at.setdefault(index // self._n, now)
        if self._held is not None:
            answers.append(self._held)
            self._held = None
        if index and self._doubtful is not None:
            self.deltas += self._doubtful
            self._doubtful = None
        if not self._extra:
            about = about_reply(event)
            self._extra = mend(about) if self._is_odd else about
        return part

    def _give_up(self, index: int, error: Exception) -> None:
        """Give an unreadable choice up: it is over, whatever still comes."""
        self._parts.pop(index, None)
        self._over[index] = None
        self._demux.finish(index)
        self.complete = self._demux.complete
        self._lost.setdefault(index // self._n, spoilt(error))
        if len(self._lost) == len(self._batch.requests) and all(lost.final for lost in self._lost.values()):
            self._failure = malformed("an event is not what such a server sends", error, once=self._is_lone)

    def _says_nothing_new(self, index: int, piece: dict[str, Any], event: dict[str, Any]) -> bool:
        """Whether an event of a finished choice leaves the choice as it was."""
        last = self._over[index]
        if last is None:
            return True
        brings = self._form.brings(piece)
        return not is_aborted(piece) and (not brings or (brings == last and event.get("usage") is not None))

    def _check_is_new(self, piece: dict[str, Any], part: TextPieces, told: Usage) -> None:
        """Refuse a piece with a text that is the last one again: no token has come since."""
        text = part.text_in(piece)
        is_last = piece.get("finish_reason") or not text
        if told.completion_tokens and not is_last and text == part.text_in(part.last):
            raise DemuxError(f"the server sent a piece of choice {piece.get('index')} twice")

    def _goes_round(self, piece: dict[str, Any]) -> bool:
        """Whether the lone choice has run into a loop, in its text or its reasoning."""
        told = piece.get("delta") or piece
        spoken = [told.get(name) for name in _SPOKEN]
        self._tail = (self._tail + "".join([text for text in spoken if isinstance(text, str)]))[-LONGEST_LOOP:]
        return is_runaway(self._tail)

    def _estimate(self, position: int, part: TextPieces) -> Usage:
        """Estimate the usage of a list's choice, where the server tells only a sum, later."""
        assert part.choice is not None
        ids = part.choice.token_ids
        prompt_tokens = self._batch.requests[position].prompt_tokens
        return Usage(prompt_tokens, self._tokens_of(part) if ids is None else len(ids), True, ids is None)

    def _tokens_of(self, part: TextPieces) -> int:
        """Estimate the tokens of a choice."""
        return estimated_tokens(size_of(part.text), part.events, part.reason, self._batch.shape.max_output_tokens)

    def _release(self, answers: Answers, told: Any = None) -> None:
        """Hand out a lone call's answer that waited for its usage."""
        if self._held is None or not self._is_lone:
            return
        _, made = self._held
        made.usage = usage_in(told)
        if made.reply is not None and told is not None:
            made.reply.body["usage"] = told
        answers.append(self._held)
        self._held = None

    def _completion(self, position: int) -> Completion:
        n, request = self._n, self._batch.requests[position]
        parts = [self._parts.pop(index) for index in range(position * n, position * n + n)]
        choices: list[Choice] = [part.choice for part in parts if part.choice is not None]
        completion = Completion(
            tuple(choices),
            usage_together([part.usage for part in parts]) if n > 1 else parts[0].usage,
            request.attempts,
            self._first_at[position] - self._batch.sent_at,
            self._extra.copy(),
            fixed_length=request.shape.fixed_length,
            opened=request.shape.opened,
        )
        if self._batch.shape.verbatim:
            plain = [part.as_plain() for part in parts]
            about = mend(self._about) if self._is_odd else self._about
            body = own_body(self._batch, about, "choices", plain, completion.usage)
            if self._batch.shape.kind is Kind.CHAT:
                body["object"] = "chat.completion"
            completion.reply = Reply(body, source=(self._batch.id, 0), alone=self._batch.alone)
        return completion

    def end(self, now: float) -> tuple[Answers, Failure | None]:
        """End the stream: a choice without ``finish_reason`` was cut off."""
        if self._plain is not None:
            return self._plain.end(now)
        answers = self._take(self._events.end(), now)
        if not self._is_in_doubt:
            self._release(answers)
        if self._failure is not None:
            return answers, self._failure
        again = next((lost for lost in self._lost.values() if not lost.final), None)
        if again is not None or self._demux.complete:
            return answers, again or next(iter(self._lost.values()), None)
        is_open = any(part.choice is None for part in self._parts.values())
        if self._size > 1 and self._is_done and (is_open or self._over.keys() == {0}):
            return answers, _NOT_STREAMED
        if self.events and not is_open:
            return answers, self._mismatch(self._demux.missing())
        if not self.events and self._content_type not in ("", "text/event-stream"):
            said = f"server-sent events were expected, and {self._clean(self._content_type)} came"
            return answers, replace(malformed(said), is_page="html" in self._content_type)
        return answers, malformed("the stream ended before every choice had finished")

    def lost_tokens(self) -> int:
        """Return the output tokens that came of unfinished answers, and of one held back.

        A choice's tokens are told by its last usage, or else estimated from its events and text.
        """
        if self._plain is not None:
            return self._plain.lost_tokens()
        lost = 0 if self._held is None else self._held[1].output_tokens or 0
        for part in self._parts.values():
            try:
                lost += self._tokens_of(part) if part.usage is None else part.usage.completion_tokens
            except BAD_FORM:
                continue
        return lost


def decoder_of(
    batch: Batch, secrets: tuple[str, ...], content_type: str, reader: Reader | None = None
) -> PlainDecoder | StreamDecoder:
    """Return a fresh decoder for a batch's reply, in the requested form or the content type's.

    The reply's first bytes have the last word.
    """
    if batch.streamed and not content_type.lower().startswith("application/json"):
        return StreamDecoder(batch, secrets, content_type, reader)
    decoder = PlainDecoder(batch, secrets, content_type, reader)
    if not batch.shape.lists_plain or len(batch.requests) == 1:
        # A streamed list of chats holds only the last token of each answer (vLLM 0.32).
        decoder.as_stream = StreamDecoder
    return decoder
