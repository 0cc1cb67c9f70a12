"""A side effect for respx that speaks vLLM's language.

With the side effect, tests with ``respx.mock`` go on where calls share requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchclient.errors import ConfigError
from batchclient.testing._answers import Said
from batchclient.testing._calls import Call
from batchclient.testing._mock import MockLLM

__all__ = ["respx_vllm"]


def respx_vllm(
    answers: str | Mapping[str, Said] | Callable[[Call], Said] | None = None,
    *,
    model: str = "mock",
    strict: bool = False,
) -> Callable[[Any], Any]:
    """Return a side effect that answers requests of httpx as vLLM does, lists and streams included.

    For example::

        respx.post("http://llm.test/v1/completions").mock(side_effect=respx_vllm(" fine"))

    For faults and assertions, or to share the script with other tests, give the ``respond`` of a
    ``MockLLM`` instead.

    Args:
        answers: one text for every prompt, answers by prompt, or a function of the ``Call``. By
            default each prompt is answered with ``"mock answer to: "`` and the prompt.
        model: the name in ``/v1/models``.
        strict: a prompt without an answer is refused with a 400.

    Raises:
        ConfigError: an answer is wrong.
    """
    mock = MockLLM(model=model, strict=strict)
    if isinstance(answers, Mapping):
        for prompt, said in answers.items():
            mock.when(prompt).answer(said)
    elif isinstance(answers, str) or callable(answers):
        mock.when().answer(answers)
    elif answers is not None:
        message = "answers are a text, a mapping of prompts to answers, or a function of the call"
        raise ConfigError(f"{message}; not {type(answers).__name__}", field="answers")
    return mock.respond
