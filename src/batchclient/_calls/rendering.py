"""Chats sent as completions, where the client was given the model's chat template.

Why: a list of completions is streamed, so that no caller waits for the list's slowest call; a
stream tells everyone's usage; and the server need not fill the template
(``docs/explanation/chat.md`` has the figures).

Rules:
- Only parameters that completions have under the same name and meaning go this way; any other
  parameter sends the chat as a chat.
- A length must be given: without a length a chat may fill the context, and a completion ends after
  16 tokens.
- A template writes the special tokens itself, so the server is told to add none to a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchclient._shell.callbacks import call_back
from batchclient.errors import ConfigError
from batchclient.templates import Prompt
from batchclient.types import Completion

__all__ = ["as_chat", "render"]

_SAME = frozenset(
    (
        "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop",
        "stop_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty",
        "logit_bias", "ignore_eos", "min_tokens", "include_stop_str_in_output", "skip_special_tokens",
        "spaces_between_special_tokens", "bad_words", "allowed_token_ids", "truncate_prompt_tokens",
        "response_format", "structured_outputs", "cache_salt", "user", "request_id", "metadata",
    )
)  # fmt: skip
"""vLLM 0.32, completion/protocol.py and chat_completion/protocol.py."""


def render(
    messages: Any, params: Mapping[str, Any], render_chat: Callable[[Any], Any]
) -> tuple[Prompt, dict[str, Any]] | None:
    """Return a chat as a completion's prompt and parameters; ``None``: the chat goes as a chat.

    Raises:
        ConfigError: the template gave no prompt.
    """
    if not _SAME.issuperset(params):
        return None
    length = params.get("max_completion_tokens")
    length = params.get("max_tokens") if length is None else length
    if length is None:
        return None
    prompt = call_back("render_chat", render_chat, messages)
    rendered = {name: value for name, value in params.items() if name != "max_completion_tokens"} | {
        "max_tokens": length
    }
    if isinstance(prompt, str):
        rendered["add_special_tokens"] = False
    elif not isinstance(prompt, (list, tuple)) or not all(type(each) is int for each in prompt):
        kind = type(prompt).__name__
        raise ConfigError(f"render_chat returns a text or a list of token ids, not a {kind}", field="render_chat")
    return prompt, rendered


def as_chat(completion: Completion) -> Completion:
    """Give the answer of a rendered chat the form of a chat's answer."""
    for choice in completion.choices:
        choice.message = {"role": "assistant", "content": choice.text}
    return completion
