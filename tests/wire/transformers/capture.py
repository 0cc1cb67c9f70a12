"""Record what a real `transformers serve` answers: python -m tests.wire.transformers.capture [NAME ...]

Boots the servers of tests/live/servers.py: the serial one, the one with continuous batching (cb_…), and one of the
latter that is killed by a prompt larger than its KV cache (dead_…). The texts depend on the model of
scripts/make_tiny_model.py, the shapes on the transformers of requirements/transformers.txt.
"""

import sys
from pathlib import Path
from typing import Any

from tests.live.servers import ContinuousTransformersServer, TransformersServer
from tests.wire.recorder import Body, Case, capture, get

MODEL = "tiny-model"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = ["def f(", "import os", "class A:"]
USAGE_AT_END: Body = {"stream": True, "stream_options": {"include_usage": True}}


def completion(prompt: object, **fields: Any) -> Case:
    return Case(COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 6, "temperature": 0} | fields)


def chat(**fields: Any) -> Case:
    messages = [{"role": "user", "content": "hi"}]
    return Case(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0} | fields)


CASES = {
    "plain_single": completion("def f("),
    "plain_single_stop_string": completion("def f(", stop=["e"], max_tokens=30),
    "plain_single_stop_string_alone": completion("def f(", stop="e", max_tokens=30),
    "plain_single_n2": completion("def f(", n=2),
    "plain_single_logprobs": completion("def f(", logprobs=2),
    "plain_single_echo": completion("def f(", echo=True),
    "plain_single_seed": completion("def f(", temperature=1.0, seed=7),
    "plain_single_min_fields": Case(COMPLETIONS, {"prompt": "def f(", "max_tokens": 6}),
    "plain_single_max_tokens_1": completion("def f(", max_tokens=1),
    "plain_single_max_tokens_0": completion("def f(", max_tokens=0),
    "plain_single_no_max_tokens": Case(COMPLETIONS, {"model": MODEL, "prompt": "def f(", "stop": ["e"]}),
    "plain_empty_prompt": completion(""),
    "error_list": completion(WORDS),
    "error_list_of_one": completion(["def f("]),
    "error_token_ids": completion([300, 301]),
    "error_empty_list": completion([]),
    "error_unknown_field": completion("def f(", no_such_field=1),
    "error_stream_interval": completion("def f(", **USAGE_AT_END, stream_interval=100_000),
    "error_ignore_eos": completion("def f(", ignore_eos=True),
    "error_priority": completion("def f(", priority=1),
    "error_wrong_model": completion("def f(", model="nope"),
    "error_wrong_type": completion("def f(", max_tokens="six"),
    "error_negative_max_tokens": completion("def f(", max_tokens=-5),
    "error_bad_json": Case(COMPLETIONS, '{"model": "tiny-model", "prompt": '),
    "error_no_such_route": Case("/v1/nothing", {}),
    "error_wrong_method": get(COMPLETIONS),
    "stream_single": completion("def f(", stream=True),
    "stream_single_usage": completion("def f(", **USAGE_AT_END),
    "stream_single_continuous_usage": completion(
        "def f(", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "chat_plain": chat(),
    "chat_n2_logprobs": chat(n=2, logprobs=True, top_logprobs=1),
    "chat_stream": chat(**USAGE_AT_END),
    "chat_error_messages_text": chat(messages="hi"),
    "chat_error_no_messages": chat(messages=[]),
    "responses_plain": Case("/v1/responses", {"model": MODEL, "input": "hi", "stream": False, "max_output_tokens": 6}),
    "models": get("/v1/models"),
    "health": get("/health"),
    "version": get("/version"),
    "metrics": get("/metrics"),
    "embeddings": Case("/v1/embeddings", {"model": MODEL, "input": ["a"]}),
}
CONTINUOUS = {f"cb_{name}": CASES[name] for name in (
    "plain_single", "plain_single_stop_string", "error_list", "stream_single_usage", "chat_plain", "chat_stream", "health"
)}  # fmt: skip
# Larger than the KV cache of 32 blocks of 32 tokens. What comes after is refused too, until the server is restarted.
DEAD = {
    "dead_poison": completion("def f( " * 1000, max_tokens=2),
    "dead_plain_single": completion("def f("),
    "dead_chat_plain": chat(),
    "dead_health": get("/health"),
}


def main() -> None:
    names = sys.argv[1:]
    folder = Path(__file__).parent
    with TransformersServer() as server:
        capture(folder, server.base_url, CASES, names)
    with ContinuousTransformersServer() as server:
        capture(folder, server.base_url, CONTINUOUS, names)
    with ContinuousTransformersServer(("--cb-num-blocks", "32")) as server:
        capture(folder, server.base_url, DEAD, names)


if __name__ == "__main__":
    main()
