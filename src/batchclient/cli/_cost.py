"""What a job costs: ``--price``, ``--gpu-price``, the prices of ``--server``, and ``--max-cost``.

The numbers are in the currency of the prices, which the command does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchclient import Price, Statistics
from batchclient.cli._refusal import Refusal

__all__ = ["Cost", "cost_from", "written_cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """The price of a job's work, and the bound on the cost.

    Args:
        price: of tokens and of time, at any server; ``None``: there is none.
        most: the job stops once it has cost so much; ``None``: there is no bound.
        of_servers: whether servers have prices of their own, which the client keeps to.
    """

    price: Price | None
    most: float | None = None
    of_servers: bool = False

    def of(self, statistics: Statistics, seconds: float) -> float:
        """Return the cost of a client's work so far, in so many seconds."""
        cost = sum(statistics.costs.values())
        if self.price is None:
            return cost
        tokens = {"prompt_tokens": statistics.prompt_tokens, "completion_tokens": statistics.completion_tokens}
        return cost + self.price.cost(**tokens, seconds=seconds)

    def written(self, prompt_tokens: float, completion_tokens: float, seconds: float) -> str:
        """Write the cost of tokens and of time."""
        tokens = {"prompt_tokens": round(prompt_tokens), "completion_tokens": round(completion_tokens)}
        assert self.price is not None, "only a price for all tokens is foretold"
        return written_cost(self.price.cost(**tokens, seconds=seconds))

    def is_reached(self, cost: float) -> bool:
        """Whether a job that has cost so much has to stop.

        Where servers alone have prices, the client keeps to the bound.
        """
        return self.most is not None and self.price is not None and cost >= self.most


def cost_from(
    price: str | None, gpu_price: float | None, max_cost: float | None, *, of_servers: bool = False
) -> Cost | None:
    """Read the options about the cost; ``None``: no price is given.

    ``of_servers``: servers have prices of their own.

    Raises:
        Refusal: a number is wrong, or the bound has no price beside it.
    """
    if price is not None and of_servers:
        raise Refusal("--price is of all servers alike: leave it out, and give each --server its input= and output=")
    is_known = of_servers or price is not None or gpu_price is not None
    if max_cost is not None and not is_known:
        raise Refusal("--max-cost: the cost is known with --price, --gpu-price or a priced --server; none is given")
    if max_cost is not None and not 0 < max_cost < math.inf:
        raise Refusal(f"--max-cost: a number above 0, not {max_cost:g}")
    if gpu_price is not None and not 0 <= gpu_price < math.inf:
        raise Refusal(f"--gpu-price: the price of an hour of all GPUs, not {gpu_price:g}")
    if not is_known:
        return None
    if price is None and gpu_price is None:
        return Cost(None, max_cost, of_servers)
    of_prompts, of_answers = (None, None) if price is None else _per_million(price)
    return Cost(Price(per_hour=gpu_price, input=of_prompts, output=of_answers), max_cost, of_servers)


def _per_million(text: str) -> tuple[float, float]:
    try:
        of_prompts, of_answers = map(float, text.split("/"))
    except ValueError:
        of_prompts = of_answers = math.nan
    if not (0 <= of_prompts < math.inf and 0 <= of_answers < math.inf):
        raise Refusal(
            f"--price: the prices of a million tokens of prompts and of answers, as in 0.15/0.60, not {text!r:.40}"
        )
    return of_prompts, of_answers


def written_cost(cost: float) -> str:
    """Write a cost: in hundredths, and below 1 in ten-thousandths."""
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.4f}"
