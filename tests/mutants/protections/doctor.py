"""The doctor: what it may do to a server, and what it may show."""

from tests.mutants.protection import Protection

__all__ = ["DOCTOR"]

_VISITS = "tests/doctor/test_visits.py::"
_COMMAND = "tests/doctor/test_command.py::"

DOCTOR = (
    Protection(
        "a visit has three small requests at most",
        "batchclient._doctor.trials",
        "Trials.send",
        "self.sent >= MOST_REQUESTS",
        "False",
        f"{_VISITS}test_there_are_three_small_requests_at_most",
    ),
    Protection(
        "no key that a server repeats is in a diagnosis",
        "batchclient._doctor.faults",
        "_said",
        "redact(error_in(body)[0], (), secrets)",
        "error_in(body)[0]",
        f"{_COMMAND}test_no_key_is_in_the_output",
    ),
    Protection(
        "the query of a URL is not in a diagnosis",
        "batchclient.cli.doctor",
        "_examine",
        "shown(url)",
        "url",
        f"{_COMMAND}test_no_key_is_in_the_output",
    ),
    Protection(
        "trtllm-serve's metrics are left for those who read them",
        "batchclient.dialects._metrics",
        "EMPTIED_BY_READING",
        'frozenset({"trtllm"})',
        "frozenset()",
        f"{_VISITS}test_what_has_an_effect_on_others_is_left_alone",
    ),
    Protection(
        "a list that looks serial is seen again before it is a finding",
        "batchclient._doctor.visit",
        "_Visitor._try_list",
        "1 + serial_again",
        "2",
        f"{_VISITS}test_a_list_that_is_serial_once_is_no_finding",
    ),
    Protection(
        "a list is not judged while others use the server",
        "batchclient._doctor.visit",
        "_Visitor._try_list",
        "serial and not self._facts.others",
        "serial",
        f"{_VISITS}test_a_list_on_a_busy_server_says_nothing_of_lists",
    ),
)
