"""Error replies: what their words are, what is cut out of them, and ``Retry-After`` in all its forms."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.core import Kind
from tests.replies.harness import asked, chats, failure_like, fault, named, recording, refused

# fmt: off
STATUS = 418
"""A status of which nothing but the words is of interest."""


def said(body, *prompts, keys=()):
    """A server's words and code, as they are shown."""
    failure = refused(asked(*prompts or ("?",), keys=keys), STATUS, body)
    assert failure.message.startswith(f"{STATUS}: ")
    return failure.message.removeprefix(f"{STATUS}: "), failure.code


WORDS = [
    ({"error": {"message": "m", "type": "t", "code": 400}}, "m", "t"),
    ({"error": {"message": "m", "code": "model_not_found"}}, "m", "model_not_found"),
    ({"error": {"message": "m", "type": "", "code": "c"}}, "m", "c"),
    ({"error": {"message": "m", "type": 5, "code": 400}}, "m", None),
    ({"error": {"message": "m", "type": "t" * 900}}, "m", "t" * 80),
    ({"error": "Unauthorized"}, "Unauthorized", None),
    ({"error": "Model is overloaded", "error_type": "overloaded"}, "Model is overloaded", "overloaded"),
    ({"detail": "Not Found"}, "Not Found", None),
    ({"detail": [{"loc": ["body", "prompt", 0], "msg": "bad", "input": "the secret"}]}, "body.prompt.0: bad", None),
    ({"detail": [{"loc": ["a"], "msg": "x"}, {"loc": ["b"], "msg": "y"}]}, "a: x; b: y", None),
    ({"detail": [{"loc": None, "msg": "x"}, {"loc": "b", "msg": "y"}, {"msg": "z"}, 5]}, "x; b: y; z", None),
    ({"message": "flat", "type": "BadRequest"}, "flat", "BadRequest"),
    ({"detail": {"error": "m", "code": "c"}}, "m", "c"), ({"detail": {"msg": "m"}}, "m", None),
    ({"errors": [{"message": "m", "code": "c"}, "n"]}, "m; n", "c"), ({"msg": "m", "code": 400}, "m", None),
    ([{"error": {"message": "m", "type": "t"}}], "m", "t"),
    ({"object": "error", "message": "m", "detail": None}, "m", None),
    ({"title": "t", "status": 400, "detail": ""}, "t", None),
    *((nothing, "no message", None) for nothing in (
        {"detail": []}, {"error": {}}, {"error": None}, {"error": 5}, {"error": {"message": {"a": 1}}}, {}, b"", b"   ",
    )),
    ([1], "a JSON list where an object was expected", None),
    (b"null", "a JSON NoneType where an object was expected", None),
    (b"upstream connect error", "upstream connect error", None),
    (b"<html><body>502</body></html>", "an HTML page", None),
    (b"  \n<!doctype html>", "an HTML page", None), (b"\xff\xfe broken", "\ufffd\ufffd broken", None),
    (b'{"error": {"message": "cut', '{"error": {"message": "cut', None), (b"x" * 100_000, "x" * 399 + "…", None),
    ({"error": "1 validation error:\n  {'type':\t'x'}  "}, "1 validation error: {'type': 'x'}", None),
]


@pytest.mark.parametrize("row", named(WORDS, to_name=lambda row: f"{row[0]!a:.90}"))
def test_an_error_body_has_these_words_and_this_code(row):
    body, message, code = row
    assert said(body) == (message, code)


@pytest.mark.parametrize("length", [399, 400, 401, 100_000])
def test_a_message_has_400_characters_at_most(length):
    assert said({"error": "x" * length})[0] == ("x" * length if length <= 400 else "x" * 399 + "…")


# What is cut out -----------------------------------------------------------------------------------------------------

