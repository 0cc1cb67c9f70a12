"""``labels=["good", "bad"]``: what a call asks for with it, and each server's words for that.

Rules:
- Labels are compared without white space around them, quotes and a closing full stop, and without
  regard to case: two that are equal then are refused.
- A server's form takes a label with a blank before it, too: after ``Answer:`` a model begins with
  one, and would else be made to say what it does not mean.
- ``max_tokens`` is set where the caller sets none: no token is shorter than a byte, so a label has
  at most as many tokens as bytes; a few more are for a blank, quotes, a full stop and the end.
- With ``probabilities`` the request is the client's (``_client/probabilities``): none of this is
  sent.

Sources: vLLM 0.32 ``sampling_params.py`` (``choice``); SGLang 0.5.23 ``srt/sampling/
sampling_params.py`` (``regex``); llama.cpp ``grammars/README.md``; TGI 3.3 ``router/src/lib.rs``:
``response_format`` of chats takes a regex, and completions have no form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from batchclient._core.kinds import Kind
from batchclient.errors import ConfigError

__all__ = ["LABELS", "OTHER", "PROBABILITIES", "as_choice", "as_grammar", "as_regex", "as_tgi", "demand", "normalised"]

LABELS = "labels"
PROBABILITIES = "probabilities"
OTHER = "other"
"""Among the probabilities, the name of what no label has."""
_AROUND = " \t\r\n\v\f\"'`“”„‘’‚«»‹›"
_MORE_TOKENS = 8
"""For what may stand around a label, and the end."""
_BOUNDS = ("max_tokens", "max_completion_tokens")
_OTHER_FORMS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "json_schema", "regex", "ebnf", "grammar", "tools", "functions", "echo", "suffix", "min_tokens", "ignore_eos",
    "use_beam_search",
)  # fmt: skip
"""With these an answer is no label, or has another form."""
_SET_HERE = (
    "logprobs", "top_logprobs", "logprob_token_ids", "return_tokens_as_token_ids", "return_token_ids", "n_probs",
    "post_sampling_probs",
)  # fmt: skip
"""Fields of a call for probabilities that are the client's."""
_OF_REGEX = re.compile(r"[\\.^$*+?(){}\[\]|]")


def normalised(text: str) -> str:
    """Return a text as labels are compared."""
    text = text.strip(_AROUND)
    return " ".join(text.removesuffix(".").strip(_AROUND).split()).casefold()


def demand(fields: dict[str, Any], *, is_streamed: bool) -> tuple[str, ...]:
    """Check the labels among all fields of a call, and set its bound; return the labels, if any.

    Raises:
        ConfigError: the labels are none, or do not go with another field; the error names it.
    """
    asks = fields.pop(PROBABILITIES, None)
    if asks is not None and type(asks) is not bool:
        raise ConfigError(f"{PROBABILITIES} is true or false, not {asks!r:.40}", field=PROBABILITIES)
    given = fields.pop(LABELS, None)
    if given is None:
        if asks:
            raise ConfigError("probabilities are those of labels: give labels, too", field=PROBABILITIES)
        return ()
    labels = _checked(given)
    other = next((name for name in _OTHER_FORMS if fields.get(name)), None)
    if other is not None:
        raise ConfigError(f"labels and {other} both say what the answer is; give one of them", field=LABELS)
    if fields.get("thinking_tokens"):
        raise ConfigError("labels go with thinking_tokens=0: a label is said at once", field="thinking_tokens")
    if asks:
        _check_probabilities(labels, fields, is_streamed=is_streamed)
        fields[PROBABILITIES] = True
    fields[LABELS] = list(labels)
    if all(fields.get(name) is None for name in _BOUNDS):
        fields["max_tokens"] = max(len(label.encode("utf-8", "replace")) for label in labels) + _MORE_TOKENS
    return labels


def _checked(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, (str, bytes, Mapping)) or not isinstance(labels, Sequence):
        raise ConfigError(f"labels is a list of texts, not a {type(labels).__name__}", field=LABELS)
    if len(labels) < 2:
        raise ConfigError("labels are two at least: of fewer nothing is to be found out", field=LABELS)
    seen: dict[str, int] = {}
    for place, label in enumerate(labels):
        if not isinstance(label, str):
            raise ConfigError(f"label {place} is a {type(label).__name__}, not a text", field=LABELS)
        plain = normalised(label)
        if not plain:
            raise ConfigError(f"label {place} is nothing but blanks, quotes and a full stop", field=LABELS)
        if plain in seen:
            but = "but for white space, case, quotes and a closing full stop"
            raise ConfigError(f"labels {seen[plain]} and {place} are the same {but}", field=LABELS)
        seen[plain] = place
    return tuple(labels)


def _check_probabilities(labels: Sequence[str], fields: Mapping[str, Any], *, is_streamed: bool) -> None:
    if OTHER in labels:
        raise ConfigError(f"among probabilities {OTHER!r} is what no label has: call the label otherwise", field=LABELS)
    if fields.get("n") not in (None, 1):
        raise ConfigError("probabilities are the same for each of n answers; leave n out", field="n")
    if is_streamed:
        raise ConfigError("probabilities come with one token: complete() and chat() have them", field=PROBABILITIES)
    name = next((each for each in _SET_HERE if fields.get(each) not in (None, False)), None)
    if name is not None:
        raise ConfigError(f"{name} is the client's own where probabilities are asked for; leave it out", field=name)


# The servers' words --------------------------------------------------------------------------------------------------


def as_choice(labels: Sequence[str], _: Kind) -> dict[str, Any]:
    """The older name of vLLM's; later versions are sent it as ``structured_outputs`` (``_bodies``)."""
    return {"guided_choice": _texts(labels)}


def as_regex(labels: Sequence[str], _: Kind) -> dict[str, Any]:
    """SGLang's ``regex``, of completions and chats alike."""
    return {"regex": _regex(labels)}


def as_grammar(labels: Sequence[str], _: Kind) -> dict[str, Any]:
    """llama.cpp's ``grammar``, whose texts are escaped as JSON's."""
    return {"grammar": "root ::= " + " | ".join([json.dumps(text, ensure_ascii=False) for text in _texts(labels)])}


def as_tgi(labels: Sequence[str], kind: Kind) -> dict[str, Any]:
    """TGI's chats take a regex as their ``response_format``; its completions have no form."""
    return {"response_format": {"type": "regex", "value": _regex(labels)}} if kind is Kind.CHAT else {}


def _texts(labels: Sequence[str]) -> list[str]:
    return [start + label.strip() for label in labels for start in ("", " ")]


def _regex(labels: Sequence[str]) -> str:
    return f" ?({'|'.join([_OF_REGEX.sub(lambda found: chr(92) + found[0], label.strip()) for label in labels])})"
