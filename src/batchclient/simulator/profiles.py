"""A server's costs: named sets of constants for the engine.

An engine step that decodes ``n`` sequences, holds ``kv`` tokens and prefills ``p`` tokens takes::

    max(step_s + kv * kv_token_s, n * compute_s) + n * sequence_s + p * prefill_token_s

The first term is the memory's time, the second the arithmetic's: the knee is where the two meet.
The API server stands before and after the engine, as a single-server queue. A request occupies the
queue for ``request_s + prompts * prompt_s``, each event (or plain reply) for ``event_s``.

Sources: the GPU constants are those of the design's controller simulation (12 ms a step, 12 ns a KV
token, 20 µs a prefill token, a budget of 2,048 tokens, 3 % noise). ``compute_s`` is chosen so that
each profile's best static limit is the limit found there. ``tiny-cpu`` is fitted to the sweep of a
real vLLM 0.32 on two CPU cores: 8, 16, 32, 64 and 128 in flight with ``max_tokens=64`` gave 2,461,
3,927, 5,563, 6,525 and 7,003 tokens/s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["PROFILES", "Profile", "profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The constants of a simulated server. Times in seconds, sizes in tokens.

    Args:
        name: the value of ``--profile``.
        summary: a line for ``--profiles``.
        step_s: the least cost of a step.
        kv_token_s: reading one resident KV token, per step.
        compute_s: arithmetic for a decoded sequence; hidden by the memory's time until the knee.
        sequence_s: per decoded sequence and step, never hidden (a CPU's scheduler and sampler).
        prefill_token_s: per prompt token.
        step_tokens: the most tokens, decoded and prefilled, in one step; longer prompts are
            prefilled in chunks.
        max_num_seqs: the most sequences running at once.
        kv_tokens: the KV cache; a full cache preempts the youngest sequence, which starts again.
        request_s: API-server time for a request.
        prompt_s: API-server time for each prompt of a request.
        event_s: API-server time for an event, or for a plain reply.
        noise_ratio: relative standard deviation of a step's duration; 0 without an ``rng``.
        max_queued: refuse with 503 above so many sequences waiting and running; ``None``: never.
    """

    name: str
    summary: str
    step_s: float = 0.0
    kv_token_s: float = 0.0
    compute_s: float = 0.0
    sequence_s: float = 0.0
    prefill_token_s: float = 0.0
    step_tokens: int = 2048
    max_num_seqs: int = 256
    kv_tokens: int = 1_000_000
    request_s: float = 0.0
    prompt_s: float = 0.0
    event_s: float = 0.0
    noise_ratio: float = 0.0
    max_queued: int | None = None

    @property
    def is_free(self) -> bool:
        """Whether a step takes no time at all."""
        costs = self.step_s, self.kv_token_s, self.compute_s, self.sequence_s, self.prefill_token_s
        return not any(costs)

    def at_speed(self, speed: float) -> Profile:
        """Return the same server, ``speed`` times as fast.

        Raises:
            ValueError: ``speed`` is not above 0.
        """
        if not speed > 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        if speed == 1:
            return self
        return replace(self, **{name: getattr(self, name) / speed for name in _COSTS})


_COSTS = ("step_s", "kv_token_s", "compute_s", "sequence_s", "prefill_token_s", "request_s", "prompt_s", "event_s")


# API-server costs: a third of the costs measured on the CPU box (request 0.55 ms, prompt 0.42 ms,
# event 0.03 ms), which shared its two cores with the engine's spinning processes.
_GPU = Profile(
    name="gpu",
    summary="one GPU, a small model: the knee near 256 sequences, ample KV",
    step_s=0.012,
    kv_token_s=12e-9,
    compute_s=60e-6,
    prefill_token_s=20e-6,
    step_tokens=2048,
    max_num_seqs=1024,
    kv_tokens=1_000_000,
    request_s=0.2e-3,
    prompt_s=0.14e-3,
    event_s=0.01e-3,
    noise_ratio=0.03,
)

_ALL = (
    Profile(
        name="instant",
        summary="no cost at all: measures the client",
        step_tokens=1_000_000,
        max_num_seqs=100_000,
        kv_tokens=1_000_000_000,
    ),
    Profile(
        name="tiny-cpu",
        summary="the measured vLLM 0.32 with a 4-layer model on two CPU cores",
        step_s=2.3e-3,
        sequence_s=0.102e-3,
        prefill_token_s=38e-6,
        step_tokens=2048,
        max_num_seqs=64,
        kv_tokens=524_288,
        request_s=0.55e-3,
        prompt_s=0.42e-3,
        event_s=0.03e-3,
        noise_ratio=0.03,
    ),
    _GPU,
    replace(_GPU, name="compute-knee", summary="arithmetic saturates near 256 sequences; more only adds latency"),
    replace(
        _GPU,
        name="kv-cliff",
        summary="KV for about 128 sequences of 500 tokens; more are preempted and start again",
        kv_tokens=64_000,
    ),
    replace(
        _GPU,
        name="max-seqs-64",
        summary="the server itself runs at most 64 sequences; more only wait",
        max_num_seqs=64,
    ),
    replace(
        _GPU,
        name="long-prompts",
        summary="for prompts of 4,000 tokens: prefill dominates, KV for about 64 of them",
        kv_tokens=280_000,
        step_tokens=8192,
    ),
    replace(
        _GPU,
        name="half-speed",
        summary="compute-knee, twice as slow",
        step_s=0.024,
        kv_token_s=24e-9,
        compute_s=120e-6,
        prefill_token_s=40e-6,
    ),
)

PROFILES: dict[str, Profile] = {each.name: each for each in _ALL}


def profile(name: str) -> Profile:
    """Return a profile by name.

    Raises:
        ValueError: no profile has the name; the message lists all names.
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"no profile {name!r}; there are: {', '.join(PROFILES)}") from None
