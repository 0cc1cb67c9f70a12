"""How long prompts may be, of one server and of several."""

from batchclient._calls.lengths import ModelLengths
from batchclient.dialects._fingerprints import ServedModel, ServerFacts


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


def test_of_the_servers_in_use_alone_the_length_counts():
    found = known(100, 200)
    found.endpoints.discard(1)
    assert found.longest("m", 2.0) == 100


def test_a_server_that_is_another_has_the_length_that_it_tells_now():
    found = known(100)
    found.know(0, facts(80), 3.0)
    assert found.longest("m", 4.0) == 80


def test_all_is_forgotten_after_five_minutes_and_with_a_new_runner():
    found = known(100)
    assert (found.longest("m", 299.0), found.longest("m", 300.0)) == (100, None)
    found.restart(1)
    assert found.longest("m", 1.0) is None
