"""Protections, and the test that must fail when one is taken out. ``python -m tests.mutants`` tries it."""

from dataclasses import dataclass

__all__ = ["PROTECTIONS", "Protection"]

_SIMULATION = "tests/simulation/test_seeds.py::test_nothing_is_lost_and_nothing_doubled"


@dataclass(frozen=True)
class Protection:
    """One protection.

    Args:
        name: what it keeps.
        file: where it is, from the root.
        there: its text, which is in the file once.
        gone: what stands there without it.
        test: what must fail then, as pytest names it.
    """

    name: str
    file: str
    there: str
    gone: str
    test: str

    def apply(self, source):
        """The file without it.

        Raises:
            ValueError: its text is not there, or more than once.
        """
        if source.count(self.there) != 1:
            raise ValueError(f"{self.file} has {source.count(self.there)} times: {self.there}")
        return source.replace(self.there, self.gone)


PROTECTIONS = (
    Protection(
        "the limit: no grant above it",
        "src/batchclient/_core/endpoint.py",
        "free, allowed = self.limit.limit - self.in_flight, self.health.allowed",
        "free, allowed = self.limit.limit - self.in_flight + 1, self.health.allowed",
        _SIMULATION,
    ),
    Protection(
        "the permit of a caller that left, until its choice finishes",
        "src/batchclient/_core/endings.py",
        "self._endpoints.by_id[batch.endpoint].abandoned += batch.shape.weight\n",
        "self._endpoints.by_id[batch.endpoint].abandoned += batch.shape.weight\n"
        "            self._endpoints.by_id[batch.endpoint].in_flight -= batch.shape.weight\n",
        _SIMULATION,
    ),
    Protection(
        "the permits of a failed batch come back",
        "src/batchclient/_core/scheduler.py",
        "        endpoint.give_back(len(left) * weight, self._now)\n",
        "        endpoint.give_back(len(alive) * weight, self._now)\n",
        _SIMULATION,
    ),
    Protection(
        "a caller that left is handed nothing",
        "src/batchclient/_core/tally.py",
        "            if request.state is _IN_FLIGHT:",
        "            if request.state is not _DONE:",
        "tests/playbook/test_cancel.py::test_an_answer_to_a_call_that_has_gone_is_handed_to_nobody",
    ),
    Protection(
        "an answer goes to the prompt its index names",
        "src/batchclient/_core/demux.py",
        "position = index // self._n",
        "position = index // self._n - 1",
        _SIMULATION,
    ),
    Protection(
        "an index that comes twice is refused",
        "src/batchclient/_core/demux.py",
        "if self._seen[index]:",
        "if self._seen[index] and False:",
        "tests/unit/test_demux.py::test_an_index_that_has_finished_is_refused",
    ),
    Protection(
        "an unknown index is refused",
        "src/batchclient/_core/demux.py",
        "not 0 <= index < self._size",
        "not 0 <= index",
        "tests/unit/test_demux.py::test_an_index_of_no_choice_is_refused",
    ),
    Protection(
        "a plain reply with a choice missing is not handed out",
        "src/batchclient/dialects/_completions.py",
        "        if not self._demux.complete:\n            raise DemuxError(self._demux.missing())\n",
        "",
        "tests/unit/test_vllm.py::test_a_plain_reply_with_wrong_indices_is_handed_to_nobody",
    ),
    Protection(
        "a generation the server aborted is no answer",
        "src/batchclient/dialects/_completions.py",
        '_ABORTED = frozenset({"abort", "error"})',
        "_ABORTED = frozenset()",
        _SIMULATION,
    ),
    Protection(
        "a stream that was cut off is no answer",
        "src/batchclient/dialects/_completions.py",
        "        if not self._demux.complete:\n            if self.events",
        "        if False:\n            if self.events",
        "tests/shell/test_retries.py::test_a_stream_without_its_end_is_no_answer",
    ),
    Protection(
        "what a broken stream had finished is answered",
        "src/batchclient/_exchange.py",
        "            # Also when the stream breaks: what came before is answered before the rest fails.\n"
        "            pending.flush()\n",
        "            pass\n",
        "tests/shell/test_retries.py::test_a_stream_that_breaks_keeps_what_was_finished_and_only_the_rest_is_sent_again",
    ),
    Protection(
        "one bad prompt fails alone",
        "src/batchclient/_core/recovery.py",
        "elif listed and kind in (FailureKind.BAD_CALL, FailureKind.LIST_REFUSED):",
        "elif listed and kind is FailureKind.LIST_REFUSED:",
        _SIMULATION,
    ),
    Protection(
        "calls that failed together never mix with fresh ones",
        "src/batchclient/_core/recovery.py",
        "        self._queue.add_sealed(requests, group)\n",
        "        for request in requests:\n            self._queue.add(request)\n",
        "tests/playbook/test_retry.py::test_calls_that_failed_together_are_tried_again_together_and_never_with_fresh_ones",
    ),
    Protection(
        "attempts end",
        "src/batchclient/retry.py",
        "if not failure.retryable or attempt >= self.max_attempts:",
        "if not failure.retryable or attempt > self.max_attempts:",
        _SIMULATION,
    ),
    Protection(
        "what is the caller's fault is not tried again",
        "src/batchclient/retry.py",
        "if not failure.retryable or attempt >= self.max_attempts:",
        "if attempt >= self.max_attempts:",
        "tests/unit/test_retry.py::test_what_cannot_succeed_later_is_not_tried_again",
    ),
    Protection(
        "a retry is no earlier than Retry-After",
        "src/batchclient/retry.py",
        "return None if wish_s > _LONGEST_RETRY_AFTER_S else max(delay_s, wish_s)",
        "return None if wish_s > _LONGEST_RETRY_AFTER_S else delay_s",
        "tests/unit/test_retry.py::test_a_delay_is_never_shorter_than_the_servers_wish",
    ),
    Protection(
        "Retry-After holds for the endpoint's other calls too",
        "src/batchclient/_core/scheduler.py",
        "            endpoint.block(failure.retry_after_s, self._now)\n",
        "            pass\n",
        "tests/playbook/test_endpoints.py::test_retry_after_blocks_the_endpoint_for_everybody",
    ),
    Protection(
        "a deadline is kept wherever the call is",
        "src/batchclient/_core/scheduler.py",
        "            self._endings.end(expired, too_late)\n",
        "            pass\n",
        "tests/playbook/test_deadlines.py::test_a_queued_call_ends_at_its_deadline_and_no_earlier",
    ),
    Protection(
        "the core asks to be woken for deadlines",
        "src/batchclient/_core/scheduler.py",
        "times = (self._deadlines.next(), self._granting.wake_at, self._recovery.next_due(), patience_ends)",
        "times = (self._granting.wake_at, self._recovery.next_due(), patience_ends)",
        _SIMULATION,
    ),
    Protection(
        "a connection nobody waits for is closed",
        "src/batchclient/_core/endings.py",
        "            if not batch.callers and not batch.aborting:\n",
        "            if False:\n",
        "tests/shell/test_cancellation.py::"
        "test_the_connection_is_closed_before_the_headers_when_the_last_caller_has_gone",
    ),
    Protection(
        "a batch given up before its task began is over",
        "src/batchclient/_runner.py",
        "            self._end_batch(batch, batch.verdict or _CANCELLED)\n\n    def _set_timer",
        "            pass\n\n    def _set_timer",
        _SIMULATION,
    ),
    Protection(
        "a request whose task is cancelled is over",
        "src/batchclient/_runner.py",
        "            # Cancelled: by AbortBatch, or because the loop or the nursery is ending.\n"
        "            self._end_batch(batch, batch.verdict or _CANCELLED)\n",
        "",
        _SIMULATION,
    ),
    Protection(
        "a fault of ours leaves no caller hanging",
        "src/batchclient/_runner.py",
        "        except Exception as error:  # a fault of ours must not leave callers hanging\n",
        "        except MemoryError as error:\n",
        "tests/shell/test_retries.py::test_a_fault_of_ours_in_the_dialect_resolves_every_caller",
    ),
    Protection(
        "a paused client sends nothing",
        "src/batchclient/_core/scheduler.py",
        "        if not self._paused:\n            for batch",
        "        if True:\n            for batch",
        _SIMULATION,
    ),
    Protection(
        "an endpoint that breaks replies is ejected",
        "src/batchclient/_core/health.py",
        "Sign.BROKEN: 3,",
        "Sign.BROKEN: 3_000,",
        "tests/playbook/test_endpoint_health.py::"
        "test_an_endpoint_that_breaks_three_replies_is_ejected_and_comes_back_by_a_probe",
    ),
    Protection(
        "a probe is one call",
        "src/batchclient/_core/granting.py",
        "                if probe or doubtful:\n                    count = 1\n                elif",
        "                if",
        _SIMULATION,
    ),
    Protection(
        "an endpoint that was removed is not forgotten before its last batch",
        "src/batchclient/_core/fleet.py",
        "if not any(batch.endpoint == endpoint.id for batch in self._batches.values()):",
        "if True:",
        _SIMULATION,
    ),
    Protection(
        "calls of a server that is removed at once cost no attempt",
        "src/batchclient/_core/scheduler.py",
        "        if alive and batch.moving:\n            self._recovery.move(alive, batch)\n        elif is_refusal",
        "        if is_refusal",
        "tests/playbook/test_endpoints_come_and_go.py::"
        "test_without_drain_what_is_in_flight_goes_elsewhere_and_it_is_no_failure",
    ),
    Protection(
        "a list too long for the server is not sent again as long",
        "src/batchclient/_core/recovery.py",
        "            abilities.shorten_lists(len(batch.requests), failure.list_cap, now)\n",
        "",
        "tests/playbook/test_refusals.py::test_a_list_too_long_is_sent_in_halves_and_no_list_is_as_long_again",
    ),
    Protection(
        "the queue is bounded",
        "src/batchclient/_core/scheduler.py",
        "            self._outside.add(request)\n            return\n",
        "            pass\n",
        "tests/playbook/test_full_queue.py::test_calls_over_max_queued_wait_outside_and_come_in_in_order",
    ),
    Protection(
        "a server's echo of a prompt or a key is cut out",
        "src/batchclient/dialects/_server.py",
        "        clean = redact(message, prompts, self._secrets)\n",
        "        clean = message\n",
        "tests/shell/test_canary.py::test_what_a_server_says_back_is_cut_out",
    ),
    Protection(
        "a streamed answer is not begun anew under its caller's eyes",
        "src/batchclient/_core/endings.py",
        "begun = [request for request in requests if request.begun]",
        "begun = []",
        "tests/shell/test_stream.py::test_a_break_after_a_piece_was_taken_raises",
    ),
    Protection(
        "pieces of a failed attempt are forgotten before the next",
        "src/batchclient/_runner.py",
        "            batch.requests[0].waiter.restart()\n",
        "            pass\n",
        "tests/shell/test_stream.py::test_a_break_before_any_piece_was_taken_is_tried_again_from_the_beginning",
    ),
    Protection(
        "a slow reader stops the reading of its own reply",
        "src/batchclient/_exchange.py",
        "                await sink.wait_for_room()\n",
        "                pass\n",
        "tests/shell/test_stream.py::test_a_caller_who_takes_nothing_stops_the_reading_and_nobody_else",
    ),
    Protection(
        "a missing list route is no missing model",
        "src/batchclient/dialects/_server.py",
        "if status in _NO_ROUTE and len(prompts) > 1",
        "if status in () and len(prompts) > 1",
        "tests/shell/test_chat.py::test_a_server_without_the_list_route_is_sent_singles_from_then_on",
    ),
    Protection(
        "texts within messages are cut out of a server's words",
        "src/batchclient/dialects/_replies.py",
        "for text in _texts_in(value)",
        "for text in ()",
        "tests/unit/test_chat.py::test_texts_within_messages_are_cut_out_of_a_servers_words",
    ),
    Protection(
        "time never goes back",
        "src/batchclient/_core/scheduler.py",
        "if now > self._now:  # noqa: PLR1730",
        "if True:",
        "tests/playbook/test_time.py::test_a_clock_behind_the_last_timer_does_not_turn_time_back",
    ),
    Protection(
        "a closed client can be retuned",
        "src/batchclient/client.py",
        "        if self._runner is not None and not self._runner.ended:\n            limits",
        "        if self._runner is not None:\n            limits",
        "tests/shell/test_retune.py::test_a_closed_client_may_be_retuned_whatever_became_of_its_servers",
    ),
    Protection(
        "a conversation that was begun goes on before others begin",
        "src/batchclient/_core/warmth.py",
        "        return served is not None and now < served.warm_until\n",
        "        return False\n",
        "tests/unit/test_warmth.py::test_a_server_stays_with_the_conversations_it_has_begun",
    ),
    Protection(
        "no conversation keeps others waiting for ever",
        "src/batchclient/_core/warmth.py",
        "        return served is not None and now < served.warm_until\n",
        "        return served is not None\n",
        "tests/unit/test_warmth.py::test_every_conversation_has_its_turn",
    ),
    Protection(
        "a cache that holds less than was put there lowers the limit",
        "src/batchclient/_core/limits/cache.py",
        "        if share >= _GOOD_RATIO:\n",
        "        if True:\n",
        "tests/unit/test_cache.py::test_it_comes_down_to_what_the_cache_holds_and_stays_there",
    ),
    Protection(
        "a cache that never finds anything is let alone",
        "src/batchclient/_core/limits/cache.py",
        "        if self._cuts > _FUTILE_CUTS:\n",
        "        if False:\n",
        "tests/unit/test_cache.py::test_a_server_that_never_finds_anything_is_let_go",
    ),
    Protection(
        "where the oldest call is probably late, the newest go first",
        "src/batchclient/_core/granting.py",
        "self._queue.take(group, count, self._length_reach, now, newest=newest)",
        "self._queue.take(group, count, self._length_reach, now, newest=False)",
        "tests/unit/test_granting.py::test_where_the_oldest_call_is_probably_late_the_newest_go_first",
    ),
    Protection(
        "a number that was set comes down to what the server takes",
        "src/batchclient/_core/limits/aimd.py",
        "        if sample.outcome is Outcome.DROPPED:\n            return self._cut(sample)\n",
        "        if sample.outcome is Outcome.DROPPED:\n            return None\n",
        "tests/unit/test_limits.py::test_a_number_that_was_set_holds_until_the_server_refuses_and_comes_back",
    ),
    Protection(
        "refusals of what is mostly served cut no limit",
        "src/batchclient/_core/limits/refused.py",
        "        if served >= _SERVED_RATIO * refused:\n            return False\n",
        "",
        "tests/unit/test_limits.py::test_refusals_of_a_load_that_is_mostly_served_are_not_about_load",
    ),
    Protection(
        "refusals at any load cut no limit",
        "src/batchclient/_core/limits/refused.py",
        "        return _poisson_tail(times, requests * share_below) < _CHANCE\n",
        "        return True\n",
        "tests/unit/test_limits.py::test_a_refusal_at_the_top_is_judged_by_what_is_refused_below",
    ),
    Protection(
        "requests with different keys never share",
        "src/batchclient/integrations/_requests.py",
        '_OF_THE_PROGRAM = frozenset({b"user-agent"})',
        '_OF_THE_PROGRAM = frozenset({b"user-agent", b"authorization"})',
        "tests/integrations/test_transport.py::test_requests_that_differ_in_a_header_that_counts_never_share",
    ),
    Protection(
        "a client that is at work does not make room for another",
        "src/batchclient/integrations/_batcher.py",
        "            desk.busy += 1\n            try:\n                await gone",
        "            desk.busy += 0\n            try:\n                await gone",
        "tests/integrations/test_transport.py::test_clients_are_few_and_nothing_is_lost",
    ),
    Protection(
        "vectors that are handed on come in the form that was asked for",
        "src/batchclient/dialects/_shapes.py",
        "packable = shape.packable and not verbatim",
        "packable = shape.packable",
        "tests/integrations/test_transport.py::test_a_response_is_what_the_server_alone_would_have_sent",
    ),
)
"""In no order that matters."""
