"""A budget for thinking, ``thinking_tokens``, as each sort of server takes it, and how long an
answer's reasoning was.

Facts, from the servers' sources; vLLM and llama.cpp were seen running:
- vLLM (0.32, ``entrypoints/openai/*/protocol.py``, ``v1/sample/thinking_budget_state.py``):
  ``thinking_token_budget``, of completions and chats, heeded with ``--reasoning-parser`` or
  ``--reasoning-config`` and refused with a 400 without (``v1/engine/input_processor.py``); of a
  stream the 400 stands in the first event. Versions before 0.19 drop the field. Reasoning that the
  prompt has begun is counted.
- SGLang (``srt/constrained/grammar_manager.py``, ``reasoner_grammar_backend.py``): of chats,
  ``custom_params: {"thinking_budget": N}``, heeded with ``--enable-strict-thinking`` and
  ``--reasoning-parser``, and dropped without; ``/server_info`` shows both. ``/generate`` counts
  from the first token where it is told that the model thinks, and so is not asked.
- llama.cpp (``tools/server/server-common.cpp``, ``server-schema.cpp``, ``common/sampling.cpp``):
  chats have ``thinking_budget_tokens``, heeded where the chat template has tags of thinking;
  completions have ``reasoning_budget_tokens`` with the tags. The closing tag is forced only where
  ``reasoning_budget_message`` is in the request, empty or not. A tag in the prompt begins nothing,
  unless ``generation_prompt`` repeats it.
- trtllm-serve (``serve/openai_protocol.py``): what the chat template makes of
  ``chat_template_kwargs``.
- TGI and OpenAI's API have nothing of the kind.

``usage`` tells the reasoning's tokens where the server parses it: vLLM's chats in
``completion_tokens_details``, and 0 where the prompt has begun the reasoning; SGLang in
``reasoning_tokens``. Else the answer's tokens are shared out by characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient._core.requests import Shape
from batchclient.dialects._fields import canonical
from batchclient.health import TAGS, as_it_came, reasoning_in

__all__ = [
    "LLAMACPP_BUDGETS",
    "NOT_AT_ALL",
    "NO_BUDGET",
    "SGLANG_BUDGETS",
    "SWITCHES",
    "TRTLLM_BUDGETS",
    "VLLM_BUDGETS",
    "Budget",
    "is_kept",
    "opened_by",
    "reasoning_tokens",
    "room_for",
    "split",
    "tag_of",
    "with_budget",
]

NO_BUDGET = "no_thinking_budget"
"""The code of a failure: the server has no field for ``thinking_tokens``, or refuses it."""
_TAG_TOKENS = 2
"""The tags around reasoning are output, too: an answer after 200 tokens begins with the 203rd."""
_BOUNDS = ("max_tokens", "max_completion_tokens")
SWITCHES = "chat_template_kwargs"
"""The field of what a chat's template reads."""
NOT_AT_ALL = {"enable_thinking": False, "thinking": False}
"""What templates of chats read: Qwen's and most others; DeepSeek's and Granite's."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How a sort of server bounds the thinking of one kind of call.

    Args:
        field: the name of its field; empty: it has none.
        write: puts a budget into a call's fields; given the tag by which thinking begins, and
            whether the prompt ends with it.
        goes_on: whether an answer that is stopped there can be gone on with.
        ends_at_0: whether a budget of 0 is best said by the field alone: a template's switch leaves
            no tag by which vLLM's parser of DeepSeek-R1 knows that an answer is no reasoning.
        advice: what makes the server heed the field, as the end of a sentence.
    """

    field: str = ""
    write: Callable[[dict[str, Any], int, str, bool], None] | None = None
    goes_on: bool = False
    ends_at_0: bool = False
    advice: str


def _vllm(fields: dict[str, Any], budget: int, _tag: str, _is_open: bool) -> None:  # noqa: FBT001
    fields.setdefault("thinking_token_budget", budget)


def _sglang(fields: dict[str, Any], budget: int, _tag: str, _is_open: bool) -> None:  # noqa: FBT001
    fields["custom_params"] = {"thinking_budget": budget, **(fields.get("custom_params") or {})}


def _llamacpp_chat(fields: dict[str, Any], budget: int, _tag: str, _is_open: bool) -> None:  # noqa: FBT001
    fields.setdefault("thinking_budget_tokens", budget)


def _llamacpp(fields: dict[str, Any], budget: int, tag: str, is_open: bool) -> None:  # noqa: FBT001
    fields.setdefault("reasoning_budget_tokens", budget)
    fields.setdefault("reasoning_budget_start_tag", tag)
    fields.setdefault("reasoning_budget_end_tags", [TAGS[tag]])
    fields.setdefault("reasoning_budget_message", "")
    if is_open:
        fields.setdefault("generation_prompt", tag)


def _template(fields: dict[str, Any], budget: int, _tag: str, _is_open: bool) -> None:  # noqa: FBT001
    fields[SWITCHES] = {"thinking_budget": budget, **(fields.get(SWITCHES) or {})}


