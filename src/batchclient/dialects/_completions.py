"""``/v1/completions`` as OpenAI defined it: lists of prompts, plain or streamed.

What it rests on (vLLM 0.32, observed on a running server; replies in ``tests/wire/vllm``):
- Choices are numbered prompt by prompt: ``index = prompt * n + k``.
- With ``stream_interval`` very large a prompt sends two events: its first token, then all the rest with
  ``finish_reason``. With ``continuous_usage_stats`` each event carries the usage of its own prompt.
  Before vLLM 0.27 ``stream_interval`` is ignored and an event comes per token; the decoder takes both.
- A plain reply has one usage for the whole list, so a list also asks for token ids and counts them. Not with ``echo``: asked
  for token ids, vLLM leaves the prompt out of the text. Such calls are streamed where they can be; else they have no usage.
- ``finish_reason: "abort"`` comes with status 200 when the server shuts down: a failure, with truncated text.
- An event that comes twice is known by its count of tokens, which has not grown, or, if it was the last, by what it repeats being over.
- An error in mid-stream is an event of its own, followed by ``[DONE]``.

What other servers do differently: ``_reader``. What they do not know is left out (``Batch.without``), and then:
- Without ``continuous_usage_stats`` a list's usage is one sum, which belongs to nobody. A lone call's comes after its last choice, and is waited for.
- A usage beside a choice is believed where it is known to be that choice's. Else it has to be seen: a running sum never has fewer tokens
  than choices that began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from batchclient._core.demux import Demux
from batchclient._core.messages import Batch, Failure, FailureKind, Shape
from batchclient.dialects._bodies import Bodies
from batchclient.dialects._reader import OpenAIReader, Reader, UsageWatch
from batchclient.dialects._replies import error_in, redact
from batchclient.dialects._sse import EventStream
from batchclient.dialects._status import failure_of
from batchclient.dialects._verbatim import join_pieces, own_body, prompt_shares
from batchclient.errors import DemuxError, DialectError, ServerFault
from batchclient.transport import WireRequest
from batchclient.types import Choice, Completion, Delta, Reply, Usage

__all__ = [
    "Completions",
    "PlainDecoder",
    "StreamDecoder",
    "events_per_choice",
    "join_logprobs",
    "stream_fields",
    "stream_interval",
]

_PATH = "/completions"
_STREAM = b'"stream":true,'
_INTERVAL = b'"stream_interval":%d,'
_OPTIONS = b'"stream_options":{"include_usage":true},'
_OPTIONS_EACH = b'"stream_options":{"include_usage":true,"continuous_usage_stats":true},'
_TWO_EVENTS = 100_000
_TOKENS_PER_EVENT = 256
"""Of longer answers: at 2 tokens a second a server is then never silent for much over two minutes, however long it writes."""
_COUNT_FIELDS = b'"return_token_ids":true,'
_SHOWN_BYTES = 512
_HANDED_OUT = frozenset({"index", "text", "finish_reason", "logprobs", "token_ids"})
_COUNTED_ONLY = _HANDED_OUT | {"prompt_token_ids"}
_ABORTED = frozenset({"abort", "error"})
_EVENTS_PER_TOKEN = 4
_FEWEST_EVENTS = 4096
"""A server sends an event per token at most. One that sends many times as many for a choice would only fill our memory."""


class Completions:
    """The form of completions, with what vLLM adds to it.

    Args:
        priority_sign: of the field ``priority``: -1 where the server serves lower numbers first, 1 where higher ones, 0 where it has none.
        reader: makes what turns the server's replies into OpenAI's form.
        bodies: makes the shared body from OpenAI's fields, where the server wants others; it may refuse them.
    """

    def __init__(
        self,
        priority_sign: int = -1,
        reader: Callable[[Batch], Reader] = OpenAIReader,
        bodies: Bodies[bytes | Failure] | None = None,
    ) -> None:
        self._priority_sign = priority_sign
        self._reader = reader
        self._bodies = bodies

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: the shared body with the prompts spliced in."""
        requests, shape, without = batch.requests, batch.shape, batch.without
        body: bytes | Failure = shape.body if self._bodies is None else self._bodies.of(shape)
        if isinstance(body, Failure):
            return body
        parts = [b"{"]
        if len(requests) == 1:
            parts += [b'"prompt":', requests[0].prompt, b","]
            if requests[0].solo_fields:
                parts += [requests[0].solo_fields, b","]
        else:
            parts += [b'"prompt":[', b",".join([request.prompt for request in requests]), b"],"]
        if batch.streamed:
            parts.append(stream_fields(batch))
        elif len(requests) > 1 and not shape.wants_token_ids and not shape.echo and "return_token_ids" not in without:
            parts.append(_COUNT_FIELDS)
        if shape.tells_priority and self._priority_sign and "priority" not in without:
            parts.append(b'"priority":%d,' % (self._priority_sign * shape.priority))
        parts.append(body[1:])
        return WireRequest("POST", _PATH, body=b"".join(parts))

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> PlainDecoder | StreamDecoder:
        """Return a fresh decoder for the batch's reply. Servers and mocks that do not stream answer with one object."""
        if batch.streamed and not content_type.startswith("application/json"):
            return StreamDecoder(batch, secrets, content_type, self._reader(batch))
        return PlainDecoder(batch, secrets, content_type, self._reader(batch))


