"""Replies as dicts, from whole bodies to streamed events: OpenAI's fields, and those of vLLM 0.32.

Rules:
- Field names, their order and their nulls are those of the golden replies in ``tests/wire/vllm``.
- ``index`` is prompt-major: ``prompt * n + choice``.
- Usage counts a prompt's tokens once, whatever its ``n``. With ``continuous_usage_stats`` each
  chunk carries its own choice's usage so far.
- A stream of a chat begins with an event per choice, with the role and no text.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from typing import Any

import pydantic_core

from batchclient.simulator.requests import (
    Call,
    ChatRequest,
    ChatsRequest,
    CompletionRequest,
    EmbeddingRequest,
    RankRequest,
)
from batchclient.simulator.text import Generation, Prompt, count_tokens, parted, pieces, token_id, token_ids
from batchclient.simulator.vectors import CLASSES, logprobs_of, probabilities_of, score_of, vector_of

__all__ = [
    "ChatWriter",
    "ClassWriter",
    "CompletionWriter",
    "EmbeddingWriter",
    "ItemWriter",
    "OpenAIWriter",
    "RankWriter",
    "ScoreWriter",
    "Writer",
    "usage",
]

_FINGERPRINT = "vllm-0.32.0-simulated"
_LOGPROB = -0.5
_NO_DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": None}
_NO_TRANSFER = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return a usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class Writer:
    """Writes a request's reply, as values for JSON.

    Args:
        call: the request.
        reply_id: such as ``cmpl-…``.
        created_s: Unix time.
        model: the name in the reply.

    Attributes:
        event_head: the members at the beginning of each event of a stream.
    """

    def __init__(self, call: Call, reply_id: str, created_s: int, model: str) -> None:
        self.call = call
        self.reply_id = reply_id
        self.created_s = created_s
        self.model = model
        self.event_head: dict[str, Any] = {}
        self._event_opening = b""
        self._wants_ids = bool(call.sampling.return_token_ids)

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return a finished choice of a plain reply."""
        raise NotImplementedError

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        """Return a whole plain reply."""
        raise NotImplementedError

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        """Return a choice's events for the tokens ``before`` to ``after``, without their heads."""
        raise NotImplementedError

    def line(self, event: dict[str, Any]) -> bytes:
        """Return an event with its head, as bytes; the head is the same in all, and written once."""
        if not self._event_opening:
            head = pydantic_core.to_json(self.event_head)[:-1]
            self._event_opening = b"data: " + head + (b"," if self.event_head else b"")
        return self._event_opening + pydantic_core.to_json(event)[1:] + b"\n\n"

    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        """Return a stream's last events, for ``include_usage``."""
        return []

    def _ids(self, generation: Generation, before: int, after: int) -> list[int] | None:
        return [token_id(each) for each in generation.pieces[before:after]] if self._wants_ids else None


# Completions ---------------------------------------------------------------------------------------------------------


