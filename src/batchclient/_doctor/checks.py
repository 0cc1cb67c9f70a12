"""The twelve checks: each a function from facts to a finding, or to the question that stays open.

Rules:
- A check looks only where all its facts are there. Else it returns the question, if the facts of
  such a server could have been there.
- A finding that rests on times or on counts has a clear margin; the numbers are named.
- A setting is that of the server's own sort, or of the client.
"""

from __future__ import annotations

from collections.abc import Callable

from batchclient._doctor.facts import Facts, Finding, Weight

__all__ = ["CHECKS", "FEW", "MOST_LIMIT"]

FEW = 32
"""Prompts per request below which lists are short."""
MOST_LIMIT = 1024
"""Sequences in flight at a server beyond which no client's limit goes by itself."""
_GENERATING = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "openai")
_FAR_ABOVE = 8
_LONG = 8192
"""A shorter model does no harm with its length."""
_LOW_SHARE = 0.85
_KV_LEFT = 0.5
_PREEMPTED = 10
_BEHIND = "base_url: the address of the server itself"
Check = Callable[[Facts], Finding | str | None]


def url_without_v1(facts: Facts) -> Finding | None:
    """The API answers below ``/v1``, and calls to this URL fail."""
    if not facts.lacks_v1:
        return None
    sentence = "The URL does not end in /v1, where the server has its API: calls to this URL fail."
    seen = "the API is missing at this URL, and answers below /v1"
    return Finding("url-without-v1", Weight.BROKEN, sentence, f"base_url: {facts.url}/v1", seen, of_server=False)


def several_models(facts: Facts) -> Finding | None:
    """Calls must name a model."""
    if not facts.needs_model:
        return None
    more = f" and {len(facts.models) - 5} more" if len(facts.models) > 5 else ""
    names = ", ".join(name[:100] for name in facts.models[:5]) + more
    sentence = f"The server has {len(facts.models)} models, and calls without a name fail: {names}."
    setting = "--model, model=… or BATCHCLIENT_MODEL; the doctor then tries that model"
    return Finding("several-models", Weight.COSTLY, sentence, setting, "/v1/models", of_server=False)


def lists_refused(facts: Facts) -> Finding | str | None:
    """A list of prompts is refused, or such a server takes none."""
    if facts.calls not in (None, "completion"):
        return None
    if facts.refusal is None:
        return "whether lists of prompts are taken"
    if not facts.refusal:
        return None
    setting = f"{_BEHIND}, or a server that takes lists, such as vLLM, SGLang or llama-server"
    if facts.kind == "vllm":
        setting = f"VLLM_USE_RUST_FRONTEND=0, if that front end is in use; else {_BEHIND}"
    sentence = "Lists of prompts are refused: each call is a request of its own."
    return Finding("lists-refused", Weight.COSTLY, sentence, setting, facts.refusal, of_server=facts.kind == "vllm")


def lists_serial(facts: Facts) -> Finding | str | None:
    """The prompts of a list are served one after the other."""
    if facts.kind not in _GENERATING or facts.calls not in (None, "completion"):
        return None
    if facts.serial is None and facts.slots != 1:
        return "whether the prompts of a list are served together"
    if facts.slots != 1 and (facts.serial or 0) < 2:  # a first time may be chance
        return None
    settings = {
        "llamacpp": "llama-server --parallel 8, with -c eight times a sequence's length",
        "vllm": "--max-num-seqs above 1, without --max-num-active-seqs 1",
        "sglang": "--max-running-requests above 1",
    }
    setting = "a server with continuous batching; transformers serve: --continuous-batching"
    return Finding(
        "lists-serial",
        Weight.COSTLY,
        "The prompts of a list of 8 seem to be served one after the other.",
        settings.get(facts.kind, setting),
        "it says that it runs one sequence at once"
        if facts.slots == 1
        else "two lists: each took more than five times as long as a lone call",
    )


def lists_short(facts: Facts) -> Finding | None:
    """A request may hold few prompts."""
    if facts.list_cap is None or facts.list_cap >= FEW or facts.refusal:
        return None
    has_page = facts.kind in ("tgi", "tei")
    setting = "--max-client-batch-size 64" if has_page else _BEHIND
    seen = "/info, max_client_batch_size" if has_page else "the reply to a list"
    sentence = f"A request may hold {facts.list_cap} prompts at most."
    return Finding("lists-short", Weight.COSTLY, sentence, setting, seen, of_server=has_page)


def event_per_token(facts: Facts) -> Finding | str | None:
    """Streams cost the client CPU for each token."""
    if facts.kind not in ("vllm", "sglang") or facts.calls not in (None, "completion"):
        return None
    if facts.event_per_token is None:
        return "how many events a streamed answer has"
    if not facts.event_per_token:
        return None
    settings = {
        "vllm": "vLLM 0.27 or newer, which heeds stream_interval; else --stream-interval 100",
        "sglang": "--stream-interval 100, where sampling_params.stream_interval is not heeded",
    }
    sentence = "A streamed answer has an event per token: the client's CPU pays for each."
    seen = "a streamed call that asked for few events"
    return Finding("event-per-token", Weight.COSTLY, sentence, settings[facts.kind], seen)


