"""vLLM's ``/v1/completions`` replies as bytes: whole bodies and streamed events.

Rules:
- Field names, their order and their nulls are those of the golden replies in ``tests/wire/vllm``.
- ``index`` is prompt-major: ``prompt * n + choice``.
- Usage counts a prompt's tokens once, whatever its ``n``. With ``continuous_usage_stats`` each
  chunk carries its own choice's usage so far.
- Replies are joined by hand, because JSON encoding would be most of the server's work. Everything
  that could need escaping goes through the encoder.
"""

from __future__ import annotations

import pydantic_core

from batchclient.simulator.text import Generation, Prompt, pieces, token_id
from batchclient.simulator.validation import CompletionCall

__all__ = ["FINGERPRINT", "ReplyWriter", "error_event"]

FINGERPRINT = "vllm-0.32.0-simulated"
_LOGPROB = -0.5


def _json(value: object) -> str:
    return pydantic_core.to_json(value).decode()


def error_event(body: bytes) -> bytes:
    """Return an error for the middle of a stream."""
    return b"data: " + body + b"\n\n"


def prompt_pieces(prompt: Prompt) -> list[str]:
    """Return a prompt's tokens as text."""
    return pieces(prompt) if isinstance(prompt, str) else [f" {each}" for each in prompt]


def prompt_ids(prompt: Prompt) -> list[int]:
    """Return a prompt's token ids."""
    return [token_id(each) for each in pieces(prompt)] if isinstance(prompt, str) else prompt


class ReplyWriter:
    """Writes a request's reply. ``reply_id`` is ``cmpl-…``, ``created_s`` Unix time."""

    __slots__ = ("_call", "_head", "_model", "reply_id")

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        self._call = call
        self.reply_id: str = reply_id
        named = f'"id":{_json(reply_id)},"object":"text_completion","created":{created_s},"model":{_json(model)}'
        self._head = f'{{{named},"choices":['

    # --- plain ---

    def choice(self, index: int, generation: Generation) -> str:
        """Return a finished choice of a plain reply."""
        call = self._call
        prompt = call.prompts[index // call.n]
        text = f'"{generation.text}"' if call.form_is_free else _json(generation.text)
        shown = generation.tokens
        if call.echo:
            shown = 0 if call.fields.get("max_tokens") == 0 else shown
            text = _json(_text_of(prompt) + (generation.text if shown else ""))
        logprobs = prompt_logprobs = "null"
        if call.logprobs is not None:
            logprobs = _json(self._logprobs(prompt, generation, 0, shown))
        if call.prompt_logprobs is not None:
            prompt_logprobs = _json(_prompt_logprobs(prompt, call.prompt_logprobs))
        stop_reason = "null" if generation.stop_reason is None else _json(generation.stop_reason)
        ids = own_ids = "null"
        if call.return_token_ids:
            ids = _json([token_id(each) for each in generation.pieces()])
            own_ids = _json(prompt_ids(prompt))
        return (
            f'{{"index":{index},"text":{text},"logprobs":{logprobs},"finish_reason":"{generation.finish_reason}",'
            f'"stop_reason":{stop_reason},"token_ids":{ids},"prompt_logprobs":{prompt_logprobs},'
            f'"prompt_token_ids":{own_ids},"routed_experts":null}}'
        )

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        """Return a whole plain reply."""
        usage = self._usage(sum(self._call.prompt_tokens), completion_tokens)
        return (
            f'{self._head}{",".join(choices)}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}",'
            f'"usage":{{{usage},"prompt_tokens_details":null,"completion_tokens_details":null}},'
            '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
        ).encode()

    # --- streamed ---

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        """Return a choice's event for the tokens ``before`` to ``after``."""
        call = self._call
        which = index // call.n
        text = generation.text_after(after)[len(generation.text_after(before)) if before else 0 :]
        finish = stop_reason = logprobs = ids = own_ids = "null"
        tail = ""
        if call.echo and not before:
            text = _text_of(call.prompts[which]) + text
            own_ids = _json(prompt_ids(call.prompts[which]))
        if after >= generation.tokens:
            finish = f'"{generation.finish_reason}"'
            stop_reason = "null" if generation.stop_reason is None else _json(generation.stop_reason)
            # The fingerprint stands in the last chunk with any contents: the usage chunk where
            # there is one.
            tail = "" if call.include_usage else f',"system_fingerprint":"{FINGERPRINT}"'
        if call.logprobs is not None:
            logprobs = _json(self._logprobs(call.prompts[which], generation, before, after))
        if call.return_token_ids:
            ids = _json([token_id(each) for each in generation.pieces()[before:after]])
            own_ids = "null" if before else _json(prompt_ids(call.prompts[which]))
        if call.continuous_usage:
            tail += f',"usage":{{{self._usage(call.prompt_tokens[which], after)}}}'
        quoted = f'"{text}"' if call.form_is_free and not call.echo else _json(text)
        return (
            f'data: {self._head}{{"index":{index},"text":{quoted},"logprobs":{logprobs},"finish_reason":{finish},'
            f'"stop_reason":{stop_reason},"prompt_token_ids":{own_ids},"token_ids":{ids}}}]{tail}}}\n\n'
        ).encode()

    def usage_event(self, completion_tokens: int) -> bytes:
        """Return the chunk with the total usage, for ``include_usage``."""
        usage = self._usage(sum(self._call.prompt_tokens), completion_tokens)
        return f'data: {self._head}],"usage":{{{usage}}},"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()

    # --- parts ---

    @staticmethod
    def _usage(prompt_tokens: int, completion_tokens: int) -> str:
        return (
            f'"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens + completion_tokens},'
            f'"completion_tokens":{completion_tokens}'
        )

    def _logprobs(self, prompt: Prompt, generation: Generation, before: int, after: int) -> dict[str, object]:
        """Return logprobs in the legacy form, with made-up figures."""
        own = generation.pieces()
        echoed = prompt_pieces(prompt) if self._call.echo else []
        tokens = own[before:after] if before else echoed + own[:after]
        offset = sum(map(len, echoed + own[:before])) if before else 0
        offsets = []
        for each in tokens:
            offsets.append(offset)
            offset += len(each)
        values: list[float | None] = [_LOGPROB] * len(tokens)
        wanted = self._call.logprobs or 0
        top: list[dict[str, float] | None] = [
            {each: _LOGPROB} | {f" alt{k}": _LOGPROB - k for k in range(1, wanted)} for each in tokens
        ]
        if echoed and not before:
            # Nothing stands before the first token of a prompt.
            values[0] = top[0] = None
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": top}


def _text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "".join(prompt_pieces(prompt))


def _prompt_logprobs(prompt: Prompt, wanted: int) -> list[dict[str, object] | None]:
    del wanted  # every made-up token is its position's likeliest, so there is no second entry to show
    listed = zip(prompt_ids(prompt), prompt_pieces(prompt), strict=True)
    entries: list[dict[str, object] | None] = [
        {str(each): {"logprob": _LOGPROB, "rank": 1, "decoded_token": piece}} for each, piece in listed
    ]
    entries[0] = None
    return entries
