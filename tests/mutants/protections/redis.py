"""A worker of a Redis stream: its rules, one by one. The tests need a redis-server."""

from tests.mutants.protection import Protection

__all__ = ["REDIS"]

_OF = "batchclient.integrations.redis."
_TESTS = "tests/redis/test_worker.py::"

REDIS = (
    Protection(
        "every message held by a dead worker is taken by another",
        _OF + "_reading",
        "Reader.read",
        "now >= self._claim_at",
        "False",
        _TESTS + "test_another_takes_a_message_only_after_its_lease",
    ),
    Protection(
        "nothing is acknowledged where its result cannot be stored",
        _OF + "_scripts",
        "_IS_NO_STREAM",
        "\"kind ~= 'stream' and kind ~= 'none'\"",
        "'false'",
        _TESTS + "test_a_result_that_cannot_be_stored_keeps_its_message",
    ),
    Protection(
        "the slower of two workers stores nothing",
        _OF + "_scripts",
        "_IS_FIRST",
        "'own == 1'",
        "'own >= 0'",
        _TESTS + "test_of_two_results_the_second_is_not_stored",
    ),
    Protection(
        "another's message is not taken before its lease has run out",
        _OF + "_broker",
        "Broker.claim",
        "self._lease_ms",
        "0",
        _TESTS + "test_what_takes_ten_leases_is_delivered_once",
    ),
    Protection(
        "leases are renewed",
        _OF + "_keeping",
        "Keeper.run",
        "now >= renew_at",
        "False",
        _TESTS + "test_what_takes_ten_leases_is_delivered_once",
    ),
    Protection(
        "a renewal takes no message back",
        _OF + "_scripts",
        "_IS_OWN",
        "\"#redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, ARGV[2]) == 1\"",
        "'true'",
        _TESTS + "test_a_lost_lease_ends_the_call",
    ),
    Protection(
        "outcomes are kept while Redis is away",
        _OF + "_library",
        "is_gone",
        "(isinstance(error, GONE) or bool(_code_in(error)))",
        "False",
        "tests/redis/test_redis_away.py::test_outcomes_wait_for_redis_and_reading_goes_on",
    ),
    Protection(
        "a stopped worker keeps nothing",
        _OF + "_draining",
        "Drain._leave",
        "await self._broker.hand_back()",
        "0",
        _TESTS + "test_what_does_not_end_in_the_grace_is_handed_back",
    ),
    Protection(
        "a stopped worker's consumer goes",
        _OF + "_draining",
        "Drain._leave",
        "await self._broker.leave()",
        "pass",
        _TESTS + "test_a_stopped_worker_ends_its_calls_and_hands_the_rest_back",
    ),
    Protection(
        "a message that was handed back was not delivered in vain",
        _OF + "_scripts",
        "_AS_BEFORE",
        "'math.max(0, each[4] - 1)'",
        "'each[4]'",
        _TESTS + "test_a_stopped_worker_ends_its_calls_and_hands_the_rest_back",
    ),
    Protection(
        "what was delivered too often is not sent again",
        _OF + "_worker",
        "Worker._take",
        "delivery.count > self._settings.max_deliveries",
        "False",
        _TESTS + "test_what_was_delivered_too_often_is_a_dead_letter_without_a_call",
    ),
    Protection(
        "in an outage nothing is read",
        _OF + "_worker",
        "Worker._room",
        "self._is_cut_off",
        "False",
        _TESTS + "test_in_an_outage_nothing_is_read_and_nothing_dies",
    ),
    Protection(
        "a part is sealed once",
        "batchclient.cli._parts",
        "_seal",
        "os.link(beside, place)",
        "beside.replace(place)",
        "tests/cli/test_parts.py::test_of_two_workers_the_first_seals_a_part",
    ),
    Protection(
        "a part stays below its folder",
        "batchclient.cli._parts",
        "PartRunner._read",
        "not path.is_relative_to(self._under)",
        "False",
        "tests/redis/test_parts.py::test_unusable_parts_are_dead_letters",
    ),
)
