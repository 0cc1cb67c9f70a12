"""A completion request from its sequences to the bytes of its reply.

Rules:
- An open request turns the engine's progress into parts of its reply; it knows no time and no
  queue.
- As on the real server, a stream's headers go out when the prompts enter the engine. A plain reply
  is one part.
- An open request applies faults that spoil a reply (``cut``, ``drop_choice``, …); faults that
  replace a reply never get here (``replacement``).
- A spoiled stream is spoiled in the event after half of its sequences have had an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic_core

from batchclient.simulator.engine import Progress
from batchclient.simulator.faults import Fault
from batchclient.simulator.guise import JSON_HEADERS, Headers, Reply, Route, Words
from batchclient.simulator.replies import Writer, usage
from batchclient.simulator.requests import Call, HttpError, Limits, Sampling
from batchclient.simulator.schema import demanded_text
from batchclient.simulator.text import (
    Generation,
    OutputLengths,
    Prompt,
    generate,
    pieces,
    prompt_digest,
    thoughts,
    variant_of,
    written,
)

__all__ = ["OpenRequest", "Part", "part_of", "replacement"]

_STREAM_HEADERS: Headers = (("content-type", "text/event-stream; charset=utf-8"),)


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


def part_of(request_id: int, reply: Reply, more_headers: Headers = ()) -> Part:
    """Return a whole reply as a part."""
    return Part(request_id, reply.status, reply.headers + more_headers, reply.body, last=True)


class OpenRequest:
    """A request in work.

    Args:
        request_id: the shell's number for the request.
        call: what it asks for.
        writer: of the reply.
        route: the request's path.
        words: of refusals.
        fault: the kind of a fault that spoils the reply, if any.

    Attributes:
        generations: the answers to come, by index.
        sequence_ids: of the sequences in the engine.
        is_over: whether nothing more will be sent.
        unfinished: sequences that the engine has not finished.
    """

    def __init__(
        self, request_id: int, call: Call, writer: Writer, route: Route, words: Words, fault: str | None
    ) -> None:
        self.request_id: int = request_id
        self.call: Call = call
        self.fault: str | None = fault
        self.generations: list[Generation] = []
        self.sequence_ids: list[int] = []
        self.is_over: bool = False
        self.unfinished: int = call.sequences
        self._writer = writer
        self._route = route
        self._words = words
        self._choices: dict[int, dict[str, Any]] = {}
        """By index, in the order of completion."""
        self._left = call.sequences
        self._sent = [0] * call.sequences
        self._completion_tokens = 0
        self._events = 0
        self._made_tokens = 0

    def __repr__(self) -> str:
        kind = "stream" if self.call.stream else "plain"
        return f"<OpenRequest {self.request_id} {kind} {self._left} of {self.call.sequences} left>"

    def decide(self, lengths: OutputLengths | None, nonce: str, limits: Limits) -> None:
        """Decide every choice's answer; refuse a budget that cannot be heeded (``HttpError``)."""
        call = self.call
        sampling: Sampling | None = None
        for i, prompt in enumerate(call.prompts):
            own = call.sampling_of(i)
            if own is not sampling or (own.temperature != 0 and own.seed is None):
                # Without a seed, equal prompts of a list have answers of their own.
                sampling = own
                variants = [variant_of(vars(own), f"{nonce}/{i}", choice) for choice in range(call.n)]
            budget, thinking = own.thinking_budget(limits), limits.thinking_tokens
            asked, thought = prompt, list[str]()
            if thinking and call.tool is None:
                asked, thought = thoughts(prompt, thinking if budget is None else min(thinking, budget))
                if call.parts_reasoning and call.stream and not thought:
                    # A stream's parser looks at the prompt: whether the thinking is over.
                    call.parts_reasoning = False
            for variant in variants:
                self.generations.append(_decided(own, asked, call.max_tokens[i], variant, lengths, thought))
        if self.fault == "abort":
            for generation in self.generations:
                generation.cut_short()

    def begin(self) -> Part | None:
        """Return the stream's headers; ``None`` for a plain reply."""
        return Part(self.request_id, 200, _STREAM_HEADERS, self._route.opening) if self.call.stream else None

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
        if self._left or self.is_over:
            return parts
        parts = parts + self._end_parts() if self.call.stream else self._plain_parts()
        # A silent connection stays open: the request is over when the client leaves.
        self.is_over = True
        return parts

    def _event_parts(self, index: int, generation: Generation, generated: int) -> list[Part]:
        if self.is_over or (self.fault == "drop_choice" and index == len(self._sent) - 1):
            return []
        events = self._writer.events(index, generation, self._sent[index], generated)
        if self.fault == "sum_usage":
            # The whole list's usage so far instead of the choice's own.
            self._made_tokens += generated - self._sent[index]
            sums = usage(sum(self.call.prompt_tokens), self._made_tokens)
            events = [event | {"usage": event["usage"] | sums} if "usage" in event else event for event in events]
        body = b""
        for event in events:
            body += self._writer.line(event)
        self._events += 1
        if self.fault is not None:
            if self._events == len(self._sent) // 2 + 1 and self.fault in ("cut", "error_event", "stall_body"):
                self.is_over = True
                return self._spoil(body)
            if self.fault == "double_choice" and index == 0:
                body += body
        return [Part(self.request_id, body=body)]

    def _spoil(self, body: bytes) -> list[Part]:
        if self.fault != "error_event":
            return self._broken(Part(self.request_id, body=body))
        return self.refused(HttpError(500))

    def refused(self, error: HttpError) -> list[Part]:
        """Return the rest of a stream that ends with an error."""
        body = b"data: " + self._words(error).body + b"\n\n"
        return [Part(self.request_id, body=body), Part(self.request_id, body=self._route.done, last=True)]

    def _end_parts(self) -> list[Part]:
        last = self._writer.usage_events(self._completion_tokens) if self.call.include_usage else []
        parts = [Part(self.request_id, body=self._writer.line(event)) for event in last]
        return [*parts, Part(self.request_id, body=self._route.done, last=True)]

    def _plain_parts(self) -> list[Part]:
        indices = [*self._choices] if self._route.in_completion_order else range(len(self._choices))
        choices = [self._choices[index] for index in indices]
        match self.fault:
            case "reorder":
                choices.reverse()
            case "drop_choice":
                choices = choices[:-1]
            case "double_choice":
                choices = [choices[0], *choices]
            case "error_event":
                return [part_of(self.request_id, self._words(HttpError(500)))]
        body = pydantic_core.to_json(self._writer.body(choices, self._completion_tokens))
        if self.fault not in ("cut", "stall_body"):
            return [Part(self.request_id, 200, JSON_HEADERS, body, last=True)]
        promised = (*JSON_HEADERS, ("content-length", str(len(body))))
        return self._broken(Part(self.request_id, 200, promised, body))

    def _broken(self, part: Part) -> list[Part]:
        """Return half of a part; after it the connection is closed, or silent."""
        part.body = part.body[: len(part.body) // 2]
        return [part, Part(self.request_id, last=True, broken=True)] if self.fault == "cut" else [part]


def _decided(
    sampling: Sampling,
    prompt: Prompt,
    max_tokens: int,
    variant: str,
    lengths: OutputLengths | None,
    thought: list[str],
) -> Generation:
    generation = None
    room = max(1, max_tokens - len(thought))
    if sampling.structured_outputs is not None or sampling.response_format is not None:
        text = demanded_text(sampling.structured_outputs, sampling.response_format, prompt_digest(prompt))
        generation = None if text is None else written(pieces(text), room)
    if generation is None:
        generation = generate(
            prompt,
            room,
            variant=variant,
            lengths=lengths,
            ignore_eos=bool(sampling.ignore_eos),
            min_tokens=sampling.min_tokens or 0,
        )
    if thought:
        generation = generation.after(thought, max_tokens)
    if sampling.stop:
        stops = [sampling.stop] if isinstance(sampling.stop, str) else sampling.stop
        generation.apply_stops(stops, keep=bool(sampling.include_stop_str_in_output))
    return generation


def replacement(request_id: int, fault: Fault, words: Words) -> list[Part] | None:
    """Return the whole reply of a fault that spares the engine, in a server's own words.

    ``None``: the engine has a part in it.
    """
    match fault.kind:
        case "refuse" | "disconnect":
            return [Part(request_id, last=True, broken=True, refused=fault.kind == "refuse")]
        case "stall":
            return []
        case "garbage":
            return [part_of(request_id, Reply(200, JSON_HEADERS, b'{"id":"cmpl-0","choices":[{"index"'))]
        case "html":
            page = b"<html><head><title>Service</title></head><body><h1>Please wait</h1></body></html>"
            return [part_of(request_id, Reply(200, (("content-type", "text/html"),), page))]
        case "status":
            error = HttpError(int(fault.value))
        case "no_lists":
            error = HttpError(400, "prompt must be a string.", "prompt")
        case "no_stream_lists":
            error = HttpError(400, "Streaming is not supported for a list of prompts.", "stream")
        case "bad_prompt":
            error = HttpError(400, "The prompt contains a special token that is not allowed.")
        case _:
            return None
    # The status is the fault's, where a server would say another.
    reply = words(error)._replace(status=error.status)
    retry_after = () if fault.retry_after_s is None else (("retry-after", f"{fault.retry_after_s:g}"),)
    return [part_of(request_id, reply, retry_after)]
