"""Length buckets and learnt output lengths."""

import pytest

from batchclient._core.lengths import OutputLengths, bucket_of


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (1023, 10), (1024, 11)]
)
def test_buckets_double(tokens, bucket):
    assert bucket_of(tokens) == bucket


@pytest.mark.parametrize(("most", "guess"), [(None, 256), (16, 16), (256, 256), (4096, 256), (0, 0)])
def test_the_first_guess_is_256_tokens_or_the_calls_own_cap(most, guess):
    assert OutputLengths().expected(b"k", most) == guess


def test_what_was_seen_is_expected():
    lengths = OutputLengths()
    lengths.learn(b"k", 40.0)
    assert lengths.expected(b"k", 4096) == 40
    assert lengths.expected(b"other", 4096) == 256


def test_the_mean_moves_by_a_tenth():
    lengths = OutputLengths()
    lengths.learn(b"k", 100.0)
    lengths.learn(b"k", 200.0)
    assert lengths.expected(b"k", None) == 110
    lengths.learn(b"k", 10.0)
    assert lengths.expected(b"k", None) == 100


def test_it_remembers_4096_keys_and_forgets_the_first():
    lengths = OutputLengths()
    for n in range(4097):
        lengths.learn(b"%d" % n, 1.0)
    assert lengths.expected(b"0", None) == 256
    assert lengths.expected(b"1", None) == lengths.expected(b"4096", None) == 1
