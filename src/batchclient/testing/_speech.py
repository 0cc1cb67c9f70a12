"""The language of a scripted server: vLLM's, by the embedded server's own parsers and writers.

Rules:
- Completions, chats, lists of chats and embeddings are read leniently: any model, tools, images and
  ``dimensions`` are taken. A malformed body is refused in vLLM's words, as by the embedded
  server.
- The other routes of vLLM's pooling runner (score, rerank, classify) are the embedded server's,
  with the embedded server's own figures.
- A stream sends a choice's pieces as ``stream_interval`` says, as the real server: the first alone.
- A reply is decided whole, before its first byte: nothing here knows time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pydantic_core

from batchclient.simulator.guise import JSON_HEADERS, Route
from batchclient.simulator.replies import ChatWriter, CompletionWriter, EmbeddingWriter, Writer
from batchclient.simulator.requests import (
    Call,
    ChatRequest,
    ChatsRequest,
    CompletionRequest,
    EmbeddingRequest,
    HttpError,
    Limits,
    read,
)
from batchclient.simulator.schema import demanded_text
from batchclient.simulator.text import Generation, Prompt, generate, pieces, prompt_digest
from batchclient.simulator.vectors import DIMENSIONS, vector_of
from batchclient.simulator.vllm import VLLM, words
from batchclient.testing._answers import Answer, Fault

__all__ = ["Reply", "Spoken", "error_reply", "fault_reply", "refusal", "understand", "unscripted", "write"]

_LIMITS = Limits(None, 100_000_000, max_prompts=1_000_000, is_strict=False)
"""No prompt is too long for a test's server, and no answer."""
_SSE_HEADERS = (("content-type", "text/event-stream; charset=utf-8"),)
_KINDS = {"embeddings": "embedding", "score": "score", "rerank": "rerank", "classify": "classify"}


@dataclass(slots=True)
class Reply:
    """The reply to one request.

    Args:
        status: HTTP status; 0: no reply at all.
        headers: of the reply.
        pieces: of the body.
        delay_s: before the first byte, seconds; infinity: for ever.
        fault: ``""``, ``"time_out"``, ``"disconnect"``, ``"refuse"``, or ``"cut"``: broken off
            after the pieces.
    """

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    pieces: list[bytes] = field(default_factory=list)
    delay_s: float = 0.0
    fault: str = ""


@dataclass(slots=True)
class Spoken:
    """One request as it was understood.

    Args:
        kind: of the request's calls.
        body: the request's fields.
        prompts: as rules see them, one per call.
        conversations: of chats, one per call.
        call: as the writers see the request.
        route: the route whose writer answers; ``None``: a writer of this module answers.
    """

    kind: str
    body: dict[str, Any]
    prompts: list[Prompt]
    conversations: list[list[dict[str, Any]]]
    call: Call
    route: Route | None = None


# Requests ------------------------------------------------------------------------------------------------------------


def understand(path: str, raw: bytes) -> Spoken | None:
    """Read a request; ``None``: the path takes no prompts.

    Args:
        path: from ``/v1`` on, or from the root.
        raw: the body.

    Raises:
        HttpError: the body is no request.
    """
    route = VLLM.routes.get(path)
    if route is None:
        return None
    request = read(route.model, raw, _LIMITS)
    fields = pydantic_core.from_json(raw)
    match request:
        case CompletionRequest():
            call = request.call(_LIMITS)
            return Spoken("completion", fields, call.prompts, [], call)
        case ChatRequest() | ChatsRequest():
            conversations = [request.messages] if isinstance(request, ChatRequest) else request.messages
            call = request.chats(conversations, _LIMITS)
            # vLLM's list form does not stream.
            call.stream = call.stream and isinstance(request, ChatRequest)
            prompts: list[Prompt] = [_last_text(messages) for messages in conversations]
            return Spoken("chat", fields, prompts, conversations, call)
        case EmbeddingRequest():
            # Any length of a vector is served.
            call = request.model_copy(update={"dimensions": None}).call(_LIMITS)
            call.request = request
            return Spoken("embedding", fields, call.prompts, [], call)
    call = request.call(_LIMITS)
    return Spoken(path.rpartition("/")[2], fields, call.prompts, [], call, route)


def _last_text(messages: list[dict[str, Any]]) -> str:
    content = messages[-1].get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


# Replies -------------------------------------------------------------------------------------------------------------


def unscripted(prompt: Prompt, fields: dict[str, Any]) -> Answer:
    """The answer to a prompt without a rule.

    The answer repeats the prompt, or is the smallest JSON that fits the demanded form.
    """
    demanded = demanded_text(fields.get("structured_outputs"), fields.get("response_format"), prompt_digest(prompt))
    if demanded is not None:
        return Answer(demanded)
    return Answer(f"mock answer to: {prompt if isinstance(prompt, str) else ' '.join(map(str, prompt))}")


