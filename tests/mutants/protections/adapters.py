"""The other ways in: openai's drop-in, the transports for httpx, the tools for tests."""

from tests.mutants.protection import Protection

__all__ = ["ADAPTERS"]

ADAPTERS = (
    Protection(
        "calls with other keys never share a request through the drop-in",
        "batchclient.openai._identity",
        "identity_of",
        "tuple(sorted(headers.items()))",
        "()",
        "tests/drop_in/test_behaviour.py::test_copies_share_the_scheduler_and_other_keys_do_not_share_requests",
    ),
    Protection(
        "a call with headers of its own shares no request",
        "batchclient.openai._calls",
        "plan",
        "not _is_left_out(owner._batching.header_roles.of(name), value)",
        "False",
        "tests/drop_in/test_behaviour.py::test_what_has_headers_or_a_query_of_its_own_goes_through_untouched",
    ),
    Protection(
        "a tracer that passes for the function it wraps is noticed",
        "batchclient.openai._seams",
        "_comes_from",
        'type(function) is FunctionType and function.__globals__.get("__name__", "").startswith(home)',
        'function.__globals__.get("__name__", "").startswith(home)',
        "tests/drop_in/test_tracers.py::test_it_sees_every_call_and_they_share",
    ),
    Protection(
        "who has replaced what makes openai's requests has each of them made there",
        "batchclient.openai._seams",
        "is_replaced",
        "methods = (*_methods(type(client)), *_methods(openais), *_methods(openais.__base__))",
        "methods = _untouched.get(openais, ())",
        "tests/drop_in/test_tracers.py::test_who_has_replaced_what_makes_requests_has_each_call_sent_as_openai_sends_it",
    ),
    Protection(
        "a fault takes back what answers used up in the same request",
        "batchclient.testing._mock",
        "MockLLM._decide",
        "fault_step = used.pop()\n_take_back(used)",
        "fault_step = used.pop()",
        "tests/testing/test_script.py::test_a_fault_takes_back_what_answers_used_up_in_the_same_request",
    ),
    Protection(
        "no virtual time passes over an open socket",
        "batchclient.testing._clock",
        "_JumpingSelector.select",
        "len(self.real.get_map()) > 1",
        "False",
        "tests/testing/test_clock.py::test_no_time_passes_over_an_open_socket",
    ),
    Protection(
        "what is sent elsewhere than to a mock is left alone",
        "batchclient.testing._httpx",
        "Library.patch.handle_request",
        "_open.get(request.url.host)",
        "next(iter(_open.values()))",
        "tests/testing/test_http_clients.py::test_what_goes_elsewhere_is_left_alone",
    ),
    Protection(
        "the pytest plugin imports nothing of batchclient",
        "pytest_batchclient",
        "",
        "import pytest",
        "import batchclient\nimport pytest",
        "tests/testing/test_plugin.py::test_where_it_is_not_used_nothing_of_batchclient_is_imported",
    ),
    Protection(
        "requests with different keys never share",
        "batchclient.integrations.header_roles",
        "_OF_THE_PROGRAM",
        '{"user-agent"}',
        '{"user-agent", "authorization"}',
        "tests/integrations/test_transport.py::test_requests_that_differ_in_a_header_that_counts_never_share",
    ),
    Protection(
        "a client that is at work does not make room for another",
        "batchclient.integrations.kept_clients",
        "KeptClients.find",
        "each not in self._held and not _is_at_work(kept)",
        "each not in self._held",
        "tests/shell/test_kept_clients.py::test_one_with_calls_under_way_makes_no_room",
    ),
    Protection(
        "a client whose call is about to begin does not make room for another",
        "batchclient.integrations._batcher",
        "Batcher.respond",
        "self._clients.hold(key)",
        "self._clients.hold((None, None))",
        "tests/integrations/test_transport.py::test_clients_are_few_and_nothing_is_lost",
    ),
    Protection(
        "the drop-in sends by openai's HTTP library",
        "batchclient.openai._batching",
        "_Clients._make",
        "filled_in(self.settings.get('http'), trust_env=self.http_client is None, "
        "backend=http_library().__name__, **timeouts)",
        "filled_in(self.settings.get('http'), trust_env=self.http_client is None, **timeouts)",
        "tests/transport/test_mocks_of_httpx2.py::test_pytest_httpx2_answers_what_would_be_sent",
    ),
)