PROMPT = "Summarise the very long and confidential record of John Smith, patient 4711, and say what he has"
IDS = list(range(1000, 1100))
PATIENT = "the patient John Smith"
WRITERS = {"as it is": str, "as JSON": json.dumps, "as repr": repr,
           "as JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)}
ODD = ['say "hi"\tto\n\\me\\', 'it\'s "both"', "größe ✓ \U0001f600 über", "\u2028\x00"]


def redactions():
    """What is promised; the server's words; what is shown; the prompts; the keys."""
    yield ("A prompt is cut out and the rest is kept", f"bad prompt '{PROMPT}' (at 0)", "bad prompt '[prompt]' (at 0)",
           ("other", PROMPT), ())
    yield "A key is cut out", "no such key sk-1234567890", "no such key [key]", (), ("sk-1234567890",)
    for how, write in WRITERS.items():
        for prompt in [PROMPT, *ODD]:
            if len(prompt) >= 4 or write is not str:
                shown = write("§").replace("§", "[prompt]").replace("\\u00a7", "[prompt]")
                yield (f"A prompt is found that the server writes {how}: {prompt!a:.20}", f"<<{write(prompt)}>>",
                       f"<<{shown}>>", (prompt,), ())
    longer = ("def f(", "def f(x): secret")
    for prompts in (longer, longer[::-1]):
        yield (f"A prompt that begins with another is cut out whole: {prompts}", "bad: def f(x): secret",
               "bad: [prompt]", prompts, ())
    yield ("A prompt that holds the key is cut out whole", "bad: my key is sk-12345, ok?", "bad: [prompt]",
           ("my key is sk-12345, ok?",), ("sk-12345",))
    yield "A key that holds a prompt is cut out whole", "bad key: sk-12345", "bad key: [key]", ("sk-1",), ("sk-12345",)
    for part in (PROMPT, f"{PROMPT[:30]}..."):
        shown = part.replace(part[:30], "[prompt]") if part != PROMPT else "[prompt]"
        yield (f"An echo is cut out wherever it is: {part[-9:]}", f"{part} and again {part}",
               f"{shown} and again {shown}", (PROMPT,), ())
    for length in (12, 20, 31, 32, 50, len(PROMPT) - 1):
        begin, end = PROMPT[:length], PROMPT[-length:]
        for what, echo, shown in (("beginning", f"{begin}…", "[prompt]…"), ("end", f"…{end}!", "…[prompt]!"),
                                  ("ends", f"{begin}...{end}!", "[prompt]...[prompt]!")):
            yield (f"A shortened echo of {length} characters of the {what} is cut out", f"bad: {echo}", f"bad: {shown}",
                   (PROMPT,), ())
    for start in range(1, 40, 3):
        for length in (23, 24, 35, 50):
            cut = PROMPT[start : start + length]
            yield (f"A piece of the middle is cut out: {start}, {length}", f"<{cut}> and <{cut}>",
                   "<[prompt]> and <[prompt]>", ("else", PROMPT), ())
    for name, shorten in (("whole", lambda text: text), ("without blanks", lambda text: text.replace(" ", ""))):
        yield (f"Token ids are cut out, {name}", f"bad ids {shorten('[300, 301, 302]')}!", "bad ids [prompt]!",
               ([300, 301, 302],), ())
        lists = shorten("[[300, 301, 302], [7, 8]]")
        yield (f"Lists of token ids are cut out, {name}", f"bad ids {lists}",
               f"bad ids {shorten('[[prompt], [prompt]]')}", ([300, 301, 302], [7, 8]), ())
    yield "The beginning of many token ids is cut out", f"bad ids {str(IDS)[:60]}...", "bad ids [prompt]...", (IDS,), ()
    yield ("A key that is a plain word is cut out where it stands alone", "token: 4096 tokens, not (token)",
           "[key]: 4096 tokens, not ([key])", ("?",), ("token",))
    yield ("A long key is cut out within a word, too", "bearersk-1234567890x", "bearer[key]x", ("?",), ("sk-1234567890",))
    both = "It's Ann's b\"k\"; it's Bob's!"
    yield ("An echo in repr, of which a part would be quoted otherwise", f"bad: {both.replace(chr(39), chr(92) + chr(39))}",
           "bad: [prompt]", (both,), ())
    chinese = "我的病历号是四七一一我的名字是约翰史密斯请不要告诉别人这件事情谢谢你们"
    yield ("A piece of the middle in ASCII JSON", f"bad: {json.dumps(chinese[5:25])[1:-1]}!", "bad: [prompt]!",
           (chinese,), ())
    ids = [1, 15043, 7, 9, 9, 29871, 3186, 2, 77, 88]
    yield "The end of token ids is cut out", f"bad: {str(ids)[-24:]}!", "bad: [prompt]!", (ids,), ()
    card = "My SSN is 123-45-6789.\nMy card is 4111-1111"
    yield ("A middle over two lines is cut out whole", f"bad: {card[3:36]}!", "bad:[prompt]!",
           (card,), ())
    yield ("A key that a long message is cut within", "x" * 780 + " " + "a" * 815 + " correcthorse-batterystaple", "x" * 399 + "…",
           ("?",), ("correcthorse-batterystaple",))
    yield ("Texts and keys of three characters would cut everything to pieces", "an error about a cat",
           "an error about a cat", ("cat",), ("an",))


@pytest.mark.parametrize("row", named(redactions(), to_name=lambda row: row[0]))
def test_prompts_and_keys_are_cut_out_of_a_servers_words(row):
    _, words, shown, prompts, keys = row
    assert said({"error": words}, *prompts, keys=keys)[0] == shown


def test_the_place_of_a_fault_is_no_prompt():
    place = ["body", "messages", 0, "tool_calls", 0, "function", "arguments"]
    body = {"detail": [{"loc": place, "msg": "arguments must be an object"}]}
    assert said(body, "arguments")[0] == "body.messages.0.tool_calls.0.function.arguments: [prompt] must be an object"


@pytest.mark.parametrize("prompt", ["argument", "Unrecognized", "stream_interval"])
def test_a_prompt_that_is_one_of_a_servers_words_blinds_no_rule(prompt):
    words = "Unrecognized request argument supplied: stream_interval"
    failure = refused(asked(prompt, "other", dialect="vllm"), 400, {"error": {"message": words}})
    assert failure.kind.name == "FIELDS_REFUSED"
    assert "[prompt]" in failure.message


def test_an_echo_that_sounds_like_a_refusal_is_none():
    prompt = "say: maximum allowed count of 5 prompts"
    failure = refused(asked(prompt), 400, {"error": f"cannot do '{prompt}'"})
    assert failure.kind.name == "BAD_CALL"


@pytest.mark.parametrize(("location", "told"), [
    ("https://llm.example.com/v1/completions", "https://llm.example.com/v1/completions"),
    ("https://user:secret@llm.example.com:8443/v1?key=secret", "https://llm.example.com:8443/v1"),
    ("/v1/completions/", "/v1/completions/"),
])
def test_a_redirect_says_where_it_leads(location, told):
    failure = refused(asked("p"), 307, b"", {"location": location})
    assert f"307: it leads to {told}, and no redirect is followed" in failure.message
    assert "secret" not in failure.message


def test_a_404_without_a_model_asks_whether_the_url_is_right():
    failure = refused(asked("p"), 404, {"detail": "Not Found"})
    assert failure.message == "404: Not Found; does base_url end in /v1, and in nothing more?"


ECHOES = [
    f"'{PATIENT}'", f'{{"role": "user", "content": "{PATIENT}"}}', "the patient John Sm...", "...tient John Smith",
    f"[{{'role': 'user', 'content': [{{'type': 'text', 'text': '{PATIENT}'}}]}}]",
]


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("content", [PATIENT, [{"type": "text", "text": PATIENT}]], ids=["a text", "parts"])
def test_texts_within_messages_are_cut_out_of_a_servers_words(echo, content):
    conversation = [{"role": "system", "content": "brief"}, {"role": "user", "content": content}]
    shown = refused(asked(conversation, kind=Kind.CHAT), STATUS, {"error": f"cannot use {echo}"}).message
    assert "John" not in shown
    assert shown.startswith(f"{STATUS}: cannot use ")


def test_arguments_of_tool_calls_and_image_links_are_cut_out_and_the_words_of_the_protocol_stay():
    calls = [{"id": "call-1", "type": "function", "function": {"name": "f", "arguments": '{"ssn": "123-45-6789"}'}}]
    parts = [{"type": "image_url", "image_url": {"url": "https://host/secret-image.png"}},
             {"type": "text", "text": "hello there"}]
    conversation = [{"role": "assistant", "content": None, "tool_calls": calls}, {"role": "user", "content": parts}]
    words = 'the user has bad arguments {"ssn": "123-45-6789"} or https://host/secret-image.png as text'
    shown = refused(asked(conversation, kind=Kind.CHAT), STATUS, {"error": words}).message
    assert shown == f"{STATUS}: the user has bad arguments [prompt] or [prompt] as text"


class Body(BaseModel):
    prompt: int


@pytest.mark.parametrize("given_prompt", [PROMPT, [PROMPT, "x" * 99], [1, PROMPT], {"a": PROMPT}], ids=str)
def test_pydantics_shortened_echo_is_cut_out(given_prompt):
    with pytest.raises(ValidationError) as caught:
        Body(prompt=given_prompt)
    words = str(caught.value)
    assert "Summarise th" in words or "what he has" in words
    shown, _ = said({"error": words}, PROMPT, "x" * 99)
    assert "Summarise th" not in shown
    assert "d say what he has" not in shown
    assert "[prompt]" in shown


odd_text = st.text(alphabet="0123456789 äß\"'\\\n\x00\u2028", min_size=4,
                   max_size=40).filter(lambda text: " ".join(text.split()) == text)


@given(st.lists(odd_text, min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([str, repr, json.dumps]))
def test_no_prompt_survives(prompts, which, write):
    echo = prompts[which % len(prompts)]
    shown, _ = said({"error": f"before {write(echo)} after"}, *prompts)
    assert echo not in shown
    assert write(echo).strip("\"'") not in shown


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["error", "detail", "message", "type", "code", "loc", "msg"]), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary() | anything, st.lists(st.text(max_size=30), max_size=2), st.lists(st.text(max_size=30), max_size=2),
       st.text())
