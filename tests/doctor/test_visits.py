"""Visits to every guise of the simulator, with its faults, and to places that are no server."""

from collections import Counter
from dataclasses import replace

import pytest

from batchclient._doctor.trials import MOST_REQUESTS
from tests.fakes.old_vllm import EVENT_PER_TOKEN
from tests.guises import GUISES

from .conftest import URL, Watched, ids, recorded, see

GUISE_FINDINGS = {
    "vllm": [],
    "sglang": [],
    "tgi": ["lists-short"],
    "llamacpp": [],
    "trtllm": ["event-per-token"],
    "tei": [],
    "openai": ["no-metrics"],
    "strict": ["no-metrics"],
    "transformers": ["lists-refused", "no-metrics"],
}
FAULTS = {
    "no_lists": ["lists-refused"],
    "first_only": ["lists-refused"],
    "no_stream_lists": ["lists-not-streamed"],
    "serial": ["lists-serial"],
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


@pytest.mark.parametrize("guise", GUISES)
def test_each_guise(look, guise):
    given = {"model": "simulated"} if guise == "transformers" else {}
    diagnosis, transport = look(guise=guise, patient=given)
    assert ids(diagnosis) == GUISE_FINDINGS[guise]
    assert diagnosis.works
    assert diagnosis.facts.kind == {"strict": "openai", "transformers": "openai"}.get(guise, guise)
    assert len(transport.requests) <= MOST_REQUESTS
    assert max(Counter(transport.pages_asked).values()) == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault(look, fault):
    diagnosis, transport = look(faults=[fault])
    assert ids(diagnosis) == FAULTS[fault]
    assert len(transport.requests) <= MOST_REQUESTS
    assert diagnosis.works == (FAULTS[fault] == [] or FAULTS[fault][0].startswith("lists"))


def test_there_are_three_small_requests_at_most(look):
    """The first finds nothing, the list looks serial, and no request is left to see that again."""
    diagnosis, transport = look(
        prefix="",
        url="http://llm:8000",
        faults=["serial"],
        pages={"/v1/models": (404, b"")},
        patient={"model": "simulated"},
    )
    assert transport.requests == ["/completions", "/v1/completions", "/v1/completions"]
    assert ids(diagnosis) == ["url-without-v1"]
    assert "whether the prompts of a list are served together" in diagnosis.unknown


def test_a_call_that_is_refused_as_a_stream_goes_plain(look):
    diagnosis, transport = look(faults=["status=400,count=1"])
    assert ids(diagnosis) == []
    assert [body.get("stream") for body in transport.bodies] == [True, None, None]


@pytest.mark.parametrize("guise", sorted(set(GUISES) - {"tei"}))
def test_requests_are_small(look, guise):
    _, transport = look(guise=guise, patient={"model": "tgi" if guise == "tgi" else "simulated"})
    for body in transport.bodies:
        prompt = body.get("prompt", body.get("text"))
        assert len(prompt if isinstance(prompt, list) else [prompt]) <= 8
        tokens = body.get("max_tokens", body.get("n_predict", body.get("sampling_params", {}).get("max_new_tokens")))
        assert tokens == 24


def test_what_has_an_effect_on_others_is_left_alone(look):
    for guise in ("sglang", "openai"):
        assert "/health" not in look(guise=guise)[1].pages_asked
    assert "/metrics" not in look(guise="trtllm")[1].pages_asked


def test_a_list_that_is_serial_once_is_no_finding(look):
    assert ids(look(faults=["serial,count=1"])[0]) == []


def test_a_list_on_a_busy_server_says_nothing_of_lists(look):
    metrics = b"vllm:num_requests_running 9\nvllm:num_requests_waiting 0\n"
    diagnosis, transport = look(faults=["serial"], pages={"/metrics": (200, metrics)})
    assert ids(diagnosis) == []
    assert "whether the prompts of a list are served together" in diagnosis.unknown
    assert len(transport.requests) == 2


def test_a_call_that_waits_behind_others_is_no_fault(look):
    metrics = b"vllm:num_requests_running 16\nvllm:num_requests_waiting 284\n"
    diagnosis, _ = look(faults=["stall"], pages={"/metrics": (200, metrics)})
    assert ids(diagnosis) == ["crowded"]
    assert diagnosis.works
    assert "300 sequences of others" in diagnosis.findings[0].sentence


@pytest.mark.parametrize("speed", [0.2, 1, 50])
def test_a_server_with_fewer_slots_than_prompts_is_not_serial(look, speed):
    assert ids(look(guise="llamacpp", speed=speed)[0]) == []


def test_a_queue_with_room_for_fewer_prompts_than_a_list_has(look):
    diagnosis, transport = look(max_queued=4)
    assert ids(diagnosis) == ["lists-over-bound"]
    assert diagnosis.findings[0].setting == "a larger --max-num-queued-reqs"
    assert len(transport.requests) == 3
    once = look(faults=["status=503,after=1,count=1"])[0]
    assert ids(once) == []
    assert "whether lists of prompts are taken" in once.unknown


def test_a_server_with_one_slot_is(look):
    diagnosis, _ = look(guise="llamacpp", max_num_seqs=1)
    assert ids(diagnosis) == ["lists-serial"]
    assert "--parallel" in diagnosis.findings[0].setting


def test_an_event_per_token_of_a_server_that_should_heed_the_interval(look):
    diagnosis, _ = look(guise=EVENT_PER_TOKEN)
    assert ids(diagnosis) == ["event-per-token"]
    assert "24 tokens came in 24 events" in diagnosis.findings[0].sentence
    assert diagnosis.facts.server == "vllm 0.26.0"


def test_streams_that_a_proxy_holds_back(look):
    class Holding(Watched):
        async def send(self, request, timeouts):
            reply = await super().send(request, timeouts)
            if request.method == "POST":
                chunks, reply.chunks = reply.chunks, lambda: held(chunks())
            return reply

    async def held(chunks):
        all_of_them = [chunk async for chunk in chunks]
        for chunk in all_of_them:
            yield chunk

    from batchclient.simulator import SimulatedServer, SimulatorTransport

    held_back = see(Holding(SimulatorTransport(SimulatedServer("gpu", speed=0.5)), headers={"server": "nginx"}))
    assert ids(held_back) == ["streams-held-back", "proxy"]


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
    diagnosis, _ = look(pages=pages, model="tiny")
    assert ids(diagnosis) == ["sequences-wait"]
    assert diagnosis.findings[0].sentence.startswith("32 sequences wait while 8 run and ")
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
        "/slots": recorded("llamacpp/slots.json"),
    }
    diagnosis, transport = look(guise="llamacpp", pages=pages)
    assert ids(diagnosis) == ["no-metrics"]
    assert diagnosis.facts.slots == 4
    assert diagnosis.facts.others == 0
    assert "/slots" in transport.pages_asked


