"""How long prompts may be, of one server and of several."""

from batchclient._calls.lengths import ModelLengths
from batchclient.dialects._fingerprints import ServedModel, ServerFacts
from tests.inspection import held


def facts(length, model="m"):
    return ServerFacts("vllm", models=(ServedModel(model, length),))


def known(*lengths):
    found = ModelLengths()
    found.restart(len(lengths))
    for endpoint, length in enumerate(lengths):
        if length is not None:
            found.know(endpoint, facts(length), 0.0)
    return found


def test_the_longest_counts_where_all_are_known():
    for lengths, expected in [
        ((100,), 100),
        ((100, 200), 200),
        ((200, 100), 200),
        ((100, None), None),
        ((None, 100), None),
        ((None,), None),
    ]:
        assert known(*lengths).longest("m", 1.0) == expected


def test_a_model_that_a_server_does_not_name_may_have_any_length():
    assert known(100).longest("another", 1.0) is None


def test_a_complaint_is_newer_than_the_page_and_a_page_newer_than_a_complaint():
    found = known(100)
    found.learn(0, "m", 50, 1.0)
    assert found.longest("m", 2.0) == 50
    found.know(0, facts(80), 3.0)
    assert found.longest("m", 4.0) == 80


def test_one_servers_complaint_says_nothing_of_another():
    found = known(100, 200)
    found.learn(1, "m", 50, 1.0)
    assert found.longest("m", 2.0) == 100
    found.endpoints.discard(0)
    assert found.longest("m", 2.0) == 50


def test_all_is_forgotten_after_five_minutes_and_with_a_new_runner():
    found = known(100)
    assert (found.longest("m", 299.0), found.longest("m", 300.0)) == (100, None)
    found.restart(1)
    assert found.longest("m", 1.0) is None


def test_complaints_about_many_models_are_not_remembered_for_ever():
    found = known(None)
    for number in range(5000):
        found.learn(0, f"m{number}", 8, 0.0)
    assert held(found, str) <= 1024
