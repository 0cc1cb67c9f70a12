"""Measurements: what is counted, from where times run, and what may be recommended."""

from tests.mutants.protection import Protection

__all__ = ["MEASURING"]

_CELLS = "tests/bench/test_cells.py::"
_SWEEP = "tests/bench/test_sweep.py::"

MEASURING = (
    Protection(
        "a latency runs from the scheduled arrival",
        "batchclient.bench.cell",
        "_latency",
        "calls.ended[place] - calls.scheduled[place]",
        "calls.ended[place] - calls.begun[place]",
        f"{_CELLS}test_a_call_that_waits_in_the_generator_is_late_by_its_schedule",
    ),
    Protection(
        "an arrival that was never made counts",
        "batchclient.bench.generator",
        "_Cell._arrive",
        "self._calls.begin(due, math.nan)",
        "pass",
        f"{_CELLS}test_an_arrival_that_is_never_made_is_unanswered",
    ),
    Protection(
        "the window is not over before its last arrival",
        "batchclient.bench.generator",
        "_Cell._arrive",
        "self._count(+1)",
        "self._count(0)",
        f"{_CELLS}test_the_window_waits_for_its_last_arrival_also_between_two_calls",
    ),
    Protection(
        "an unanswered call misses the objective",
        "batchclient.bench.cell",
        "cell_of",
        "tuple(hit / len(counted) if counted else 0.0 for hit in hits)",
        "tuple(hit / len(answered) if answered else 0.0 for hit in hits)",
        f"{_CELLS}test_a_call_that_does_not_come_back_is_unanswered_and_not_left_out",
    ),
    Protection(
        "warm-up is in no latency",
        "batchclient.bench.cell",
        "cell_of",
        "window.begins <= at < window.ends",
        "at < window.ends",
        f"{_CELLS}test_warm_up_is_in_no_figure_and_has_the_cells_concurrency",
    ),
    Protection(
        "a late process marks its cells",
        "batchclient.bench.cell",
        "_marks",
        "latest_s > max(_LATE_S, _LATE_SHARE * median_s)",
        "False",
        f"{_CELLS}test_an_event_loop_that_stands_still_marks_a_closed_load_too",
    ),
    Protection(
        "cells that measured the client recommend nothing",
        "batchclient.bench.summary",
        "best_of",
        "not summary.measured_the_client",
        "True",
        f"{_SWEEP}test_cells_that_measured_the_client_recommend_nothing",
    ),
    Protection(
        "cells in which calls failed recommend nothing",
        "batchclient.bench.summary",
        "best_of",
        "not summary.calls_failed",
        "True",
        f"{_SWEEP}test_cells_in_which_calls_failed_recommend_nothing",
    ),
    Protection(
        "a caller pauses after a failed call",
        "batchclient.bench.generator",
        "_Cell._caller",
        "await asyncio.sleep(pause_s)",
        "pass",
        f"{_CELLS}test_callers_of_a_server_that_fails_pause_until_a_call_is_answered",
    ),
    Protection(
        "a closed load's throughput is that of Little's law",
        "batchclient.bench.cell",
        "cell_of",
        "setting.rate is None and answered and len(answered) == len(counted)",
        "False",
        f"{_CELLS}test_the_throughput_of_rounds_does_not_depend_on_the_windows_cut",
    ),
    Protection(
        "the order of a repetition is turned round for the next",
        "batchclient.bench.sweep",
        "order_of",
        "order[::-1] if repetition % 2 else order",
        "order",
        f"{_SWEEP}test_a_drift_of_the_machine_turns_no_equals_into_a_difference",
    ),
    Protection(
        "no text and no key is in a report",
        "batchclient.bench.report",
        "report_of",
        "None if workload.prompts is None else len(workload.prompts)",
        "None if workload.prompts is None else list(workload.prompts)",
        f"{_SWEEP}test_a_report_holds_no_text_and_no_key",
    ),
)
