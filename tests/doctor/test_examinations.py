"""Examinations of every guise of the simulator, with its faults, and to places that are no server."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.fakes.old_vllm import EVENT_PER_TOKEN
from tests.guises import GUISES

from .conftest import URL, Watched, ids, recorded, see

GUISE_FINDINGS = {
    "vllm": [],
    "sglang": [],
    "tgi": ["lists-short"],
    "llamacpp": [],
    "trtllm": [],
    "tei": [],
    "openai": ["no-metrics"],
    "strict": ["no-metrics"],
    "transformers": ["no-metrics"],
}
FAULTS = {
    "no_lists": ["lists-refused"],
    "first_only": ["lists-refused"],
    "no_stream_lists": [],
    "serial": ["lists-serial"],
    "serial,count=1": [],
    "reorder": [],
    "sum_usage": [],
    "slow=1": [],
    "status=500": ["calls-fail"],
    "status=503": ["busy"],
    "status=429": ["busy"],
    "status=404": ["calls-fail"],
    "disconnect": ["calls-fail"],
    "cut": ["calls-fail"],
    "abort": ["calls-fail"],
    "garbage": ["calls-fail"],
    "html": ["calls-fail"],
    "stall": ["silent"],
    "stall_body": ["silent"],
}
UNPROVED = ("openai", "strict", "transformers")
"""They do not say which they are: a client sends a list once the server has earned it."""


@pytest.mark.parametrize("guise", GUISES)
def test_each_guise(look, guise):
    given = {"model": "simulated"} if guise == "transformers" else {}
    report, transport = look(guise=guise, target=given)
    assert ids(report) == GUISE_FINDINGS[guise]
    assert report.works
    assert report.facts.kind == {"strict": "openai", "transformers": "openai"}.get(guise, guise)
    assert sum(transport.prompts) == {"tei": 1, "strict": 11, "transformers": 10}.get(guise, 9)
    assert ("whether lists of prompts are taken" in report.unknown) == (guise in UNPROVED)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault(look, fault):
    report, transport = look(faults=[fault])
    assert ids(report) == FAULTS[fault]
    assert report.works == (FAULTS[fault] == [] or FAULTS[fault][0].startswith("lists"))


def test_there_are_seventeen_prompts_in_three_requests_at_most(look):
    """The list looks serial, and is sent again."""
    assert look()[1].prompts == [1, 8]
    assert look(faults=["serial"])[1].prompts == [1, 8, 8]


@pytest.mark.parametrize("guise", sorted(set(GUISES) - {"tei"}))
def test_requests_are_small(look, guise):
    _, transport = look(guise=guise, target={"model": "tgi" if guise == "tgi" else "simulated"})
    for body in transport.bodies:
        tokens = body.get("max_tokens", body.get("n_predict", body.get("sampling_params", {}).get("max_new_tokens")))
        assert tokens == 24


def test_what_has_an_effect_on_others_is_left_alone(look):
    for guise in ("sglang", "openai"):
        assert "/health" not in look(guise=guise)[1].pages_asked
    assert "/metrics" not in look(guise="trtllm")[1].pages_asked


def test_a_list_on_a_busy_server_says_nothing_of_lists(look):
    metrics = b"vllm:num_requests_running 9\nvllm:num_requests_waiting 0\n"
    report, transport = look(faults=["serial"], pages={"/metrics": (200, metrics)})
    assert ids(report) == []
    assert "whether the prompts of a list are served together" in report.unknown
    assert transport.prompts == [1, 8]


def test_a_call_that_waits_behind_others_tells_of_them(look):
    metrics = b"vllm:num_requests_running 16\nvllm:num_requests_waiting 284\n"
    report, _ = look(faults=["stall"], pages={"/metrics": (200, metrics)})
    assert ids(report) == ["busy"]
    assert "300 sequences of others" in report.findings[0].sentence


@pytest.mark.parametrize("speed", [0.2, 1, 50])
def test_a_server_with_fewer_slots_than_prompts_is_not_serial(look, speed):
    assert ids(look(guise="llamacpp", speed=speed)[0]) == []


def test_a_queue_with_room_for_fewer_prompts_than_a_list_has_says_nothing_of_lists(look):
    report, _ = look(max_queued=4)
    assert ids(report) == []
    assert "whether lists of prompts are taken" in report.unknown


def test_a_server_with_one_slot_is(look):
    report, _ = look(guise="llamacpp", max_num_seqs=1)
    assert ids(report) == ["lists-serial"]
    assert "--parallel" in report.findings[0].setting


def test_an_event_per_token_of_a_server_that_should_heed_the_interval(look):
    report, _ = look(guise=EVENT_PER_TOKEN)
    assert ids(report) == ["event-per-token"]
    assert report.facts.server == "vllm 0.26.0"


def test_no_metrics_page(look):
    gone = {"/metrics": (404, b'{"detail":"Not Found"}')}
    for guise in ("vllm", "sglang", "llamacpp", "tgi", "tei"):
        assert "no-metrics" in ids(look(guise=guise, pages=gone)[0])
    assert "no-metrics" in ids(look(pages={"/metrics": (200, b"go_goroutines 7\n")})[0])


def test_recorded_pages_of_vllm(look):
    pages = {
        "/v1/models": recorded("vllm/models.json"),
        "/version": recorded("vllm/version.json"),
        "/metrics": recorded("vllm/metrics_busy.txt"),
        "/server_info?config_format=json": (404, b'{"detail":"Not Found"}'),
    }
    report, _ = look(pages=pages, model="tiny")
    assert ids(report) == ["sequences-wait"]
    assert report.findings[0].sentence.startswith("32 sequences wait while 8 run and ")
    pages["/metrics"] = recorded("vllm/metrics_after.txt")
    assert ids(look(pages=pages, model="tiny")[0]) == []
    off = pages["/metrics"][1].replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="False"')
    pages["/metrics"] = 200, off
    assert ids(look(pages=pages, model="tiny")[0]) == ["prefix-caching-off"]


def test_recorded_pages_of_llamacpp(look):
    pages = {
        "/v1/models": recorded("llamacpp/models.json"),
        "/props": recorded("llamacpp/props.json"),
        "/health": recorded("llamacpp/health.json"),
        "/metrics": (501, b'{"error":{"code":501,"message":"This server does not support metrics endpoint."}}'),
    }
    report, transport = look(guise="llamacpp", pages=pages)
    assert ids(report) == ["no-metrics"]
    assert report.facts.slots == 4


# --- where calls fail --------------------------------------------------------------------------------------------------


def one(report):
    """The one finding, of a server that does not work."""
    (finding,) = report.findings
    assert not report.works
    return finding


def test_a_url_without_v1(look):
    report, transport = look(prefix="", url="http://llm:8000")
    finding = one(report)
    assert (finding.id, finding.setting) == ("url-without-v1", "base_url: http://llm:8000/v1")
    assert report.facts.refusal == ""


@pytest.mark.parametrize(("guise", "given"), [("tei", {}), ("transformers", {"model": "simulated"})])
def test_a_url_without_v1_where_no_page_tells(look, guise, given):
    report, transport = look(prefix="", url="http://llm:8000", guise=guise, target=given)
    assert ids(report)[0] == "url-without-v1"


def test_a_place_with_html_pages():
    html = (200, b"<!doctype html><title>Welcome</title>")
    finding = one(see(Watched(pages={"/v1/models": html, "/info": html})))
    assert finding.id == "no-llm-server"
    assert finding.sentence == "No LLM server answers at this URL: the reply is an HTML page."


def test_a_place_without_such_pages():
    finding = one(see(Watched()))
    assert (finding.id, finding.sentence) == (
        "no-llm-server",
        "No LLM server answers at this URL: the reply is 404 for /models.",
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_missing_or_refused(status):
    pages = {"/v1/models": (status, b'{"error":"Unauthorized sk-canary"}')}
    finding = one(see(Watched(pages=pages)))
    assert finding.id == "key-missing"
    transport = Watched(pages=pages)
    finding = one(see(transport, has_key=True, secrets=("sk-canary",)))
    assert finding.id == "key-refused"
    assert "canary" not in repr(finding)
    assert transport.requests == []


def test_a_key_that_is_refused_for_calls_alone(look):
    from batchclient.simulator import SimulatedServer, SimulatorTransport

    server = SimulatedServer("gpu", api_key="right")
    transport = Watched(SimulatorTransport(server), pages={"/v1/models": recorded("vllm/models.json")})
    finding = one(see(transport, has_key=True))
    assert (finding.id, finding.sentence) == ("key-refused", "The server refuses the key: 401: Unauthorized.")


def test_several_models():
    models = b'{"object":"list","data":[{"id":"one","owned_by":"vllm"},{"id":"two","owned_by":"vllm"}]}'
    transport = Watched(pages={"/v1/models": (200, models), "/metrics": (200, b"vllm:num_requests_running 0\n")})
    report = see(transport)
    assert ids(report) == ["several-models"]
    assert report.findings[0].sentence.endswith("calls without a name fail: one, two.")
    assert transport.requests == []
    assert "whether lists of prompts are taken" in report.unknown


def test_a_key_in_a_models_name_is_cut_out():
    models = b'{"object":"list","data":[{"id":"of sk-canary","owned_by":"vllm"},{"id":"two","owned_by":"vllm"}]}'
    report = see(Watched(pages={"/v1/models": (200, models)}), secrets=("sk-canary",))
    assert report.facts.models == ("of [key]", "two")
    assert "canary" not in "".join(report.lines())


def test_a_model_that_the_server_lacks(look):
    finding = one(look(target={"model": "other"})[0])
    assert finding.id == "model-unknown"
    assert "the server has 'simulated'" in finding.sentence


def test_a_server_that_names_no_model(look):
    finding = one(look(pages={"/v1/models": (200, b'{"object":"list","data":[]}')})[0])
    assert finding.id == "no-model"


def test_a_server_that_loads_its_model():
    loading = (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
    finding = one(see(Watched(pages={"/v1/models": loading})))
    assert (finding.id, finding.sentence) == ("not-ready", "The server is not ready: 503.")


def test_a_server_whose_engine_is_dead(look):
    report, transport = look(pages={"/health": (503, b'{"status":"unhealthy"}', {"via": "1.1 canary"})})
    assert one(report).id == "not-healthy"
    assert (report.facts.proxies, transport.requests) == (("via",), [])


def test_a_gateway_without_completions(look):
    gone = (404, b'{"error":{"message":"Unknown request URL","code":404}}')
    report, transport = look(pages={"/v1/completions": gone})
    assert ids(report) == []
    assert "no completions: each chat is a request of its own" in report.about()
    assert transport.requests == ["/v1/completions", "/v1/chat/completions"]


def test_a_pooling_server(look):
    gone = (404, b'{"detail":"Not Found"}')
    report, transport = look(pages={"/v1/completions": gone, "/v1/chat/completions": gone})
    assert ids(report) == []
    assert report.facts.calls == "embedding"
    assert len(transport.requests) == 3


def test_a_host_that_cannot_be_reached():
    from batchclient.errors import CertificateRefused, ConnectFailed, ConnectionLost

    class Nobody(Watched):
        async def send(self, request, timeouts):
            raise self.error

    def finding(error, **given):
        transport = Nobody()
        transport.error = error
        return one(see(transport, **given))

    refused = ConnectFailed("no connection to http://llm:8000/v1: a refused connection")
    assert finding(refused).id == "unreachable"
    assert finding(refused, proxy="HTTP_PROXY").setting.startswith("Http(trust_env=True), since HTTP_PROXY is set")
    assert finding(CertificateRefused("refused")).id == "certificate"
    assert finding(ConnectionLost("the reply is no HTTP")).id == "no-http"


def test_a_server_that_never_answers(look):
    class Silent(Watched):
        async def send(self, request, timeouts):
            import trio

            await trio.sleep_forever()

    assert one(see(Silent())).id == "silent"


def test_the_url_is_in_the_report_as_it_may_be_shown(look):
    assert look()[0].facts.url == URL


def test_a_server_that_a_list_may_kill_gets_none(look):
    report, transport = look(guise="openai", headers={"server": "BaseHTTP/0.6 Python/3.12.1"})
    assert ids(report) == ["lists-refused", "no-metrics"]
    assert report.findings[0].seen == "its pages: such a server takes none"
    assert {type(body["prompt"]) for body in transport.bodies} == {str}