_OF_VLLM = Budget(
    field="thinking_token_budget",
    write=_vllm,
    goes_on=True,
    ends_at_0=True,
    advice="start vLLM, 0.19 or newer, with the model's --reasoning-parser, and --reasoning-config if its tags differ",
)
_OF_SGLANG = Budget(
    field="thinking_budget",
    write=_sglang,
    goes_on=True,
    advice="start SGLang with --enable-strict-thinking and the model's --reasoning-parser",
)
_OF_LLAMACPP = Budget(
    field="thinking_budget_tokens",
    write=_llamacpp_chat,
    advice="take a llama.cpp of May 2026 or newer, with --jinja and a chat template that has the model's tags",
)
VLLM_BUDGETS = {Kind.COMPLETION: _OF_VLLM, Kind.CHAT: _OF_VLLM}
SGLANG_BUDGETS = {Kind.COMPLETION: Budget(goes_on=True, advice=_OF_SGLANG.advice), Kind.CHAT: _OF_SGLANG}
LLAMACPP_BUDGETS = {
    Kind.COMPLETION: Budget(field="reasoning_budget_tokens", write=_llamacpp, goes_on=True, advice=_OF_LLAMACPP.advice),
    Kind.CHAT: _OF_LLAMACPP,
}
TRTLLM_BUDGETS = {
    Kind.CHAT: Budget(
        field=SWITCHES,
        write=_template,
        advice="take a model whose chat template reads thinking_budget; trtllm-serve has no bound of its own",
    )
}


def room_for(thinking_tokens: int) -> int:
    """Return the output tokens before an answer."""
    return thinking_tokens + _TAG_TOKENS


def with_budget(shape: Shape, budget: Budget, *, has_field: bool, tag: str) -> Shape:
    """Return a shape in the server's fields, with room for the thinking and the answer.

    Args:
        shape: with ``thinking_tokens``.
        budget: how the server takes them.
        has_field: whether it has its field; if not, a chat is not to think at all, by its template.
        tag: by which the model's thinking begins.
    """
    fields: dict[str, Any] = from_json(shape.body)
    tokens: int = fields.pop("thinking_tokens")
    bound = shape.max_output_tokens
    if has_field and budget.write is not None:
        budget.write(fields, tokens, shape.opened or tag, bool(shape.opened))
    if not tokens and shape.kind is Kind.CHAT and not (has_field and budget.ends_at_0):
        fields[SWITCHES] = {**NOT_AT_ALL, **(fields.get(SWITCHES) or {})}
        # There are no tags.
        bound = None if bound is None else bound - _TAG_TOKENS
    # One bound of the thinking, its tags and the answer, as it was planned for.
    fields |= {name: bound for name in _BOUNDS if fields.get(name) is not None}
    return replace(shape, body=canonical(fields), max_output_tokens=bound)


def is_kept(fields: Mapping[str, Any]) -> bool:
    """Whether the template of a chat with these fields is told that the model is not to think."""
    switches = fields.get(SWITCHES) or {}
    said = [switches.get(name) for name in NOT_AT_ALL]
    return False in said and True not in said


def opened_by(prompt: str) -> str:
    """Return the tag by which a prompt's end begins the thinking; empty: none."""
    end = prompt[-64:].rstrip()
    return next((tag for tag in TAGS if end.endswith(tag)), "")


def split(choice: Any, opened: str = "") -> tuple[str, str, bool | None]:
    """Return a choice's reasoning, the rest of its text, and whether the reasoning has ended.

    ``None``: there is no sign of any. ``opened``: the tag by which the prompt has begun to think.
    """
    said, text = reasoning_in(choice), choice.text
    if said:
        return said, text, bool(text)
    begun = text.lstrip()
    tag = next((tag for tag in TAGS if begun.startswith(tag)), "")
    closing = TAGS.get(tag or opened) or next((each for each in TAGS.values() if each in text), "")
    if not closing:
        return "", text, None
    reasoning, closed, rest = begun.removeprefix(tag).partition(closing)
    return reasoning, rest, bool(closed)


def reasoning_tokens(answer: Any, opened: str = "") -> int | None:
    """Return the tokens of an answer's reasoning, by the server's count or by its share of the text.

    ``None``: nobody knows. ``opened``: as for ``split``.
    """
    told = None if answer.usage is None else answer.usage.reasoning_tokens
    tokens = answer.output_tokens
    if told or tokens is None:
        return told
    said = rest = 0
    for choice in answer.choices or as_it_came(answer.reply):
        reasoning, text, _ = split(choice, opened)
        said += len(reasoning)
        rest += len(text)
    return round(tokens * said / (said + rest)) if said else 0


def tag_of(choice: Any, opened: str = "") -> str:
    """Return the tag by which a choice's reasoning has begun: in its text, the prompt, or as usual."""
    begun = choice.text.lstrip()
    return next((tag for tag in TAGS if begun.startswith(tag)), opened) or next(iter(TAGS))
