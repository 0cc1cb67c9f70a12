"""What each dialect sends for a call with these parameters: by path, the fields of the body."""

import itertools

import pytest

from batchclient.dialects import DIALECTS, make_dialect
from batchclient.dialects._fingerprints import ServerFacts
from batchclient.errors import ConfigError
from tests.core import Failure, Kind
from tests.replies.harness import LEFT_OUT, asked, chats, failure_like, fault, named, read, refused, sent, user

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
CALL = {"prompt": "a", "model": "tiny"}


THINKING = {"thinking_tokens": 200, "max_tokens": 5}
BUDGET = {"reasoning_budget_tokens": 200, "reasoning_budget_start_tag": "<think>",
          "reasoning_budget_end_tags": ["</think>"], "reasoning_budget_message": ""}
NOT_AT_ALL = {"enable_thinking": False, "thinking": False}
GUIDED = {"guided_json": {"type": "object"}, "guided_regex": "a+", "guided_choice": ["a"], "guided_grammar": "root ::= x"}


def plain(*prompts, **options):
    return asked(*prompts, streamed=False, **options)


def some(**fields):
    """A body that has these fields among others; one that is ``LEFT_OUT`` is not there."""
    return {...: ...} | fields


def completions():
    """What is promised, what is asked, what is sent."""
    for given, written in ((["a"], "a"), (["a", "b"], ["a", "b"]), ([[1, 2]], [1, 2]), ([[1, 2], [3]], [[1, 2], [3]]),
                           (ODD, ODD)):
        yield f"Prompts are sent letter by letter, several as a list: {given!a}", asked(*given), some(prompt=written)
    yield "Labels are sent with a lone call", asked("a", solo=LABEL), some(user="u", request_id="r")
    yield "Labels are not sent with a list", asked("a", "b", solo=LABEL), some(user=LEFT_OUT, request_id=LEFT_OUT)
    yield "A plain request has no field of the stream", plain("a"), CALL
    yield "A streamed request has its fields", asked("a"), CALL | STREAM
    yield "Every other field is sent untouched", plain("a", **NESTED), CALL | NESTED
    for wanted in (None, False, True):
        counted, alone = some(return_token_ids=True), some(return_token_ids=True if wanted else LEFT_OUT)
        yield (f"Token ids that are {wanted} are counted in a plain list", plain("a", "b", return_token_ids=wanted),
               counted)
        yield f"Token ids that are {wanted} are as they are alone", plain("a", return_token_ids=wanted), alone
        for prompts in ("a", "ab"):
            yield (f"Token ids that are {wanted} are as they are in a stream: {prompts}",
                   asked(*prompts, return_token_ids=wanted), alone)
    for priority in (3, -2):
        yield (f"vLLM's lower priorities go first: {priority}", plain("a", priority=priority),
               CALL | {"priority": -priority})
    without = some(stream_interval=LEFT_OUT, return_token_ids=LEFT_OUT, priority=LEFT_OUT)
    for name in ("openai", "trtllm", "tgi"):
        yield f"Nothing of vLLM's is sent to {name}", plain("a", "b", dialect=name), without
        options = without | {"stream_options": {"include_usage": True}}
        yield f"Nothing of vLLM's is sent to {name} for a stream", asked("a", "b", dialect=name), options
    other_way = some(prompt=["a", "b"], return_token_ids=LEFT_OUT)
    for params in ({"echo": True}, {"no_such": 1}, {"model": "base:adapter"}, {"response_format": {"type": "grammar"}},
                   {"suffix": "x"},
                   {"response_format": {"type": "json_object"}, "json_schema": "{}"}):
        yield (f"SGLang's calls without a translation go the other way: {params}",
               plain("a", "b", dialect="sglang", **params), other_way | params)
    for params in ({"no_such": 1}, {"repeat_penalty": 1, "repetition_penalty": 2}):
        request = plain("a", "b", dialect="llamacpp", **params)
        yield (f"llama.cpp's calls without a translation go the other way: {params}", request,
               other_way | params | {"max_tokens": 16})
    for old, value in GUIDED.items():
        new = {"structured_outputs": {old.removeprefix("guided_"): value}, old: LEFT_OUT}
        yield f"vLLM gets {old} by its name of today", plain("a", "b", **{old: value}), some(**new)
        yield f"A server that is not known yet does so, too: {old}", plain("a", dialect=None, **{old: value}), some(**new)
    yield ("The form's own options go with it, and no choice of a backend",
           plain("a", guided_regex="a+", guided_whitespace_pattern=" ", guided_decoding_backend="xgrammar",
                 structured_outputs={"disable_any_whitespace": True}),
           some(structured_outputs={"regex": "a+", "whitespace_pattern": " ", "disable_any_whitespace": True},
                guided_decoding_backend=LEFT_OUT))
    yield "A body of another library's goes as it is", plain("a", verbatim=True, guided_regex="a"), some(guided_regex="a")
    yield ("TGI gets no top_p of 1, and the rest as it is",
           plain("a", dialect="tgi", top_p=1.0, temperature=0.0, max_tokens=3),
           CALL | {"temperature": 0.0, "max_tokens": 3})
    yield ("vLLM's completions have its field for a budget, and room for the tags", plain("a", **THINKING),
           CALL | {"thinking_token_budget": 200, "max_tokens": 207})
    yield ("A caller's own field stands before it", plain("a", **THINKING, thinking_token_budget=9),
           some(thinking_token_budget=9))
    yield ("llama.cpp's other route has the budget, too", plain("a", dialect="llamacpp", no_such=1, **THINKING),
           some(max_tokens=207, no_such=1, **BUDGET))
    yield "TGI gets another top_p", asked("a", dialect="tgi", top_p=0.9), some(top_p=0.9, stream=True)