# --- where calls fail --------------------------------------------------------------------------------------------------


def one(diagnosis):
    """The one finding, of a server that does not work."""
    (finding,) = diagnosis.findings
    assert not diagnosis.works
    return finding


def test_a_url_without_v1(look):
    diagnosis, transport = look(prefix="", url="http://llm:8000")
    finding = one(diagnosis)
    assert (finding.id, finding.setting) == ("url-without-v1", "base_url: http://llm:8000/v1")
    assert diagnosis.facts.lists is not None


@pytest.mark.parametrize(("guise", "route"), [("sglang", "/generate"), ("llamacpp", "/completion")])
def test_a_proxy_that_passes_v1_alone(look, guise, route):
    diagnosis, transport = look(guise=guise, pages={route: (404, b"<html>404</html>")})
    finding = one(diagnosis)
    assert finding.id == "own-route-missing"
    assert route in finding.sentence
    assert 'dialect="openai"' in finding.setting
    assert transport.requests == [route, "/v1/completions", "/v1/completions"]


@pytest.mark.parametrize(("guise", "given"), [("tei", {}), ("transformers", {"model": "simulated"})])
def test_a_url_without_v1_where_no_page_tells(look, guise, given):
    diagnosis, transport = look(prefix="", url="http://llm:8000", guise=guise, patient=given)
    assert ids(diagnosis)[0] == "url-without-v1"
    assert len(transport.requests) <= MOST_REQUESTS


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
    assert (finding.id, finding.sentence) == ("key-refused", "The server refuses the key: 401, Unauthorized.")


def test_several_models():
    models = b'{"object":"list","data":[{"id":"one","owned_by":"vllm"},{"id":"two","owned_by":"vllm"}]}'
    transport = Watched(pages={"/v1/models": (200, models), "/metrics": (200, b"vllm:num_requests_running 0\n")})
    diagnosis = see(transport)
    assert ids(diagnosis) == ["several-models"]
    assert diagnosis.findings[0].sentence.endswith("calls without a name fail: one, two.")
    assert transport.requests == []
    assert "whether lists of prompts are taken" in diagnosis.unknown


def test_a_model_that_the_server_lacks(look):
    finding = one(look(patient={"model": "other"})[0])
    assert finding.id == "model-unknown"
    assert "the server has 'simulated'" in finding.sentence


def test_a_server_that_names_no_model(look):
    finding = one(look(pages={"/v1/models": (200, b'{"object":"list","data":[]}')})[0])
    assert finding.id == "no-model"


def test_a_server_that_loads_its_model():
    loading = (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
    finding = one(see(Watched(pages={"/v1/models": loading})))
    assert (finding.id, finding.sentence) == ("not-ready", "The server is not ready: 503, Loading model.")


def test_a_server_whose_engine_is_dead(look):
    finding = one(look(pages={"/health": (503, b'{"status":"unhealthy"}')})[0])
    assert finding.id == "not-healthy"


def test_a_gateway_without_completions(look):
    gone = (404, b'{"error":{"message":"Unknown request URL","code":404}}')
    diagnosis, transport = look(pages={"/v1/completions": gone})
    assert ids(diagnosis) == ["no-completions"]
    assert transport.requests == ["/v1/completions", "/v1/chat/completions"]


def test_a_pooling_server(look):
    gone = (404, b'{"detail":"Not Found"}')
    diagnosis, transport = look(pages={"/v1/completions": gone, "/v1/chat/completions": gone})
    assert ids(diagnosis) == []
    assert diagnosis.facts.without_completions == "embedding"
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


def test_encryption_on_the_way_to_a_private_address(look):
    assert ids(look(url="https://llm:8000/v1")[0]) == ["tls"]
    assert ids(look(url="https://llm.example.com/v1")[0]) == []


def test_the_url_is_in_the_diagnosis_as_it_may_be_shown(look):
    assert look()[0].facts.url == URL


def test_a_server_that_a_list_may_kill_gets_none(look):
    diagnosis, transport = look(guise="openai", headers={"server": "BaseHTTP/0.6 Python/3.12.1"})
    assert ids(diagnosis) == ["lists-refused", "no-metrics"]
    assert diagnosis.findings[0].seen == "it is built on Python's http.server, as mlx_lm.server is"
    assert [type(body["prompt"]) for body in transport.bodies] == [str]
