"""What each dialect sends for a call with these parameters: the path, fields with their values, fields that are not there."""

import itertools
from dataclasses import dataclass, field

import pytest

from batchclient.dialects import DIALECTS
from batchclient.errors import ConfigError
from tests.core import Failure, Kind
from tests.replies.harness import Asked, asked, chats, failure_like, fault, named, read, sent, user

# fmt: off
STREAM = {"stream": True, "stream_interval": 100_000,
          "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
LABEL = b'"user":"u","request_id":"r"'
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
NESTED = {
    "temperature": 0.0, "top_p": 1, "stop": ["\n", "ü"], "seed": 2**62, "logit_bias": {"2": 5.5, "1": -1},
    "structured_outputs": {"json": {"properties": {"z": {"type": "string"}, "a": {"type": "null"}},
                        "required": ["z", "a"]}},
    "no_such_field": {"deep": [{"b": 1, "a": None}]}, "min_tokens": None, "echo": False,
}
ODD = ["größe ✓ \U0001f600", 'say "hi"\n\t\\', "\u2028\x00\x7f", ""]
OF_VLLM = ("stream_interval", "return_token_ids", "priority")


@dataclass
class Row:
    """What is sent.

    Args:
        name: what is promised.
        asked: the request.
        whole: the whole body; empty: not looked at.
        has: some fields of the body.
        lacks: fields that are not in the body.
    """

    name: str
    asked: Asked
    path: str
    whole: dict = field(default_factory=dict)
    has: dict = field(default_factory=dict)
    lacks: tuple = ()


def plain(*prompts, **options):
    return asked(*prompts, streamed=False, **options)


def rows_of_vllm():
    for prompts, prompt in ((["a"], "a"), (["a", "b"], ["a", "b"]), ([[1, 2]], [1, 2]), ([[1, 2], [3]], [[1, 2], [3]]),
                        (ODD, ODD)):
        yield Row(f"Prompts are sent letter by letter, one as one and several as a list: {prompts!a}", asked(*prompts),
                  "/v1/completions", has={"prompt": prompt})
    yield Row("Labels are sent with a lone call", asked("a", solo=LABEL), "/v1/completions",
              has={"user": "u", "request_id": "r"})
    yield Row("Labels are not sent with a list", asked("a", "b", solo=LABEL), "/v1/completions",
              lacks=("user", "request_id"))
    yield Row("A plain request has no field of the stream", plain("a"), "/v1/completions",
              {"prompt": "a", "model": "tiny"})
    yield Row("A streamed request has its fields", asked("a"), "/v1/completions",
              {"prompt": "a", "model": "tiny", **STREAM})
    yield Row("Every other field is sent untouched", plain("a", **NESTED), "/v1/completions",
              {"prompt": "a", "model": "tiny", **NESTED})
    for wanted in (None, False):
        yield Row(f"Token ids that are {wanted} are counted in a plain list", plain("a", "b", return_token_ids=wanted),
                  "/v1/completions", has={"return_token_ids": True})
        yield Row(f"Token ids that are {wanted} are not asked for alone", plain("a", return_token_ids=wanted),
                  "/v1/completions", lacks=("return_token_ids",))
        yield Row(f"Token ids that are {wanted} are not asked for in a stream",
                  asked("a", "b", return_token_ids=wanted), "/v1/completions", lacks=("return_token_ids",))
    for streamed, prompts in itertools.product((True, False), ("a", "ab")):
        yield Row(f"Token ids that were asked for are asked for once: {prompts} {streamed}",
                  asked(*prompts, streamed=streamed, return_token_ids=True),
                  "/v1/completions", has={"return_token_ids": True})
    for priority in (3, -2):
        yield Row(f"vLLM's lower priorities go first: {priority}", plain("x", seed=1, priority=priority),
                  "/v1/completions",
                  {"prompt": "x", "model": "tiny", "seed": 1, "priority": -priority})
    for max_tokens, interval in ((None, 256), (16, 100_000), (256, 100_000), (257, 256)):
        params = {} if max_tokens is None else {"max_tokens": max_tokens}
        yield Row(f"An answer of {max_tokens} tokens has events so far apart", chats(**params), "/v1/chat/completions",
                  has={"stream_interval": interval})


CHATS = [
    Row("A lone chat goes to its own route with its labels", chats(streamed=False, solo=LABEL, max_tokens=3),
        "/v1/chat/completions",
        {"messages": user("hi"), "user": "u", "request_id": "r", "max_tokens": 3, "model": "tiny"}),
    Row("A streamed chat asks for two events and its usage", chats(max_tokens=30), "/v1/chat/completions", has=STREAM),
    Row("A chat for a waiting caller asks for every token", chats(to_caller=True, max_tokens=30),
        "/v1/chat/completions", has={"stream": True}, lacks=("stream_interval",)),
    Row("A waiting caller may ask for pieces of so many tokens", chats(to_caller=True, stream_interval=4),
        "/v1/chat/completions", has={"stream_interval": 4}),
    Row("A list goes to the list route without anything it lacks", chats(2, streamed=False, solo=LABEL, max_tokens=30),
        "/v1/chat/completions/batch",
        {"messages": [user("hi"), user("hi")], "return_token_ids": True, "max_tokens": 30, "model": "tiny"}),
]


def rows_of_others():
    for name, streamed in itertools.product(("openai", "trtllm", "tgi"), (True, False)):
        yield Row(f"Nothing of vLLM's is sent to {name}, {'streamed' if streamed else 'plain'}",
                  asked("a", "b", dialect=name, streamed=streamed, max_tokens=20),
                  "/v1/completions", has={"stream_options": {"include_usage": True}} if streamed else {}, lacks=OF_VLLM)
    for params in ({"echo": True}, {"no_such": 1}, {"model": "base:adapter"}, {"response_format": {"type": "grammar"}},
                   {"suffix": "x"}):
        yield Row(f"SGLang's calls without a translation go to the other route: {params}",
                  plain("a", "b", dialect="sglang", **params), "/v1/completions",
                  has={"prompt": ["a", "b"]} | params, lacks=("return_token_ids",))
    for params in ({"no_such": 1}, {"repeat_penalty": 1, "repetition_penalty": 2}):
        yield Row(f"llama.cpp's calls without a translation go to the other route: {params}",
                  plain("a", "b", dialect="llamacpp", **params), "/v1/completions",
                  has={"prompt": ["a", "b"], "max_tokens": 16} | params)
    for form, params in (({"type": "text"}, {}), ({"type": "json_object"}, {"json_schema": '{"type":"object"}'}),
                        (FORM, {"json_schema": '{"type": "object"}'})):
        yield Row(f"SGLang is told the form of an answer in its own words: {form['type']}",
                  plain("a", dialect="sglang", response_format=form), "/generate",
                  {"text": "a", "stream": False, "sampling_params": {"max_new_tokens": 16, **params}})


OTHERS = [
    Row("SGLang gets OpenAI's fields by its own names",
        plain("a", "b", dialect="sglang", max_tokens=5, min_tokens=2, temperature=0.5, seed=3, logprobs=2, stop=["x"]),
        "/generate",
        {"text": ["a", "b"], "stream": False, "return_logprob": True, "top_logprobs_num": 2,
         "return_text_in_logprobs": True,
         "sampling_params": {"max_new_tokens": 5, "min_new_tokens": 2, "temperature": 0.5, "sampling_seed": 3,
                             "stop": ["x"]}}),
    Row("Of two forms that a call demands of SGLang none is left out",
        plain("a", dialect="sglang", response_format={"type": "json_object"}, json_schema="{}"),
        "/v1/completions", has={"json_schema": "{}", "response_format": {"type": "json_object"}}),
    Row("SGLang is told OpenAI's default length, and gets ids as ids", plain([1, 2], [3], dialect="sglang"),
        "/generate",
        {"input_ids": [[1, 2], [3]], "stream": False, "sampling_params": {"max_new_tokens": 16}}),
    Row("SGLang gets the prompt again for each of several choices, with a seed of its own",
        plain("a", "b", dialect="sglang", n=2, seed=5, max_tokens=4), "/generate",
        {"text": ["a", "a", "b", "b"], "stream": False,
         "sampling_params": [{"max_new_tokens": 4, "sampling_seed": seed} for seed in (5, 6, 5, 6)]}),
    Row("TGI gets no top_p of 1, and the rest as it is",
        plain("a", "b", dialect="tgi", top_p=1.0, temperature=0.0, max_tokens=3, model="tgi"), "/v1/completions",
        {"prompt": ["a", "b"], "temperature": 0.0, "max_tokens": 3, "model": "tgi"}),
    Row("TGI gets another top_p", asked("a", dialect="tgi", top_p=0.9), "/v1/completions",
        has={"top_p": 0.9, "stream": True}),
    Row("llama.cpp is told how long where the call says nothing", plain("a", "b", dialect="llamacpp"), "/completion",
        {"prompt": ["a", "b"], "stream": False, "n_predict": 16}),
    Row("llama.cpp gets OpenAI's fields by its own names",
        plain("a", dialect="llamacpp", max_tokens=5, repetition_penalty=1.1, seed=4, logprobs=0), "/completion",
        {"prompt": "a", "stream": False, "n_predict": 5, "repeat_penalty": 1.1, "seed": 4, "n_probs": 1}),
]


@pytest.mark.parametrize("row", named([*rows_of_vllm(), *CHATS, *rows_of_others(), *OTHERS]))
def test_a_call_is_sent_as_its_row_says(row):
    path, body = sent(row.asked)
    assert path == row.path
    assert body == (row.whole or body)
    assert {name: body.get(name) for name in row.has} == row.has
    assert not body.keys() & set(row.lacks)


def test_numbers_keep_their_types_and_nested_objects_their_order():
    _, body = sent(plain("a", "b", **NESTED))
    assert list(body["structured_outputs"]["json"]["properties"]) == ["z", "a"]
    assert list(body["logit_bias"]) == ["2", "1"]
    assert (type(body["temperature"]), type(body["top_p"])) == (float, int)


UNSENT = [
    ("TEI generates nothing", asked("a", dialect="tei"), ""),
    ("TGI gets no token ids", asked([1, 2], dialect="tgi"), ""),
    ("llama.cpp does not echo", asked("a", dialect="llamacpp", echo=True), ""),
    *((f"What TGI would ignore is refused: {params}", asked("a", dialect="tgi", **params), "not sent")
      for params in ({"n": 2}, {"logprobs": 0}, {"echo": True}, {"suffix": "x"}, {"best_of": 2},
                     {"return_token_ids": True})),
]


@pytest.mark.parametrize("row", named(UNSENT, to_name=lambda row: row[0]))
def test_what_a_server_cannot_do_is_refused_before_it_is_sent(row):
    _, request, says = row
    expected = fault("UNSUPPORTED", "BadRequest", says=says)
    assert failure_like(sent(request), expected) == expected


def test_a_server_without_lists_of_chats_says_so_itself():
    assert sent(chats(2, dialect="openai", streamed=False)).kind.name == "LIST_REFUSED"


def test_no_type_of_a_parameter_breaks_writing_or_reading():
    values = ["x", [], {}, 1.5, True, [1], {"type": ["x"]}, {"type": "json_schema", "json_schema": [1]}]
    fields = ["seed", "logprobs", "stop", "top_p", "response_format", "best_of", "logit_bias"]
    for name, field_, value, streamed in itertools.product([*DIALECTS, None], fields, values, [False, True]):
        request = asked("a", "b", dialect=name, streamed=streamed, extra_body={field_: value})
        try:
            request.batch()
        except ConfigError:
            continue
        wire = sent(request)
        if isinstance(wire, Failure):
            assert wire.kind.name == "UNSUPPORTED", (name, field_, value)
        else:
            read(request, b"{}")
