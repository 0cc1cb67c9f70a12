"""Metrics pages: a real vLLM's, the other servers' names, and whatever else may come."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.core import ServerLoad
from batchclient.dialects._metrics import parse_metrics
from batchclient.simulator import SimulatedServer

_FOLDER = Path(__file__).parent.parent / "wire" / "vllm"
PAGES = {name: (_FOLDER / f"metrics_{name}.txt").read_bytes() for name in ("idle", "busy", "after")}


def test_a_real_vllm_under_more_work_than_it_runs():
    assert parse_metrics(PAGES["busy"], "tiny") == ServerLoad(
        running=8,
        waiting=32,
        kv_usage_ratio=0.019540791402051783,
        preemptions=0,
        generation_tokens=8088,
        prefix_query_tokens=1987,
        prefix_hit_tokens=0,
    )


def test_a_real_vllm_before_and_after():
    before, after = parse_metrics(PAGES["idle"]), parse_metrics(PAGES["after"])
    assert (before.running, before.waiting, before.generation_tokens) == (0, 0, 0)
    assert (after.running, after.waiting, after.generation_tokens) == (0, 0, 28_800)


def test_what_the_embedded_server_shows_is_what_a_real_one_shows():
    server = SimulatedServer("gpu", model="tiny")
    server.receive(1, "GET", "/metrics", b"", 0.0)
    (part,) = server.poll(1.0)
    ours = part.body

    def labels_by_name(page):
        samples = re.findall(rb"^(vllm:\w+?)(?:\{(.*)\})? \S+$", page, re.MULTILINE)
        return {name: set(re.findall(rb'(\w+)="', labels)) for name, labels in samples}

    real = labels_by_name(PAGES["busy"])
    shown = labels_by_name(ours)
    assert shown.keys() <= real.keys()
    assert {name: labels - real[name] for name, labels in shown.items() if labels - real[name]} == {}
    load = parse_metrics(ours, "tiny")
    assert None not in (load.running, load.waiting, load.kv_usage_ratio, load.preemptions, load.prefix_hit_tokens)


def test_vllm_before_0_9():
    page = b"""vllm:num_requests_running{model_name="m"} 5.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.87
vllm:num_preemptions_total{model_name="m"} 10.0
vllm:gpu_prefix_cache_queries_total{model_name="m"} 40
vllm:gpu_prefix_cache_hits_total{model_name="m"} 30
"""
    assert parse_metrics(page) == ServerLoad(5, 2, 0.87, 10, None, 30, 40)


def test_engines_are_added_up_and_ratios_averaged():
    page = b"""vllm:num_requests_running{engine="0",model_name="m"} 5
