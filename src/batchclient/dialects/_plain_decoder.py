"""A reply that is a JSON value: nothing is handed out before the whole reply was checked.

Rules:
- Every choice has to be there, once.
- A list's usage is a sum. A prompt's usage is counted from the token ids, if the reply has any;
  else the usage is a share of the sum.
- Finished choices are answered. A prompt fails by itself if the server gave a choice up, or if a
  choice is unreadable.
- A stream in a plain reply's place is read as a stream: some gateways know nothing else.
- A lone call that hands the reply on gets the reply unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from batchclient._core.messages import Batch, Failure
from batchclient.dialects._decoder import (
    ABORTED,
    ReplyDecoder,
    about_reply,
    error_of,
    is_aborted,
    malformed,
    spoilt,
    usage_in,
    usage_together,
)
from batchclient.dialects._reader import BAD_FORM, Reader, index_of
from batchclient.dialects._replies import error_in
from batchclient.dialects._shares import shared_usages, size_of
from batchclient.dialects._surrogates import mend, read_odd
from batchclient.dialects._verbatim import own_body
from batchclient.errors import DemuxError
from batchclient.types import Completion, Reply, Usage

__all__ = ["PlainDecoder"]

_SHOWN_BYTES = 512
_BLANK = b"\xef\xbb\xbf \t\r\n"
_NONE: dict[str, Any] = {}
_OF_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")


class PlainDecoder(ReplyDecoder):
    """A reply that is a JSON value, usually an object."""

    _reply_type: type = dict
    """``object`` where an array is possible, too."""
    _called = "choices"

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        super().__init__(batch, secrets, content_type, reader)
        self._chunks: list[bytes] = []
        self._lost_tokens = 0

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Collect the bytes; nothing is known before the end."""
        self._chunks.append(chunk)
        return []

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """Parse the reply and check it whole before any answer is handed out."""
        body = b"".join(self._chunks)
        try:
            reply = from_json(body)
        except ValueError as error:
            if self.other is not None and body[:_SHOWN_BYTES].lstrip(_BLANK).startswith(_OF_EVENTS):
                return self._as_stream(self.other, body, now)
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

    def _as_stream(
        self, form: type[ReplyDecoder], body: bytes, now: float
    ) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """Read a stream that came as a whole: when its first token came is unknown."""
        decoder = form(self._batch, self._secrets, self._content_type, self._reader)
        answers = decoder.feed(body, now)
        more, failure = decoder.end(now)
        answers += more
        self._lost_tokens = decoder.lost_tokens()
        for _, answer in answers:
            answer.time_to_first_token_s = None
        return answers, failure

    def _read(self, reply: Any) -> tuple[list[tuple[int, Completion]], Failure | None]:
        refusal = error_of(reply) if isinstance(reply, (dict, list)) else None
        if refusal is not None:
            return [], self._error_reply(refusal)
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
        return Completion((), usage, request.attempts, reply=kept, fixed_length=request.shape.fixed_length)

    def _answers(self, reply: Any) -> tuple[list[tuple[int, Completion]], Failure | None]:
        n, requests = self._n, self._batch.requests
        size = len(requests) * n
        choices: list[dict[str, Any]] = [_NONE] * size
        for choice in reply["choices"]:
            index = choice.get("index")
            if type(index) is not int:
                index = index_of(index, size)
            index = self._demux.check(index)
            self._demux.finish(index)
            choices[index] = choice
        if not self._demux.complete:
            raise self._demux.missing()
        self._extra = about_reply(reply)
        answers: list[tuple[int, Completion]] = []
        aborted: Failure | None = None
        unreadable: Exception | None = None
        verbatim = self._batch.shape.verbatim
        usages = self._usages(choices, reply)
        reasons = [choice.get("finish_reason") for choice in choices]
        some_aborted = any(reason in reasons for reason in ABORTED)
        for position, request in enumerate(requests):
            own = choices[position * n : position * n + n]
            if some_aborted:
                given_up = next((choice for choice in own if is_aborted(choice)), None)
                if given_up is not None:
                    aborted = self._aborted_by(given_up)
                    continue
            try:
                made = tuple([self._choice([choice], k) for k, choice in enumerate(own)])
                if n > 1:
                    self._batch.wire.learnt.ignored_n = 0
            except BAD_FORM as error:
                unreadable = error
                continue
            usage = usages[position]
            completion = Completion(made, usage, request.attempts, None, self._extra.copy())
            completion.fixed_length = request.shape.fixed_length
            if usage is None and len(requests) > 1:
                completion.counted_tokens = _count_made(own)
            if verbatim:
                body = own_body(self._batch, reply, "choices", own, usage)
                completion.reply = Reply(body, source=(self._batch.id, len(requests)), alone=self._batch.alone)
            answers.append((position, completion))
        return answers, aborted or self._why_unread(unreadable, answers)

    def _why_unread(self, error: Exception | None, answers: list[Any]) -> Failure | None:
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
        made = [(self._size_of(each), each.get("finish_reason"), _count_made([each])) for each in choices]
        return shared_usages(self._batch, told, made) or usages

    @staticmethod
    def _size_of(choice: dict[str, Any]) -> int:
        """Return the bytes of a choice's text."""
        return size_of(choice.get("text"))


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