class OpenAIWriter(Writer):
    """Writes completions with only OpenAI's fields; subclasses have their server's differences."""

    def __init__(self, call: Call, reply_id: str, created_s: int, model: str) -> None:
        super().__init__(call, reply_id, created_s, model)
        self.head: dict[str, Any] = {"id": reply_id, "object": "text_completion", "created": created_s, "model": model}
        self.event_head: dict[str, Any] = self.head
        self.echoes: bool = False
        self.logprobs: int | None = None
        if isinstance(call.request, CompletionRequest):
            self.echoes = bool(call.request.echo)
            self.logprobs = call.request.logprobs

    def prompt_of(self, index: int) -> Prompt:
        """Return the prompt of a choice."""
        return self.call.prompts[index // self.call.n]

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return a finished choice of a plain reply."""
        return self.piece(index, generation, 0, generation.tokens)

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        """Return a whole plain reply."""
        return {**self.head, "choices": choices, "usage": usage(sum(self.call.prompt_tokens), completion_tokens)}

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        """Return a choice's event."""
        return [{"choices": [self.piece(index, generation, before, after)]}]

    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        """Return the chunk with the total usage."""
        return [{"choices": [], "usage": usage(sum(self.call.prompt_tokens), completion_tokens)}]

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        """Return a choice, or the part of a choice in an event."""
        text = generation.text_between(before, after)
        if self.echoes and not before:
            text = "".join(pieces(self.prompt_of(index))) + text
        return {
            "index": index,
            "text": text,
            "logprobs": None if self.logprobs is None else self._logprobs(index, generation, before, after),
            "finish_reason": generation.finish_reason if after >= generation.tokens else None,
        }

    def own_usage(self, index: int, tokens: int) -> dict[str, Any]:
        """Return a choice's own usage."""
        return usage(self.call.prompt_tokens[index // self.call.n], tokens)

    def _logprobs(self, index: int, generation: Generation, before: int, after: int) -> dict[str, object]:
        """Return logprobs in the legacy form, with made-up figures."""
        echoed = pieces(self.prompt_of(index)) if self.echoes else []
        own = generation.pieces
        tokens = own[before:after] if before else echoed + own[:after]
        offset = sum(map(len, echoed + own[:before])) if before else 0
        offsets = []
        for each in tokens:
            offsets.append(offset)
            offset += len(each)
        values: list[float | None] = [_LOGPROB] * len(tokens)
        wanted = self.logprobs or 0
        top: list[dict[str, float] | None] = [
            {each: _LOGPROB} | {f" alt{k}": _LOGPROB - k for k in range(1, wanted)} for each in tokens
        ]
        if (asked := self.call.sampling.logprob_token_ids) and not self.echoes:
            # Of tokens that are asked for, a vLLM is asked for the ids, too.
            chosen = _chosen(self.prompt_of(index), asked)
            top = [dict(chosen) for _ in tokens]
        if echoed and not before:
            # Nothing stands before the first token of a prompt.
            values[0] = top[0] = None
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": top}


class CompletionWriter(OpenAIWriter):
    """Writes vLLM's ``/v1/completions``."""

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return a finished choice of a plain reply."""
        sampling = self.call.sampling
        # As on the real server, an echo alone shows nothing of the token that is made all the same.
        tokens = 0 if self.echoes and sampling.max_tokens == 0 else generation.tokens
        wants_prompt = sampling.prompt_logprobs is not None or (self.echoes and self.logprobs is not None)
        made = self.piece(index, generation, 0, tokens)
        made["finish_reason"] = generation.finish_reason
        made["stop_reason"] = generation.stop_reason
        made["token_ids"] = self._ids(generation, 0, generation.tokens)
        made["prompt_logprobs"] = _prompt_logprobs(self.prompt_of(index)) if wants_prompt else None
        made["prompt_token_ids"] = token_ids(self.prompt_of(index)) if self._wants_ids else None
        made["routed_experts"] = None
        return made

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        """Return a whole plain reply."""
        return {
            **self.head,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": usage(sum(self.call.prompt_tokens), completion_tokens) | _NO_DETAILS,
            **_NO_TRANSFER,
        }

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        """Return a choice's event."""
        call = self.call
        ends = after >= generation.tokens
        tells_prompt = not before and (self.echoes or self._wants_ids)
        piece = self.piece(index, generation, before, after)
        piece["stop_reason"] = generation.stop_reason if ends else None
        piece["prompt_token_ids"] = token_ids(self.prompt_of(index)) if tells_prompt else None
        piece["token_ids"] = self._ids(generation, before, after)
        event: dict[str, Any] = {"choices": [piece]}
        if ends and not call.include_usage:
            # The fingerprint stands in the last chunk with any contents: the usage chunk where
            # there is one.
            event["system_fingerprint"] = _FINGERPRINT
        if call.continuous_usage:
            event["usage"] = usage(call.prompt_tokens[index // call.n], after)
        return [event]

    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        """Return the chunk with the total usage."""
        (chunk,) = super().usage_events(completion_tokens)
        return [chunk | {"system_fingerprint": _FINGERPRINT}]


def _chosen(prompt: Prompt, tokens: list[int]) -> dict[str, float]:
    """Return the logprobs of the tokens that a request asks about, by their ids."""
    return {f"token_id:{each}": value for each, value in zip(tokens, logprobs_of(prompt, tokens), strict=True)}


def _prompt_logprobs(prompt: Prompt) -> list[dict[str, object] | None]:
    # Every made-up token is its position's likeliest, so there is no second entry to show.
    listed = zip(token_ids(prompt), pieces(prompt), strict=True)
    entries: list[dict[str, object] | None] = [
        {str(each): {"logprob": _LOGPROB, "rank": 1, "decoded_token": piece}} for each, piece in listed
    ]
    entries[0] = None
    return entries


# Chats ---------------------------------------------------------------------------------------------------------------


class ChatWriter(Writer):
    """Writes chats, and the list form's reply: a choice per conversation, and nobody's prompt ids."""

    REASONING: str = "reasoning"

    def __init__(self, call: Call, reply_id: str, created_s: int, model: str) -> None:
        super().__init__(call, reply_id, created_s, model)
        self.head: dict[str, Any] = {"id": reply_id, "object": "chat.completion", "created": created_s, "model": model}
        self.event_head: dict[str, Any] = self.head | {"object": "chat.completion.chunk"}
        request = call.request
        assert isinstance(request, ChatRequest | ChatsRequest), "a chat route parses chats"
        self._top_logprobs: int | None = (request.top_logprobs or 0) if request.logprobs else None
        self._is_begun = False
        self._reasoning_tokens = 0

    # --- plain ---

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return a finished choice of a plain reply."""
        calls = self.tool_calls_of(index, generation)
        reasoning, content = parted(generation.text) if self.call.parts_reasoning else ("", generation.text)
        self._reasoning_tokens += count_tokens(reasoning)
        message = {
            "role": "assistant",
            "content": None if self.call.tool is not None or (reasoning and not content) else content,
            **({"tool_calls": calls} if calls else {}),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            self.REASONING: reasoning or None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(index, generation, 0, generation.tokens),
            "finish_reason": self._finish(generation),
            "stop_reason": generation.stop_reason,
            "token_ids": self._ids(generation, 0, generation.tokens),
            "routed_experts": None,
        }

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        """Return a whole plain reply."""
        return {
            **self.head,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": self._counted(_NO_DETAILS, completion_tokens, self._reasoning_tokens),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(),
            "prompt_text": None,
            **_NO_TRANSFER,
        }

    def tool_calls_of(self, index: int, generation: Generation) -> list[dict[str, Any]]:
        """Return the calls of tools that an answer makes."""
        if self.call.tool is None:
            return []
        function = {"name": self.call.tool, "arguments": generation.text}
        return [{"id": f"call_{self.reply_id}-{index}", "type": "function", "function": function}]

    # --- streamed ---

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        """Return a choice's event for some tokens; the very first event comes after all roles."""
        call = self.call
        text, ends = generation.text_between(before, after), after >= generation.tokens
        delta: dict[str, Any] = {"content": text}
        reasoning_tokens = 0
        if call.parts_reasoning:
            reasoning, content = parted(generation.text_between(0, after))
            reasoning_tokens = count_tokens(reasoning)
            thought, said = map(len, parted(generation.text_between(0, before)))
            new = {"content": content[said:], self.REASONING: reasoning[thought:]}
            delta = {name: part for name, part in new.items() if part}
            if not delta and not ends and not self._wants_ids and self._top_logprobs is None:
                return self.role_events()  # a tag
            delta = {"content": ""} if ends and not delta else delta
        if call.tool is not None:
            # The name stands in the first event of the call alone.
            (made,) = self.tool_calls_of(index, generation)
            made["function"]["arguments"] = text
            delta = {"tool_calls": [{"index": 0} | ({"function": {"arguments": text}} if before else made)]}
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(index, generation, before, after),
            "finish_reason": self._finish(generation) if ends else None,
            **({"stop_reason": generation.stop_reason} if ends else {}),
            "token_ids": self._ids(generation, before, after),
        }
        fingerprint = {"system_fingerprint": _FINGERPRINT} if ends and not call.include_usage else {}
        self._reasoning_tokens += reasoning_tokens if ends else 0
        so_far = self.usage_so_far(after, reasoning_tokens)
        return [*self.role_events(), {"choices": [choice], **fingerprint, **so_far}]

    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        """Return the chunk with the total usage."""
        total = self._counted({}, completion_tokens, self._reasoning_tokens)
        return [{"choices": [], "usage": total, "system_fingerprint": _FINGERPRINT}]

    def role_events(self) -> list[dict[str, Any]]:
        """Return the events of all roles the first time, and then none."""
        if self._is_begun:
            return []
        self._is_begun = True
        delta = {"role": "assistant", "content": ""}
        beside = self.usage_so_far(0) | {"prompt_token_ids": self._prompt_ids(), "prompt_text": None}
        return [
            {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}], **beside}
            for index in range(self.call.n)
        ]

    # --- parts ---

    def _finish(self, generation: Generation) -> str:
        called = self.call.tool is not None and generation.finish_reason == "stop"
        return "tool_calls" if called else generation.finish_reason

    def _prompt_ids(self) -> list[int] | None:
        has_one = self._wants_ids and isinstance(self.call.request, ChatRequest)
        return token_ids(self.call.prompts[0]) if has_one else None

    def usage_so_far(self, tokens: int, thought: int = 0) -> dict[str, Any]:
        """Return the member ``usage`` of an event, where it is asked for."""
        if not self.call.continuous_usage:
            return {}
        return {"usage": self._counted({"completion_tokens_details": None}, tokens, thought)}

    def reasoning_usage(self, tokens: int) -> dict[str, Any]:
        """Return the member of a usage that counts reasoning, if the server has one."""
        return {"completion_tokens_details": {"reasoning_tokens": tokens}}

    def _counted(self, usual: dict[str, Any], tokens: int, thought: int) -> dict[str, Any]:
        has_parser = self.call.parts_reasoning is not None and isinstance(self.call.request, ChatRequest)
        made = usage(sum(self.call.prompt_tokens), tokens)
        return made | usual | (self.reasoning_usage(thought) if has_parser else {})

    def _logprobs(self, index: int, generation: Generation, before: int, after: int) -> dict[str, object] | None:
        """Return logprobs in chat's form, with made-up figures, if any are asked for."""
        wanted = self._top_logprobs
        if wanted is None:
            return None
        others = [_logprob(f" alt{k}", _LOGPROB - k) for k in range(1, wanted)]
        entries = [_logprob(piece, _LOGPROB) for piece in generation.pieces[before:after]]
        if asked := self.call.sampling.logprob_token_ids:
            chosen = _chosen(self.call.prompts[index // self.call.n], asked)
            tops = [_logprob(name, value) for name, value in chosen.items()]
            return {"content": [own | {"top_logprobs": tops} for own in entries]}
        return {"content": [own | {"top_logprobs": [own, *others][:wanted]} for own in entries]}


def _logprob(piece: str, value: float) -> dict[str, object]:
    return {"token": piece, "logprob": value, "bytes": list(piece.encode())}


# Embeddings, scores, ranks, classes ----------------------------------------------------------------------------------


class ItemWriter(Writer):
    """Writes an item per input, and the list of items; the answers come from ``vectors``."""

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return the item of a finished input."""
        del generation
        return {"index": index, **self.item(index)}

    def item(self, index: int) -> dict[str, Any]:
        """Return what an item says beside its index."""
        raise NotImplementedError

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        """Return a whole reply; its usage is the total of the list."""
        del completion_tokens
        head = {"id": self.reply_id, "object": "list", "created": self.created_s, "model": self.model}
        return {**head, "data": choices, "usage": usage(sum(self.call.prompt_tokens), 0) | _NO_DETAILS}


class EmbeddingWriter(ItemWriter):
    """``/v1/embeddings``: numbers, or base64 of 32-bit floats, the lowest byte first."""

    def item(self, index: int) -> dict[str, Any]:
        """Return an embedding."""
        request = self.call.request
        packed = isinstance(request, EmbeddingRequest) and request.encoding_format == "base64"
        vector = self.vector(index)
        shown_vector = b64encode(vector.tobytes()).decode() if packed else vector.tolist()
        return {"object": "embedding", "embedding": shown_vector}

    def vector(self, index: int) -> array[float]:
        """Return the embedding of an input."""
        return vector_of(self.call.prompts[index])


class ScoreWriter(ItemWriter):
    """``/score``."""

    def item(self, index: int) -> dict[str, Any]:
        """Return a score."""
        return {"object": "score", "score": score_of(*self.call.pairs[index])}


class ClassWriter(ItemWriter):
    """``/classify``."""

    def item(self, index: int) -> dict[str, Any]:
        """Return a class."""
        probs = probabilities_of(self.call.prompts[index])
        return {"label": CLASSES[probs.index(max(probs))], "probs": probs, "num_classes": len(probs)}


class RankWriter(ItemWriter):
    """``/rerank``: the best ``top_n`` documents, the best first."""

    SCORE: str = "relevance_score"

    def item(self, index: int) -> dict[str, Any]:
        """Return a document with its score."""
        query, document = self.call.pairs[index]
        shown_document = {"text": document, "multi_modal": None}
        return {"document": shown_document, self.SCORE: score_of(query, document)}

    def ranked(self, choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the shown items in order."""
        assert isinstance(self.call.request, RankRequest)
        ranked = sorted(choices, key=lambda item: -item[self.SCORE])
        return ranked[: self.call.request.top_n or len(ranked)]

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        """Return a whole reply."""
        del completion_tokens
        tokens = sum(self.call.prompt_tokens)
        own_usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"id": self.reply_id, "model": self.model, "usage": own_usage, "results": self.ranked(choices)}