def prefix_caching_off(facts: Facts) -> Finding | str | None:
    """Beginnings that prompts share are computed anew."""
    if facts.kind not in ("vllm", "sglang"):
        return None
    if facts.prefix_caching is None:
        return "whether beginnings of prompts are cached"
    if facts.prefix_caching:
        return None
    setting, seen = "start without --disable-radix-cache", "/server_info, disable_radix_cache"
    if facts.kind == "vllm":
        setting = "--enable-prefix-caching, without --no-enable-prefix-caching"
        seen = "vllm:cache_config_info, enable_prefix_caching"
    sentence = "Prefix caching is off: a beginning that prompts share is computed anew for each call."
    return Finding("prefix-caching-off", Weight.COSTLY, sentence, setting, seen)


def few_sequences(facts: Facts) -> Finding | str | None:
    """The sequences that run at once bound the client, and the KV cache holds twice as many."""
    options = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "llamacpp": "--parallel"}
    if facts.kind not in options:
        return None
    if facts.slots is None or facts.held is None:
        return "whether the KV cache has room for more sequences than the server runs at once"
    wanted = min(MOST_LIMIT, facts.held)
    if 2 * facts.slots > wanted:
        return None
    setting = f"{options[facts.kind]} {wanted}{', with the same -c' * (facts.kind == 'llamacpp')}"
    if facts.kind == "llamacpp":
        seen = f"{facts.slots} slots of {facts.max_len:,} tokens; the longest sequence so far had {facts.longest:,}"
    else:
        seen = f"{facts.kv_tokens:,} KV tokens; {facts.served:,} requests of {facts.mean_len:,.0f} tokens on the mean"
    sentence = f"{facts.slots} sequences run at once, and the KV cache holds {facts.held:,} of the lengths so far."
    return Finding("few-sequences", Weight.COSTLY, sentence, setting, seen)


def sequences_wait(facts: Facts) -> Finding | None:
    """Sequences wait while the KV cache is not half full."""
    queue = facts.queue
    if facts.kind not in ("vllm", "sglang") or queue is None or not queue.running or queue.kv_usage >= _KV_LEFT:
        return None
    setting = "a larger --max-running-requests"
    if facts.kind == "vllm":
        setting = "a larger --max-num-seqs; if prompts are long, a larger --max-num-batched-tokens"
    sentence = (
        f"{queue.waiting} sequences wait while {queue.running} run and {queue.kv_usage:.0%} of the KV cache is in use."
    )
    return Finding("sequences-wait", Weight.COSTLY, sentence, setting, "/metrics, on two pages")


def memory_share_low(facts: Facts) -> Finding | None:
    """The KV cache was often full, and much of the memory may not be used."""
    preempted, served, share = facts.preempted, facts.served, facts.kv_share
    if facts.kind not in ("vllm", "sglang") or preempted is None or served is None or share is None:
        return None
    if share >= _LOW_SHARE or preempted < max(_PREEMPTED, 0.05 * served):
        return None
    setting = "--gpu-memory-utilization 0.92" if facts.kind == "vllm" else "--mem-fraction-static 0.88"
    sentence = f"The KV cache was full {preempted:,} times, and the server may use {share:.0%} of memory."
    seen = f"/metrics: {preempted:,} preemptions in {served:,} requests"
    return Finding("memory-share-low", Weight.COSTLY, sentence, setting, seen)


def model_length_high(facts: Facts) -> Finding | str | None:
    """The model's length is far above the lengths asked for."""
    options = {"vllm": "--max-model-len", "tgi": "--max-total-tokens"}
    if facts.kind not in options:
        return None
    longest = facts.longest_of_many
    if facts.max_len is None or longest is None:
        return "whether the model's length is far above the lengths asked for"
    if facts.max_len < max(_LONG, _FAR_ABOVE * longest):
        return None
    enough = 1 << max(10, (2 * max(1, longest) - 1).bit_length())
    sentence = (
        f"The model's length is {facts.max_len:,} tokens, and no request so far had over {longest:,}:"
        " a runaway answer may fill the KV cache."
    )
    setting = f"{options[facts.kind]} {enough}, if longer calls are not expected"
    seen = f"/metrics: the lengths of {facts.served:,} requests"
    return Finding("model-length-high", Weight.MINOR, sentence, setting, seen)


def no_metrics(facts: Facts) -> Finding | str | None:
    """No page tells the load."""
    if facts.kind not in (*_GENERATING, "tei") or facts.kind == "trtllm":
        return None
    if facts.tells_load is None:
        return "whether a metrics page tells the load"
    if facts.tells_load:
        return None
    settings = {
        "vllm": "start without --disable-log-stats, and let a proxy pass /metrics",
        "sglang": "--enable-metrics",
        "llamacpp": "--metrics",
    }
    setting = settings.get(facts.kind, "let the gateway pass /metrics of the server behind")
    sentence = "No metrics page tells the load: the client cannot see a queue of others, or a dead engine."
    is_known = facts.kind in settings
    return Finding("no-metrics", Weight.COSTLY, sentence, setting, "GET /metrics", of_server=is_known)


CHECKS: tuple[Check, ...] = (
    url_without_v1,
    several_models,
    lists_refused,
    lists_serial,
    lists_short,
    event_per_token,
    prefix_caching_off,
    few_sequences,
    sequences_wait,
    memory_share_low,
    model_length_high,
    no_metrics,
)
"""All checks. Of equal weight, the first stand first."""