def test_no_error_reply_is_too_strange_to_be_judged(body, prompts, keys, wish):
    failure = refused(asked("p", *prompts, keys=tuple(keys)), STATUS, body,
                      {"retry-after": wish, "retry-after-ms": wish})
    assert len(f"{STATUS}: ") < len(failure.message) <= 420
    assert failure.code is None or isinstance(failure.code, str)
    assert failure.retry_after_s is None or 0 < failure.retry_after_s < float("inf")


# Retry-After ---------------------------------------------------------------------------------------------------------

NOON = 1_795_262_400.0  # Sat, 21 Nov 2026 12:00:00 GMT
WISHES = {
    "5": 5.0, " 5 ": 5.0, "\t5": 5.0, "0.25": 0.25, ".5": 0.5, "5.": 5.0, "0" * 15 + "5": 5.0, "86400": 86_400.0,
    "5.0000000000000000": 5.0, "Sat, 21 Nov 2026 12:00:30 GMT": 30.0, "Saturday, 21-Nov-26 12:00:30 GMT": 30.0,
    "Sat Nov 21 12:00:30 2026": 30.0, "Sat, 21 Nov 2026 12:00:30": 30.0, "Sat, 21 Nov 2026 14:00:30 +0200": 30.0,
}
NO_WISHES = [
    # More than a day.
    "86401", "9" * 16, "9" * 400, "Sun, 22 Nov 2026 12:00:30 GMT",
    "", "1e3", " 1e3", "1_0", "+5", "1.2.3", ".", "0x10", "٥", "\xa05", "infinity", "0", "-1", "NaN", "inf", "1e400",
    "soon", "5, 6",
    "Sat, 2_1 Nov 20_26 12:00:30 GMT", "Sat, ٢١ Nov 2026 12:00:30 GMT", "1 Jan 30 1:1", "Sat, 21 Nov 2026 12:00:00 GMT",
    "Wed, 21 Oct 2015 07:28:00 GMT", "Sat, 99 Nov 2026 12:00:30 GMT", "Sat, 21 Nov 99999999999 12:00:30 GMT",
    "Sat, 21 Nov 2026 12:00:30 +9999999999999",
]
MILLISECONDS = [
    ({}, None), ({"retry-after-ms": "250"}, 0.25), ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0), ({"retry-after-ms": "0", "retry-after": "9"}, 9.0),
    ({"retry-after-ms": "Sat, 21 Nov 2026 12:00:30 GMT"}, None), ({"retry-after-ms": "1_0"}, None),
]


