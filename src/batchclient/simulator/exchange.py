"""A completion request from its sequences to the bytes of its reply.

Rules:
- An exchange turns the engine's progress into parts of its reply; it knows no time and no queue.
- As on the real server, a stream's headers go out when the prompts enter the engine. A plain reply
  is one part.
- An exchange applies faults that spoil a reply (``cut``, ``drop_choice``, …); faults that replace a
  reply never get here.
- A spoiled stream is spoiled in the event after half of its sequences have had an event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from batchclient.simulator.engine import Progress
from batchclient.simulator.faults import Fault
from batchclient.simulator.guise import BUSY, Route, Writer
from batchclient.simulator.structured import WrittenGeneration, demanded_text
from batchclient.simulator.text import (
    Generation,
    OutputLengths,
    choice_variant,
    generate,
    prompt_digest,
    variant_of,
)
from batchclient.simulator.validation import CompletionCall, error_body
from batchclient.simulator.wire import error_event

__all__ = ["JSON_HEADERS", "Exchange", "Part"]

Headers = tuple[tuple[str, str], ...]

JSON_HEADERS: Headers = (("content-type", "application/json"),)
_STREAM_HEADERS: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
_COUNT = re.compile(rb'"(prompt|completion|total)_tokens":[0-9]+')
# A dying engine's answer.
ENGINE_ERROR = error_body(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError", 500
)


@dataclass(slots=True)
class Part:
    """A piece of a reply, in order.

    Args:
        request_id: of the request.
        status: above 0 in the first part only: the headers stand before the body.
        headers: with ``status``; without content length unless it must be a lie.
        body: bytes of the body.
        last: whether the reply ends with the part; with ``broken``, by closing the connection.
        broken: whether the connection is closed without a proper end.
        refused: whether nothing was ever accepted (``broken`` is true as well).
    """

    request_id: int
    status: int = 0
    headers: Headers = ()
    body: bytes = b""
    last: bool = False
    broken: bool = False
    refused: bool = False


class Exchange:
    """A request in work.

    Args:
        request_id: the shell's number for the request.
        route: the request's path.
        fault: the kind of a fault that spoils the reply, if any.
        headers: extra headers of the reply.

    Attributes:
        generations: the answers to come, by index.
        sequence_ids: of the sequences in the engine.
        is_over: whether nothing more will be sent.
        unfinished: sequences that the engine has not finished.
    """

    __slots__ = (
        "_choices",
        "_completion_tokens",
        "_events",
        "_finished",
        "_headers",
        "_left",
        "_made_tokens",
        "_route",
        "_sent",
        "_writer",
        "call",
        "fault",
        "generations",
        "is_over",
        "request_id",
        "sequence_ids",
        "unfinished",
    )

    def __init__(
        self,
        request_id: int,
        call: CompletionCall,
        writer: Writer,
        route: Route,
        fault: str | None,
        headers: Headers = (),
    ) -> None:
        self.request_id: int = request_id
        self.call: CompletionCall = call
        self.fault: str | None = fault
        self.generations: list[Generation] = []
        self.sequence_ids: list[int] = []
        self.is_over: bool = False
        self.unfinished: int = call.sequences
        self._writer = writer
        self._route = route
        self._finished: list[int] = []
        """Indices in the order of completion."""
        self._headers = headers
        self._left = call.sequences
        self._sent = [0] * call.sequences
        self._choices = [""] * call.sequences
        self._completion_tokens = 0
        self._events = 0
        self._made_tokens = 0

    def __repr__(self) -> str:
        kind = "stream" if self.call.stream else "plain"
        return f"<Exchange {self.request_id} {kind} {self._left} of {self.call.sequences} left>"

    def decide(self, lengths: OutputLengths | None, nonce: str) -> None:
        """Decide every choice's answer."""
        call = self.call
        for i, prompt in enumerate(call.prompts):
            fields, stops = call.fields_of(i), call.stops_of(i)
            variant = variant_of(fields, nonce)
            is_random = variant.endswith(nonce) and fields.get("temperature") != 0 and fields.get("seed") is None
            ignore_eos = bool(fields.get("ignore_eos"))
            min_tokens = fields.get("min_tokens") or 0
            has_form = fields.get("structured_outputs") is not None or fields.get("response_format") is not None
            demanded = demanded_text(fields, prompt_digest(prompt)) if has_form else None
            own = f"{variant}/{i}" if is_random else variant
            for k in range(call.n):
                generation: Generation
                if demanded is not None:
                    generation = WrittenGeneration(demanded, call.max_tokens[i])
                else:
                    generation = generate(
                        prompt,
                        call.max_tokens[i],
                        variant=choice_variant(own, k),
                        lengths=lengths,
                        ignore_eos=ignore_eos,
                        min_tokens=min_tokens,
                    )
                if stops:
                    generation.apply_stops(stops, keep=bool(fields.get("include_stop_str_in_output")))
                if self.fault == "abort":
                    generation.cut_short()
                self.generations.append(generation)

    def begin(self) -> Part | None:
        """Return the stream's headers; ``None`` for a plain reply."""
        if not self.call.stream:
            return None
        return Part(self.request_id, 200, _STREAM_HEADERS + self._headers, self._route.opening)

    def on_progress(self, progress: Progress, index: int) -> list[Part]:
        """Return the parts that the engine's progress with a choice adds to the reply."""
        generation = self.generations[index]
        parts: list[Part] = []
        if self.call.stream:
            parts = self._event_parts(index, generation, progress.generated)
            self._sent[index] = progress.generated
        if progress.finished:
            self._left -= 1
            self._completion_tokens += progress.generated
            if not self.call.stream:
                self._choices[index] = self._writer.choice(index, generation)
                self._finished.append(index)
        if self._left or self.is_over:
            return parts
        if self.call.stream:
            parts += self._end_parts()
        else:
            parts = self._plain_parts()
        # A silent connection stays open: the request is over when the client leaves.
        self.is_over = True
        return parts

    def _event_parts(self, index: int, generation: Generation, generated: int) -> list[Part]:
        if self.is_over or (self.fault == "drop_choice" and index == len(self._sent) - 1):
            return []
        event = self._writer.event(index, generation, self._sent[index], generated)
        if self.fault == "sum_usage":
            event = self._with_sums(event, generated - self._sent[index])
        self._events += 1
        if self.fault is not None:
            if self._events == len(self._sent) // 2 + 1 and self.fault in ("cut", "error_event", "stall_body"):
                self.is_over = True
                return self._spoil(event)
            if self.fault == "double_choice" and index == 0:
                event += event
        return [Part(self.request_id, body=event)]

    def _with_sums(self, event: bytes, tokens: int) -> bytes:
        """Return the event with the whole list's usage so far instead of the choice's own."""
        self._made_tokens += tokens
        prompt = sum(self.call.prompt_tokens)
        sums = {b"prompt": prompt, b"completion": self._made_tokens, b"total": prompt + self._made_tokens}
        return _COUNT.sub(lambda match: b'"%b_tokens":%d' % (match[1], sums[match[1]]), event)

    def _spoil(self, event: bytes) -> list[Part]:
        half = event[: len(event) // 2]
        match self.fault:
            case "cut":
                return [Part(self.request_id, body=half), Part(self.request_id, last=True, broken=True)]
            case "stall_body":
                return [Part(self.request_id, body=half)]
        return [
            Part(self.request_id, body=error_event(ENGINE_ERROR)),
            Part(self.request_id, body=self._route.done, last=True),
        ]

    def _end_parts(self) -> list[Part]:
        parts = [Part(self.request_id, body=self._route.done, last=True)]
        if self.call.include_usage:
            parts.insert(0, Part(self.request_id, body=self._writer.usage_event(self._completion_tokens)))
        return parts

    def _plain_parts(self) -> list[Part]:
        choices = self._choices
        if self._route.in_completion_order:
            choices = [choices[index] for index in self._finished]
        match self.fault:
            case "reorder":
                choices = choices[::-1]
            case "drop_choice":
                choices = choices[:-1]
            case "double_choice":
                choices = [choices[0], *choices]
            case "error_event":
                return [Part(self.request_id, 500, JSON_HEADERS, ENGINE_ERROR, last=True)]
        body = self._writer.body(choices, self._completion_tokens)
        if self.fault in ("cut", "stall_body"):
            promised = (*JSON_HEADERS, ("content-length", str(len(body))))
            parts = [Part(self.request_id, 200, promised, body[: len(body) // 2])]
            if self.fault == "cut":
                parts.append(Part(self.request_id, last=True, broken=True))
            return parts
        return [Part(self.request_id, 200, JSON_HEADERS + self._headers, body, last=True)]


def replacement(request_id: int, fault: Fault) -> list[Part] | None:
    """Return the whole reply of a fault that spares the engine; ``None``: the engine has a part."""
    match fault.kind:
        case "refuse" | "disconnect":
            return [Part(request_id, last=True, broken=True, refused=fault.kind == "refuse")]
        case "stall":
            return []
        case "garbage":
            return [Part(request_id, 200, JSON_HEADERS, b'{"id":"cmpl-0","choices":[{"index"', last=True)]
        case "html":
            page = b"<html><head><title>Service</title></head><body><h1>Please wait</h1></body></html>"
            return [Part(request_id, 200, (("content-type", "text/html"),), page, last=True)]
        case "status":
            status = int(fault.value)
            retry_after = () if fault.retry_after_s is None else (("retry-after", f"{fault.retry_after_s:g}"),)
            message, kind = _STATUS_TEXTS.get(status, ("The request failed by order.", "InternalServerError"))
            return [Part(request_id, status, JSON_HEADERS + retry_after, error_body(message, kind, status), last=True)]
        case "no_lists":
            # The words of ``transformers serve``.
            return [Part(request_id, 400, JSON_HEADERS, b'{"detail":"prompt must be a string."}', last=True)]
        case "no_stream_lists":
            body = error_body("Streaming is not supported for a list of prompts.", "BadRequestError", 400, "stream")
            return [Part(request_id, 400, JSON_HEADERS, body, last=True)]
        case "bad_prompt":
            body = error_body("The prompt contains a special token that is not allowed.", "BadRequestError", 400)
            return [Part(request_id, 400, JSON_HEADERS, body, last=True)]
    return None


_STATUS_TEXTS = {
    429: ("Too many requests.", "RateLimitError"),
    500: ("EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError"),
    503: (BUSY, "Service Unavailable"),
}
