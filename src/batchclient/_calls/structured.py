"""Answers in the form of a pydantic model: the schema goes out, the instance comes back.

Rules:
- The schema goes as ``response_format`` of type ``json_schema``, OpenAI's way, which vLLM takes for
  completions and chats alike. The field joins the coalescing key like any other. The schema's name
  and root are made what OpenAI takes.
- Every choice is validated here, whatever the server promises: an answer that was cut off is no
  JSON.
- No error shows any part of an answer. Pydantic's own message quotes the answer; only the kinds of
  its complaints are passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from batchclient._shell.callbacks import call_back
from batchclient.errors import AnswerInvalid, ConfigError
from batchclient.health import CUT_OFF
from batchclient.types import Choice, Completion

__all__ = ["demand", "parse", "refuse_other_forms"]

_formats: WeakKeyDictionary[type[BaseModel], dict[str, Any]] = WeakKeyDictionary()
_OTHER_FORMS = (
    "labels",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def demand(model: object, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's parameters with the model's schema among them.

    Raises:
        ConfigError: the argument is no pydantic model, has no JSON schema, or the parameters demand
            another form already.
    """
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise ConfigError("response_model is a pydantic model, a subclass of BaseModel", field="response_model")
    refuse_other_forms(params)
    wanted = _formats.get(model)
    if wanted is None:
        try:
            schema = model.model_json_schema()
        except PydanticUserError as error:
            message = f"response_model has no JSON schema: {error.message}"
            raise ConfigError(message, field="response_model") from None
        root = schema.get("$defs", {}).get(str(schema.get("$ref")).removeprefix("#/$defs/"))
        if root is not None:
            # Of a model that refers to itself: OpenAI takes no reference at the root.
            schema = {key: value for key, value in schema.items() if key != "$ref"} | root
        # Of ``Box[int]``, for instance, OpenAI takes no brackets.
        name = re.sub("[^a-zA-Z0-9_-]", "_", model.__name__)[:64]
        named = {"name": name, "schema": schema, "strict": True}
        _formats[model] = wanted = {"type": "json_schema", "json_schema": named}
    return {**params, "response_format": wanted}


def refuse_other_forms(params: Mapping[str, Any]) -> None:
    """Refuse parameters that demand a form of the answer, beside a model that does.

    Raises:
        ConfigError: naming the parameter.
    """
    extra = params.get("extra_body")
    for other in _OTHER_FORMS:
        if params.get(other) is not None or (isinstance(extra, Mapping) and extra.get(other) is not None):
            raise ConfigError(
                f"response_model and {other} both demand a form; give one of them", field="response_model"
            )


def parse(model: type[BaseModel], note: Callable[[], None] = lambda: None) -> Callable[[Completion], Completion]:
    """Return a function that puts instances of the model into an answer.

    Args:
        model: the caller's.
        note: called for an answer whose only fault is that it does not fit.

    The function raises:
        AnswerInvalid: a choice does not fit the model.
    """

    def finish(completion: Completion) -> Completion:
        complaints = [_complaint(choice, model) for choice in completion.choices]
        wrong = next(((i, said) for i, said in enumerate(complaints) if said is not None), None)
        if wrong is not None:
            place, said = wrong
            error = _invalid(model, completion, place, said)
            if error.health == "invalid":
                note()
            raise error
        return completion

    return finish


def _complaint(choice: Choice, model: type[BaseModel]) -> str | None:
    """Validate one choice; return the complaint, in words other than the answer's."""
    try:
        choice.parsed = call_back("a validator", model.model_validate_json, choice.text)
    except ValidationError as error:
        kinds = Counter(
            one["type"] for one in error.errors(include_url=False, include_context=False, include_input=False)
        )
        return ", ".join(f"{kind} × {count}" if count > 1 else kind for kind, count in sorted(kinds.items()))
    except Exception as error:  # a validator of the user's
        return f"a validator raised {type(error).__name__}"
    return None


def _invalid(model: type[BaseModel], completion: Completion, place: int, said: str) -> AnswerInvalid:
    which = f"choice {place} of the answer" if len(completion.choices) > 1 else "the answer"
    cut = (reason := completion.choices[place].finish_reason) in CUT_OFF
    why = f"; it was cut off at max_tokens (finish_reason: {reason})" if cut else ""
    error = AnswerInvalid(f"{which} is no {model.__name__}: {said}{why}", attempt=completion.attempts)
    error.completion = completion
    if (health := completion.health) != "ok":
        error.health = health
    error.retryable = not cut
    return error
