"""How often was this seen before?"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from batchclient._maps.occurrences import Occurrences
from tests.inspection import held_bytes


def test_the_first_time_is_zero_and_repeats_count_up():
    seen = Occurrences()
    assert [seen.number(7) for _ in range(4)] == [0, 1, 2, 3]
    assert seen.number(8) == 0
    for fingerprint in (0, 2**64 - 1):
        assert [seen.number(fingerprint), seen.number(fingerprint)] == [0, 1]


def spread(n):
    """A fingerprint as a hash gives it: its bits are even."""
    return n * 0x9E3779B97F4A7C15 % 2**64


@given(st.lists(st.integers(0, 12).map(lambda n: spread(n) & -4096 | 5) | st.integers(0, 2**20).map(spread)))
def test_it_counts_as_a_dictionary_does(fingerprints):
    seen, counter = Occurrences(), Counter()
    for fingerprint in fingerprints:
        assert seen.number(fingerprint) == counter[fingerprint]
        counter[fingerprint] += 1


def test_it_goes_on_counting_while_it_grows():
    seen = Occurrences()
    fingerprints = [spread(n) for n in range(1, 20_000)]
    assert {seen.number(fingerprint) for fingerprint in fingerprints} == {0}
    assert {seen.number(fingerprint) for fingerprint in fingerprints} == {1}


def test_no_single_number_makes_it_grow_by_much():
    seen, most, before = Occurrences(), 0, 0
    for n in range(65_600):
        seen.number(spread(n))
        if n > 65_480:
            now = held_bytes(seen)
            most, before = max(most, now - before if before else 0), now
    assert most < 5_000


def test_it_takes_at_most_64_bytes_a_fingerprint_and_no_dictionary():
    seen = Occurrences()
    for n in range(1, 50_001):
        seen.number(spread(n))
    assert held_bytes(seen) <= 50_000 * 64
