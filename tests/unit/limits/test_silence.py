"""How long nothing is tried for a reason that did not pay."""

from batchclient._core.limits.trial import Silence


def length_s(silence):
    """For how many seconds from 1000 on it is silent."""
    return next(seconds for seconds in range(10_000) if not silence.lasts(1000.0 + seconds))


def test_each_time_it_lasts_twice_as_long_up_to_fifteen_minutes():
    silence, lengths = Silence(), []
    assert not silence.lasts(0.0)
    for _ in range(6):
        silence.begin(1000.0)
        lengths.append(length_s(silence))
    assert lengths == [60, 120, 240, 480, 900, 900]


def test_a_rest_is_a_minute_and_shortens_and_lengthens_nothing():
    silence = Silence()
    silence.rest(1000.0)
    assert length_s(silence) == 60
    silence.begin(1000.0)
    silence.begin(1000.0)
    silence.rest(1030.0)
    assert length_s(silence) == 120
    silence.begin(1000.0)
    assert length_s(silence) == 240


def test_what_is_over_begins_with_a_minute_again():
    silence = Silence()
    silence.begin(1000.0)
    silence.begin(1000.0)
    silence.end()
    assert not silence.lasts(1000.0)
    silence.begin(1000.0)
    assert length_s(silence) == 60
