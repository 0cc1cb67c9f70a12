"""Which server it is, from its pages: real ones, the embedded server's in every guise, and whatever else may come."""

import itertools
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.core import Kind
from batchclient.dialects._fingerprints import Fingerprint, ServedModel, ServerFacts
from batchclient.simulator import SimulatedServer
from tests.guises import GUISES

WIRE = Path(__file__).parent.parent / "wire"


def page(status=200, headers=None, **body):
    return status, headers or {}, json.dumps(body).encode()


NOT_FOUND = (404, {}, b'{"detail":"Not Found"}')


def recorded(server, name):
    reply = json.loads((WIRE / server / f"{name}.json").read_text())
    return reply["status"], reply["headers"], reply["body_text"].encode()


def find(pages):
    """Ask until there is nothing left to ask; return what is known, and which pages were asked for."""
    fingerprint, asked = Fingerprint(), []
    while (request := fingerprint.next()) is not None:
        assert (request.method, request.body, request.headers) == ("GET", b"", ())
        asked.append(request.path if request.from_root else "/v1" + request.path)
        fingerprint.take(*pages.get(asked[-1], NOT_FOUND))
    assert not fingerprint.open
    return fingerprint.facts(), asked


class Guise:
    """The pages of the embedded server in a guise."""

    def __init__(self, name):
        self.server = SimulatedServer("gpu", model="org/model", guise=GUISES[name], max_model_len_tokens=4096)
        self.asked = 0

    def get(self, path, otherwise):
        self.asked += 1
        self.server.receive(self.asked, "GET", path, b"", 0.0)
        parts = self.server.poll(1.0)
        return parts[0].status, dict(parts[0].headers), b"".join(part.body for part in parts)


def test_a_server_shows_whether_it_bounds_a_models_thinking_and_by_which_tag():
    models = page(data=[{"id": "m", "owned_by": "sglang"}])
    for told, has in (
        ({"enable_strict_thinking": True, "reasoning_parser": "qwen3"}, True),
        ({"enable_strict_thinking": True, "reasoning_parser": None}, False),
        ({"enable_strict_thinking": "yes", "reasoning_parser": "qwen3"}, False),
        ({}, False),
    ):
        facts, _ = find({"/v1/models": models, "/server_info": page(version="0.5.23", **told)})
        assert (facts.dialect, "thinking_budget" in facts.has) == ("sglang", has)
    models = page(data=[{"id": "m", "owned_by": "llamacpp"}])
    for template, tag in (("a [THINK] b", "[THINK]"), ("{{ messages }}", ""), (None, "")):
        facts, _ = find({"/v1/models": models, "/props": page(total_slots=4, chat_template=template)})
        assert (facts.dialect, facts.thinks_in) == ("llamacpp", tag)


def test_a_server_that_takes_no_lists_is_known_by_its_header_or_by_its_models():
    python = {"server": "BaseHTTP/0.6 Python/3.12.1"}
    for headers, card, why in (
        (python, {"id": "m"}, "it is built on Python's http.server, as mlx_lm.server is"),
        (python, {"id": "m", "owned_by": "vllm"}, ""),
        ({}, {"id": "org/m", "owned_by": "org", "status": {"value": "loaded"}}, "it is transformers serve"),
        ({}, {"id": "/a/b", "owned_by": "local", "status": {"value": "unloaded"}}, "it is transformers serve"),
        ({}, {"id": "org/m", "owned_by": "org"}, ""),
        ({}, {"id": "org/m", "owned_by": "llamacpp", "status": {"value": "loaded"}}, ""),
    ):
        facts, asked = find({"/v1/models": page(200, headers, data=[card])})
        assert (facts.singly, facts.caps) == (why, dict.fromkeys(Kind, 1) if why else {})
        assert len(asked) == (1 if why else 2)
    assert find({"/v1/models": (200, python, b"")})[0].singly


# Real pages ---------------------------------------------------------------------------------------------------------


def test_a_real_vllm():
    pages = {"/v1/models": recorded("vllm", "models"), "/version": recorded("vllm", "version")}
    facts, asked = find(pages)
    assert facts == ServerFacts("vllm", "0.32.0", (ServedModel("tiny", 2048, None, "tiny-model"),))
    assert asked == ["/v1/models", "/version"]
    assert facts.server == "vllm 0.32.0"
    assert facts.length_of("tiny") == 2048
    assert facts.length_of("another") is None


def test_a_real_llama_server():
    facts, asked = find({"/v1/models": recorded("llamacpp", "models"), "/props": recorded("llamacpp", "props")})
    assert (facts.dialect, facts.slots, facts.max_len, facts.base_models()) == ("llamacpp", 4, 2048, ["tiny"])
    assert asked == ["/v1/models", "/props"]
    assert facts.length_of("any name does") == 2048


