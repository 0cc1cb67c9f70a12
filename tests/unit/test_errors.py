"""The error tree: its shape, its doc, its pickling."""

import copy
import pickle
import re

from batchclient import errors
from batchclient.errors import (
    BatchClientError,
    BatchMapFailed,
    ConfigError,
    DeadlineExceeded,
    LocalError,
    RemoteError,
    TransportError,
)

EVERY = [getattr(errors, name) for name in errors.__all__]


def drawn_tree():
    """The tree of the module's docstring as (class, base drawn above it)."""
    lines = [line for line in errors.__doc__.splitlines() if re.match(r"\s+(BatchClientError|[│├└ ]+── )", line)]
    above, pairs = [], []
    for line in lines:
        name = re.search(r"[A-Z]\w+", line)
        depth = (name.start() - 4) // 4
        above[depth:] = [name[0]]
        pairs.append((name[0], above[depth - 1] if depth else "Exception"))
    return pairs


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    assert drawn_tree() == [pair for pair in drawn_tree() if getattr(errors, pair[0]).__bases__[0].__name__ == pair[1]]
    assert sorted(name for name, _ in drawn_tree()) == errors.__all__


def test_the_builtins_drawn_in_the_tree_are_bases_too():
    for error, builtin in ((ConfigError, ValueError), (DeadlineExceeded, TimeoutError)):
        assert f"{error.__name__}({builtin.__name__})" in errors.__doc__
        assert issubclass(error, builtin)


def test_all_is_sorted_and_names_every_class():
    assert errors.__all__ == sorted(errors.__all__)
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes == set(errors.__all__)


def test_every_error_says_whose_fault_it_is():
    for error in EVERY:
        # A map's documents have errors of their own.
        if not issubclass(BatchClientError, error) and not issubclass(error, BatchMapFailed):
            assert (
                sum(issubclass(error, fault) for fault in (ConfigError, LocalError, RemoteError, TransportError)) == 1
            )


def test_an_error_survives_pickling_and_copying_with_every_field():
    for error in EVERY:
        before = error("what happened")
        assert (before.attempt, before.status, before.retry_after_s, before.code) == (0, None, None, None)
        before.attempt, before.status, before.retry_after_s, before.code = 3, 503, 1.5, "overloaded"
        for after in (pickle.loads(pickle.dumps(before)), copy.copy(before), copy.deepcopy(before)):
            assert type(after) is error
            assert str(after) == after.message == "what happened"
            assert vars(after) == vars(before)
    assert pickle.loads(pickle.dumps(ConfigError("limit is wrong", field="limit"))).field == "limit"


def test_the_results_of_a_map_that_failed_survive_pickling():
    error = pickle.loads(pickle.dumps(BatchMapFailed("1 of 2 documents failed", ["answer", ConfigError("no")])))
    assert error.results[0] == "answer"
    assert str(error.results[1]) == "no"


def test_an_error_says_whether_the_same_call_may_succeed_later():
    retryable = """
        QueueFull CallAborted DeadlineExceeded RateLimited ServerFault DemuxError DialectError ConnectFailed ReadTimedOut ConnectionLost
    """.split()
    final = "ClientClosed ConfigError BadRequest AuthenticationFailed NotFound ResponseTooLarge".split()
    assert all(getattr(errors, name)("x").retryable for name in retryable)
    assert not any(getattr(errors, name)("x").retryable for name in final)


def test_every_error_has_a_docstring_of_its_own():
    assert len({error.__doc__ for error in EVERY}) == len(EVERY)
