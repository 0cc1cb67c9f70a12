"""The expected length of a call in tokens: prompt, output, and the bucket of their sum.

A text's tokens are not counted here: counting would cost more than the rest of a call. Tokens
follow from the bytes, at the recent ratio of the servers' own counts (``usage``). Each model, each
kind of call, and texts with and without characters beyond ASCII have their own ratio: Chinese,
Greek or emoji differ from English or code. Before anything was counted a token has 4 bytes.

Buckets are geometric (a factor of 2: 0 for no token, 1 for 1, 2 for 2 and 3, 3 for 4 to 7 …), as in
the textbook remedy for padding. On servers which batch continuously, buckets changed no measured
figure. So the dialect says how far from the oldest call's bucket a batch may reach.

The output has two guesses. What calls of a key have in common decides how they are batched and what
they are charged: one mean a key. What tells them apart decides which go first where that is asked
for: the caller's own word (``expected_tokens``), which is believed, or the numbers of prompts of
the same size. A size is an octave: 128 to 255 bytes, 256 to 511 and so on.

A 90th percentile is found by stochastic approximation (Robbins and Monro, *A Stochastic
Approximation Method*, 1951): a number above it raises it by nine parts, any other lowers it by one.
It rests where one number of ten is above, whatever the distribution. The steps are in logarithms,
since lengths differ by factors, and shrink with the root of their count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import exp, log, sqrt

from batchclient._core.kinds import Kind
from batchclient._core.learnt.times import ServiceTimes
from batchclient._core.requests import Batch, Request, Shape
from batchclient.types import Completion

__all__ = ["Lengths", "weighted_tokens"]

_BYTES_PER_TOKEN = 4.0
"""A rough mean for English text."""
_GUESS_WEIGHS_TOKENS = 16.0
_REMEMBERED_TOKENS = 16_384.0
_MOST_TOKENS_PER_BYTE = 2.0
"""A byte-level tokenizer has one; more are a template's, around a text of few bytes."""
_MOST_BYTES_PER_TOKEN = 32
"""No text has more; an image in a conversation has, or a prompt cut by the server."""
_REMEMBERED_MODELS = 256

_REMEMBERED_KEYS = 4096
_EWMA_WEIGHT = 0.1
_FILLED_RATIO = 0.75
_FIRST_GUESS_TOKENS = 256
"""The first guess: the smaller of this number and the call's ``max_tokens``."""

_SMALLEST, _LARGEST = 4, 24
"""The octaves at the ends have all that is smaller than 16, and larger than 8 million."""
_MEAN_WEIGHT = 0.05
"""Of the newest number; the first twenty all weigh the same."""
_FIRST_RATIO = 2.0
"""The first guess of a percentile: so many times the only number."""
_FIRST_STEP, _LAST_STEP = 2.0, 0.1


def weighted_tokens(prompt_tokens: float, output_tokens: float) -> float:
    """Return the cost of a call to a server in prompt tokens: an output token counts twice.

    Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), w_p = 1 and w_q =
    2, which follow the prices of hosted models.
    """
    return prompt_tokens + 2 * output_tokens


class BySize:
    """Positive numbers by the octaves of sizes: the mean of each, and its 90th percentile."""

    __slots__ = ("_octaves",)

    def __init__(self) -> None:
        self._octaves: dict[int, list[float]] = {}
        """How many numbers there were, their mean, and the logarithm of their percentile."""

    def guess(self, size: int) -> float:
        """The mean number of a size.

        An octave without a number is taken for longer than the others: long answers come last.
        """
        found = self._octaves.get(min(max(size.bit_length(), _SMALLEST), _LARGEST))
        return exp(max(level for _, _, level in self._octaves.values())) if found is None else found[1]

    def learn(self, size: int, number: float) -> tuple[float, bool] | None:
        """Take in the number of a size.

        Return the mean of those before, and whether it is above their percentile; ``None``: it is
        the first of its octave.
        """
        at = min(max(size.bit_length(), _SMALLEST), _LARGEST)
        found = self._octaves.get(at)
        if found is None:
            self._octaves[at] = [1.0, number, log(_FIRST_RATIO * number)]
            return None
        count, mean, level = found
        count += 1
        step = max(_FIRST_STEP / sqrt(count), _LAST_STEP)
        is_above = log(number) > level
        found[0] = count
        found[1] = mean + max(1 / count, _MEAN_WEIGHT) * (number - mean)
        found[2] = level + (0.9 * step if is_above else -0.1 * step)
        return mean, is_above


