"""The server without sockets: API-server queue, admission, disconnects, routes, in literal times."""

import dataclasses
import json

import pytest

from batchclient.simulator import (
    PROFILES,
    Profile,
    SimulatedServer,
)

SLOW_API = Profile("t", "", request_s=0.010, prompt_s=0.001, event_s=0.002)
STEPS = Profile("t", "", step_s=0.010, max_num_seqs=2, kv_tokens=1000)


def post(server, request_id, now, **fields):
    body = {"prompt": "one", "max_tokens": 3, "temperature": 0} | fields
    server.receive(request_id, "POST", "/v1/completions", json.dumps(body).encode(), now)


def drain(server, until=1e9):
    """(time, request, status, length of the body, whether last) of every part."""
    seen = []
    while (at := server.next_deadline()) is not None and at <= until:
        seen += [(round(at, 6), p.request_id, p.status, len(p.body) > 0, p.last) for p in server.poll(at)]
    return seen


def test_the_api_server_is_one_queue():
    server = SimulatedServer(SLOW_API)
    post(server, 1, 0.0, prompt=["a", "b"])
    post(server, 2, 0.0)
    # 10 + 2 for the first, then 10 + 1 for the second; then 2 for each reply, which the free engine has at once, but
    # the first one's reply finds the API server busy with the second request.
    assert drain(server) == [(0.025, 1, 200, True, True), (0.027, 2, 200, True, True)]


def test_each_event_costs():
    server = SimulatedServer(SLOW_API)
    post(server, 1, 0.0, stream=True, stream_interval=100)
    assert [each[0] for each in drain(server)] == [0.011, 0.013, 0.015, 0.017]


def test_errors_cost_a_request():
    server = SimulatedServer(SLOW_API)
    post(server, 1, 0.0, model="nope")
    assert drain(server) == [(0.010, 1, 404, True, True)]


def test_speed_divides_every_time():
    slow, fast = SimulatedServer(STEPS), SimulatedServer(STEPS, speed=10)
    for server in (slow, fast):
        post(server, 1, 0.0)
    assert drain(slow)[0][0] == pytest.approx(0.03)
    assert drain(fast)[0][0] == pytest.approx(0.003)
    with pytest.raises(ValueError, match="above 0"):
        SimulatedServer(STEPS, speed=0)


def test_a_list_is_over_when_its_last_prompt_is():
    server = SimulatedServer(STEPS)
    post(server, 1, 0.0, prompt=["a", "b", "c"])
    post(server, 2, 0.0)
    # Two run at once: the third prompt and the single request come after the first two.
    assert drain(server) == [(0.060, 1, 200, True, True), (0.060, 2, 200, True, True)]


def test_a_late_poll_brings_everything_in_order():
    server = SimulatedServer(STEPS)
    post(server, 1, 0.0, stream=True)
    parts = server.poll(5.0)
    assert [part.status for part in parts] == [200, 0, 0, 0, 0]
    assert parts[-1].last
    assert server.next_deadline() is None


def test_a_disconnect_ends_every_sequence_of_the_request():
    server = SimulatedServer(STEPS)
    post(server, 1, 0.0, prompt=["a", "b", "c", "d"], max_tokens=50)
    server.poll(0.015)
    assert (server.engine.running, server.engine.waiting) == (2, 2)
    server.disconnect(1, 0.016)
    assert (server.engine.running, server.engine.waiting) == (0, 0)
    assert server.statistics()["aborted_sequences"] == 4
    assert server.statistics()["open_requests"] == 0
    assert [part for part in server.poll(9.0) if part.request_id == 1] == []


def test_a_disconnect_before_the_prompts_reach_the_engine():
    server = SimulatedServer(SLOW_API)
    post(server, 1, 0.0, prompt=["a", "b"])
    server.disconnect(1, 0.005)
    assert drain(server) == []
    assert server.engine.running == 0
    post(server, 2, 1.0)
    assert drain(server)[0][1:3] == (2, 200)


def test_admission_refuses_a_list_whole_and_counts_n():
    server = SimulatedServer(STEPS, max_queued=4)
    post(server, 1, 0.0, prompt=["a"] * 5)
    post(server, 2, 0.0, prompt=["a"] * 3)
    post(server, 3, 0.0, n=2, temperature=1)
    post(server, 4, 0.0)
    statuses = {each[1]: each[2] for each in drain(server)}
    assert statuses == {1: 503, 2: 200, 3: 503, 4: 200}
    post(server, 5, 1.0, prompt=["a"] * 4)
    assert drain(server)[0][2] == 200


