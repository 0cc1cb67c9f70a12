"""Error bodies in all their shapes, what is cut out of them, and ``Retry-After`` in all its forms."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from batchclient.dialects._replies import error_in, read_retry_after, redact


def body(value):
    return json.dumps(value).encode()


# Error bodies ------------------------------------------------------------------------------------------------------


def test_an_error_body_has_a_message_and_maybe_a_code():
    for reply, message, code in [
        (body({"error": {"message": "m", "type": "t", "code": 400}}), "m", "t"),
        (body({"error": {"message": "m", "code": "model_not_found"}}), "m", "model_not_found"),
        (body({"error": {"message": "m", "type": "", "code": "c"}}), "m", "c"),
        (body({"error": {"message": "m", "type": 5, "code": 400}}), "m", None),
        (body({"error": "Unauthorized"}), "Unauthorized", None),
        (body({"error": "Model is overloaded", "error_type": "overloaded"}), "Model is overloaded", "overloaded"),
        (body({"detail": "Not Found"}), "Not Found", None),
        (body({"detail": [{"loc": ["body", "prompt", 0], "msg": "bad", "input": "the secret"}]}), "body.prompt.0: bad", None),
        (body({"detail": [{"loc": ["a"], "msg": "x"}, {"loc": ["b"], "msg": "y"}]}), "a: x; b: y", None),
        (body({"detail": [{"loc": None, "msg": "x"}, {"loc": "b", "msg": "y"}, {"msg": "z"}, 5]}), "x; b: y; z", None),
        (body({"detail": []}), "no message", None),
        (body({"message": "flat", "type": "BadRequest"}), "flat", "BadRequest"),
        (body({"error": {}}), "no message", None),
        (body({"error": None}), "no message", None),
        (body({"error": 5}), "no message", None),
        (body({"error": {"message": {"a": 1}}}), "no message", None),
        (body({"detail": {"error": "m", "code": "c"}}), "m", "c"),
        (body({"detail": {"msg": "m"}}), "m", None),
        (body({"errors": [{"message": "m", "code": "c"}, "n"]}), "m; n", "c"),
        (body({"msg": "m", "code": 400}), "m", None),
        (body([{"error": {"message": "m", "type": "t"}}]), "m", "t"),
        (body({"object": "error", "message": "m", "detail": None}), "m", None),
        (body({"title": "t", "status": 400, "detail": ""}), "t", None),
        (body({}), "no message", None),
        (body([1]), "a JSON list where an object was expected", None),
        (body(None), "a JSON NoneType where an object was expected", None),
        (b"upstream connect error", "upstream connect error", None),
        (b"<html><body>502</body></html>", "an HTML page", None),
        (b"  \n<!doctype html>", "an HTML page", None),
        (b"", "no message", None),
        (b"   ", "no message", None),
        (b"\xff\xfe broken", "\ufffd\ufffd broken", None),
        (b'{"error": {"message": "cut', '{"error": {"message": "cut', None),
    ]:  # fmt: skip
        assert error_in(reply) == (message, code)


def test_a_long_text_is_cut():
    assert error_in(b"x" * 100_000) == ("x" * 400, None)


def test_a_long_code_is_cut():
    assert len(error_in(body({"error": {"message": "m", "type": "t" * 900}}))[1]) == 80


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "detail", "message", "type", "code", "loc", "msg"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(anything)
def test_no_json_is_too_strange_for_an_error_body(value):
    message, code = error_in(body(value))
    assert isinstance(message, str)
    assert code is None or isinstance(code, str)


@given(st.binary())
def test_no_bytes_are_too_strange_for_an_error_body(reply):
    message, _ = error_in(reply)
    assert message


# What is cut out -----------------------------------------------------------------------------------------------------

PROMPT = "Summarise the very long and confidential record of John Smith, patient 4711, and say what he has"


def wire(prompt):
    return json.dumps(prompt, ensure_ascii=False, separators=(",", ":")).encode()


def clean(message, *prompts, secrets=()):
    return redact(message, [wire(prompt) for prompt in prompts], secrets)


def test_a_prompt_is_cut_out_and_the_rest_is_kept():
    assert clean(f"bad prompt '{PROMPT}' (at 0)", "other", PROMPT) == "bad prompt '[prompt]' (at 0)"


def test_a_key_is_cut_out():
    assert clean("no such key sk-1234567890", secrets=["sk-1234567890"]) == "no such key [key]"


def test_a_prompt_is_found_however_the_server_writes_it():
    for write in [str, json.dumps, repr, lambda text: json.dumps(text, ensure_ascii=False)]:
        for prompt in [PROMPT, 'say "hi"\tto\n\\me\\', 'it\'s "both"', "größe ✓ \U0001f600 über", "\u2028\x00"]:
            message = clean(f"<<{write(prompt)}>>", prompt)
            if len(prompt) >= 4 or write is not str:
                assert message.strip("<>\"'") == "[prompt]"


odd_text = st.text(alphabet="0123456789 äß\"'\\\n\x00\u2028", min_size=4, max_size=40).filter(
    lambda text: " ".join(text.split()) == text
)


@given(st.lists(odd_text, min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([str, repr, json.dumps]))
def test_no_prompt_survives(prompts, which, write):
    echo = prompts[which % len(prompts)]
    message = clean(f"before {write(echo)} after", *prompts)
    assert echo not in message
    assert write(echo).strip("\"'") not in message


def test_a_prompt_that_begins_with_another_is_cut_out_whole():
    assert clean("bad: def f(x): secret", "def f(", "def f(x): secret") == "bad: [prompt]"
    assert clean("bad: def f(x): secret", "def f(x): secret", "def f(") == "bad: [prompt]"


def test_a_prompt_that_holds_the_key_is_cut_out_whole():
    assert clean("bad: my key is sk-12345, ok?", "my key is sk-12345, ok?", secrets=["sk-12345"]) == "bad: [prompt]"


def test_a_key_that_holds_a_prompt_is_cut_out_whole():
    assert clean("bad key: sk-12345", "sk-1", secrets=["sk-12345"]) == "bad key: [key]"


def test_an_echo_is_cut_out_wherever_it_is():
    assert clean(f"{PROMPT} and again {PROMPT}", PROMPT) == "[prompt] and again [prompt]"
    assert clean(f"{PROMPT[:30]}... and {PROMPT[:30]}...", PROMPT) == "[prompt]... and [prompt]..."


def test_a_shortened_echo_is_cut_out():
    for length in [12, 20, 31, 32, 50, len(PROMPT) - 1]:
        assert clean(f"bad: {PROMPT[:length]}…", PROMPT) == "bad: [prompt]…"
        assert clean(f"bad: …{PROMPT[-length:]}!", PROMPT) == "bad: …[prompt]!"
        assert clean(f"bad: {PROMPT[:length]}...{PROMPT[-length:]}!", PROMPT) == "bad: [prompt]...[prompt]!"


def test_a_piece_of_the_middle_is_cut_out_too():
    for start in range(1, 40, 3):
        for length in [23, 24, 35, 50]:
            piece = PROMPT[start : start + length]
            assert clean(f"near <{piece}> it is wrong", PROMPT) == "near <[prompt]> it is wrong"
            assert clean(f"<{piece}> and <{piece}>", "something else altogether", PROMPT) == "<[prompt]> and <[prompt]>"


class Body(BaseModel):
    prompt: int


def test_pydantics_shortened_echo_is_cut_out():
    for given_prompt in [PROMPT, [PROMPT, "x" * 99], [1, PROMPT], {"a": PROMPT}]:
        with pytest.raises(ValidationError) as caught:
            Body(prompt=given_prompt)
        message = str(caught.value)
        assert "Summarise th" in message or "what he has" in message
        cleaned = clean(message, PROMPT, "x" * 99)
        assert "Summarise th" not in cleaned
        assert "d say what he has" not in cleaned
        assert "[prompt]" in cleaned


def test_token_ids_are_cut_out():
    for write in [str, lambda ids: str(ids).replace(" ", ""), json.dumps]:
        ids = [300, 301, 302, 303]
        assert clean(f"bad ids {write(ids)}!", ids) == "bad ids [prompt]!"
        assert clean(f"bad ids {write([ids, [7, 8]])}", ids, [7, 8]) in (
            "bad ids [[prompt], [prompt]]",
            "bad ids [[prompt],[prompt]]",
        )


def test_the_beginning_of_many_token_ids_is_cut_out():
    ids = list(range(1000, 1100))
    assert clean(f"bad ids {str(ids)[:60]}...", ids) == "bad ids [prompt]..."


def test_texts_and_keys_of_three_characters_would_cut_everything_to_pieces():
    assert clean("an error about a cat", "cat", secrets=["an"]) == "an error about a cat"


def test_white_space_is_put_in_order():
    assert clean("1 validation error:\n  {'type':\t'x'}  ") == "1 validation error: {'type': 'x'}"


def test_a_message_has_400_characters_at_most():
    for length in [399, 400, 401, 100_000]:
        message = clean("x" * length)
        assert len(message) == min(length, 400)
        assert message.endswith("…") == (length > 400)


def test_a_golden_complaint_keeps_its_sense_and_loses_the_prompts():
    from tests.unit.golden import golden

    reply = golden("error_mixed_list")
    message = clean(error_in(reply.body)[0], *reply.prompts)
    assert "Input should be a valid integer" in message
    assert "def f(" not in message


@given(st.text(max_size=200), st.lists(st.text(max_size=30), max_size=3), st.lists(st.text(max_size=30), max_size=2))
def test_whatever_is_said_can_be_cleaned(message, prompts, secrets):
    assert len(clean(message, *prompts, secrets=secrets)) <= 400


# Retry-After ---------------------------------------------------------------------------------------------------------

NOON = 1_795_262_400.0  # Sat, 21 Nov 2026 12:00:00 GMT


def test_retry_after_is_read():
    for headers, seconds in [
        ({}, None),
        ({"retry-after": "5"}, 5.0),
        ({"retry-after": " 5 "}, 5.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "Sat, 21 Nov 2026 12:00:30 GMT"}, None),
        ({"retry-after": "\t5"}, 5.0),
        ({"retry-after": ".5"}, 0.5),
        ({"retry-after": "5."}, 5.0),
        ({"retry-after": "000000000000005"}, 5.0),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": " 1e3"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after-ms": "1_0"}, None),
        ({"retry-after": "+5"}, None),
        ({"retry-after": "1.2.3"}, None),
        ({"retry-after": "."}, None),
        ({"retry-after": "0x10"}, None),
        ({"retry-after": "٥"}, None),
        ({"retry-after": "\xa05"}, None),
        ({"retry-after": "infinity"}, None),
        ({"retry-after": "0000000000000005"}, 5.0),
        ({"retry-after": "9" * 16}, 1e9),
        ({"retry-after": "9" * 400}, 1e9),
        ({"retry-after": "5.0000000000000000"}, 5.0),
        ({"retry-after": "Sat, 2_1 Nov 20_26 12:00:30 GMT"}, None),
        ({"retry-after": "Sat, ٢١ Nov 2026 12:00:30 GMT"}, None),
        ({"retry-after": "1 Jan 30 1:1"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "NaN"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "5, 6"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Saturday, 21-Nov-26 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat Nov 21 12:00:30 2026"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 14:00:30 +0200"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "Sat, 99 Nov 2026 12:00:30 GMT"}, None),
        ({"retry-after": "Sat, 21 Nov 99999999999 12:00:30 GMT"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 +9999999999999"}, None),
    ]:
        assert read_retry_after(headers, NOON) == seconds


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system's time zone cannot be changed")
def test_a_date_without_a_zone_is_gmt_wherever_we_are(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert read_retry_after({"retry-after": "Sat Nov 21 12:00:30 2026"}, NOON) == 30.0
    finally:
        monkeypatch.undo()
        time.tzset()
        assert os.environ.get("TZ") != "Pacific/Auckland"


@given(st.text())
def test_no_retry_after_is_too_strange(value):
    seconds = read_retry_after({"retry-after": value, "retry-after-ms": value}, NOON)
    assert seconds is None or 0 < seconds < float("inf")