def wish(headers):
    return refused(asked("p"), 429, {"error": "slow down"}, headers, NOON).retry_after_s


def test_retry_after_is_read():
    rows = [({"retry-after": value}, seconds) for value, seconds in (WISHES | dict.fromkeys(NO_WISHES)).items()]
    assert [(headers, wish(headers)) for headers, _ in rows + MILLISECONDS] == rows + MILLISECONDS


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system's time zone cannot be changed")
def test_a_date_without_a_zone_is_gmt_wherever_we_are(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert wish({"retry-after": "Sat Nov 21 12:00:30 2026"}) == 30.0
    finally:
        monkeypatch.undo()
        time.tzset()
        assert os.environ.get("TZ") != "Pacific/Auckland"


# What a refusal means ------------------------------------------------------------------------------------------------

ROUTES = [{"detail": "Not Found"}, b"", {"detail": "Method Not Allowed"}, b"<html>no</html>"]
SLOW = {"error": {"message": "slow down", "type": "rate_limit", "code": 429}}
TOO_LONG = {"error": "Number of prompts exceeds the maximum allowed batch size of 8",
            "error_type": "batch size exceeded"}
FAULTS = ["input (1201 tokens) is too large to process. increase the physical batch size",
          "[json.exception.parse_error.101] parse error"]


def meanings():
    """What is promised; the request; the status and the body; the failure."""
    for status in (404, 405):
        for body in ROUTES:
            yield (f"A missing list route refuses lists: {status} {body!a}", chats(2, streamed=False), status, body,
                   "LIST_REFUSED")
            yield (f"A missing route refuses a lone chat: {status} {body!a}", chats(streamed=False), status, body,
                   "REFUSED")
    yield ("A missing model refuses a list's calls", chats(2, streamed=False), 404,
           recording("vllm/chat_batch_error_wrong_model").body, fault("REFUSED", "NotFound"))
    yield "A failure carries the server's code", asked("x"), 429, SLOW, fault("REJECTED", code="rate_limit")
    yield ("TGI's cap is in its complaint", asked(*"abcdefghij", dialect="tgi"), 422, TOO_LONG,
           fault("LIST_TOO_LONG", list_cap=8))
    yield ("TGI's own name of its model is told", asked("a", dialect="tgi"), 422,
           {"error": "adapter tiny is not loaded"}, fault("BAD_CALL", says="'tgi'"))
    for words in FAULTS:
        error = {"error": {"code": 500, "message": words, "type": "server_error"}}
        yield (f"A 500 of llama.cpp's that is the call's fault is not tried again: {words}",
               asked("a", dialect="llamacpp"), 500, error, fault("BAD_CALL", "BadRequest"))
    yield ("Another 500 of llama.cpp's is its own", asked("a", dialect="llamacpp"), 500, {"error": {"message": "boom"}},
           "MAYBE_PROCESSED")
    engine = {"message": "CppExecutorError: CUDA error", "code": 400}
    yield ("A 400 of TensorRT-LLM's engine is tried once more", asked("a", dialect="trtllm"), 400, engine,
           fault("MAYBE_PROCESSED", "ServerFault", once=True))
    yield ("Another 400 of TensorRT-LLM's is the call's", asked("a", dialect="trtllm"), 400,
           {"message": "max_tokens must be positive"}, fault("BAD_CALL", "BadRequest"))
    for words, kind in (("Streaming is not supported for a list of prompts.", "STREAM_REFUSED"),
                        ("batched prompts are not supported", "LIST_REFUSED")):
        yield (f"A refusal of streams or lists is none of fields: {kind}", asked("a", "b", dialect=None), 400,
               {"error": words}, kind)
    for words, params in [
        ("Unrecognized request argument supplied: foo", {"foo": 1}),
        ("unknown field return_token_ids", {"return_token_ids": True}),
        ("Unexpected fields in the request: {'foo'}", {"foo": 1}), ("max_tokens is not supported", {"max_tokens": 3}),
        ("the prompt is too long", {}),
    ]:
        yield (f"A refusal of a caller's field is the caller's: {words}",
               asked("a", "b", dialect=None, streamed=False, **params), 400, {"error": words}, "BAD_CALL")


@pytest.mark.parametrize("row", named(meanings(), to_name=lambda row: row[0]))
def test_a_refusal_means_what_its_row_says(row):
    _, request, status, body, expected = row
    assert failure_like(refused(request, status, body), expected) == expected
