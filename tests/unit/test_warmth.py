"""Conversations: who goes first, and for whom a permit is kept."""

import pytest

from batchclient._core.prefixes.families import Families, length_of
from tests.core import (
    Answered,
    FixedLimit,
    Request,
    Resolve,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    Shape,
    Submitted,
    Woke,
)
from batchclient._core.prefixes.conversations import Conversations
from batchclient.types import Choice, Completion, Usage

SHAPE = Shape(b"one", b"{}", model="m", max_output_tokens=4)
LONG = 2048


def prompt(conversation, turn=0):
    """Four different bytes a token; turns of one conversation differ at the end."""
    return b'"' + (b"%06d " % conversation) * (LONG // 7) + b'turn %d"' % turn


def request(conversation, turn=0, at=0.0, families=None):
    made = Request(SHAPE, prompt(conversation, turn), prompt_tokens=500)
    made.queued_at = at
    if families is not None:
        families.join(made)
    return made


class Talk:
    """A scheduler with conversations: each asks its next turn ``gap_s`` after an answer."""

    def __init__(self, conversations, limit, gap_s=0.001, service_s=0.1, turns=100):
        settings = SchedulerSettings(linger_s=0.0, refill_s=0.0, refill_ratio=0.0, max_size=1)
        self.core = Scheduler(settings, [FixedLimit(limit)])
        self.gap_s, self.service_s, self.turns = gap_s, service_s, turns
        self.agenda, self.order, self.now, self.busy_s = [], [], 0.0, 0.0
        self.calls = []
        for conversation in range(conversations):
            self.ask(conversation, 0)

    def ask(self, conversation, turn):
        asked = Request(SHAPE, prompt(conversation, turn), prompt_tokens=500, waiter=(conversation, turn))
        self.calls.append(asked)
        self.core.handle(Submitted(asked), self.now)

    def run(self, until):
        while True:
            for command in self.core.commands():
                if type(command) is SendBatch:
                    (asked,) = command.batch.requests
                    self.order.append(asked.waiter[0])
                    self.agenda.append((self.now + self.service_s, "answer", command.batch))
                elif type(command) is Resolve:
                    ((asked, _),) = command.answers
                    conversation, turn = asked.waiter
                    if turn + 1 < self.turns:
                        self.agenda.append((self.now + self.gap_s, "ask", (conversation, turn + 1)))
            self.agenda.sort(key=lambda entry: entry[0])
            wake = self.core.next_deadline()
            times = [entry[0] for entry in self.agenda[:1]] + ([wake] if wake is not None else [])
            if not times or min(times) > until:
                return self
            self.now = max(self.now, min(times))
            if self.agenda and self.agenda[0][0] <= self.now:
                _, what, it = self.agenda.pop(0)
                if what == "ask":
                    self.ask(*it)
                else:
                    answer = Completion((Choice(0, "a", "stop"),), Usage(500, 4), 1, None)
                    self.core.handle(Answered(it, [(0, answer)], True), self.now)
            else:
                self.core.handle(Woke(), self.now)


def test_a_server_stays_with_the_conversations_it_has_begun():
    """20 at once and 4 permits: first come first served would let 16 others in between any two turns."""
    talk = Talk(20, 4, turns=10).run(5.0)
    late = talk.order[40:160]
    returns = [later - earlier for earlier, later in gaps(late)]
    assert sorted(returns)[len(returns) // 2] <= 5


def test_every_conversation_has_its_turn():
    """Conversations that never end lose their precedence after starvation_s (5 s)."""
    talk = Talk(12, 2, turns=10_000).run(120.0)
    assert set(talk.order) == set(range(12))
    counts = [talk.order.count(conversation) for conversation in range(12)]
    assert min(counts) > 0.5 * max(counts)


def test_permits_are_used_while_conversations_are_waited_for():
    talk = Talk(20, 4, gap_s=0.001, turns=50).run(10.0)
    assert len(talk.order) >= 0.95 * 4 * 10.0 / 0.1


def test_callers_that_think_for_long_are_not_waited_for():
    """Half a second is five times what serving takes: whoever is there goes."""
    talk = Talk(40, 4, gap_s=0.5, turns=50).run(10.0)
    assert len(talk.order) >= 0.99 * 4 * 10.0 / 0.1


def gaps(order):
    last = {}
    for place, conversation in enumerate(order):
        if conversation in last:
            yield last[conversation], place
        last[conversation] = place


def test_a_growing_conversation_inherits_the_time_it_began():
    warmth, families = Conversations(5.0), Families()
    first = request(1, families=families)
    warmth.granted([first], 0, 0.0)
    warmth.answered([first], 0, 0.0, 1.0)
    longer = Request(SHAPE, prompt(1)[:-1] + b"x" * 3000, prompt_tokens=1200)
    families.join(longer)
    assert longer.family == first.stem != longer.stem
    assert warmth.is_warm(longer.family, 4.9)
    warmth.granted([longer], 0, 4.9)
    assert warmth.is_warm(longer.stem, 4.99)
    assert not warmth.is_warm(longer.stem, 5.0)


def test_what_is_shared_is_what_the_same_server_answered():
    warmth, families = Conversations(5.0), Families()
    first, second, elsewhere = (request(7, turn, families=families) for turn in range(3))
    warmth.granted([first], 0, 0.0)
    warmth.granted([second], 0, 0.0)
    assert (first.shared, second.shared) == (0, 0), "nothing was answered yet"
    warmth.answered([first], 0, 0.0, 1.0)
    warmth.granted([second], 0, 1.0)
    warmth.granted([elsewhere], 1, 1.0)
    assert second.shared == length_of(second.family) == 2048
    assert elsewhere.shared == 0


@pytest.mark.parametrize(("gap_s", "kept"), [(0.01, 1), (0.2, 0)])
def test_a_permit_is_kept_for_those_who_come_back_soon(gap_s, kept):
    warmth, families, now = Conversations(1e9), Families(), 0.0
    for turn in range(20):
        asked = request(1, turn, now, families)
        warmth.came(asked, now)
        warmth.granted([asked], 0, now)
        warmth.answered([asked], 0, now, now + 0.1)
        now += 0.1 + gap_s
    assert warmth.awaited(0, now - gap_s)[0] == kept
    assert warmth.awaited(1, now - gap_s)[0] == 0, "that is another endpoint"
    assert warmth.awaited(0, now + 3 * gap_s)[0] == 0, "it did not come"
