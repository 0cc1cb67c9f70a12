"""A reply that is a JSON value, and what all decoders have in common.

Rules:
- Choices are numbered prompt by prompt: ``index = prompt * n + k``. Every index has to be there,
  once; nothing is handed out before the whole reply was checked.
- ``finish_reason: "abort"`` comes with status 200 and a truncated text when the server shuts down:
  a failure. Finished choices are answered all the same.
- An unreadable choice fails its own call, and is not asked for again. If no choice can be read, the
  reply is at fault.
- A usage is believed only with two whole numbers; a list's is a sum. A prompt's usage is counted
  from the token ids, if the reply has any; else it is a share of the sum (``_shares``).
- Servers' error messages are shown without the prompts and keys quoted in them.
- A stream in a plain reply's place is read as a stream: some gateways know nothing else.
- A lone call that hands the reply on gets the reply unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._choices import ABORTED, MessagePieces, TextPieces, is_aborted
from batchclient.dialects._demux import Demux, OnlyOne
from batchclient.dialects._readers import BAD_FORM, OpenAIReader, Reader, index_of
from batchclient.dialects._redaction import redact, words_and_shown
from batchclient.dialects._replies import error_in, error_of, malformed, told_in
from batchclient.dialects._shares import TOO_MANY, shared_usages
from batchclient.dialects._status import failure_of
from batchclient.dialects._surrogates import mend, read_odd
from batchclient.dialects._verbatim import own_body
from batchclient.errors import DemuxError, DialectError, ServerFault
from batchclient.types import Completion, Reply, Usage

__all__ = ["Answers", "PlainDecoder", "ReplyDecoder", "about_reply", "spoilt", "usage_in", "usage_together"]

Answers = list[tuple[int, Any]]
"""Pairs of a request's position in the batch, and its answer."""
_SHOWN_BYTES = 512
_BLANK = b"\xef\xbb\xbf \t\r\n"
_OF_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")
_ABORT = Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "the server aborted the generation (finish_reason: abort)")
_NONE: dict[str, Any] = {}


class ReplyDecoder:
    """The state of a reply while it is read.

    Args:
        batch: what was asked.
        secrets: keys to cut out of the server's messages.
        content_type: the reply's.
        reader: turns the reply into OpenAI's form.

    Attributes:
        complete: whether a stream has brought every answer or has ended itself; a usage may follow.
            A reply that is one JSON value never is before its end.
        events: streamed events with choices so far: two per choice, or one per token on servers
            without ``stream_interval``.
        failed: whether the reply has failed, whatever still comes: ``end`` says why.
        cut: whether a stream ends here, though the server goes on: its answer has run into a loop.
    """

    complete: bool = False

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        self._batch = batch
        self._secrets = secrets
        self._content_type = content_type.partition(";")[0][:60]
        self._reader = reader or OpenAIReader(batch)
        self._form = MessagePieces if batch.shape.kind is Kind.CHAT else TextPieces
        self._n = batch.shape.weight
        self._size = len(batch.requests) * self._n
        self._demux = Demux(len(batch.requests), self._n)
        self._keeps_ids = batch.shape.wants_token_ids
        self._extra: dict[str, Any] = {}
        self.events: int = 0
        self.failed: bool = False
        self.cut: bool = False

    def feed(self, chunk: bytes, now: float) -> Answers:
        """Take in bytes; return the answers that are now complete, by position."""
        raise NotImplementedError

    def end(self, now: float) -> tuple[Answers, Failure | None]:
        """End the reply; return the last answers, and why the unanswered requests have none."""
        raise NotImplementedError

    def lost_tokens(self) -> int:
        """Return how many tokens came of answers that were not handed out, after a failure."""
        raise NotImplementedError

    def _clean(self, message: str) -> str:
        return redact(message, self._prompts(), self._secrets)

    def _prompts(self) -> list[bytes]:
        return [request.prompt for request in self._batch.requests]

    def _aborted_by(self, choice: Mapping[str, Any]) -> Failure:
        """Return why the server gave a choice up; some servers tell by a status."""
        status = choice.get("status_code")
        if type(status) is not int or not 400 <= status < 600:
            return _ABORT
        message = str(choice.get("abort_message") or "the server aborted the generation")
        words, shown = words_and_shown(message, self._prompts(), self._secrets)
        return failure_of(status, words, None, shown=shown, streamed=False, retry_after_s=None)

    def _mismatch(self, error: DemuxError) -> Failure:
        """Return the failure of a reply with other choices than were asked for.

        A server that ignores ``n`` does so every time: after two such replies, and none with
        several, no call with an ``n`` is sent for a while.
        """
        if self._size == self._n > 1 and isinstance(error, OnlyOne):
            learnt = self._batch.wire.learnt
            learnt.ignored_n += 1
            if learnt.ignored_n > 1 and not learnt.heeds_n:
                return Failure(FailureKind.UNSUPPORTED, DemuxError, f"{error.message}: the server ignores n")
            return Failure(FailureKind.MISMATCH, DemuxError, error.message, once=True)
        return Failure(FailureKind.MISMATCH, DemuxError, error.message)

    def _error_reply(self, error: object) -> Failure:
        """Return the failure told by an error object; its code decides as a status would."""
        message, code, status = told_in(error)
        clean = None if code is None else self._clean(code)
        words, shown = words_and_shown(message or "no message", self._prompts(), self._secrets)
        listed = len(self._batch.requests) > 1
        return failure_of(status or 500, words, clean, shown=shown, streamed=False, retry_after_s=None, listed=listed)


