"""Many servers and several workers: maps over all of them, disjoint parts, rows of Ray Data."""

from tests.mutants.protection import Protection

__all__ = ["WORKERS"]

_MAPS = "tests/shell/test_maps.py::"
_PARTITION = "tests/unit/test_partition.py::"
_RAY = "tests/unit/test_map_batches.py::"

WORKERS = (
    Protection(
        "a map that is waited for is held, whoever holds the task",
        "batchclient.maps",
        "Map._next",
        "waited_for = self._runner.waited_for",
        "waited_for = []",
        "tests/shell/test_unheld_tasks.py::test_a_task_that_nobody_holds_ends_as_any_other",
    ),
    Protection(
        "a map reads ahead for all endpoints together",
        "batchclient._client.map_methods",
        "MapMethods._look_ahead",
        "runner.core.total_limit",
        "0",
        f"{_MAPS}test_the_look_ahead_is_enough_for_all_endpoints",
    ),
    Protection(
        "rows go out while the look-ahead fills",
        "batchclient.maps",
        "Map._next",
        "self._may_read = False",
        "continue",
        f"{_MAPS}test_rows_are_handed_out_while_the_look_ahead_fills",
    ),
    Protection(
        "workers have equally many servers, and each has one",
        "batchclient.partition",
        "_owners",
        "owners[url] != joining and sizes[owners[url]] == largest",
        "owners[url] != joining",
        f"{_PARTITION}test_the_shares_are_disjoint_of_one_size_and_all_servers",
    ),
    Protection(
        "every process finds the same parts of the servers",
        "batchclient.partition",
        "_score",
        'hashlib.sha256(f"{worker} {url}".encode()).digest()',
        "hash((worker, url)).to_bytes(8, signed=True)",
        f"{_PARTITION}test_another_process_finds_the_same_shares",
    ),
    Protection(
        "servers in any order give the same parts",
        "batchclient.partition",
        "_owners",
        "sorted(urls, key=lambda url: (_score(url, joining), url), reverse=True)",
        "list(urls)",
        f"{_PARTITION}test_every_order_and_spelling_gives_the_same_shares",
    ),
    Protection(
        "hosts in any case give the same parts, and are one server",
        "batchclient._shell.addresses",
        "check_url",
        "authority.lower()",
        "authority",
        f"{_PARTITION}test_every_order_and_spelling_gives_the_same_shares",
    ),
    Protection(
        "no worker is left without a server",
        "batchclient.partition",
        "endpoints_shard",
        "parts > len(urls)",
        "False",
        f"{_PARTITION}test_more_workers_than_servers_are_refused_with_what_to_do",
    ),
    Protection(
        "a command sends to its own servers alone",
        "batchclient.cli._servers",
        "server_options",
        "shard is not None",
        "False",
        "tests/cli/test_endpoints_shard.py::test_the_commands_of_all_parts_use_every_server_and_share_none",
    ),
    Protection(
        "an error in a column tells no prompt",
        "batchclient.integrations._row_columns",
        "_described",
        "return type(error).__name__",
        'return f"{type(error).__name__}: {error}"',
        f"{_RAY}test_an_error_tells_no_prompt_and_no_place_within_its_batch",
    ),
    Protection(
        "an actor's calls go on while Ray's loop stands still",
        "batchclient.integrations._own_loop",
        "OwnLoop.run",
        "await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running()))",
        "await work",
        "tests/unit/test_own_loop.py::test_work_goes_on_while_the_callers_loop_stands_still",
    ),
    Protection(
        "a wrong parameter is refused before a row is read",
        "batchclient.integrations.ray",
        "MapBatches.__init__",
        "self._client.stream_map((), prompt, call=call, **self._params)",
        "pass",
        f"{_RAY}test_a_wrong_argument_is_refused_when_the_class_is_made",
    ),
)