def stream_fields(batch: Batch) -> bytes:
    """The members that ask for a stream: few events, or one per token where a caller waits for each; none that the server refuses."""
    fields = _STREAM
    if not batch.shape.to_caller and "stream_interval" not in batch.without:
        fields += _INTERVAL % stream_interval(batch.shape)
    if "stream_options" not in batch.without:
        fields += _OPTIONS if "continuous_usage_stats" in batch.without else _OPTIONS_EACH
    return fields


def stream_interval(shape: Shape) -> int:
    """Tokens per event after the first."""
    return _TWO_EVENTS if events_per_choice(shape) == 2 else _TOKENS_PER_EVENT


def events_per_choice(shape: Shape) -> int:
    """Two where the answer is short; one more for every 256 tokens of a longer one, so that silence means something."""
    return 2 + (shape.max_output_tokens or 0) // (_TOKENS_PER_EVENT + 1)


class _Reply:
    """What both decoders share: the ticking off of indices, and one prompt's answer from its choices' pieces."""

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        self._batch = batch
        self._reader = reader or OpenAIReader(batch)
        self._content_type = content_type.partition(";")[0][:60]
        self._n = batch.shape.weight
        self._demux = Demux(len(batch.requests), self._n)
        self._secrets = secrets
        self._keep_ids = batch.shape.wants_token_ids
        self._own_fields = _HANDED_OUT if self._keep_ids else _COUNTED_ONLY
        self._extra: dict[str, Any] = {}
        self.events = 0
        self.failed = False

    def _choice(self, pieces: list[dict[str, Any]], index: int) -> Choice:
        """Join one choice's events."""
        last = pieces[-1]
        keep_ids = self._keep_ids
        if len(pieces) == 1:
            text, logprobs, ids = last["text"], last.get("logprobs"), last.get("token_ids")
            if type(text) is not str:
                raise TypeError("a choice's text is no string")
        else:
            text = "".join([piece["text"] for piece in pieces])
            logprobs = join_logprobs(pieces)
            ids = [i for piece in pieces for i in piece.get("token_ids") or ()] if keep_ids else None
        own = self._own_fields
        extra = {name: v for piece in pieces for name, v in piece.items() if v is not None and name not in own}
        token_ids = tuple(ids) if keep_ids and ids is not None else None
        return Choice(index, text, last.get("finish_reason"), logprobs, token_ids, extra)

    def _clean(self, message: str) -> str:
        return redact(message, (request.prompt for request in self._batch.requests), self._secrets)

    def _aborted_by(self, piece: Mapping[str, Any]) -> Failure:
        """Why the server gave a choice up; some say it with a status."""
        status = piece.get("status_code")
        if type(status) is not int or not 400 <= status < 600:
            return _ABORT
        message = self._clean(str(piece.get("abort_message") or "the server aborted the generation"))
        return failure_of(status, message, None, streamed=False, retry_after_s=None)

    def _error_reply(self, error: object) -> Failure:
        """An error object where an answer was expected; its code decides, as a status would."""
        fields = error if isinstance(error, dict) else {"message": str(error)}
        status = fields.get("code")
        if type(status) is not int or not 400 <= status < 600:
            status = 500
        code = fields.get("type")
        message = self._clean(str(fields.get("message", "no message")))
        clean = self._clean(code) if isinstance(code, str) else None
        return failure_of(status, message, clean, streamed=False, retry_after_s=None)


