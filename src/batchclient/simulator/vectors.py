"""The simulated model's findings about a text: its vector, its fit to a query, its class.

Rules:
- A vector is the sum of its words' places, so texts with the same words lie near each other. The
  text's digest moves the vector a little, so no two texts have the same.
- A score is the cosine of two vectors, moved into 0 to 1. The text's digest decides the class,
  and how likely a token is to follow.
- Equal texts give equal answers, alone and in a list.
"""

from __future__ import annotations

import math
from array import array
from hashlib import shake_128
from zlib import crc32

from batchclient.simulator.text import Prompt, pieces

__all__ = ["CLASSES", "DIMENSIONS", "logprobs_of", "probabilities_of", "score_of", "vector_of"]

DIMENSIONS = 64
CLASSES = ("LABEL_0", "LABEL_1")
_OWN_SHARE = 0.1
"""How far a text's own digest moves its vector away from the sum of its words."""
_PLACES_PER_PIECE = 3
_SHARE_OF_ASKED = 0.9
"""Of the tokens that are asked about, together."""


def vector_of(prompt: Prompt, dimensions: int = DIMENSIONS) -> array[float]:
    """Return the embedding of a text or of token ids, of length 1."""
    raw = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
    digest = shake_128(raw.encode("utf-8", "surrogatepass")).digest(dimensions)
    values = [0.0] * dimensions
    for piece in pieces(prompt) if isinstance(prompt, str) else map(str, prompt):
        number = crc32(piece.strip().encode("utf-8", "surrogatepass"))
        for _ in range(_PLACES_PER_PIECE):
            number, place = divmod(number, dimensions)
            number, sign = divmod(number, 2)
            values[place] += 1.0 if sign else -1.0
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    values = [value / length + _OWN_SHARE * (byte - 127.5) / 127.5 for value, byte in zip(values, digest, strict=True)]
    length = math.sqrt(sum(value * value for value in values))
    return array("f", [value / length for value in values])


def score_of(query: str, document: str) -> float:
    """Return how well a document fits a query, 0 to 1."""
    one, other = vector_of(query), vector_of(document)
    return min(1.0, max(0.0, (1.0 + sum(a * b for a, b in zip(one, other, strict=True))) / 2))


def probabilities_of(prompt: Prompt) -> list[float]:
    """Return the probabilities of ``CLASSES``."""
    raw = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
    first = (shake_128(b"class" + raw.encode("utf-8", "surrogatepass")).digest(1)[0] + 0.5) / 256
    return [first, 1.0 - first]


def logprobs_of(prompt: Prompt, tokens: list[int]) -> list[float]:
    """Return how likely each of some tokens is to come next; together not quite certain."""
    raw = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
    weights = [1 + crc32(f"{token} {raw}".encode("utf-8", "surrogatepass")) % 1000 for token in tokens]
    return [math.log(_SHARE_OF_ASKED * weight / sum(weights)) for weight in weights]