def test_the_refusals_body_is_vllms():
    server = SimulatedServer("instant", max_queued=0)
    post(server, 1, 0.0)
    error = json.loads(server.poll(0.0)[0].body)["error"]
    assert error == {
        "message": "The engine is currently busy and cannot accept new requests. Please try again later or on a different "
        "instance.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }


def get(server, path, headers=(), method="GET", now=1.0):
    server.receive(9, method, path, b"", now, headers)
    (part,) = [part for part in server.poll(now + 0.001) if part.request_id == 9]
    return part.status, part.body


def test_a_key_guards_v1_only():
    server = SimulatedServer("instant", api_key="k")
    assert get(server, "/v1/models") == (401, b'{"error":"Unauthorized"}')
    assert get(server, "/v1/models", [(b"authorization", b"Bearer k")])[0] == 200
    post(server, 1, 1.01)
    assert server.poll(1.01)[0].body == b'{"error":"Unauthorized"}'
    for path in ("/health", "/ping", "/version", "/metrics"):
        assert get(server, path, now=2.0)[0] == 200


def test_routes():
    server = SimulatedServer("kv-cliff", model="m", max_model_len_tokens=10**9)
    model = json.loads(get(server, "/v1/models")[1])["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("m", "vllm", 64_000)
    assert json.loads(get(server, "/version")[1]) == {"version": "0.32.0"}
    assert get(server, "/nothing") == (404, b'{"detail":"Not Found"}')
    assert get(server, "/metrics", method="DELETE") == (405, b'{"detail":"Method Not Allowed"}')


def test_metrics():
    server = SimulatedServer(STEPS, model="m")
    post(server, 1, 0.0, prompt=["a", "b", "c"], max_tokens=5)
    server.poll(0.025)
    text = get(server, "/metrics", now=0.026)[1].decode()
    labels = '{engine="0",model_name="m"}'
    assert f"vllm:num_requests_running{labels} 2.0\n" in text
    assert f"vllm:num_requests_waiting{labels} 1.0\n" in text
    assert f"vllm:prompt_tokens_total{labels} 2.0\n" in text
    assert f"vllm:num_preemptions_total{labels} 0.0\n" in text
    drain(server)
    text = get(server, "/metrics")[1].decode()
    assert f"vllm:generation_tokens_total{labels} 15.0\n" in text
    assert 'vllm:request_success_total{finished_reason="length",engine="0",model_name="m"} 3.0\n' in text
    assert f"vllm:kv_cache_usage_perc{labels} 0.0\n" in text


def test_statistics():
    server = SimulatedServer("instant")
    post(server, 1, 0.5, prompt=["a", "b"])
    post(server, 2, 0.7, stream=True)
    post(server, 3, 0.8, model="nope")
    server.poll(1.0)
    found = server.statistics()
    assert (found["requests"], found["prompts"], found["streamed_requests"]) == (2, 3, 1)
    assert found["list_sizes"] == {"1": 1, "2": 1}
    assert found["statuses"] == {"404": 1}
    assert found["log"] == [(0.5, 2, False), (0.7, 1, True)]
    assert found["finish_reasons"] == {"length": 3}


def test_a_request_id_comes_back():
    server = SimulatedServer("instant")
    server.receive(1, "POST", "/v1/completions", b'{"prompt":"a"}', 0.0, [(b"x-request-id", b"abc")])
    assert json.loads(server.poll(0.0)[0].body)["id"] == "cmpl-abc"


def test_profiles():
    assert {"instant", "tiny-cpu", "gpu", "compute-knee", "kv-cliff", "max-seqs-64", "long-prompts"} <= set(PROFILES)
    with pytest.raises(ValueError, match="there are: instant, tiny-cpu"):
        SimulatedServer("nope")
    assert SimulatedServer("gpu", max_num_seqs=3, kv_tokens=77).profile == dataclasses.replace(
        PROFILES["gpu"], max_num_seqs=3, kv_tokens=77
    )


def test_equal_inputs_give_equal_outputs():
    def play():
        server = SimulatedServer("gpu", seed=3, faults=["status=503,rate=0.3"], output_lengths="lognormal:20:1")
        for i in range(30):
            post(server, i, i * 0.01, temperature=1, max_tokens=100, stream=bool(i % 2))
        seen = []
        while (at := server.next_deadline()) is not None:
            seen += [(at, part) for part in server.poll(at)]
        return seen

    assert play() == play()
