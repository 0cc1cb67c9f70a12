"""Record what LiteLLM's real proxy answers: .proxies/bin/python -m tests.wire.litellm.capture [NAME ...]

Boots the proxy of tests/proxies/litellm_proxy.py before the embedded server in vLLM's guise, and before an upstream that calls tools. The texts are
the embedded server's, the shapes those of the LiteLLM of requirements/proxies.lock. Keys are made up.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from batchclient.simulator import EmbeddedServer
from tests.proxies.litellm_proxy import LIMITED_KEY, LIMITED_REQUESTS, MASTER_KEY, REVOKED_KEY, LitellmProxy, models
from tests.proxies.tool_upstream import ToolUpstream
from tests.wire.recorder import Body, Case, capture, record, save

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
WORDS = ["def f(", "import os", "class A:"]
USAGE_AT_END: Body = {"stream": True, "stream_options": {"include_usage": True}}
# What the client sends to a vLLM: the proxy takes it and drops most of it.
TWO_EVENTS: Body = {
    "stream": True,
    "stream_interval": 100_000,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
TOO_LONG = "x " * 40_000
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


def key(value: str) -> dict[str, str]:
    return {"authorization": f"Bearer {value}"}


def get(path: str) -> Case:
    return Case(path, None, "GET", key(MASTER_KEY))


def completion(prompt: object, **fields: Any) -> Case:
    body = {"model": "m", "prompt": prompt, "max_tokens": 6, "temperature": 0} | fields
    return Case(COMPLETIONS, body, headers=key(MASTER_KEY))


def chat(text: str = "hi", **fields: Any) -> Case:
    messages = [{"role": "user", "content": text}]
    body = {"model": "m", "messages": messages, "max_tokens": 6, "temperature": 0} | fields
    return Case(CHAT, body, headers=key(MASTER_KEY))


def embedding(**fields: Any) -> Case:
    return Case(EMBEDDINGS, {"model": "m", "input": WORDS[:2]} | fields, headers=key(MASTER_KEY))


CASES = {
    "plain_single": completion("def f("),
    "plain_list": completion(WORDS),
    "plain_list_of_one": completion(["def f("]),
    "plain_list_through_openai": completion(WORDS, model="through-openai"),
    "plain_list_through_text": completion(WORDS, model="through-text"),
    "plain_list_n2": completion(WORDS[:2], n=2, temperature=1.0, seed=7),
    "plain_list_logprobs": completion(WORDS[:2], logprobs=1),
    "plain_list_echo_logprobs": completion(WORDS[:2], echo=True, logprobs=1, max_tokens=1),
    "plain_list_token_ids": completion(WORDS, return_token_ids=True),
    "plain_list_stop_string": completion(WORDS, stop=["a"], max_tokens=30),
    "plain_token_ids_prompts": completion([[300, 301], [302]]),
    "plain_token_ids_prompt": completion([300, 301, 302]),
    "stream_single": completion("def f(", **USAGE_AT_END),
    "stream_single_no_usage": completion("def f(", stream=True),
    "stream_single_max_tokens_1": completion("def f(", **USAGE_AT_END, max_tokens=1),
    "stream_single_two_events": completion("def f(", **TWO_EVENTS),
    "stream_single_logprobs": completion("def f(", **USAGE_AT_END, logprobs=1),
    "stream_single_n2": completion("def f(", **USAGE_AT_END, n=2, temperature=1.0, seed=7),
    "stream_single_through_openai": completion("def f(", **USAGE_AT_END, model="through-openai"),
    "stream_single_through_text": completion("def f(", **USAGE_AT_END, model="through-text"),
    "stream_list": completion(WORDS, **USAGE_AT_END),
    "stream_list_no_usage": completion(WORDS, stream=True),
    "stream_list_two_events": completion(WORDS, **TWO_EVENTS),
    "stream_list_max_tokens_1": completion(WORDS, **USAGE_AT_END, max_tokens=1),
    "chat_plain": chat(),
    "chat_through_openai": chat(model="through-openai"),
    "chat_n2_logprobs": chat(n=2, temperature=1.0, seed=7, logprobs=True, top_logprobs=1),
    "chat_stream": chat(**USAGE_AT_END),
    "chat_stream_no_usage": chat(stream=True),
    "chat_stream_max_tokens_1": chat(**USAGE_AT_END, max_tokens=1),
    "chat_stream_through_openai": chat(**USAGE_AT_END, model="through-openai"),
    "chat_stream_n2": chat(**USAGE_AT_END, n=2, temperature=1.0, seed=7),
    "chat_stream_logprobs": chat(**USAGE_AT_END, logprobs=True, top_logprobs=1),
    "chat_tools": chat("Ada", model="tools", tools=[TOOL]),
    "chat_tools_stream": chat("Ada", model="tools", tools=[TOOL], **USAGE_AT_END),
    "chat_batch": Case("/v1/chat/completions/batch", {"model": "m", "messages": []}, headers=key(MASTER_KEY)),
    "embeddings": embedding(),
    "embeddings_base64": embedding(encoding_format="base64"),
    "embeddings_error_dimensions": embedding(dimensions=8),
    "error_wrong_model": completion(WORDS, model="nope"),
    "error_too_long_in_list": completion(["def f(", TOO_LONG, "class A:"]),
    "error_too_long_in_stream": completion(["def f(", TOO_LONG, "class A:"], **USAGE_AT_END),
    "error_empty_prompt_in_list": completion(["def f(", "", "class A:"]),
    "error_negative_max_tokens": completion(WORDS, max_tokens=-5),
    "error_empty_list": completion([]),
    "error_bad_json": Case(COMPLETIONS, '{"model": "m", "prompt": ', headers=key(MASTER_KEY)),
    "error_no_such_route": Case("/v1/nothing", {}, headers=key(MASTER_KEY)),
    "error_wrong_method": get(COMPLETIONS),
    "error_dead_upstream": completion(WORDS, model="dead"),
    "error_dead_upstream_in_stream": completion("def f(", model="dead", **USAGE_AT_END),
    "error_dead_upstream_chat": chat(model="dead"),
    "chat_error_wrong_model": chat(model="nope"),
    "chat_error_tools_refused": chat(tools=[TOOL]),
    "key_missing": Case(COMPLETIONS, {"model": "m", "prompt": WORDS}),
    "key_missing_models": Case("/v1/models", None, "GET"),
    "key_wrong": Case(COMPLETIONS, {"model": "m", "prompt": WORDS}, headers=key("sk-wrong-0000")),
    "key_wrong_models": Case("/v1/models", None, "GET", key("sk-wrong-0000")),
    "key_revoked": Case(COMPLETIONS, {"model": "m", "prompt": WORDS}, headers=key(REVOKED_KEY)),
    "key_revoked_models": Case("/v1/models", None, "GET", key(REVOKED_KEY)),
    "models": get("/v1/models"),
    "health_liveliness": get("/health/liveliness"),
    "health_readiness": get("/health/readiness"),
    "info": get("/info"),
    "version": get("/version"),
}
# What the upstream does at this request (`batchclient simulate --faults`), and what the proxy makes of it.
FAULTS = {
    "fault_500": ("status=500", completion(WORDS)),
    "fault_503": ("status=503,retry_after=7", completion(WORDS)),
    "fault_429": ("status=429,retry_after=7", completion(WORDS)),
    "fault_413": ("status=413", completion(WORDS)),
    "fault_disconnect": ("disconnect", completion(WORDS)),
    "fault_garbage": ("garbage", completion(WORDS)),
    "fault_html": ("html", completion(WORDS)),
    "fault_abort": ("abort", completion(WORDS)),
    "fault_stream_cut": ("cut", completion("def f(", **USAGE_AT_END)),
    "fault_stream_error_event": ("error_event", completion("def f(", **USAGE_AT_END)),
    "fault_stream_abort": ("abort", completion("def f(", **USAGE_AT_END)),
    "fault_chat_500": ("status=500", chat()),
    "fault_chat_503": ("status=503,retry_after=7", chat()),
    "fault_chat_429": ("status=429,retry_after=7", chat()),
    "fault_chat_stream_cut": ("cut", chat(**USAGE_AT_END)),
    "fault_chat_stream_error_event": ("error_event", chat(**USAGE_AT_END)),
}


def main() -> None:
    folder, names = Path(__file__).parent, sys.argv[1:]
    with (
        tempfile.TemporaryDirectory() as configured,
        EmbeddedServer("instant", model="m") as upstream,
        ToolUpstream() as tools,
        LitellmProxy(Path(configured), models(upstream.base_url, tools.base_url)) as proxy,
    ):
        capture(folder, proxy.base_url, CASES, names)
        for name, (fault, case) in FAULTS.items():
            if not names or name in names:
                upstream.set_faults(fault)
                save(folder, name, record(proxy.base_url, case))
        upstream.set_faults()
        if not names or "key_limited" in names:
            case = Case(COMPLETIONS, {"model": "m", "prompt": WORDS}, headers=key(LIMITED_KEY))
            for _ in range(LIMITED_REQUESTS):
                record(proxy.base_url, case)
            save(folder, "key_limited", record(proxy.base_url, case))
            case = Case(CHAT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, headers=key(LIMITED_KEY))
            save(folder, "key_limited_chat", record(proxy.base_url, case))


if __name__ == "__main__":
    main()