vllm:num_requests_running{engine="1",model_name="m"} 7
vllm:num_requests_waiting{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="1",model_name="m"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
"""
    assert parse_metrics(page, "m") == ServerLoad(12, 1, 0.5)


def test_several_models_on_a_page():
    page = rb"""vllm:num_requests_running{model_name="a"} 5
vllm:num_requests_running{model_name="b \"c\" \\ d"} 7
"""
    assert parse_metrics(page, "a").running == 5
    assert parse_metrics(page, 'b "c" \\ d').running == 7
    assert parse_metrics(page, "a LoRA of a").running == 12
    assert parse_metrics(page).running == 12


def test_no_value_of_a_label_passes_for_a_label():
    page = rb"""vllm:num_requests_running{path="x,model_name=\"a\"",model_name="b"} 5
vllm:num_requests_running{model_name="a"} 7
"""
    assert parse_metrics(page, "a").running == 7


def test_sglang_with_ranks():
    def rank(name, value, **ranks):
        labels = ",".join(
            f'{key}="{number}"' for key, number in {"tp_rank": 0, "dp_rank": 0, "pp_rank": 0, **ranks}.items()
        )
        return f'sglang:{name}{{engine_type="unified",{labels},model_name="m"}} {value}\n'

    page = "".join(
        [
            rank("num_running_reqs", 3),
            rank("num_running_reqs", 3, tp_rank=1),
            rank("num_running_reqs", 3, pp_rank=1),
            rank("num_running_reqs", 4, dp_rank=1),
            rank("num_queue_reqs", 9),
            rank("token_usage", 0.5),
            rank("num_retracted_reqs", 77),
            rank("num_retracted_requests_total", 2),
            'sglang:prompt_tokens_total{model_name="m"} 40\n',
            'sglang:cached_tokens_total{model_name="m",cache_source="device"} 10\n',
            'sglang:cached_tokens_total{model_name="m",cache_source="host"} 5\n',
            'sglang:generation_tokens_total{model_name="m"} 60\n',
        ]
    )
    assert parse_metrics(page.encode(), "m") == ServerLoad(7, 9, 0.5, 2, 60, 15, 40)


def test_tgi():
    page = b"tgi_queue_size 5\ntgi_batch_current_size 8\ntgi_batch_current_max_tokens 2048\ntgi_request_generated_tokens_sum 640\n"
    assert parse_metrics(page) == ServerLoad(running=8, waiting=5, generation_tokens=640)


def test_llama_cpp():
    page = b"""# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
llamacpp:requests_deferred 8
llamacpp:tokens_predicted_total 39080
llamacpp:tokens_predicted_seconds_total 1235.5
"""
    assert parse_metrics(page) == ServerLoad(running=4, waiting=8, generation_tokens=39_080)


def test_what_says_nothing_of_the_load():
    for page in (
        b"",
        b"not found",
        b"<html><body>vllm:num_requests_running 4</body></html>",
        b'{"error":"Unauthorized"}',
        b"python_gc_objects_collected_total 3\n",
        b"# vllm:num_requests_running 4\n",
        b"vllm:num_requests_running_max 4\n",
        b"xvllm:num_requests_running 4\n",
        b"vllm:num_requests_running\n",
        b"vllm:num_requests_running{ 4\n",
        b"vllm:num_requests_running NaN\n",
        b"vllm:num_requests_running +Inf\n",
        b"vllm:num_requests_running -1\n",
        b"vllm:num_requests_running 1e999\n",
        b"vllm:num_requests_running 1e308\n",
        b"vllm:num_requests_running 4x\n",
        b"vllm:num_requests_running 1-2\n",
        b"vllm:kv_cache_usage_perc 87.0\n",
        b"vllm:generation_tokens_total 5\n",
        PAGES["busy"].replace(b"vllm:", b"vllm_v2:"),
        b"\x1f\x8b\x08\x00" + PAGES["busy"][:999],
    ):
        assert parse_metrics(page, "tiny") is None, page


def test_numbers_that_add_up_to_no_number_are_none():
    page = (
        b'vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\ntgi_queue_size 1\n'
    )
    assert parse_metrics(page) == ServerLoad(waiting=1)


def test_other_ends_of_a_line():
    for ending in (b"\r\n", b" 1795258666984\n"):
        assert parse_metrics(PAGES["busy"].replace(b"\n", ending)) == parse_metrics(PAGES["busy"])


def test_a_page_that_is_cut_off():
    for cut in range(0, 48_000, 997):
        load = parse_metrics(PAGES["busy"][:cut], "tiny")
        assert load is None or load.running in (None, 8), cut


_PIECES = st.sampled_from(
    [b"vllm:num_requests_running", b"vllm:kv_cache_usage_perc", b"tgi_queue_size"]
    + [b"{", b"}", b'"', b",", b"=", b" ", b"\n", b"\r\n", b"\\", b"#", b"\xff", b"\0"]
    + [b'model_name="', b'tp_rank="0"', b'pp_rank="', b"9" * 40, b"1e308", b"NaN", b"-", b"_total", b"0.5"]
)


@given(st.one_of(st.binary(), st.lists(_PIECES).map(b"".join)), st.none() | st.text())
def test_any_bytes_give_a_load_or_none(page, model):
    load = parse_metrics(page, model)
    if load is not None:
        values = [getattr(load, name) for name in ServerLoad.__slots__]
        assert all(value is None or 0 <= value < float("inf") for value in values)
        assert load.kv_usage_ratio is None or load.kv_usage_ratio <= 1
