"""What a caller gets back."""

import pickle

import pytest

from batchclient.types import Choice, Completion, Delta, MapResult, Usage


def test_text_and_finish_reason_are_the_first_choices():
    completion = Completion((Choice(0, "one", "stop"), Choice(1, "two", "length")))
    assert (completion.text, completion.finish_reason) == ("one", "stop")


def test_output_tokens_are_the_usages_or_what_was_counted():
    assert Completion((), Usage(1, 2), counted_tokens=9).output_tokens == 2
    assert Completion((), counted_tokens=9).output_tokens == 9
    assert Completion(()).output_tokens is None


def test_message_and_instance_are_the_first_choices():
    completion = Completion((Choice(0, "", message={"role": "a"}, parsed=1), Choice(1, "", message={}, parsed=2)))
    assert (completion.message, completion.parsed) == ({"role": "a"}, 1)


def test_no_two_answers_share_their_extra_fields():
    assert Completion(()).extra is not Completion(()).extra
    assert Choice(0, "").extra is not Choice(0, "").extra


def test_an_answer_survives_pickling():
    for answer in [
        Usage(1, 2),
        Choice(0, "t", "stop", {"tokens": ["t"]}, (1, 2), {"stop_reason": "e"}),
        Completion((Choice(0, "t"),), Usage(1, 2), 3, 0.5, {"id": "cmpl-1"}),
        Completion((Choice(0, "t", message={"role": "assistant"}, parsed=(1,)),), counted_tokens=3),
        Delta("t", 1, "stop", {"content": []}, (1,), {"content": "t"}),
        MapResult("id", 4, {"text": "d"}, None, ValueError("x")),
    ]:
        again = pickle.loads(pickle.dumps(answer))
        assert repr(again) == repr(answer)


def test_an_answer_takes_no_stray_fields():
    for answer in [Usage(1, 2), Choice(0, ""), Completion(()), MapResult("i", 0, "d")]:
        with pytest.raises(AttributeError):
            answer.no_such_field = 1