class PlainDecoder(ReplyDecoder):
    """A reply that is a JSON value, usually an object.

    Attributes:
        as_stream: reads a stream that came instead; ``None``: none may come.
    """

    _reply_type: type = dict
    """``object`` where an array is possible, too."""
    _called = "choices"

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self.as_stream: type[ReplyDecoder] | None = None
        self._chunks: list[bytes] = []
        self._lost_tokens = 0

    def feed(self, chunk: bytes, now: float) -> Answers:
        """Collect the bytes; nothing is known before the end."""
        self._chunks.append(chunk)
        return []

    def end(self, now: float) -> tuple[Answers, Failure | None]:
        """Parse the reply and check it whole before any answer is handed out."""
        body = b"".join(self._chunks)
        try:
            reply = from_json(body)
        except ValueError as error:
            if self.as_stream is not None and body[:_SHOWN_BYTES].lstrip(_BLANK).startswith(_OF_EVENTS):
                return self._read_stream(self.as_stream, body, now)
            try:
                reply = mend(read_odd(body))
            except ValueError:
                return [], self._no_json(body, error)
        told = usage_in(reply.get("usage")) if isinstance(reply, dict) else None
        answers, failure = self._read(reply)
        if failure is not None and told is not None:
            handed_out = sum(answer.usage.total_tokens for _, answer in answers if answer.usage is not None)
            self._lost_tokens = max(0, told.total_tokens - handed_out)
        return answers, failure

    def lost_tokens(self) -> int:
        """Return what the usage of a failed reply has beyond the answers handed out."""
        return self._lost_tokens

    def _no_json(self, body: bytes, error: ValueError) -> Failure:
        shown = self._clean(self._content_type)
        kind = f" (its content type is {shown})" if "json" not in self._content_type else ""
        begins = self._clean(error_in(body[:_SHOWN_BYTES])[0])
        # The whole reply came, so no connection is at fault. A second attempt is for a proxy that
        # was being restarted.
        failure = malformed(f"the reply is not JSON, or was cut off{kind}; it begins: {begins}", error, once=True)
        return replace(failure, is_page="html" in self._content_type)

    def _read_stream(self, stream: type[ReplyDecoder], body: bytes, now: float) -> tuple[Answers, Failure | None]:
        """Read a stream that came as a whole: when its first token came is unknown."""
        decoder = stream(self._batch, self._secrets, self._content_type, self._reader)
        answers = decoder.feed(body, now)
        more, failure = decoder.end(now)
        answers += more
        self._lost_tokens = decoder.lost_tokens()
        for _, answer in answers:
            answer.time_to_first_token_s = None
        return answers, failure

    def _read(self, reply: Any) -> tuple[Answers, Failure | None]:
        refusal = error_of(reply) if isinstance(reply, (dict, list)) else None
        if refusal is not None:
            return [], self._error_reply(refusal)
        verbatim = self._batch.shape.verbatim and len(self._batch.requests) == 1
        if verbatim and isinstance(reply, dict) and "choices" in reply:
            return [(0, self._as_it_came(reply))], None
        try:
            reply = self._reader.reply(reply)
            if not isinstance(reply, self._reply_type):
                return [], malformed(f"the reply is a JSON {type(reply).__name__}, not an object")
            return self._answers(reply)
        except DemuxError as error:
            return [], self._mismatch(error)
        except BAD_FORM as error:
            return [], malformed(f"the reply's {self._called} are not what such a server sends", error)

    def _as_it_came(self, reply: dict[str, Any]) -> Completion:
        """Return the answer to a lone call that hands the reply on: the caller is its judge."""
        usage = usage_in(reply.get("usage"))
        request = self._batch.requests[0]
        kept = Reply(reply, source=(self._batch.id, 1), alone=self._batch.alone)
        shape = request.shape
        is_fixed = shape.fixed_length
        return Completion((), usage, request.attempts, reply=kept, fixed_length=is_fixed, opened=shape.opened)

    def _answers(self, reply: Any) -> tuple[Answers, Failure | None]:
        n, requests = self._n, self._batch.requests
        choices = self._in_order(reply["choices"])
        self._extra = about_reply(reply)
        answers: Answers = []
        aborted: Failure | None = None
        unreadable: Exception | None = None
        verbatim = self._batch.shape.verbatim
        usages = self._usages(choices, reply)
        reasons = [choice.get("finish_reason") for choice in choices]
        some_aborted = any(reason in reasons for reason in ABORTED)
        read_plain, keeps_ids = self._form.read_plain, self._keeps_ids
        for position, request in enumerate(requests):
            own = choices[position * n : position * n + n]
            if some_aborted:
                given_up = next((choice for choice in own if is_aborted(choice)), None)
                if given_up is not None:
                    aborted = self._aborted_by(given_up)
                    continue
            try:
                made = tuple([read_plain(choice, k, keeps_ids=keeps_ids) for k, choice in enumerate(own)])
            except BAD_FORM as error:
                unreadable = error
                continue
            usage = usages[position]
            completion = Completion(made, usage, request.attempts, None, self._extra.copy())
            completion.fixed_length, completion.opened = request.shape.fixed_length, request.shape.opened
            if n > 1:
                self._batch.wire.learnt.heeds_n = True
            if usage is None and len(requests) > 1:
                completion.counted_tokens = _count_made(own)
            if verbatim:
                body = own_body(self._batch, reply, "choices", own, usage)
                completion.reply = Reply(body, source=(self._batch.id, len(requests)), alone=self._batch.alone)
            answers.append((position, completion))
        return answers, aborted or self._why_unread(unreadable, answers)

    def _in_order(self, items: Any) -> list[Any]:
        """Return a reply's choices or items by their numbers; raise ``DemuxError`` on a mismatch."""
        placed: list[Any] = [_NONE] * self._size
        for item in items:
            index = item.get("index")
            if type(index) is not int:
                index = index_of(index, self._size)
            index = self._demux.check(index)
            self._demux.finish(index)
            placed[index] = item
        if not self._demux.complete:
            raise self._demux.missing()
        return placed

    def _why_unread(self, error: Exception | None, answers: Answers) -> Failure | None:
        """Return why some calls have no answer; if none has any, the reply is at fault."""
        if error is None:
            return None
        if answers:
            return spoilt(error)
        once = len(self._batch.requests) == 1
        return malformed(f"the reply's {self._called} are not what such a server sends", error, once=once)

    def _usages(self, choices: list[Any], reply: dict[str, Any]) -> Sequence[Usage | None]:
        """Return each call's usage."""
        n, requests = self._n, self._batch.requests
        if not self._reader.counts_each and len(requests) == 1:
            return [usage_in(reply.get("usage"))]
        usages: list[Usage | None] = []
        for start in range(0, len(choices), n):
            own = choices[start : start + n]
            if self._reader.counts_each:
                usages.append(usage_together([usage_in(choice.pop("usage", None)) for choice in own]))
            else:
                usages.append(_count_ids(own))
        if self._reader.counts_each or None not in usages:
            return usages
        told = usage_in(reply.get("usage")) if self._reader.tells_sums else None
        if told is None:
            return usages
        made = [(self._form.size_of(each), each.get("finish_reason"), _count_made([each])) for each in choices]
        return shared_usages(self._batch, told, made) or usages