def write(spoken: Spoken, answers: Sequence[Answer], reply_id: int, created_s: int, model: str) -> Reply:
    """Write the reply with the answers, one per call."""
    model = spoken.body.get("model") or model
    call = spoken.call
    generations = [
        _ScriptedGeneration(answer, f"call_{reply_id}_{place}")
        for place, answer in enumerate(answers)
        for _ in range(call.n)
    ]
    writer: Writer
    if spoken.route is not None:
        writer = spoken.route.writer(call, f"mock-{reply_id}", created_s, model)
        generations = [generate("", 1) for _ in call.prompts]  # type: ignore[misc]  # such a writer looks at none
    elif spoken.kind == "chat":
        writer = _ChatWriter(call, f"chatcmpl-{reply_id}", created_s, model)
    elif spoken.kind == "embedding":
        writer = _VectorWriter(call, f"embd-{reply_id}", created_s, model)
        writer.vectors = [answer.vector for answer in answers]
    else:
        writer = CompletionWriter(call, f"cmpl-{reply_id}", created_s, model)
    delay_s = max((answer.delay_s for answer in answers), default=0.0)
    tokens = sum(each.tokens for each in generations)
    if not call.stream:
        value = writer.body([writer.choice(index, each) for index, each in enumerate(generations)], tokens)
        return Reply(200, JSON_HEADERS, [pydantic_core.to_json(value)], delay_s)
    events = _events(writer, generations, call.stream_interval)
    if call.include_usage:
        events += writer.usage_events(tokens)
    return Reply(200, _SSE_HEADERS, [*map(writer.line, events), b"data: [DONE]\n\n"], delay_s)


def _events(writer: Writer, generations: Sequence[Generation], interval: int) -> list[dict[str, Any]]:
    """The choices' events in turns, as from a server that generates the choices together."""
    events = []
    sent = [0] * len(generations)
    while any(before < each.tokens for before, each in zip(sent, generations, strict=True)):
        for index, each in enumerate(generations):
            before = sent[index]
            if before < each.tokens:
                sent[index] = min(each.tokens, before + interval if before else 1)
                events += writer.events(index, each, before, sent[index])
    return events


def fault_reply(fault: Fault, reply: Reply | None) -> Reply:
    """A fault's reply; the fault ``cut`` breaks ``reply`` off."""
    if fault.kind == "status":
        told = refusal(HttpError(fault.status, fault.message or ""))
        told.delay_s = fault.delay_s
        if fault.retry_after_s is not None:
            told.headers += (("retry-after", f"{fault.retry_after_s:g}"),)
        return told
    if fault.kind == "cut" and reply is not None:
        whole = b"".join(reply.pieces)
        return Reply(reply.status, reply.headers, [whole[: len(whole) // 2]], fault.delay_s, "cut")
    return Reply(delay_s=fault.delay_s, fault="time_out" if fault.kind == "hang" else fault.kind)


def error_reply(message: str) -> Reply:
    """A 400 that is the test's own fault."""
    return refusal(HttpError(400, message, kind="MockError"))


def refusal(error: HttpError) -> Reply:
    """A refusal as vLLM writes it."""
    status, headers, body = words(error)
    return Reply(status, headers, [body])


class _ScriptedGeneration(Generation):
    """An answer as it was scripted, tools and all."""

    def __init__(self, answer: Answer, call_id: str) -> None:
        own = answer.pieces or pieces(answer.text)
        ends = [*accumulate(map(len, own)), len(answer.text)]
        super().__init__(answer.text, ends, answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop"))
        self.tool_calls = answer.written_tool_calls
        self.call_id = call_id


class _ChatWriter(ChatWriter):
    """The embedded server's writer, extended by calls of tools."""

    def tool_calls_of(self, index: int, generation: Generation) -> list[dict[str, Any]]:
        assert isinstance(generation, _ScriptedGeneration)
        return [
            {"id": f"{generation.call_id}_{place}", "type": "function", "function": {"name": name, "arguments": text}}
            for place, (name, text) in enumerate(generation.tool_calls)
        ]

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        made = super().choice(index, generation)
        if "tool_calls" in made["message"]:
            made["message"]["content"] = generation.text or None
        return made

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        """Each call's name, then its arguments in two pieces, before the last event."""
        calls = self.tool_calls_of(index, generation) if after >= generation.tokens else []
        events = self.role_events()
        for place, call in enumerate(calls):
            text = call["function"]["arguments"]
            named = call | {"index": place, "function": {"name": call["function"]["name"], "arguments": ""}}
            halves = [text[: len(text) // 2], text[len(text) // 2 :]]
            for fragment in (named, *({"index": place, "function": {"arguments": half}} for half in halves)):
                choice = {"index": index, "delta": {"tool_calls": [fragment]}, "logprobs": None, "finish_reason": None}
                events.append({"choices": [choice], **self.usage_so_far(0)})
        return events + super().events(index, generation, before, after)


class _VectorWriter(EmbeddingWriter):
    """The embedded server's writer, with the scripted vectors."""

    vectors: Sequence[tuple[float, ...]] = ()

    def vector(self, index: int) -> array[float]:
        # All vectors of a reply are equally long.
        request = self.call.request
        asked = request.dimensions if isinstance(request, EmbeddingRequest) else None
        longest = max(map(len, self.vectors)) or asked or DIMENSIONS
        return array("f", self.vectors[index] or vector_of(self.call.prompts[index], longest))