def join_logprobs(pieces: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Join logprobs objects: every member is a list with one entry per token."""
    joined: dict[str, Any] | None = None
    for piece in pieces:
        logprobs = piece.get("logprobs")
        if logprobs is None:
            continue
        if joined is None:
            joined = {name: list(value) if isinstance(value, list) else value for name, value in logprobs.items()}
            continue
        for name, value in logprobs.items():
            if isinstance(value, list) and isinstance(joined.get(name), list):
                joined[name] += value
            elif joined.get(name) is None:
                joined[name] = value
    return joined


def _about_reply(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if value is not None and name not in ("choices", "usage")}


def _mismatch(error: DemuxError) -> Failure:
    return Failure(FailureKind.MISMATCH, DemuxError, error.message)


def _malformed(what: str, cause: BaseException | None = None, *, once: bool = False) -> Failure:
    return Failure(FailureKind.MAYBE_PROCESSED, DialectError, what, cause=cause, once=once)


_ABORT = Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "the server aborted the generation (finish_reason: abort)")


class PlainDecoder(_Reply):
    """A reply that is one JSON value, as a rule an object."""

    _reply_type: type = dict
    """``object`` where it may be an array, too."""
    _called = "choices"

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Collect; nothing is known before the end."""
        self._chunks.append(chunk)
        return []

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """Parse the reply and check it whole before any of it is handed out."""
        body = b"".join(self._chunks)
        try:
            reply = from_json(body)
        except ValueError as error:
            shown = self._clean(self._content_type)
            kind = f" (its content type is {shown})" if "json" not in self._content_type else ""
            begins = self._clean(error_in(body[:_SHOWN_BYTES])[0])
            # All of it came, so that no connection is to blame: a second time is for a proxy that was being restarted.
            return [], _malformed(f"the reply is not JSON, or was cut off{kind}; it begins: {begins}", error, once=True)
        if isinstance(reply, dict) and reply.get("error") is not None:
            return [], self._error_reply(reply["error"])
        if (
            self._batch.shape.verbatim
            and len(self._batch.requests) == 1
            and isinstance(reply, dict)
            and "choices" in reply
        ):
            return [(0, self._as_it_came(reply))], None
        try:
            reply = self._reader.reply(reply)
            if not isinstance(reply, self._reply_type):
                return [], _malformed(f"the reply is a JSON {type(reply).__name__}, not an object")
            return self._answers(reply)
        except DemuxError as error:
            return [], _mismatch(error)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            return [], _malformed(f"the reply's {self._called} are not what such a server sends", error)

    def _as_it_came(self, reply: dict[str, Any]) -> Completion:
        """The answer to a lone call that hands the reply on: whatever is in it is its caller's to judge."""
        usage, attempts = _usage(reply.get("usage")), self._batch.requests[0].attempts
        return Completion((), usage, attempts, reply=Reply(reply, source=(self._batch.id, 1)))

    def _answers(self, reply: Any) -> tuple[list[tuple[int, Completion]], Failure | None]:
        choices: list[dict[str, Any] | None] = [None] * (len(self._batch.requests) * self._n)
        for choice in reply["choices"]:
            index = self._demux.check(choice["index"])
            self._demux.finish(index)
            choices[index] = choice
        if not self._demux.complete:
            raise DemuxError(self._demux.missing())
        self._extra = _about_reply(reply)
        answers: list[tuple[int, Completion]] = []
        failure: Failure | None = None
        n, requests = self._n, self._batch.requests
        verbatim = self._batch.shape.verbatim
        shares = prompt_shares(self._batch, reply) if verbatim and len(requests) > 1 else None
        some_aborted = not _ABORTED.isdisjoint([choice.get("finish_reason") for choice in choices])  # type: ignore[union-attr]
        for position, request in enumerate(requests):
            own: list[dict[str, Any]] = choices[position * n : position * n + n]  # type: ignore[assignment]
            if some_aborted:
                given_up = next((choice for choice in own if choice.get("finish_reason") in _ABORTED), None)
                if given_up is not None:
                    failure = self._aborted_by(given_up)
                    continue
            usage = self._usage_of(own, reply)
            made = tuple([self._choice([choice], k) for k, choice in enumerate(own)])
            completion = Completion(made, usage, request.attempts, None, self._extra.copy())
            if usage is None and len(requests) > 1:
                completion.counted_tokens = _count_made(own)
            if verbatim:
                share = shares[position] if shares is not None else None
                body = own_body(self._batch, reply, "choices", own, usage, share, completion.counted_tokens)
                completion.reply = Reply(body, source=(self._batch.id, len(requests)))
            answers.append((position, completion))
        return answers, failure

    def _usage_of(self, own: list[dict[str, Any]], reply: dict[str, Any]) -> Usage | None:
        """What one call took."""
        if self._reader.counts_each:
            return _together([_usage(choice.pop("usage", None)) for choice in own])
        if len(self._batch.requests) == 1:
            return _usage(reply.get("usage"))
        return _count_ids(own)


def _together(usages: list[Usage | None]) -> Usage | None:
    """The usage of one prompt's choices: the prompt is counted once."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    return Usage(known[0].prompt_tokens, sum(usage.completion_tokens for usage in known))


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
        return Usage(prompt, completion)
    return None


def _count_ids(choices: list[dict[str, Any]]) -> Usage | None:
    prompt = choices[0].get("prompt_token_ids")
    completion = _count_made(choices)
    return None if prompt is None or completion is None else Usage(len(prompt), completion)


def _count_made(choices: list[dict[str, Any]]) -> int | None:
    """How many tokens the choices of one prompt have, if the reply lists them."""
    completion = 0
    for choice in choices:
        ids = choice.get("token_ids")
        if ids is None:
            return None
        completion += len(ids)
    return completion


class StreamDecoder(_Reply):
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
                    self._release(answers, _usage(event.get("usage")))
            except DemuxError as error:
                self._failure = _mismatch(error)
                self._take_back(index, answers)
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                self._failure = _malformed("an event is not what such a server sends", error)
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
            if not self._extra:
                self._extra = _about_reply(event)
        pieces.append(piece)
        if self._batch.shape.to_caller and piece.get("finish_reason") not in _ABORTED:
            self.deltas.append(self._delta(piece, index % self._n))
        if len(pieces) > self._most_events:
            raise ValueError("more events than tokens")
        usage = self._watch.usage(index, _usage(event.get("usage")))
        # TGI says "" until it has finished.
        if not piece.get("finish_reason"):
            if usage is not None:
                self._check_growth(index, pieces, usage)
            return
        if usage is not None:
            self._usage[index] = usage
        if piece["finish_reason"] in _ABORTED:
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
            usages[0] if n == 1 else _together(usages),
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
                return answers, _mismatch(DemuxError(self._demux.missing()))
            if not self.events and self._content_type not in ("", "text/event-stream"):
                return answers, _malformed(
                    f"server-sent events were expected, and {self._clean(self._content_type)} came"
                )
            return answers, _malformed("the stream ended before every choice had finished")
        return answers, None
