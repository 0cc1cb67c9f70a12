"""What a client tells of itself: each thing counted once, from any thread, and nothing kept alive for it."""

from tests.mutants.protection import Protection

__all__ = ["WATCHING"]

_SIMULATION = "tests/simulation/test_seeds.py::test_nothing_is_lost_and_nothing_doubled"
_HISTOGRAMS = "tests/unit/test_histograms.py::"
_PAGES = "tests/integrations/test_prometheus.py::"
_QUERIES = "tests/prometheus/test_queries.py::"
_COMMANDS = "tests/prometheus/test_commands.py::"

WATCHING = (
    Protection(
        "a call leaves the queue for the first time once",
        "batchclient._core.histograms",
        "Observations.sent",
        "request.endured is None",
        "True",
        _SIMULATION,
    ),
    Protection(
        "what was never sent is no request",
        "batchclient._core.replies",
        "Replies.failed",
        "if failure.was_sent:\n    self._counters.observed.request_ended(batch, endpoint.shown_name, now, failure)",
        "self._counters.observed.request_ended(batch, endpoint.shown_name, now, failure)",
        _SIMULATION,
    ),
    Protection(
        "callers of a shared request are counted instead of its carrier",
        "batchclient._core.learnt.answers",
        "Tally.__init__",
        "not request.carries",
        "True",
        f"{_HISTOGRAMS}test_callers_of_a_shared_request_each_have_their_time",
    ),
    Protection(
        "no more models have a count of their own than 32",
        "batchclient._core.histograms",
        "Observations._name_of",
        "len(self._models) >= _MOST_MODELS",
        "False",
        f"{_HISTOGRAMS}test_no_more_models_have_a_count_of_their_own_than_32",
    ),
    Protection(
        "a snapshot does not keep its client alive",
        "batchclient._metrics.snapshots",
        "Snapshots.__init__",
        "weakref.ref(client)",
        "lambda: client",
        f"{_PAGES}test_a_collector_does_not_keep_its_client",
    ),
    Protection(
        "a blocked event loop is waited for no longer than half a second",
        "batchclient._metrics.snapshots",
        "Snapshots._ask",
        "question.answered.wait(self._patience_s)",
        "question.answered.wait(5.0)",
        f"{_PAGES}test_a_blocked_event_loop_has_its_last_page_within_a_second",
    ),
    Protection(
        "a registry refuses a second collector",
        "batchclient.integrations.prometheus",
        "Collector.describe",
        "for metric in METRICS:\n    yield _family(metric, ())",
        "yield from ()",
        f"{_PAGES}test_a_second_collector_in_a_registry_is_refused",
    ),
    Protection(
        "the multi-process mode is refused",
        "batchclient.integrations.prometheus",
        "Collector.__init__",
        "os.environ.get(variable)",
        "False",
        f"{_PAGES}test_the_multi_process_mode_is_refused_with_the_reason",
    ),
    Protection(
        "the port is free as soon as the client is closed",
        "batchclient._metrics.server",
        "PageServer._stop_listening",
        "self._server.socket.shutdown(socket.SHUT_RDWR)",
        "pass",
        f"{_PAGES}test_the_port_is_free_as_soon_as_the_client_is_closed",
    ),
    Protection(
        "a label's value cannot break its line",
        "batchclient._metrics.text",
        "_write",
        "_escaped(value)",
        "value",
        f"{_PAGES}test_the_page_is_the_one_that_prometheus_client_writes",
    ),
    Protection(
        "a child leaves the parent's port alone",
        "batchclient._metrics.server",
        "PageServer._forget_parent",
        "self._server.socket.close()",
        "pass",
        f"{_PAGES}test_a_fork_starts_the_counts_anew_and_leaves_the_port_alone",
    ),
    Protection(
        "a query names what a server's page has",
        "batchclient._metrics.server_names",
        "SERVERS",
        '"vllm:kv_cache_usage_perc"',
        '"vllm:gpu_cache_usage_perc"',
        f"{_QUERIES}test_every_query_names_what_a_page_has",
    ),
    Protection(
        "a query sums by labels that its metric has",
        "batchclient._metrics.queries",
        "_PANELS",
        '"sum by (direction) (rate(batchclient_tokens_total[5m]))"',
        '"sum by (kind) (rate(batchclient_tokens_total[5m]))"',
        f"{_QUERIES}test_every_query_asks_for_labels_that_its_metrics_have",
    ),
    Protection(
        "a server that lacks a metric lacks its panel",
        "batchclient._metrics.queries",
        "named",
        "set(template.get_identifiers()) <= roles.keys()",
        "template",
        f"{_COMMANDS}test_a_server_that_lacks_a_metric_lacks_its_panel",
    ),
    Protection(
        "a dashboard has no data source of its own",
        "batchclient._metrics.dashboard",
        "_SOURCE",
        '"${datasource}"',
        '"prometheus"',
        f"{_COMMANDS}test_a_dashboard_asks_the_data_source_that_its_reader_chooses",
    ),
    Protection(
        "a metric keeps its name",
        "batchclient._metrics.registry",
        "METRICS",
        '"adjustments_total"',
        '"changes_total"',
        "tests/prometheus/test_names.py::test_no_metric_loses_its_name_its_type_or_a_label",
    ),
)