class Lengths:
    """How long calls are, and how long they take, as far as past ones tell.

    Output tokens by coalescing key are an exponential mean. The tokens of a prompt's byte are the
    ratio of two sums, of tokens and of bytes, both halved when large. So the last tens of thousands
    of tokens decide, and a long prompt counts for more than a short one.
    """

    def __init__(self) -> None:
        self.times = ServiceTimes()
        """Seconds from sending to the answer."""
        self._mean: OrderedDict[bytes, float] = OrderedDict()
        """Output tokens of one prompt, by ``answer_key``."""
        self._by_size: dict[bytes, BySize] = {}
        """The same, by the size of the prompt."""
        self._by_word: dict[bytes, BySize] = {}
        """How much longer answers are than their callers have said: a ratio."""
        self._judged = 0
        """Answers whose lengths were guessed before they came."""
        self._judged_tokens = self._errors = 0.0
        self._above_p90 = 0
        self._changes = 0
        """How often an expectation has changed."""
        self._sums: dict[tuple[str, Kind, bool], list[float]] = {}
        self._ratios: dict[tuple[str, Kind], list[float]] = {}
        """Tokens per byte by model and kind: for texts beyond ASCII, and for ASCII; 0: unknown."""
        self._of_shapes: dict[Shape, list[float]] = {}
        """The same by shape, found by identity: a key per call would cost more than the rest."""
        self._latest: Shape | None = None
        self._latest_changes = 0
        self._latest_output = 0
        self._latest_ratios: list[float] | None = None
        """The ratios of the latest shape: as a rule the next call has the same shape."""

    def expected(self, shape: Shape) -> int:
        """Return the expected output tokens of one prompt of a shape."""
        seen, most = self._mean.get(shape.answer_key), shape.max_output_tokens
        if seen is not None:
            return int(seen)
        return _FIRST_GUESS_TOKENS if most is None else min(most, _FIRST_GUESS_TOKENS)

    def expected_of(self, request: Request) -> int:
        """Return the expected output tokens of one request: its caller's word, or those of its shape."""
        told, most = request.expected_tokens, request.shape.max_output_tokens
        if told is None:
            return self.expected(request.shape)
        return told if most is None else min(told, most)

    def guess(self, request: Request) -> float:
        """Return the expected output tokens of one request, which differ among those of a shape."""
        by_size = self._by_size.get(request.shape.answer_key)
        if by_size is None or request.expected_tokens is not None:
            return self.expected_of(request)
        return by_size.guess(len(request.prompt))

    def most(self, request: Request) -> float:
        """Return the output tokens that one request may cost: its bound, or else what is expected."""
        shape = request.shape
        return shape.weight * (self.guess(request) if shape.max_output_tokens is None else shape.max_output_tokens)

    @property
    def foreseen(self) -> tuple[int, float, float]:
        """How many answers were foreseen, with which error, and the share above the percentile."""
        judged = self._judged
        return (judged, self._errors / self._judged_tokens, self._above_p90 / judged) if judged else (0, 0.0, 0.0)

    def fills(self, shape: Shape) -> bool:
        """Whether most answers to such calls run into their ``max_tokens``, and so end together."""
        seen, most = self._mean.get(shape.answer_key), shape.max_output_tokens
        return seen is not None and most is not None and seen >= _FILLED_RATIO * most

    def place(self, request: Request) -> None:
        """Set a request's bucket, and its prompt tokens if a ratio is known. Runs for each call."""
        if request.shape is not self._latest or self._changes != self._latest_changes:
            self._look_up(request.shape)
        ratios = self._latest_ratios
        if ratios is not None:
            prompt = request.prompt
            ratio = ratios[prompt.isascii()]
            if ratio:
                request.prompt_tokens = int(len(prompt) * ratio) + 1
        request.bucket = (request.prompt_tokens + self._latest_output).bit_length()

    def _look_up(self, shape: Shape) -> None:
        self._latest, self._latest_changes = shape, self._changes
        self._latest_output = self.expected(shape)
        self._latest_ratios = None if shape.counted else self._of_shapes.get(shape) or self._remember(shape)

    def _remember(self, shape: Shape) -> list[float]:
        if len(self._of_shapes) >= _REMEMBERED_KEYS:
            self._of_shapes.clear()
            self._latest = None
            learnt = {key[:2] for key in self._sums}
            self._ratios = {key: ratios for key, ratios in self._ratios.items() if key in learnt}
        ratios = self._ratios.setdefault((shape.model, shape.kind), [0.0, 0.0])
        self._of_shapes[shape] = ratios
        return ratios

    def learn(self, batch: Batch, answers: Sequence[tuple[int, Completion]], made_tokens: int) -> None:
        """Take in some answers' output tokens, and more of one, chosen regardless of length."""
        shape = batch.shape
        position, completion = answers[batch.id % len(answers)]
        request, usage = batch.requests[position], completion.usage
        if made_tokens:
            made = completion.counted_tokens if usage is None else usage.completion_tokens
            tokens = made_tokens / (len(answers) * shape.weight)
            self._learn_outputs(request, tokens, (made or 0) / shape.weight)
        if shape.counted:
            return
        prompt = request.prompt
        if usage is None or usage.prompt_tokens_estimated or usage.prompt_tokens * _MOST_BYTES_PER_TOKEN < len(prompt):
            return
        key = shape.model, shape.kind, prompt.isascii()
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= 2 * _REMEMBERED_MODELS:
                self._sums.clear()
                self._ratios.clear()
                self._of_shapes.clear()
                self._latest = None
            self._sums[key] = sums = [_GUESS_WEIGHS_TOKENS, _GUESS_WEIGHS_TOKENS * _BYTES_PER_TOKEN]
        size = len(prompt)
        # An impossible count counts something else.
        sums[0] += min(usage.prompt_tokens, _MOST_TOKENS_PER_BYTE * size)
        sums[1] += size
        self._remember(shape)[key[2]] = sums[0] / sums[1]
        if sums[0] > _REMEMBERED_TOKENS:
            sums[0] /= 2
            sums[1] /= 2

    def _learn_outputs(self, request: Request, tokens: float, made: float) -> None:
        """Take in the mean output of some answers, and of one of them its own, by its request.

        The one tells, too, how well it was foreseen.
        """
        key, told = request.shape.answer_key, request.expected_tokens
        seen = self._mean.get(key)
        if seen is None:
            self._mean[key] = tokens
            self._changes += 1
            if len(self._mean) > _REMEMBERED_KEYS:
                oldest, _ = self._mean.popitem(last=False)
                self._by_size.pop(oldest, None)
                self._by_word.pop(oldest, None)
        else:
            self._mean.move_to_end(key)
            self._mean[key] = mean = seen + _EWMA_WEIGHT * (tokens - seen)
            if int(mean) != int(seen):
                self._changes += 1
        if not made:
            return
        numbers = self._by_size if told is None else self._by_word
        by_size = numbers.get(key)
        if by_size is None:
            numbers[key] = by_size = BySize()
            if told is not None:
                # A word holds until it is known better; words have no sizes.
                by_size.learn(0, 1.0)
        found = by_size.learn(len(request.prompt), made) if told is None else by_size.learn(0, made / told)
        if found is None:
            return
        expected, is_above = found
        self._judged += 1
        self._judged_tokens += made
        self._errors += abs(made - (expected if told is None else told))
        self._above_p90 += is_above