def about_reply(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply's or event's fields that all its calls share, without nulls."""
    return {name: value for name, value in reply.items() if value is not None and name not in ("choices", "usage")}


def spoilt(cause: BaseException) -> Failure:
    """Return the failure of an unreadable choice in a readable reply."""
    message = "what the server sent for this call cannot be read; what it sent for others with it can"
    return Failure(FailureKind.REFUSED, DialectError, message, cause=cause)


def usage_together(usages: list[Usage | None]) -> Usage | None:
    """Return the usage of a prompt's choices together: the prompt is counted once."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    first = next((usage for usage in known if not usage.prompt_tokens_estimated), known[0])
    completion_tokens = sum([usage.completion_tokens for usage in known])
    return Usage(
        first.prompt_tokens,
        completion_tokens,
        first.prompt_tokens_estimated,
        any(usage.completion_tokens_estimated for usage in known),
        first.cached_tokens,
        sum([usage.reasoning_tokens or 0 for usage in known]) if first.reasoning_tokens is not None else None,
    )


def usage_in(usage: object) -> Usage | None:
    """Return a usage as the server tells it; ``None``: none, or nonsense."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and 0 <= prompt < TOO_MANY and 0 <= completion < TOO_MANY:
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        is_told = type(cached) is int and 0 <= cached <= prompt
        made = Usage(prompt, completion, cached_tokens=cached if is_told else None)
        if usage.get("completion_tokens_details") or usage.get("reasoning_tokens"):
            made.reasoning_tokens = _reasoning(usage, completion)
        return made
    return None


def _reasoning(usage: dict[str, Any], completion: int) -> int | None:
    """Return the tokens of reasoning: of OpenAI's form and vLLM's, or SGLang's."""
    details = usage.get("completion_tokens_details")
    told = (details if isinstance(details, dict) else usage).get("reasoning_tokens")
    return told if type(told) is int and 0 <= told <= completion else None


def _count_ids(choices: list[dict[str, Any]]) -> Usage | None:
    prompt = choices[0].get("prompt_token_ids")
    completion = _count_made(choices)
    return None if type(prompt) is not list or completion is None else Usage(len(prompt), completion)


def _count_made(choices: list[dict[str, Any]]) -> int | None:
    """Return the number of tokens of a prompt's choices, if the reply lists the tokens."""
    completion = 0
    for choice in choices:
        ids = choice.get("token_ids")
        if type(ids) is not list:
            return None
        completion += len(ids)
    return completion
