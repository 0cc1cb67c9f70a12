"""Record what a real vLLM answers, byte for byte: python -m tests.wire.vllm.capture http://127.0.0.1:8000 [NAME ...]

The files were recorded from the server that tests/live/servers.py starts, with the
model of scripts/make_tiny_model.py; the texts depend on that model, the shapes on the vLLM of scripts/environments.py.

Cases of THINKING are recorded by their names, from the model of scripts/make_thinking_model.py and a server with
--reasoning-parser qwen3; those with "unparsed" in their names, from one without.

The pages of /metrics (metrics_idle.txt before any request, metrics_busy.txt with 8 sequences running and 32 waiting,
metrics_after.txt) come from the same server with --max-num-seqs 8 and 48 prompts of 600 tokens, saved as curl gives them.
"""

import sys
from pathlib import Path

from tests.wire.recorder import Body, Case, capture, get

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
CHAT_BATCH = "/v1/chat/completions/batch"

WORDS = ["def f(", "import os", "class A:"]
# The two-event form: the first token of each prompt, then all the rest with that prompt's own usage.
TWO_EVENTS: Body = {
    "stream": True,
    "stream_interval": 100_000,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
USAGE_AT_END: Body = {"stream": True, "stream_options": {"include_usage": True}}
SAMPLED: Body = {"n": 2, "temperature": 1.0, "seed": 7, "logprobs": 2, "return_token_ids": True}
# No seed: one seed draws the same numbers for every prompt of a list, and all would stop at the same token.
VARIED: Body = {"temperature": 1.0, "logit_bias": {"2": 5.5}, "max_tokens": 40}
TOO_LONG = "x " * 2100
SAMPLED_CHAT: Body = {
    "n": 2, "temperature": 1.0, "seed": 7, "logprobs": True, "top_logprobs": 1, "return_token_ids": True,
}  # fmt: skip
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "what"},
    {"role": "user", "content": "why"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
OBJECT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object", "properties": {}}}}


def completion(prompt: object, **fields: object) -> Case:
    return Case(COMPLETIONS, {"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0} | fields)


def chat(**fields: object) -> Case:
    messages = [{"role": "user", "content": "hi"}]
    return Case(CHAT, {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0} | fields)


def chat_batch(**fields: object) -> Case:
    messages = [[{"role": "user", "content": word}] for word in ("hi", "what")]
    return Case(CHAT_BATCH, {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0} | fields)


CASES = {
    # Plain answers
    "plain_single": completion("def f("),
    "plain_list": completion(WORDS),
    "plain_list_token_ids": completion(WORDS, return_token_ids=True),
    "plain_list_varied_lengths": completion(WORDS * 2, **VARIED, return_token_ids=True),
    "plain_list_stop_string": completion(WORDS, stop=["e"], max_tokens=30),
    "plain_list_n2_logprobs_token_ids": completion(WORDS, **SAMPLED),
    "plain_list_echo_logprobs": completion(WORDS[:2], echo=True, logprobs=1),
    "plain_list_echo_logprobs_max_tokens_0": completion(WORDS[:2], echo=True, logprobs=1, max_tokens=0),
    "plain_list_prompt_logprobs": completion(WORDS[:2], prompt_logprobs=1, max_tokens=2),
    "plain_token_ids_prompt": completion([300, 301, 302]),
    "plain_token_ids_prompts": completion([[300, 301], [302], [303, 304, 305]], return_token_ids=True),
    "plain_choice": completion(WORDS[:2], structured_outputs={"choice": ["yes", "no"]}),
    "plain_unknown_field": completion("def f(", no_such_field=1),
    "plain_max_tokens_cut_to_context": completion([[300], [300] * 2045], max_tokens=6),
    # Streamed answers
    "stream_single": completion("def f(", **USAGE_AT_END),
    "stream_list_two_events": completion(WORDS, **TWO_EVENTS),
    "stream_list_two_events_max_tokens_1": completion(WORDS, **TWO_EVENTS, max_tokens=1),
    "stream_list_two_events_token_ids": completion(WORDS, **TWO_EVENTS, return_token_ids=True),
    "stream_list_two_events_varied_lengths": completion(WORDS * 2, **TWO_EVENTS, **VARIED),
    "stream_list_two_events_n2_logprobs_token_ids": completion(WORDS, **TWO_EVENTS, **SAMPLED),
    "stream_list_two_events_stop_string": completion(WORDS, **TWO_EVENTS, stop=["e"], max_tokens=30),
    "stream_list_two_events_echo_logprobs": completion(WORDS[:2], **TWO_EVENTS, echo=True, logprobs=1),
    "stream_list_event_per_token": completion(WORDS, **USAGE_AT_END),
    "stream_list_no_usage": completion(WORDS, stream=True),
    "stream_token_ids_prompts": completion([[300, 301], [302]], **TWO_EVENTS),
    # Refusals
    "error_too_long_in_list": completion(["def f(", TOO_LONG, "class A:"]),
    "error_too_long_in_stream": completion(["def f(", TOO_LONG, "class A:"], **TWO_EVENTS),
    "error_empty_prompt": completion(""),
    "error_empty_prompt_in_list": completion(["def f(", "", "class A:"]),
    "error_wrong_model": completion(WORDS, model="nope"),
    "error_1025_prompts": completion(["x"] * 1025, max_tokens=1),
    "error_empty_list": completion([]),
    "error_mixed_list": completion(["def f(", [300, 301]]),
    "error_token_id_out_of_vocabulary": completion([[300], [999_999]]),
    "error_n2_greedy": completion(WORDS, n=2),
    "error_max_tokens_0": completion(WORDS[:2], max_tokens=0),
    "error_negative_max_tokens": completion(WORDS, max_tokens=-5),
    "error_logprobs_over_limit": completion(WORDS, logprobs=1000),
    "error_priority_list": completion(WORDS, priority=[1, 2, 3]),
    "error_bad_json": Case(COMPLETIONS, '{"model": "tiny", "prompt": '),
    "error_no_such_route": Case("/v1/nothing", {}),
    "error_wrong_method": get(COMPLETIONS),
    # Other endpoints
    "chat_plain": chat(),
    "chat_n2_logprobs": chat(n=2, temperature=1.0, seed=7, logprobs=True, top_logprobs=1, return_token_ids=True),
    "chat_stream_two_events": chat(**TWO_EVENTS),
    "chat_stream_event_per_token": chat(**USAGE_AT_END),
    "chat_batch": chat_batch(return_token_ids=True),
    "chat_batch_stream_bug": chat_batch(stream=True),
    "chat_batch_error_n2": chat_batch(n=2, temperature=1.0),
    "chat_content_parts": chat(messages=PARTS),
    "chat_several_messages": chat(messages=TURNS, return_token_ids=True),
    "chat_stop_string": chat(stop=["e"], max_tokens=30),
    "chat_max_completion_tokens": chat(max_completion_tokens=3),
    "chat_choice": chat(structured_outputs={"choice": ["yes", "no"]}),
    "chat_response_format": chat(response_format=OBJECT, max_tokens=12),
    "chat_stream_n2_logprobs_token_ids": chat(**TWO_EVENTS, **SAMPLED_CHAT),
    "chat_stream_stop_string": chat(**TWO_EVENTS, stop=["e"], max_tokens=30),
    "chat_stream_max_tokens_1": chat(**TWO_EVENTS, max_tokens=1),
    "chat_stream_no_usage": chat(stream=True),
    "chat_error_no_messages": chat(messages=[]),
    "chat_error_messages_text": chat(messages="hi"),
    "chat_error_no_role": chat(messages=[{"content": "hi"}]),
    "chat_error_wrong_model": chat(model="nope"),
    "chat_error_too_long": chat(messages=[{"role": "user", "content": TOO_LONG}]),
    "chat_error_too_long_in_stream": chat(messages=[{"role": "user", "content": TOO_LONG}], **TWO_EVENTS),
    "chat_error_n2_greedy": chat(n=2),
    "chat_error_max_tokens_0": chat(max_tokens=0),
    "chat_error_top_logprobs_alone": chat(top_logprobs=2),
    "chat_error_tools": chat(tools=[TOOL]),
    "chat_error_image": chat(messages=[{"role": "user", "content": [IMAGE]}]),
    "chat_error_stream_options_alone": chat(stream_options={"include_usage": True}),
    "chat_error_wrong_method": get(CHAT),
    "chat_batch_logprobs": chat_batch(logprobs=True, top_logprobs=1),
    "chat_batch_of_one": chat_batch(messages=[TURNS]),
    "chat_batch_choice": chat_batch(structured_outputs={"choice": ["yes", "no"]}),
    "chat_batch_tools_dropped": chat_batch(tools=[TOOL]),
    "chat_batch_error_no_conversations": chat_batch(messages=[]),
    "chat_batch_error_empty_conversation": chat_batch(messages=[TURNS, []]),
    "chat_batch_error_one_conversation": chat_batch(messages=TURNS),
    "chat_batch_error_too_long": chat_batch(messages=[TURNS, [{"role": "user", "content": TOO_LONG}]]),
    "chat_batch_error_wrong_model": chat_batch(model="nope"),
    "chat_batch_error_wrong_method": get(CHAT_BATCH),
    "models": get("/v1/models"),
    "health": get("/health"),
    "version": get("/version"),
    "tokenize": Case("/tokenize", {"model": "tiny", "prompt": "def f("}),
    "plain_list_load_metrics": Case(
        COMPLETIONS, completion(WORDS).body, headers={"endpoint-load-metrics-format": "TEXT"}
    ),
}

ROOM: Body = {"max_tokens": 500 + 15}
"""For 500 tokens of thinking, their two tags, 12 words and the end."""
THINKING = {
    "chat_thinking": chat(**ROOM),
    "chat_thinking_cut_off": chat(max_tokens=5),
    "chat_thinking_budget": chat(**ROOM, thinking_token_budget=3, return_token_ids=True),
    "chat_thinking_budget_0": chat(**ROOM, thinking_token_budget=0),
    "chat_thinking_turned_off": chat(**ROOM, chat_template_kwargs={"enable_thinking": False}),
    "chat_batch_thinking_budget": chat_batch(**ROOM, thinking_token_budget=3),
    "chat_stream_thinking_budget": chat(**ROOM, **USAGE_AT_END, thinking_token_budget=3),
    "chat_stream_thinking_two_events": chat(**ROOM, **TWO_EVENTS, thinking_token_budget=3),
    "plain_thinking_budget": completion("hi", **ROOM, thinking_token_budget=3),
    "chat_thinking_unparsed": chat(**ROOM),
    "chat_error_thinking_budget_unparsed": chat(thinking_token_budget=3),
    "chat_error_thinking_budget_in_stream_unparsed": chat(**USAGE_AT_END, thinking_token_budget=3),
    "error_thinking_budget_unparsed": completion("hi", thinking_token_budget=3),
    "error_thinking_budget_in_stream_unparsed": completion("hi", **USAGE_AT_END, thinking_token_budget=3),
}


def main() -> None:
    base, *names = sys.argv[1:]
    capture(Path(__file__).parent, base, CASES | THINKING if names else CASES, names)


if __name__ == "__main__":
    main()
