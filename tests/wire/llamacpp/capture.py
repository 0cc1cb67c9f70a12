"""Record what a real llama-server answers: python -m tests.wire.llamacpp.capture [NAME ...]

Boots the servers of tests/live/servers.py: the usual one, one that asks for a key (key_…), and one for embeddings
(embed_…). A file loading_….json is what one says that has not yet loaded its model: recorded in the first milliseconds.
The texts depend on the model of scripts/make_tiny_gguf.py, the shapes on the llama.cpp of scripts/llama_server.sh.
"""

import sys
import time
from pathlib import Path
from typing import Any

from tests.live.servers import LlamaServer
from tests.wire.recorder import Body, Case, capture, get, record, save

MODEL = "tiny"
COMPLETIONS, CHAT, NATIVE = "/v1/completions", "/v1/chat/completions", "/completion"
WORDS = ["def f(", "import os", "class A:"]
USAGE_AT_END: Body = {"stream": True, "stream_options": {"include_usage": True}}
TOO_LONG = "x " * 3000
LOADING_TRIES_S = 20.0


def completion(prompt: object, **fields: Any) -> Case:
    return Case(COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 6, "temperature": 0} | fields)


def native(prompt: object, **fields: Any) -> Case:
    return Case(NATIVE, {"prompt": prompt, "n_predict": 6, "temperature": 0} | fields)


def chat(**fields: Any) -> Case:
    messages = [{"role": "user", "content": "hi"}]
    return Case(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0} | fields)


CASES = {
    "metrics_idle": get("/metrics"),
    "plain_single": completion("def f("),
    "plain_list": completion(WORDS),
    "plain_list_of_one": completion(["def f("]),
    "plain_list_varied_lengths": completion(WORDS * 2, temperature=1.0, logit_bias={"2": 2.5}, max_tokens=40),
    "plain_list_stop_string": completion(WORDS, stop=["e"], max_tokens=30),
    "plain_list_n2": completion(WORDS, n=2, temperature=1.0, seed=7),
    "plain_list_logprobs": completion(WORDS[:2], logprobs=2),
    "plain_list_echo": completion(WORDS[:2], echo=True),
    "plain_token_ids_prompt": completion([300, 301, 302]),
    "plain_token_ids_prompts": completion([[300, 301], [302], [303, 304, 305]]),
    "plain_mixed_list": completion(["def f(", [300, 301]]),
    "plain_unknown_field": completion("def f(", no_such_field=1),
    "plain_stream_interval": completion("def f(", stream_interval=100_000),
    "plain_wrong_model": completion("def f(", model="nope"),
    "plain_negative_max_tokens": completion("def f(", max_tokens=-5, stop=["e"]),
    "plain_max_tokens_0": completion("def f(", max_tokens=0),
    "plain_empty_prompt": completion(""),
    "plain_empty_prompt_in_list": completion(["def f(", "", "class A:"]),
    "plain_max_tokens_cut_to_context": completion([[300], [300] * 2045], max_tokens=6),
    "stream_single": completion("def f(", **USAGE_AT_END),
    "stream_list": completion(WORDS, **USAGE_AT_END),
    "stream_list_no_usage": completion(WORDS, stream=True),
    "stream_list_n2": completion(WORDS[:2], **USAGE_AT_END, n=2, temperature=1.0, seed=7),
    "error_too_long": completion(TOO_LONG),
    "error_too_long_in_list": completion(["def f(", TOO_LONG, "class A:"]),
    "error_too_long_in_stream": completion(["def f(", TOO_LONG, "class A:"], **USAGE_AT_END),
    "error_empty_list": completion([]),
    "error_wrong_type": completion("def f(", max_tokens="six"),
    "error_prompt_object": completion({"a": 1}),
    "error_token_id_out_of_vocabulary": completion([[300], [999_999]]),
    "error_bad_json": Case(COMPLETIONS, '{"model": "tiny", "prompt": '),
    "error_no_such_route": Case("/v1/nothing", {}),
    "error_wrong_method": get(COMPLETIONS),
    "native_single": native("def f("),
    "native_list": native(WORDS),
    "native_list_n2": native(WORDS, n=2, temperature=1.0, seed=7),
    "native_list_n_probs": native(WORDS[:2], n_probs=2),
    "native_list_return_tokens": native(WORDS, return_tokens=True),
    "native_list_token_ids": native([[300, 301], [302]]),
    "native_list_stop_string": native(WORDS, stop=["e"], n_predict=30),
    "native_list_varied_lengths": native(WORDS * 2, temperature=1.0, logit_bias=[[2, 2.5]], n_predict=40),
    "native_stream_single": native("def f(", stream=True),
    "native_stream_list": native(WORDS, stream=True),
    "native_error_too_long_in_list": native(["def f(", TOO_LONG]),
    "native_error_empty_list": native([]),
    "chat_plain": chat(),
    "chat_n2_logprobs": chat(n=2, temperature=1.0, seed=7, logprobs=True, top_logprobs=1),
    "chat_stream": chat(**USAGE_AT_END),
    "chat_error_no_messages": chat(messages=[]),
    "chat_error_messages_text": chat(messages="hi"),
    "chat_list_of_conversations": chat(messages=[[{"role": "user", "content": "hi"}]] * 2),
    "error_embeddings_off": Case("/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}),
    "tokenize": Case("/tokenize", {"content": "def f("}),
    "models": get("/v1/models"),
    "props": get("/props"),
    "slots": get("/slots"),
    "health": get("/health"),
    "version": get("/version"),
    "metrics": get("/metrics"),
}
KEY = {
    "key_missing": completion("def f("),
    "key_wrong": Case(COMPLETIONS, completion("def f(").body, headers={"authorization": "Bearer k2"}),
    "key_missing_models": get("/v1/models"),
    "key_missing_props": get("/props"),
}
EMBED = {
    "embed_list": Case("/v1/embeddings", {"model": MODEL, "input": ["a"]}),
    "embed_native": Case("/embeddings", {"input": ["a"]}),
    "embed_empty": Case("/v1/embeddings", {"model": MODEL, "input": ["a", ""]}),
    "embed_too_long": Case("/v1/embeddings", {"model": MODEL, "input": ["x " * 800]}),
}


def capture_loading(folder: Path) -> None:
    """A tiny model is loaded in a tenth of a second: start servers until one is met that still loads."""
    deadline = time.monotonic() + LOADING_TRIES_S
    while time.monotonic() < deadline:
        server = LlamaServer()
        server.start(wait=False)
        try:
            while True:
                try:
                    result = record(server.base_url, CASES["plain_list"])
                except OSError:
                    continue
                break
        finally:
            server.stop()
        if result["status"] == 503:
            save(folder, "loading_plain_list", result)
            return
    raise SystemExit("no server was met while it loaded its model")


def main() -> None:
    names = sys.argv[1:]
    folder = Path(__file__).parent
    with LlamaServer() as server:
        capture(folder, server.base_url, CASES, names, pages=("metrics", "metrics_idle"))
    with LlamaServer(("--api-key", "k1")) as server:
        capture(folder, server.base_url, KEY, names)
    with LlamaServer(("--embeddings", "--pooling", "mean")) as server:
        capture(folder, server.base_url, EMBED, names)
    if not names or "loading_plain_list" in names:
        capture_loading(folder)


if __name__ == "__main__":
    main()