MESSAGE = {"messages": user("hi"), "model": "tiny"}
CHATS = [
    ("A lone chat has its labels", chats(streamed=False, solo=LABEL, max_tokens=3),
     MESSAGE | {"user": "u", "request_id": "r", "max_tokens": 3}),
    ("A streamed chat asks for two events and its usage", chats(max_tokens=30), some(**STREAM)),
    ("A chat for a waiting caller asks for every token", chats(to_caller=True, max_tokens=30),
     some(stream=True, stream_interval=LEFT_OUT)),
    ("A waiting caller may ask for so many tokens at once", chats(to_caller=True, stream_interval=4),
     some(stream_interval=4)),
    ("An answer without a bound is told as long ones are", chats(), some(stream_interval=256)),
    *((f"An answer of {most} tokens is told {interval} at once", chats(max_tokens=most), some(stream_interval=interval))
      for most, interval in ((16, 100_000), (256, 100_000), (257, 256))),
    ("vLLM's chats have its field for a budget", chats(streamed=False, **THINKING),
     MESSAGE | {"thinking_token_budget": 200, "max_tokens": 207}),
    ("A chat without a bound has none beside a budget", chats(streamed=False, thinking_tokens=200),
     MESSAGE | {"thinking_token_budget": 200}),
    ("Both names of a bound have room for the thinking",
     chats(streamed=False, max_completion_tokens=7, max_tokens=None, **{"thinking_tokens": 20}),
     MESSAGE | {"thinking_token_budget": 20, "max_completion_tokens": 29, "max_tokens": None}),
    ("vLLM ends at once what is not to be thought at all", chats(streamed=False, thinking_tokens=0, max_tokens=5),
     MESSAGE | {"thinking_token_budget": 0, "max_tokens": 7}),
    ("No thinking is the template's switch, too",
     chats(dialect="llamacpp", streamed=False, thinking_tokens=0, max_tokens=5),
     MESSAGE | {"thinking_budget_tokens": 0, "max_tokens": 5, "chat_template_kwargs": NOT_AT_ALL}),
    ("The caller's own switch stands before it",
     chats(dialect="llamacpp", streamed=False, thinking_tokens=0, chat_template_kwargs={"thinking": True}),
     some(chat_template_kwargs={"enable_thinking": False, "thinking": True})),
    ("llama.cpp's chats have a field of their own", chats(dialect="llamacpp", streamed=False, **THINKING),
     MESSAGE | {"thinking_budget_tokens": 200, "max_tokens": 207}),
    ("trtllm-serve has what a template makes of it", chats(dialect="trtllm", streamed=False, **THINKING),
     MESSAGE | {"chat_template_kwargs": {"thinking_budget": 200}, "max_tokens": 207}),
]
LISTS_OF_CHATS = [
    ("A list of chats has nothing that lists lack", chats(2, streamed=False, solo=LABEL, max_tokens=30),
     {"messages": [user("hi"), user("hi")], "return_token_ids": True, "max_tokens": 30, "model": "tiny"}),
]
SAMPLED = {"max_new_tokens": 5, "min_new_tokens": 2, "temperature": 0.5, "sampling_seed": 3, "stop": ["x"]}
SGLANG = [
    ("SGLang gets OpenAI's fields by its own names",
     plain("a", dialect="sglang", max_tokens=5, min_tokens=2, temperature=0.5, seed=3, logprobs=2, stop=["x"]),
     {"text": "a", "stream": False, "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True,
      "sampling_params": SAMPLED}),
    ("SGLang is told OpenAI's default length, and gets ids as ids", plain([1, 2], [3], dialect="sglang"),
     {"input_ids": [[1, 2], [3]], "stream": False, "sampling_params": {"max_new_tokens": 16}}),
    ("SGLang gets the prompt again for each of several choices, with a seed of its own",
     plain("a", "b", dialect="sglang", n=2, seed=5, max_tokens=4),
     {"text": ["a", "a", "b", "b"], "stream": False,
      "sampling_params": [{"max_new_tokens": 4, "sampling_seed": seed} for seed in (5, 6, 5, 6)]}),
    *((f"SGLang is told the form of an answer in its own words: {form['type']}",
       plain("a", dialect="sglang", response_format=form),
       {"text": "a", "stream": False, "sampling_params": {"max_new_tokens": 16, **told}})
      for form, told in (({"type": "text"}, {}), ({"type": "json_object"}, {"json_schema": '{"type":"object"}'}),
                         (FORM, {"json_schema": '{"type": "object"}'}))),
]
LLAMACPP = [
    ("llama.cpp is told how long where the call says nothing", plain("a", "b", dialect="llamacpp"),
     {"prompt": ["a", "b"], "stream": False, "n_predict": 16}),
    ("llama.cpp gets OpenAI's fields by its own names",
     plain("a", dialect="llamacpp", max_tokens=5, repetition_penalty=1.1, seed=4, logprobs=0),
     {"prompt": "a", "stream": False, "n_predict": 5, "repeat_penalty": 1.1, "seed": 4, "n_probs": 1}),
    ("llama.cpp's completions are told the tags, and a message, without which no tag is forced",
     plain("a", dialect="llamacpp", **THINKING), {"prompt": "a", "stream": False, "n_predict": 207, **BUDGET}),
]
ROUTES = {
    "/v1/completions": completions(), "/v1/chat/completions": CHATS, "/v1/chat/completions/batch": LISTS_OF_CHATS,
    "/generate": SGLANG, "/completion": LLAMACPP,
}


