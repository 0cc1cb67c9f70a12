"""The highest throughput of a server, by the engine's formula.

It decides how long a draw is watched, and which fixed limits are left out because they cannot be
the best.

A step decodes n sequences of p prompt and o output tokens. The step also prefills the prompts of
the n / o calls that take the place of the calls that end.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchclient.simulator import Profile

__all__ = ["Capacity"]

_LIMITS = tuple(2**power for power in range(11))
_AS_GOOD_RATIO = 0.97


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of a server for calls of one mean size.

    Args:
        server: its constants.
        prompt_tokens: to be prefilled, of each call.
        output_tokens: of each call.
        held_tokens: KV tokens that a call holds when it begins: the prompt, with the part that
            was found in a cache.
    """

    server: Profile
    prompt_tokens: float
    output_tokens: float
    held_tokens: float

    @property
    def lone_s(self) -> float:
        """How long a call takes that is alone."""
        server, tokens = self.server, self.output_tokens
        step_s = max(server.step_s + self.held_tokens * server.kv_token_s, server.compute_s) + server.sequence_s
        return (
            server.request_s
            + server.prompt_s
            + server.event_s
            + self.prompt_tokens * server.prefill_token_s
            + tokens * step_s
        )

    def calls_per_s(self, in_flight: int) -> float:
        """With so many in flight."""
        server, tokens = self.server, self.output_tokens
        resident = self.held_tokens + tokens / 2
        running = max(1.0, min(in_flight, server.max_num_seqs, server.kv_tokens / (self.held_tokens + tokens / 2)))
        begun = min(running / tokens, server.step_tokens / max(1.0, self.prompt_tokens))
        running = begun * tokens
        step_s = max(server.step_s + running * resident * server.kv_token_s, running * server.compute_s)
        step_s += running * server.sequence_s + begun * self.prompt_tokens * server.prefill_token_s
        return min(begun / step_s, 1 / (server.prompt_s + server.event_s), in_flight / self.lone_s)

    @property
    def most_per_s(self) -> float:
        """Calls per second at most."""
        return max(map(self.calls_per_s, _LIMITS))

    @property
    def busy_s(self) -> float:
        """How long a call takes at the smallest load that brings nearly the most."""
        most = self.most_per_s
        return next(limit / most for limit in _LIMITS if self.calls_per_s(limit) >= _AS_GOOD_RATIO * most)
