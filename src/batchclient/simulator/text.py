"""The simulated model's texts, which prove whose prompt they answer.

Rules:
- The first token is a digest of the prompt. For a sampled answer, a digest of the sampling follows.
  So an answer can be checked by its content, even a single token.
- The same prompt with the same parameters gives the same text: greedy always, sampled with a
  ``seed`` or per request.
- An answer that ends by itself ends with an end-of-text token: counted, with an id, without text.
- A model that thinks writes ``<think>``, words, ``</think>``, and then the answer that it would
  give without. A prompt that ends amid its thinking, or right behind it, is gone on with.
- A token is a piece. Pieces after the first are four characters, a space and three letters. Prompts
  are cut into pieces of at most four characters, so an answer as a prompt counts the same tokens.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from statistics import NormalDist
from zlib import crc32

__all__ = [
    "Generation",
    "OutputLengths",
    "Prompt",
    "count_tokens",
    "expected_text",
    "generate",
    "parted",
    "pieces",
    "prompt_digest",
    "thoughts",
    "token_id",
    "token_ids",
    "variant_of",
    "written",
]

Prompt = str | list[int]

_OPEN, _CLOSE = "<think>", "</think>"
_PIECE = re.compile(r"</?think>| ?[^\s<]{1,3}| ?<(?!/?think>)|\s")
_DIGEST_CHARACTERS = 8
_FILLER_CHARACTERS = 4
_VARIANT_CHARACTERS = 4

# The spaces are for the reader's check: each word has three letters.
_WORDS = (  # noqa: SIM905
    "air all and ark arm art ash bay bed bee big bit bow box boy bud cab can cap car cat cod cow cup dam "
    "day dew dog dry ear egg elk elm end far fig fin fir fit fog fox fun gem get gum hat hay hen her hop "
    "ice ink ivy jam jar jet joy key kit lap law leg lid log low man map may mud net new nut oak oar oat "
    "old one orb our owl own pan paw pea pen pie pin pot raw ray red rib rim row rye sap saw sea she sky "
    "sun tea ten the tin toe top toy two van wax web wet win yak "
).split()
_RING_PIECES = 4096
_TURN = "assistant:"
_IDS = {"": 2, _OPEN: 32_003, _CLOSE: 32_004}
# Drawn once, without a period, so that two prompts' texts differ from their second token on as
# well.
_RING = "".join(" " + word for word in random.Random(0).choices(_WORDS, k=_RING_PIECES))  # noqa: S311

# The parameters that shape a sampled answer beside its temperature, in the order in which they
# enter its digest.
_SHAPING = ("top_p", "top_k", "min_p", "seed")
_SHAPING_GREEDY = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "structured_outputs")


def pieces(prompt: Prompt) -> list[str]:
    """Return the tokens of a prompt as texts; joined they are the text."""
    return _PIECE.findall(prompt) if isinstance(prompt, str) else [f" {each}" for each in prompt]


def count_tokens(prompt: Prompt) -> int:
    """Return the number of a prompt's tokens: ids as given, text by ``pieces``."""
    return len(prompt) if isinstance(prompt, list) else len(_PIECE.findall(prompt))


def token_id(piece: str) -> int:
    """Return a stable id for a piece, 3 to 32,004; 2 for the end of text."""
    return _IDS[piece] if piece in _IDS else 3 + crc32(piece.encode()) % 32_000


def token_ids(prompt: Prompt) -> list[int]:
    """Return a prompt's token ids."""
    return [token_id(each) for each in _PIECE.findall(prompt)] if isinstance(prompt, str) else prompt


def prompt_digest(prompt: Prompt) -> str:
    """Return eight hex digits of the SHA-256 of a prompt's text, or of its ids joined by commas."""
    return _hash(prompt).hex()[:_DIGEST_CHARACTERS]