@pytest.mark.parametrize("row",
                    named(((*row, path) for path, rows in ROUTES.items() for row in rows), to_name=lambda row: row[0]))
def test_a_call_is_sent_as_its_row_says(row):
    _, request, expected, expected_path = row
    path, body = sent(request)
    absent = {name for name, value in expected.items() if value is LEFT_OUT}
    has = {name: value for name, value in expected.items() if name is not ... and value is not LEFT_OUT}
    assert path == expected_path
    assert {name: body.get(name) for name in has} == has
    assert not body.keys() & absent
    assert ... in expected or body == expected


UNSENT = [
    ("TEI generates nothing", asked("a", dialect="tei"), ""),
    ("TGI gets no token ids", asked([1, 2], dialect="tgi"), ""),
    ("llama.cpp does not echo", asked("a", dialect="llamacpp", echo=True), ""),
    *((f"What TGI would ignore is refused: {params}", asked("a", dialect="tgi", **params), "not sent")
      for params in ({"n": 2}, {"logprobs": 0}, {"echo": True}, {"suffix": "x"}, {"best_of": 2},
                     {"return_token_ids": True})),
    *((f"{name} is not known to heed {old}, and is not asked", asked("a", dialect=name, **{old: value}), old)
      for name in DIALECTS if name not in ("vllm", "tei") for old, value in GUIDED.items()),
    ("Nor for a chat", chats(dialect="openai", guided_json={}), "guided_json"),
    *((f"{name} has no field for a budget, and is sent nothing", asked("a", dialect=name, **THINKING), "thinking_tokens")
      for name in ("sglang", "tgi", "trtllm", "openai", None)),
    *((f"{name} has none for a chat's budget", chats(dialect=name, **THINKING), "thinking_tokens")
      for name in ("sglang", "tgi", "openai", None)),
]


