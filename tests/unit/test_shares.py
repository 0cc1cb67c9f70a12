from hypothesis import given
from hypothesis import strategies as st

from tests.core import Batch, Request, Shape
from batchclient.dialects._shares import estimated_tokens, share_out, shared_usages, size_of
from batchclient.types import Usage


def test_shares_go_by_size_and_a_text_has_a_token():
    for total, sizes, shares in [
        (10, [1, 1, 2], [3, 3, 4]),
        (7, [1, 1, 1], [3, 2, 2]),
        # Proportion alone would leave the first without a token.
        (9, [1, 10, 400], [1, 1, 7]),
        (5, [0, 0], [3, 2]),
        (0, [3, 4], [0, 0]),
        (3, [0, 1], [0, 3]),
        (1, [5, 5], [1, 0]),
    ]:
        assert share_out(total, sizes) == shares


@given(st.integers(0, 99), st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_shares_add_up(total, sizes):
    shares = share_out(total, sizes)
    assert sum(shares) == total
    texts = sum(size > 0 for size in sizes)
    assert all(share >= (size > 0 and total >= texts) for share, size in zip(shares, sizes, strict=True))


def listed(*prompt_tokens, **shape):
    requests = [Request(Shape(b"k", b"{}"), b'"p"', prompt_tokens=tokens) for tokens in prompt_tokens]
    shape = Shape(b"k", b"{}", **{"max_output_tokens": 4, **shape})
    return Batch(0, 0, shape, requests, streamed=False, failures=0, sent_at=0.0)


def test_a_lists_usage_is_shared_out():
    for told, made, shape, usages in [
        ((30, 6), [(4, "stop", None), (8, "stop", None)], {}, [(10, 2, True, True), (20, 4, True, True)]),
        ((30, 5), [(4, "stop", None), (8, "stop", None)], {}, [(10, 2, True, True), (20, 3, True, True)]),
        # What ended by its limit has that many, and what is left is the other's.
        ((30, 5), [(4, "length", None), (8, "stop", None)], {}, [(10, 4, True, False), (20, 1, True, False)]),
        ((30, 8), [(4, "length", None), (8, "length", None)], {}, [(10, 4, True, False), (20, 4, True, False)]),
        # Token ids are counted, whatever the texts' lengths.
        ((30, 9), [(4, "stop", 3), (8, "stop", 1)], {}, [(10, 3, True, False), (20, 1, True, False)]),
        ((30, 4), [(4, "stop", 3), (8, "stop", None)], {}, [(10, 3, True, False), (20, 1, True, False)]),
        # The first prompt's usage alone, as llama.cpp tells it: no sum.
        ((10, 1), [(4, "stop", None), (8, "stop", None)], {}, None),
        ((10, 4), [(4, "length", None), (8, "length", None)], {}, None),
        ((10, 3), [(4, "stop", 3), (8, "stop", 1)], {}, None),
        # More than was asked for.
        ((30, 90), [(4, "stop", None), (8, "stop", None)], {}, [(10, 30, True, True), (20, 60, True, True)]),
        # An empty answer may have no token; a text has one.
        ((30, 3), [(0, "stop", None), (8, "stop", None)], {}, [(10, 0, True, True), (20, 3, True, True)]),
        ((30, 2), [(1, "stop", None), (4000, "stop", None)], {}, [(10, 1, True, False), (20, 1, True, False)]),
        # Two choices each.
        ((30, 12), [(4, "stop", None)] * 4, {"weight": 2}, [(10, 6, True, True), (20, 6, True, True)]),
        # Without a limit.
        (
            (30, 90),
            [(4, "stop", None), (8, "stop", None)],
            {"max_output_tokens": None},
            [(10, 30, True, True), (20, 60, True, True)],
        ),
        # Echoed prompts are texts without an output token of their own.
        ((30, 2), [(900, "length", None), (8, "length", None)], {"max_output_tokens": 0, "echo": True}, [
            (10, 1, True, True), (20, 1, True, True),
        ]),
    ]:  # fmt: skip
        shared = shared_usages(listed(10, 20, **shape), Usage(*told), made)
        assert shared == (usages and [Usage(*usage) for usage in usages])


def test_no_prompt_is_left_without_a_token():
    made = [(4, "length", None)] * 3
    shared = shared_usages(listed(1, 5000, 1), Usage(12, 12), made)
    assert [usage.prompt_tokens for usage in shared] == [1, 10, 1]


def test_what_a_streamed_choice_probably_has():
    for size, events, reason, limit, tokens in [
        (0, 0, "stop", 20, 0),
        (9, 3, "stop", 20, 3),
        (40, 2, "stop", 20, 10),
        (41, 2, "stop", 20, 11),
        (400, 2, "stop", 20, 20),
        (400, 2, "stop", None, 100),
        (4, 1, "length", 20, 20),
    ]:
        assert estimated_tokens(size, events, reason, limit) == tokens


def test_sizes_are_utf8_bytes_and_whatever_is_no_text_has_none():
    assert [size_of(text) for text in ("abc", "äß", "日", "\ud800", "", None, 5)] == [3, 4, 3, 3, 0, 0, 0]
