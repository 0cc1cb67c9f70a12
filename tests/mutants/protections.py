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
        "src/batchclient/dialects/_plain_decoder.py",
        "        if not self._demux.complete:\n            raise DemuxError(self._demux.missing())\n",
        "",
        "tests/unit/test_vllm.py::test_a_plain_reply_with_wrong_indices_is_handed_to_nobody",
    ),
    Protection(
        "a generation the server aborted is no answer",
        "src/batchclient/dialects/_decoder.py",
        'ABORTED = frozenset({"abort", "error"})',
        "ABORTED = frozenset()",
        _SIMULATION,
    ),
    Protection(
        "a stream that was cut off is no answer",
        "src/batchclient/dialects/_stream_decoder.py",
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
        "times = (self._deadlines.next(), self._granting.wake_at, ",
        "times = (self._granting.wake_at, ",
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
        "            self._attempts.end(batch, batch.verdict or _CANCELLED)\n\n    def _set_timer",
        "            pass\n\n    def _set_timer",
        _SIMULATION,
    ),
    Protection(
        "a request whose task is cancelled is over",
        "src/batchclient/_attempts.py",
        "            # Cancelled: by AbortBatch, or because the loop or the nursery is ending.\n"
        "            self.end(batch, batch.verdict or _CANCELLED)\n",
        "",
        _SIMULATION,
    ),
    Protection(
        "a fault of ours leaves no caller hanging",
        "src/batchclient/_attempts.py",
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
        "src/batchclient/_attempts.py",
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
        "src/batchclient/_steering.py",
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
        "        if self._was_good:\n",
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
        "threads' calls wake the loop once per queue",
        "src/batchclient/_bridge.py",
        "            elif not self._due:\n",
        "            else:\n",
        "tests/shell/test_bridge.py::test_calls_of_many_threads_wake_the_loop_once_and_begin_in_one_turn",
    ),
    Protection(
        "a thread's call waits a moment for others",
        "src/batchclient/_bridge.py",
        "            self._timer = self._loop.call_later(_GATHER_S, self._drain)\n",
        "            self._drain()\n",
        "tests/shell/test_bridge.py::test_a_call_waits_for_company_and_the_queue_goes_together",
    ),
    Protection(
        "a thread that is alone does not wait for others",
        "src/batchclient/_bridge.py",
        "        if self._was_alone and not self._tasks:\n",
        "        if False:\n",
        "tests/shell/test_bridge.py::test_a_caller_that_was_alone_and_is_alone_does_not_wait",
    ),
    Protection(
        "beside calls under way a thread's call waits",
        "src/batchclient/_bridge.py",
        "        if self._was_alone and not self._tasks:\n",
        "        if self._was_alone:\n",
        "tests/shell/test_bridge.py::test_beside_calls_under_way_it_waits",
    ),
    Protection(
        "a thread that is interrupted cancels its call",
        "src/batchclient/_bridge.py",
        "                self._loop.call_soon_threadsafe(self._drop, call)\n",
        "                pass\n",
        "tests/shell/test_bridge.py::test_a_thread_that_is_interrupted_cancels_its_call_and_no_other",
    ),
    Protection(
        "a thread that is interrupted leaves no queue behind",
        "src/batchclient/_bridge.py",
        "        # Its thread may have been interrupted between queueing it and telling the loop, as all others rely on.\n        self._drain()\n",
        "",
        "tests/shell/test_bridge.py::test_a_thread_that_is_interrupted_before_it_told_the_loop_leaves_nobody_waiting",
    ),
    Protection(
        "what was given up in the queue never begins",
        "src/batchclient/_bridge.py",
        "            if not call.left:\n                call.task",
        "            if True:\n                call.task",
        "tests/shell/test_bridge.py::test_a_call_that_is_given_up_in_the_queue_never_begins",
    ),
    Protection(
        "a call runs in its caller's context",
        "src/batchclient/_bridge.py",
        "self._loop.create_task(self._run(call), context=call.context)",
        "self._loop.create_task(self._run(call))",
        "tests/shell/test_bridge.py::test_the_callers_context_is_the_calls_and_comes_back_as_it_was",
    ),
    Protection(
        "a caller within trio does not mislead the loop",
        "src/batchclient/_bridge.py",
        '            sniffio.thread_local.name = "asyncio"\n',
        "",
        "tests/shell/test_bridge.py::test_a_context_that_belongs_to_trio_does_not_mislead_anyio",
    ),
    Protection(
        "a blocking call from the loop itself is refused",
        "src/batchclient/_bridge.py",
        "        if self.is_current:\n            raise",
        "        if False:\n            raise",
        "tests/shell/test_bridge.py::test_a_blocking_call_from_the_loops_own_thread_is_refused",
    ),
    Protection(
        "what ends a program does not end the loop",
        "src/batchclient/_bridge.py",
        "        except BaseException as error:  # the caller's own",
        "        except Exception as error:  # the caller's own",
        "tests/shell/test_bridge.py::test_what_ends_a_program_is_raised_in_the_callers_thread_and_the_loop_lives_on",
    ),
    Protection(
        "an error that was handled is gone",
        "src/batchclient/_bridge.py",
        "        error, self._error = self._error, None\n",
        "        error = self._error\n",
        "tests/shell/test_bridge.py::test_an_error_that_was_handled_is_collected_without_the_garbage_collector",
    ),
    Protection(
        "the loop's end ends what is under way",
        "src/batchclient/_bridge.py",
        "        for call in left.values():\n            call.refuse()\n",
        "",
        "tests/shell/test_bridge.py::test_close_ends_every_call_wherever_it_is",
    ),
    Protection(
        "the loop's end ends what is queued",
        "src/batchclient/_bridge.py",
        "        self._over = True\n        self._refuse_all()\n",
        "        self._over = True\n",
        "tests/shell/test_bridge.py::test_what_is_still_queued_at_the_end_is_refused",
    ),
    Protection(
        "a call that comes after the loop's end is refused",
        "src/batchclient/_bridge.py",
        "        if self._over:\n            self._refuse_all()\n",
        "",
        "tests/shell/test_bridge.py::test_a_call_that_meets_a_loop_that_has_just_ended_is_refused",
    ),
    Protection(
        "an ending loop begins nothing more",
        "src/batchclient/_bridge.py",
        "        if self._ending.is_set():\n            # What comes",
        "        if False:\n            # What comes",
        "tests/shell/test_bridge.py::test_what_comes_while_the_loop_ends_is_refused",
    ),
    Protection(
        "a bridge that is dropped ends its thread",
        "src/batchclient/_bridge.py",
        '        thread = getattr(self, "_thread", None)\n        if thread is not None:\n            thread.end()\n',
        "        pass\n",
        "tests/shell/test_bridge.py::test_a_bridge_that_is_dropped_ends_its_thread",
    ),
    Protection(
        "the interpreter's end closes every bridge",
        "src/batchclient/_bridge.py",
        "atexit.register(_end_all)\n",
        "",
        "tests/shell/test_bridge.py::test_the_interpreters_end_closes_it_and_wakes_who_waits",
    ),
    Protection(
        "a stuck loop does not hold the interpreter",
        "src/batchclient/_bridge.py",
        "        thread.join(_EXIT_S)\n",
        "        thread.join()\n",
        "tests/shell/test_bridge.py::test_a_loop_that_stands_still_does_not_keep_the_interpreter_from_ending",
    ),
    Protection(
        "after a fork the child has a loop of its own",
        "src/batchclient/_bridge.py",
        "        _of_the_parent.append(self._thread)\n        self._thread = None\n",
        "        _of_the_parent.append(self._thread)\n",
        "tests/shell/test_bridge.py::test_after_a_fork_the_child_starts_afresh_and_the_parent_goes_on",
    ),
    Protection(
        "after a fork the child's lock is free",
        "src/batchclient/_bridge.py",
        "        # Another thread of the parent may have held it.\n        self._lock = threading.RLock()\n",
        "",
        "tests/shell/test_bridge.py::test_after_a_fork_the_child_starts_afresh_and_the_parent_goes_on",
    ),
    Protection(
        "a blocking client that never called is closed by close",
        "src/batchclient/sync.py",
        "        self._client._closed = True\n",
        "",
        "tests/shell/test_sync.py::test_a_client_closed_before_its_first_call_is_closed",
    ),
    Protection(
        "a blocking map reads no further than it may",
        "src/batchclient/_sync_iterators.py",
        "    while len(documents) < room:\n",
        "    while True:\n",
        "tests/shell/test_sync_iterators.py::test_nothing_is_read_before_the_first_row_is_asked_for_nor_while_none_is_taken",
    ),
    Protection(
        "a blocking map counts what was read and not opened",
        "src/batchclient/_sync_iterators.py",
        " - len(feed.documents)\n",
        "\n",
        "tests/shell/test_sync_iterators.py::test_never_more_than_look_ahead_documents_are_open",
    ),
    Protection(
        "a blocking map's source that failed is not asked again",
        "src/batchclient/_sync_iterators.py",
        "            # A source that has failed is not asked again.\n            self._documents = self._iterator = iter(())\n",
        "            pass\n",
        "tests/shell/test_sync_iterators.py::test_the_error_of_a_source_comes_after_the_rows_that_were_read",
    ),
    Protection(
        "a blocking map reads on from a slow source while no row is ready",
        "src/batchclient/_sync_iterators.py",
        "    if read.pressed:\n        # One turn",
        "    if False:\n        # One turn",
        "tests/shell/test_sync_iterators.py::test_a_slow_source_is_read_on_while_no_row_is_ready",
    ),
    Protection(
        "opening documents leaves the loop other turns",
        "src/batchclient/_sync_iterators.py",
        "        if self._turn % _OPENED_AT_ONCE == 0:\n            await asyncio.sleep(0)\n",
        "",
        "tests/shell/test_sync_iterators.py::test_the_event_loop_has_other_turns_while_many_documents_are_opened",
    ),
    Protection(
        "a blocking map or stream that is closed cancels its calls",
        "src/batchclient/_sync_iterators.py",
        "                self._bridge.call_now(self._source.aclose)\n",
        "                pass\n",
        "tests/shell/test_sync_iterators.py::test_a_map_that_is_left_cancels_what_is_open",
    ),
    Protection(
        "what was begun before a fork is refused in the child",
        "src/batchclient/_sync_iterators.py",
        "        if self._process != process:\n",
        "        if False:\n",
        "tests/shell/test_sync_iterators.py::test_what_was_begun_before_a_fork_is_refused_in_the_child",
    ),
    Protection(
        "calls with other keys never share a request through the drop-in",
        "src/batchclient/openai/_batching.py",
        "self._clients.find((full, tuple(sorted(headers.items()))))",
        "self._clients.find((full, ()))",
        "tests/drop_in/test_behaviour.py::test_copies_share_the_scheduler_and_other_keys_do_not_share_requests",
    ),
    Protection(
        "max_retries bounds the requests of a call",
        "src/batchclient/_attempts.py",
        "(most is None or batch.failures + 1 < most)",
        "True",
        "tests/drop_in/test_behaviour.py::test_max_retries_bounds_the_requests_of_a_call",
    ),
    Protection(
        "the body of a list's error is nobody's alone",
        "src/batchclient/_exchange.py",
        "alone = body if len(batch.requests) == 1 else None",
        "alone = body",
        "tests/drop_in/test_behaviour.py::test_the_body_of_a_lists_error_shows_nobody_anothers_prompt",
    ),
    Protection(
        "a call with headers of its own shares no request",
        "src/batchclient/openai/_calls.py",
        "        elif not name.lower().startswith(_LABELS):\n            return None",
        "        elif False:\n            return None",
        "tests/drop_in/test_behaviour.py::test_what_has_headers_or_a_query_of_its_own_goes_through_untouched",
    ),
    Protection(
        "shares of a list's prompt tokens add up",
        "src/batchclient/dialects/_verbatim.py",
        "shares.append(until - before)",
        "shares.append(until)",
        "tests/drop_in/test_same_answers.py::test_the_shares_of_a_lists_prompt_tokens_add_up",
    ),
    Protection(
        "a fault takes back what answers used up in the same request",
        "src/batchclient/testing/_mock.py",
        "                fault_step = used.pop()\n                _take_back(used)\n",
        "                fault_step = used.pop()\n",
        "tests/testing/test_script.py::test_a_fault_takes_back_what_answers_used_up_in_the_same_request",
    ),
    Protection(
        "no virtual time passes over an open socket",
        "src/batchclient/testing/_clock.py",
        "        if len(self.real.get_map()) > 1:\n",
        "        if False:\n",
        "tests/testing/test_clock.py::test_no_time_passes_over_an_open_socket",
    ),
    Protection(
        "what is sent elsewhere than to a mock is left alone",
        "src/batchclient/testing/_httpx.py",
        "            mock = _open.get(request.url.host)\n            return sync_send",
        "            mock = next(iter(_open.values()))\n            return sync_send",
        "tests/testing/test_http_clients.py::test_what_goes_elsewhere_is_left_alone",
    ),
    Protection(
        "the pytest plugin imports nothing of batchclient",
        "src/pytest_batchclient/__init__.py",
        "import pytest\n\nif",
        "import batchclient\nimport pytest\n\nif",
        "tests/testing/test_plugin.py::test_where_it_is_not_used_nothing_of_batchclient_is_imported",
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
        "src/batchclient/_kept_clients.py",
        "if each not in self._held and not _is_at_work(kept)",
        "if each not in self._held",
        "tests/shell/test_kept_clients.py::test_one_with_calls_under_way_makes_no_room",
    ),
    Protection(
        "a client whose call is about to begin does not make room for another",
        "src/batchclient/integrations/_batcher.py",
        "            with self._clients.hold(key):\n",
        "            with self._clients.hold((None, None)):\n",
        "tests/integrations/test_transport.py::test_clients_are_few_and_nothing_is_lost",
    ),
    Protection(
        "vectors that are handed on come in the form that was asked for",
        "src/batchclient/dialects/_shapes.py",
        "packable = shape.packable and not verbatim",
        "packable = shape.packable",
        "tests/integrations/test_transport.py::test_a_response_is_what_the_server_alone_would_have_sent",
    ),
    Protection(
        "a list cap that follows from what lists cost is told",
        "src/batchclient/_core/steering.py",
        "            if cost.has_news:\n",
        "            if False:\n",
        "tests/playbook/test_lists.py::test_a_list_cap_by_cost_is_told_with_its_reason",
    ),
    Protection(
        "a list cap that is fitted anew every second is not told every second",
        "src/batchclient/_core/list_cost.py",
        "        if abs(after - before) <= _TOLD_SHARE * before and not is_back:\n",
        "        if before == after:\n",
        "tests/unit/test_list_cost.py::test_many_small_changes_are_told_once_they_have_added_up",
    ),
    Protection(
        "a list cap that grows back is told",
        "src/batchclient/_core/steering.py",
        "        if abilities.told_cap is not None:\n",
        "        if False:\n",
        "tests/playbook/test_refusals.py::test_a_learnt_cap_that_grows_again_is_told_by_the_next_batch",
    ),
    Protection(
        "one call of a new prefix goes ahead of the others",
        "src/batchclient/_core/leads.py",
        "            return now < until\n",
        "            return False\n",
        "tests/playbook/test_prefixes.py::test_one_call_of_a_family_goes_ahead_and_the_others_wait_for_its_answer",
    ),
    Protection(
        "nobody waits for ever for one that went ahead",
        "src/batchclient/_core/leads.py",
        "while (until := self.until) is not None and until <= now:\n",
        "while False:\n",
        "tests/playbook/test_prefixes.py::test_nobody_waits_longer_than_a_second",
    ),
    Protection(
        "who waited for one that went ahead ends once",
        "src/batchclient/_core/groups.py",
        "iter(dict.fromkeys(request for request in self._arrivals if request.group is self))",
        "(request for request in self._arrivals if request.group is self)",
        "tests/playbook/test_prefixes.py::test_who_came_back_is_there_once",
    ),
)
"""In no order that matters."""