def _hash(prompt: Prompt) -> bytes:
    data = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
    return sha256(data.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """The lengths of unstopped answers: ``max_tokens``, or drawn from a lognormal distribution.

    Args:
        mean_tokens: the distribution's mean; ``None``: every answer runs to ``max_tokens``.
        sigma: the standard deviation in log space.
        given: lengths to draw from instead, each as likely as another.
    """

    mean_tokens: float | None = None
    sigma: float = 1.0
    given: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> OutputLengths:
        """Read ``fixed`` or ``lognormal:MEAN:SIGMA``; raise ``ValueError`` for other texts."""
        if text == "fixed":
            return cls()
        match text.split(":"):
            case ["lognormal", mean, sigma]:
                try:
                    lengths = cls(float(mean), float(sigma))
                except ValueError:
                    pass
                else:
                    if lengths.mean_tokens and 0 < lengths.mean_tokens < math.inf and 0 <= lengths.sigma < math.inf:
                        return lengths
        raise ValueError(f"output lengths are 'fixed' or 'lognormal:MEAN:SIGMA' (as in lognormal:200:1), got {text!r}")

    def draw(self, entropy: bytes, max_tokens: int) -> tuple[int, bool]:
        """Return the length for random bytes (8 are used), and whether ``max_tokens`` cut it."""
        uniform = (int.from_bytes(entropy[:8]) + 0.5) / 2**64
        if self.given:
            tokens = self.given[int(uniform * len(self.given))]
            return (max_tokens, True) if tokens >= max_tokens else (tokens, False)
        if self.mean_tokens is None:
            return max_tokens, True
        mu = math.log(self.mean_tokens) - self.sigma**2 / 2
        # At least two: with the end-of-text token alone nothing would show whose answer it is.
        tokens = max(2, round(math.exp(mu + self.sigma * NormalDist().inv_cdf(uniform))))
        return (max_tokens, True) if tokens >= max_tokens else (tokens, False)


class Generation:
    """A choice's whole answer, decided before the engine begins.

    Args:
        text: the answer.
        ends: for each token: the characters up to its end. Beyond the text it is a token without
            text.
        finish_reason: ``"length"`` or ``"stop"``.

    Attributes:
        tokens: their number.
        text: without what a stop string cuts off.
        stop_reason: the stop string that ended the answer, if any.
    """

    __slots__ = ("_ends", "_sent", "_whole", "finish_reason", "stop_reason", "text", "tokens")

    def __init__(self, text: str, ends: Sequence[int], finish_reason: str) -> None:
        self.text: str = text
        self.tokens: int = len(ends)
        self.finish_reason: str = finish_reason
        self.stop_reason: str | None = None
        self._whole = text
        self._ends = ends
        self._sent = ends
        """For each token: the characters that a stream has sent once it is there."""

    @property
    def pieces(self) -> list[str]:
        """The tokens; a stop string does not shorten them."""
        ends = self._ends[: self.tokens]
        return [self._whole[start:end] for start, end in zip((0, *ends), ends, strict=False)]

    def apply_stops(self, stops: list[str], *, keep: bool) -> None:
        """End the answer at the first complete stop string, which the text has if ``keep``."""
        if not keep:
            # As on the real server, a streamed text lags by the length of a possible stop string.
            lag = max(map(len, stops)) - 1
            self._sent = [max(0, end - lag) for end in self._ends]
        places = [(stop, at) for stop in stops if (at := self._whole.find(stop)) >= 0]
        if not places:
            return
        found = [(bisect_left(self._ends, at + len(stop)) + 1, at, stop) for stop, at in places]
        self.tokens, at, self.stop_reason = min(found, key=lambda each: each[0])
        self.finish_reason = "stop"
        self.text = self._whole[: at + len(self.stop_reason) if keep else at]

    def after(self, thought: list[str], max_tokens: int) -> Generation:
        """Return the answer with what is thought before it, cut at ``max_tokens``."""
        if len(thought) >= max_tokens:
            return written(thought, max_tokens)
        ends = [*accumulate(map(len, thought))]
        return Generation(
            "".join(thought) + self.text, [*ends, *(ends[-1] + end for end in self._ends)], self.finish_reason
        )

    def cut_short(self) -> None:
        """End the answer half-way, as a server that shuts down does."""
        self.tokens = max(1, self.tokens // 2)
        self.text = self._whole[: self._ends[self.tokens - 1]]
        self.finish_reason, self.stop_reason = "abort", None

    def text_between(self, before: int, after: int) -> str:
        """Return what a stream sends, once ``after`` tokens are there and ``before`` were sent."""
        start = self._sent[before - 1] if before else 0
        return self.text[start : None if after >= self.tokens else self._sent[after - 1] if after else 0]


def variant_of(params: Mapping[str, object], nonce: str, choice: int = 0) -> str:
    """Return the difference from the prompt's plain greedy answer; empty for that answer.

    Args:
        params: the request's fields; fields that do not shape the answer are ignored.
        nonce: stands for the server's own randomness, where an answer is sampled without a seed.
        choice: which of ``n``; the first has the request's own variant.
    """
    temperature = params.get("temperature")
    names = _SHAPING_GREEDY if temperature == 0 else _SHAPING + _SHAPING_GREEDY
    shape = ",".join(f"{name}={_plain(params[name])}" for name in names if params.get(name) is not None)
    if temperature != 0:
        shape = f"{1.0 if temperature is None else float(str(temperature))},{shape}"
        if params.get("seed") is None:
            shape += f",{nonce}"
    return f"{shape};{choice}" if choice else shape


def _plain(value: object) -> object:
    """Return a number without a fraction as an integer: 1 and 1.0 are the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def generate(
    prompt: Prompt,
    max_tokens: int,
    *,
    variant: str = "",
    lengths: OutputLengths | None = None,
    ignore_eos: bool = False,
    min_tokens: int = 0,
) -> Generation:
    """Decide a choice's answer.

    Args:
        prompt: text or ids.
        max_tokens: at least 1.
        variant: ``variant_of`` the request; empty: greedy.
        lengths: where the answer ends by itself; ``None``: nowhere.
        ignore_eos: run to ``max_tokens`` whatever ``lengths`` says.
        min_tokens: the answer does not end by itself before.
    """
    entropy = _hash(prompt)
    first = entropy.hex()[:_DIGEST_CHARACTERS]
    if variant:
        entropy = sha256(entropy + variant.encode()).digest()
        first += "-" + entropy.hex()[:_VARIANT_CHARACTERS]
    tokens, is_cut = max_tokens, True
    if lengths is not None and not ignore_eos:
        tokens, is_cut = lengths.draw(entropy[8:], max_tokens)
        if tokens < min_tokens:
            tokens, is_cut = min(min_tokens, max_tokens), min_tokens >= max_tokens
    start = int.from_bytes(entropy[4:6]) % _RING_PIECES
    end = start + tokens - (1 if is_cut else 2)
    ring = _RING if end <= _RING_PIECES else _RING * -(-end // _RING_PIECES)
    text = first + ring[_FILLER_CHARACTERS * start : _FILLER_CHARACTERS * end]
    ends = range(len(first), len(first) + _FILLER_CHARACTERS * tokens, _FILLER_CHARACTERS)
    return Generation(text, ends, "length" if is_cut else "stop")


def written(own: list[str], max_tokens: int) -> Generation:
    """Return an answer with given tokens, cut at ``max_tokens``."""
    ends = list(accumulate(map(len, own)))[:max_tokens]
    text = "".join(own[:max_tokens])
    if len(own) >= max_tokens:
        return Generation(text, ends, "length")
    return Generation(text, [*ends, len(text)], "stop")


def thoughts(prompt: Prompt, tokens: int) -> tuple[Prompt, list[str]]:
    """Return the prompt that is answered, and the pieces that are thought before the answer.

    A prompt may end with some thinking (a chat's behind its last "assistant:"). That is none of the
    prompt that is answered, and is gone on with, unless it is over.

    Args:
        prompt: text or ids.
        tokens: of the whole thinking, without its tags.
    """
    turn = prompt.rfind(_TURN) + 1 if isinstance(prompt, str) else 0
    so_far = token_ids(prompt[turn:].strip()) if isinstance(prompt, str) else prompt
    # Behind the last tag of each kind; 0: there is none.
    opened, closed = (len(so_far) - [*so_far[::-1], _IDS[tag]].index(_IDS[tag]) for tag in (_OPEN, _CLOSE))
    if len(so_far) > closed > opened:
        return prompt, []  # amid the answer
    if opened or closed:
        if isinstance(prompt, list):
            prompt = prompt[: (opened or closed) - 1]
        else:
            prompt = prompt[: prompt.rindex(_OPEN if opened else _CLOSE)]
            prompt = prompt.rstrip() if turn else prompt
    if closed > opened:
        return prompt, []
    start, begun = int.from_bytes(_hash(prompt)[6:8]), len(so_far) - opened if opened else 0
    words = [f" {_WORDS[(start + index) % len(_WORDS)]}" for index in range(begun, tokens)]
    return prompt, [*([] if opened else [_OPEN]), *words, _CLOSE]


def parted(text: str) -> tuple[str, str]:
    """Return a text's reasoning and answer as vLLM's parsers do: unclosed, all is reasoning."""
    reasoning, _, answer = text.partition(_CLOSE)
    return reasoning.removeprefix(_OPEN), answer


def expected_text(
    prompt: Prompt,
    *,
    max_tokens: int = 16,
    choice: int = 0,
    lengths: OutputLengths | None = None,
    stop: list[str] | None = None,
    **params: object,
) -> str:
    """Return the embedded server's text for a request; for tests to compare with.

    Args:
        prompt: the prompt, text or ids.
        max_tokens: as in the request, 16 if the request has none.
        choice: which of ``n``.
        lengths: the server's ``--output-lengths``; ``None``: fixed.
        stop: the request's stop strings.
        **params: the request's other fields. Give ``temperature=0`` or a ``seed``.

    Raises:
        ValueError: the answer is sampled without a seed, so only ``prompt_digest`` can be known.
    """
    if params.get("temperature") != 0 and params.get("seed") is None:
        raise ValueError("an answer sampled without a seed is not known beforehand: check its start with prompt_digest")
    generation = generate(
        prompt,
        max_tokens,
        variant=variant_of(params, "", choice),
        lengths=lengths,
        ignore_eos=bool(params.get("ignore_eos")),
        min_tokens=int(str(params.get("min_tokens") or 0)),
    )
    if stop:
        generation.apply_stops(stop, keep=bool(params.get("include_stop_str_in_output")))
    return generation.text