@pytest.mark.parametrize("row", named(UNSENT, to_name=lambda row: row[0]))
def test_what_a_server_cannot_do_is_refused_before_it_is_sent(row):
    _, request, says = row
    expected = fault("UNSUPPORTED", "BadRequest", says=says)
    assert failure_like(sent(request), expected) == expected


@pytest.mark.parametrize("version", ["0.10.2", "0.9.1", "0.11.0", "0.32.0", "0.110.0", "0.1.dev1"])
def test_a_vllm_that_is_known_to_be_old_gets_a_form_by_the_names_that_it_has(version):
    facts = ServerFacts("vllm", version)
    request = plain("a", guided_regex="a+")
    _, body = sent(request, make_dialect("vllm", lacks=facts.lacks))
    is_old = version in ("0.10.2", "0.9.1")
    form = {"guided_regex": "a+"} if is_old else {"structured_outputs": {"regex": "a+"}}
    assert body == {"prompt": "a", "model": "tiny", **form}


@pytest.mark.parametrize("version", ["0.18.1", "0.9.1", "0.19.0", "0.32.0", "0.1.dev1"])
def test_a_vllm_that_drops_a_budget_is_not_sent_one(version):
    wire = sent(plain("a", **THINKING), make_dialect("vllm", lacks=ServerFacts("vllm", version).lacks))
    assert isinstance(wire, Failure) == (version in ("0.18.1", "0.9.1"))


def test_an_sglang_that_was_started_for_it_has_a_budget_beside_the_callers_own_parameters():
    has = ServerFacts("sglang", bounds_thinking=True).has
    request = chats(dialect="sglang", streamed=False, custom_params={"a": 1}, **THINKING)
    _, body = sent(request, make_dialect("sglang", has=has))
    assert (body["custom_params"], body["max_tokens"]) == ({"thinking_budget": 200, "a": 1}, 207)
    assert isinstance(sent(request, make_dialect("sglang", has=ServerFacts("sglang").has)), Failure)


def test_the_tag_of_a_budget_is_the_templates_or_the_prompts():
    llamacpp = make_dialect("llamacpp", thinks_in="[THINK]")
    _, body = sent(plain("a", dialect="llamacpp", **THINKING), llamacpp)
    assert (body["reasoning_budget_start_tag"], body["reasoning_budget_end_tags"]) == ("[THINK]", ["[/THINK]"])
    assert "generation_prompt" not in body


def test_a_refused_budget_is_sent_no_more():
    server = make_dialect("vllm")
    words = {"error": {"message": "thinking_token_budget is set but reasoning_config is not configured."}}
    failure = refused(chats(streamed=False, **THINKING), 400, words, server=server)
    assert (failure.kind.name, failure.code) == ("UNSUPPORTED", "no_thinking_budget")
    assert isinstance(sent(chats(**THINKING), server), Failure)
    _, body = sent(chats(streamed=False, thinking_tokens=0), server)
    assert body == MESSAGE | {"chat_template_kwargs": NOT_AT_ALL}
    server.forget_refusals(119.0)
    assert isinstance(sent(chats(**THINKING), server), Failure)
    server.forget_refusals(120.0)
    assert sent(chats(streamed=False, **THINKING), server)[1]["thinking_token_budget"] == THINKING["thinking_tokens"]
    # A caller's own field of the name is the caller's.
    mine = refused(chats(streamed=False, thinking_token_budget=3), 400, words, server=make_dialect("vllm"))
    assert mine.kind.name == "BAD_CALL"


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
