"""Facts from recorded pages, and from pages as other versions have them."""

import json

import pytest

from batchclient._doctor.facts import Facts
from batchclient._doctor.pages import proxies_in, queue_in, read_arguments, read_metrics
from batchclient.dialects._metrics import parse_metrics

from .conftest import recorded

VLLM, SGLANG, TGI, LLAMACPP = KINDS = ("vllm", "sglang", "tgi", "llamacpp")


def told(kind, metrics=b"", arguments=b""):
    """The facts of pages."""
    facts = Facts("u", kind)
    read_arguments(facts, arguments)
    read_metrics(facts, metrics)
    return facts


def queue_on(text):
    return queue_in(parse_metrics(text, "tiny"), text)


def page(name):
    return recorded(name)[1]


def test_vllms_recorded_page():
    facts = told(VLLM, page("vllm/metrics_after.txt"))
    assert facts.prefix_caching is True
    assert facts.kv_tokens == 262_144
    assert facts.kv_share is None  # the size was given in bytes, which leaves the share without effect
    assert (facts.served, facts.longest) == (48, 200 + 1000)
    assert facts.mean_len == pytest.approx((5972 + 28_800) / 48)


def test_a_queue_on_vllms_recorded_page():
    queue = queue_on(page("vllm/metrics_busy.txt"))
    assert queue is not None
    assert (queue.running, queue.waiting) == (8, 32)
    assert queue.kv_usage < 0.5
    assert queue_on(page("vllm/metrics_idle.txt")) is None


def test_sequences_that_wait_for_something_else_than_room_are_no_queue():
    text = page("vllm/metrics_busy.txt").replace(b'reason="capacity"} 32.0', b'reason="capacity"} 0.0')
    assert queue_on(text.replace(b'reason="deferred"} 0.0', b'reason="deferred"} 32.0')) is None


def test_vllms_share_of_the_memory_where_nothing_else_is_given():
    text = b"""vllm:num_requests_running 0
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",gpu_memory_utilization="0.5",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="1",gpu_memory_utilization="0.5",num_gpu_blocks="1000"} 1.0
"""
    facts = told(VLLM, text)
    assert (facts.kv_share, facts.kv_tokens, facts.prefix_caching) == (0.5, 32_000, False)
    given = text.replace(b"num_gpu_blocks=", b'num_gpu_blocks_override="1000",num_gpu_blocks=')
    assert told(VLLM, given).kv_share is None
    assert told(VLLM, text.replace(b'"1000"', b'"None"', 1)).kv_tokens is None


def test_a_last_bucket_with_values_leaves_the_longest_open():
    text = b"""vllm:num_requests_running 0
vllm:request_prompt_tokens_bucket{le="10.0"} 5
vllm:request_prompt_tokens_bucket{le="+Inf"} 6
vllm:request_prompt_tokens_count 6
vllm:request_prompt_tokens_sum 6000
vllm:request_generation_tokens_bucket{le="10.0"} 6
vllm:request_generation_tokens_count 6
vllm:request_generation_tokens_sum 30
"""
    facts = told(VLLM, text)
    assert (facts.served, facts.longest, facts.mean_len) == (6, None, 1005.0)


def test_llamacpps_recorded_page():
    facts = told(LLAMACPP, page("llamacpp/metrics.txt"))
    assert facts.longest == 2047
    assert facts.served == (2150 + 472) // 2047
    assert facts.mean_len is None


def test_sglangs_counters():
    text = b"""sglang:num_running_reqs{tp_rank="0"} 0
sglang:num_requests_total{is_streaming="true"} 60
sglang:num_requests_total{is_streaming="false"} 40
sglang:prompt_tokens_total 5000
sglang:generation_tokens_total 5000
"""
    facts = told(SGLANG, text)
    assert (facts.served, facts.mean_len, facts.longest) == (100, 100.0, None)


def test_tgis_histograms():
    text = b"""tgi_queue_size 0
tgi_request_input_length_bucket{le="40.96"} 200
tgi_request_input_length_count 200
tgi_request_input_length_sum 4000
tgi_request_generated_tokens_bucket{le="81.92"} 200
tgi_request_generated_tokens_count 200
tgi_request_generated_tokens_sum 2000
"""
    facts = told(TGI, text)
    assert (facts.served, facts.longest, facts.mean_len) == (200, 122, 30.0)


def test_sglangs_arguments():
    info = {
        "max_total_num_tokens": 131_072,
        "max_running_requests": 256,
        "mem_fraction_static": 0.85,
        "disable_radix_cache": True,
        "api_key": "canary",
    }
    facts = told(SGLANG, arguments=json.dumps(info).encode())
    assert (facts.slots, facts.kv_tokens, facts.kv_share, facts.prefix_caching) == (256, 131_072, 0.85, False)
    assert "canary" not in repr(facts)


def test_vllms_configuration_in_development_mode():
    config = {"scheduler_config": {"max_num_seqs": 64}, "cache_config": {"enable_prefix_caching": False}}
    facts = told(VLLM, arguments=json.dumps({"vllm_config": config, "vllm_env": {"X": "canary"}}).encode())
    assert (facts.slots, facts.prefix_caching) == (64, False)
    assert told(VLLM, arguments=json.dumps({"vllm_config": "model='tiny', …"}).encode()) == Facts("u", VLLM)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\x00",
        b"{}",
        b"[]",
        b"null",
        b'{"vllm_config":[]}',
        b'{"max_total_num_tokens":"many"}',
        b"a 1e999\n",
        b"x{ 1",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_are_read(kind, text):
    assert told(kind, text, text) == Facts("u", kind)
    assert queue_on(text) is None


@pytest.mark.parametrize(
    ("headers", "signs"),
    [
        ({"server": "uvicorn"}, ()),
        ({"server": "llama.cpp"}, ()),
        ({"server": "nginx/1.25.3"}, ("server: nginx",)),
        ({"server": "canary"}, ()),
        ({"via": "1.1 canary", "cf-ray": "canary"}, ("via", "cf-ray")),
    ],
)
def test_a_proxy_is_seen_by_its_headers(headers, signs):
    assert proxies_in(headers) == signs
