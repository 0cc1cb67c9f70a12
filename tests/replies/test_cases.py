"""Every reply of the tables is read as its case says, and any reply is read the same however it is cut into reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replies.cases import choices, contents, errors, framing, servers
from tests.core import FailureKind
from tests.replies.harness import failure_like, like, named, read, recording, recordings

ALL = [case for module in (framing, choices, contents, servers, errors) for case in module.CASES]


def check(outcome, answers, failure):
    assert {place: like(answer, answers.get(place)) for place, answer in outcome.answers.items()} == answers
    assert failure_like(outcome.failure, failure) == failure


def read_as_said(case):
    check(read(case.asked, case.reply), case.answers, case.failure)
    if case.apart is not None:
        check(read(case.asked, *case.reply.splitlines(keepends=True)), case.apart, case.failure)


@pytest.mark.parametrize("case", named(framing.CASES))
def test_what_is_around_answers_is_read_as_its_case_says(case):
    read_as_said(case)


@pytest.mark.parametrize("case", named(choices.CASES))
def test_each_choice_goes_where_its_case_says(case):
    read_as_said(case)


@pytest.mark.parametrize("case", named(contents.CASES))
def test_an_answer_holds_what_its_case_says(case):
    read_as_said(case)


@pytest.mark.parametrize("case", named(servers.CASES))
def test_each_sort_of_server_is_read_as_its_case_says(case):
    read_as_said(case)


@pytest.mark.parametrize("case", named(errors.CASES))
def test_an_error_within_a_reply_is_what_its_case_says(case):
    read_as_said(case)


# However it is cut ---------------------------------------------------------------------------------------------------

LONGEST = 20_000
"""Longer replies are cut in few places, and not at every byte."""
REPLIES = {case.name: (case.asked, case.reply) for case in ALL}
REPLIES |= {name: (recording(name).asked, recording(name).body) for name in recordings("*/*")}
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def check_same(name, whole, *chunks):
    """The same answers, and the same failure; of a reply that is at fault more is handed out before that is known."""
    once, cut = read(REPLIES[name][0], whole), read(REPLIES[name][0], *chunks)
    why = [outcome.failure and replace(outcome.failure, cause=None) for outcome in (once, cut)]
    assert why[0] == why[1], name
    assert (once.deltas, once.events) == (cut.deltas, cut.events), name
    assert once.answers.items() <= cut.answers.items(), name
    assert once.answers == cut.answers or why[0].kind is FailureKind.MISMATCH, name


def is_stream(reply):
    return reply.lstrip(b"\xef\xbb\xbf \r\n").startswith((b"data:", b"event:", b":"))


def test_a_reply_reads_the_same_byte_by_byte():
    for name, (_, reply) in REPLIES.items():
        if len(reply) < LONGEST:
            check_same(name, reply, *[reply[at : at + 1] for at in range(len(reply))])


@given(st.sampled_from(sorted(REPLIES)), ENDS, st.sampled_from([b"", *framing.PINGS]), st.data())
def test_a_reply_reads_the_same_wherever_it_is_cut_with_any_ends_of_lines_and_pings_between(name, end, ping, data):
    varied = reply = REPLIES[name][1]
    if is_stream(reply):
        varied = reply.replace(b"\n\n", b"\n\n" + ping).replace(b"\n", end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(varied)), max_size=9)))
    check_same(name, reply, *[varied[a:b] for a, b in zip([0, *cuts], [*cuts, len(varied)], strict=True)])