def test_a_real_llama_server_that_wants_a_key():
    facts, asked = find({"/v1/models": recorded("llamacpp", "key_missing_models")})
    assert facts == ServerFacts()
    assert asked == ["/v1/models"]


def test_a_real_transformers_serve():
    facts, asked = find({"/v1/models": recorded("transformers", "models")})
    assert facts == ServerFacts()
    assert asked == ["/v1/models", "/info"]


def test_a_server_that_is_loading_is_asked_the_same_again():
    fingerprint = Fingerprint()
    assert fingerprint.next().path == "/models"
    assert not fingerprint.take(*recorded("llamacpp", "loading_plain_list"))
    assert fingerprint.next().path == "/models"
    assert fingerprint.take(*recorded("llamacpp", "models"))
    assert fingerprint.next().path == "/props"
    assert not fingerprint.take(503, {}, b"")
    assert fingerprint.next() is None, "three GETs are the most"
    assert fingerprint.facts().server == "llamacpp"


# The guises ---------------------------------------------------------------------------------------------------------


def test_guises():
    for guise, server, asked, caps, model in [
        ("vllm", "vllm 0.32.0", ["/v1/models", "/version"], {}, "org/model"),
        ("sglang", "sglang 0.5.23", ["/v1/models", "/server_info"], {}, "org/model"),
        ("llamacpp", "llamacpp", ["/v1/models", "/props"], {}, "org/model"),
        ("trtllm", "trtllm", ["/v1/models", "/version"], {}, "org/model"),
        ("tgi", "tgi", ["/v1/models", "/info"], {Kind.COMPLETION: 4}, "tgi"),
        ("tei", "tei", ["/v1/models", "/info"], {Kind.EMBEDDING: 32, Kind.SCORE: 32}, "org/model"),
        ("openai", None, ["/v1/models", "/info"], {}, "org/model"),
    ]:
        pages = Guise(guise)
        facts, paths = find(pages)
        assert paths == asked
        assert facts.dialect == guise
        assert (facts.server or "none").startswith(server or "none")
        assert facts.server is None or facts.version is not None
        assert {kind: facts.caps.get(kind) for kind in caps} == caps
        assert facts.base_models() == [model]
        lengths = {"vllm": 4096, "sglang": 4096, "llamacpp": 4096, "tgi": 4096}
        assert facts.length_of("org/model") == lengths.get(guise)
        slots = {
            "sglang": pages.server.profile.max_num_seqs,
            "llamacpp": pages.server.profile.max_num_seqs,
            "tgi": 128,
            "tei": 512,
        }
        assert facts.slots == slots.get(guise)


def test_the_names_of_all_models_are_known_before_the_last_page():
    """So that a call which waits for a name waits for one round trip; not with TGI, whose only name is another."""
    for guise, pages in {"vllm": 1, "llamacpp": 1, "sglang": 1, "openai": 1, "tgi": 2, "tei": 2}.items():
        source, fingerprint = Guise(guise), Fingerprint()
        while not fingerprint.names_models:
            request = fingerprint.next()
            path = request.path if request.from_root else "/v1" + request.path
            fingerprint.take(*source.get(path, NOT_FOUND))
        assert source.asked == pages, guise


# Details ------------------------------------------------------------------------------------------------------------


def test_which_servers_send_an_event_per_token_in_any_case():
    for known in ("vllm", "0.9.2"), ("vllm", "0.25.1"), ("vllm", "0.26.0rc1"), ("tgi", "3.3.6"):
        assert ServerFacts(*known).event_per_token is True, known
    for other in (
        ("vllm", "0.27.0"),
        ("vllm", "0.32.0"),
        ("vllm", "1.0.0"),
        ("vllm", "0.1.dev1+g0"),
        ("vllm", None),
        (None,),
    ):
        assert ServerFacts(*other).event_per_token is None, other


def cards(*models, owned_by="vllm"):
    return page(object="list", data=[{"object": "model", "owned_by": owned_by, **model} for model in models])


def test_base_models():
    for models, expected in [
        ([{"id": "a"}, {"id": "b"}], ["a", "b"]),
        ([{"id": "a", "parent": None}, {"id": "lora", "parent": "a"}], ["a"]),
        ([{"id": "a", "root": "x"}, {"id": "alias", "root": "x"}], ["a"]),
        ([{"id": "a", "root": "x"}, {"id": "b", "root": "y"}], ["a", "b"]),
        ([{"id": "lora", "parent": "gone"}], ["lora"]),
        ([], []),
        ([{"id": ""}, {"id": 5}, {}], []),
    ]:
        facts, _ = find({"/v1/models": cards(*models)})
        assert facts.base_models() == expected


def test_a_llama_server_is_known_by_its_header_alone():
    header = {"server": "llama.cpp"}
    pages = {"/v1/models": page(200, header, data=[{"id": "m"}]), "/props": page(200, header, total_slots=3)}
    facts, asked = find(pages)
    assert (facts.server, facts.slots, asked) == ("llamacpp", 3, ["/v1/models", "/props"])


def test_older_sglang_has_another_path():
    pages = {
        "/v1/models": cards({"id": "m", "max_model_len": 8}, owned_by="sglang"),
        "/get_server_info": page(version="0.4.1", max_running_requests=7),
    }
    facts, asked = find(pages)
    assert asked == ["/v1/models", "/server_info", "/get_server_info"]
    assert (facts.server, facts.slots) == ("sglang 0.4.1", 7)


def test_sglang_that_cuts_prompts_has_no_length_and_its_ranks_add_up():
    states = [{"effective_max_running_requests_per_dp": 30}, {"effective_max_running_requests_per_dp": 34}]
    pages = {
        "/v1/models": cards({"id": "m", "max_model_len": 8}, owned_by="sglang"),
        "/server_info": page(allow_auto_truncate=True, internal_states=states),
    }
    facts, _ = find(pages)
    assert (facts.slots, facts.length_of("m")) == (64, None)


def test_a_gateway_between_is_no_known_server_and_nothing_is_taken_for_granted_of_it():
    facts, asked = find({"/v1/models": cards({"id": "m"}, owned_by="openai")})
    assert (facts.dialect, facts.server) == ("openai", None)
    assert asked == ["/v1/models", "/info"]


def test_a_server_whose_own_pages_are_out_of_reach_is_not_called_at_its_own_routes():
    """A proxy lets ``/v1`` alone through."""
    for owner, status in itertools.product(["sglang", "llamacpp"], [403, 404, 500]):
        refusal = (status, {"server": "llama.cpp"} if owner == "llamacpp" else {}, b"")
        pages = dict.fromkeys(("/server_info", "/get_server_info", "/props"), refusal)
        facts, _ = find(pages | {"/v1/models": cards({"id": "m"}, owned_by=owner)})
        assert (facts.known, facts.base_models()) == (None, ["m"])


def test_a_version_or_a_number_that_is_none_is_not_shown():
    for field, version in itertools.product(
        ["version", "build_info"], ["<script>", "1\n2", "x" * 41, "", 5, None, ["1"]]
    ):
        facts, _ = find({"/v1/models": cards({"id": "m"}), "/version": page(**{field: version})})
        assert facts.server == "vllm"
    for number in (0, -1, 1.5, True, "8", None, 10**12):
        pages = {
            "/v1/models": cards({"id": "m", "max_model_len": number, "meta": {"n_ctx": number}}, owned_by="llamacpp"),
            "/props": page(total_slots=number, default_generation_settings={"n_ctx": number}),
        }
        facts, _ = find(pages)
        assert (facts.slots, facts.length_of("m"), facts.dialect) == (None, None, "llamacpp")


GARBAGE = [
    b"",
    b"<html>hello</html>",
    b"\xff\xfe\x00",
    b"[]",
    b"null",
    b"{}",
    b'{"data":null}',
    b'{"data":[1,null,[]]}',
    b'{"data":[{"id":["x"],"owned_by":["vllm"],"meta":[]}]}',
    b"[" * 100_000,
    b'{"data":[{"id":"m","owned_by":"vl',
]


def test_garbage_changes_nothing():
    for status, body in itertools.product([200, 204, 302, 400, 404, 405, 418, 500, 503], GARBAGE):
        facts, asked = find({path: (status, {}, body) for path in ("/v1/models", "/info", "/version", "/props")})
        # An empty list of models is a list.
        assert facts.server is None and facts.slots is None and facts.models == () and facts.caps == {}, (
            status,
            body[:40],
        )
        assert len(asked) <= 3


FIELDS = """
    data id owned_by meta n_ctx max_model_len version internal_states total_slots
    default_generation_settings max_concurrent_requests max_total_tokens max_client_batch_size
""".split()
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["vllm", "sglang", "llamacpp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from([200, 200, 200, 404, 401, 503]), _values), min_size=3, max_size=3))
def test_any_pages_give_facts_in_three_questions(pages):
    fingerprint, asked = Fingerprint(), 0
    while fingerprint.next() is not None:
        status, value = pages[asked]
        asked += 1
        fingerprint.take(status, {}, json.dumps(value).encode())
    assert asked <= 3
    facts = fingerprint.facts()
    assert isinstance(str(facts), str)
    assert all(isinstance(name, str) for name in facts.base_models())
