"""Calls that generate nothing, through the client, against the embedded server in virtual time: own answers, shared requests."""

import json
import math
from dataclasses import replace

import anyio
import pytest

from batchclient import (
    Completion,
    Choice,
    BadRequest,
    Classification,
    ConfigError,
    DialectError,
    NotFound,
    RankedDocument,
    Usage,
)
from tests.core import Kind
from batchclient._calls.likelihood import make_split, read_likelihood
from batchclient.dialects._servers import SERVERS
from batchclient.simulator import (
    SimulatedServer,
    SimulatorTransport,
    probabilities_of,
    score_of,
    vector_of,
)
from tests.fakes.old_vllm import COMPLETIONS_ALONE
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client


class Recorder(SimulatorTransport):
    """The embedded server; remembers what it was asked."""

    def __init__(self, **options):
        super().__init__(SimulatedServer("instant", model="m", **options))
        self.asked = []

    async def send(self, request, timeouts):
        self.asked.append((request.path, json.loads(request.body)))
        return await super().send(request, timeouts)

    def bodies(self, path):
        return [body for asked, body in self.asked if asked == path]


async def outcomes(calls):
    """The answer or the error of each of some calls, all made in one turn."""
    results = [None] * len(calls)

    async def one(place, call):
        try:
            results[place] = await call
        except Exception as caught:
            results[place] = caught

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(one, place, call)
    return results


# Embeddings ----------------------------------------------------------------------------------------------------------


class OnlyLists(Recorder):
    """Takes no text by itself, and no text "bad"."""

    refused = ("a", "b", "bad")

    async def send(self, request, timeouts):
        reply = await super().send(request, timeouts)
        given = json.loads(request.body)["input"]
        if given in self.refused or (isinstance(given, list) and "bad" in given):
            return await ScriptedTransport(error(422)).send(request, timeouts)
        return reply


async def test_a_lone_text_goes_as_a_list_of_one_where_only_lists_are_taken():
    server = OnlyLists()
    async with make_client(server) as client:
        # Before anything was answered, too.
        assert isinstance((await outcomes([client.embed("bad")]))[0], BadRequest)
        assert (await client.embed("a")).vector == vector_of("a")
        assert isinstance((await outcomes([client.embed("bad")]))[0], BadRequest)
        assert (await client.embed("b")).vector == vector_of("b")
    asked = [body["input"] for body in server.bodies("/embeddings")]
    assert asked == ["bad", ["bad"], "a", ["a"], ["bad"], "b", ["b"]]
    # Where one was answered by itself, a refusal is about the text.
    server = OnlyLists()
    server.refused = ("bad",)
    async with make_client(server) as client:
        await outcomes([client.embed("c"), client.embed("d")])
        await client.embed("a")
        assert isinstance((await outcomes([client.embed("bad")]))[0], BadRequest)
    assert [body["input"] for body in server.bodies("/embeddings")][1:] == ["a", "bad"]


async def test_a_lists_usage_is_shared_out():
    server = Recorder()
    async with make_client(server) as client:
        both = await outcomes([client.embed("one two"), client.embed("three")])
        alone = await client.embed("one two")
        ids = await outcomes([client.embed([5, 6, 7]), client.embed([5])])
    assert [answer.usage.prompt_tokens for answer in both] == [2, 2]
    assert all(answer.usage.prompt_tokens_estimated for answer in both)
    assert alone.usage == Usage(2, 0)
    # Token ids are counted, and add up to what the server counted.
    assert sorted(answer.usage.prompt_tokens for answer in ids) == [1, 3]
    assert alone.extra["object"] == "list"
    assert "data" not in alone.extra


def vectors(sent, **fields):
    """A reply with one number for each input, its place; the last first."""
    given = sent.body["input"]
    given = given if isinstance(given, list) else [given]
    items = [{"index": i, "embedding": [float(i), 1.0]} for i in range(len(given))]
    return Reply(chunks=[json.dumps({"data": items[::-1], **fields}).encode()])


def scripted(monkeypatch, *script):
    """A server that answers by script; what it was sent is read by ``body``."""

    def look(sent):
        sent.body = json.loads(sent.request.body)
        sent.prompts = [sent.body.get("input")]

    monkeypatch.setattr("tests.shell.scripted.Sent.__post_init__", look)
    return ScriptedTransport(*script)


class Never:
    """A retry policy that is not to be asked."""

    def decide(self, failure, attempt, elapsed_s, rng):
        pytest.fail("this is no failure: the calls are sent again in another form")


async def test_a_server_that_refuses_base64_is_asked_without(monkeypatch):
    refused = error(400, "encoding_format: Extra inputs are not permitted")
    server = scripted(monkeypatch, refused, vectors, vectors)
    async with make_client(server, retry=Never()) as client:
        answers = await outcomes([client.embed("a"), client.embed("b")])
        later = await client.embed("c")
    assert sorted(list(answer.vector) for answer in answers) == [[0.0, 1.0], [1.0, 1.0]]
    assert later.attempts == 1
    assert ["encoding_format" in sent.body for sent in server.sent] == [True, False, False]


async def test_a_server_that_ignores_base64_is_understood(monkeypatch):
    server = scripted(monkeypatch, vectors)
    async with make_client(server) as client:
        assert list((await client.embed("a")).vector) == [0.0, 1.0]


def spoilt(**changes):
    """A reply whose item of index 1 is changed."""

    def reply(sent):
        body = json.loads(vectors(sent).chunks[0])
        for item in body["data"]:
            if item["index"] == 1:
                item.update(changes)
        return Reply(chunks=[json.dumps(body).encode()])

    return reply


@pytest.mark.parametrize(
    "vector", [[math.nan, 1.0], [math.inf, 1.0], [], [1e39, 1.0], "AAAAA", "not base64 é"], ids=str
)
async def test_a_vector_that_is_none_fails_its_caller_alone(monkeypatch, vector):
    server = scripted(monkeypatch, *[spoilt(embedding=vector)] * 4)
    async with make_client(server) as client:
        answers = await outcomes([client.embed("a"), client.embed("b"), client.embed("c")])
    failed = [answer for answer in answers if isinstance(answer, Exception)]
    # Sent again alone, the place in the reply is another one: whoever was spoilt is served then.
    assert failed == []
    assert sorted(answer.attempts for answer in answers) == [1, 1, 2]


async def test_a_vector_that_is_none_twice_is_an_error(monkeypatch):
    bad = Reply(chunks=[b'{"data":[{"index":0,"embedding":[NaN]}]}'])
    server = scripted(monkeypatch, bad, bad, bad)
    async with make_client(server) as client:
        with pytest.raises(DialectError, match="NaN"):
            await client.embed("a")
    assert len(server.sent) == 2


async def test_vectors_of_different_lengths_are_handed_to_nobody(monkeypatch):
    server = scripted(monkeypatch, *[spoilt(embedding=[1.0, 2.0, 3.0])] * 2, vectors, vectors)
    async with make_client(server) as client:
        answers = await outcomes([client.embed("a"), client.embed("b")])
    # The list twice, then each alone.
    assert [list(answer.vector) for answer in answers] == [[0.0, 1.0]] * 2
    assert len(server.sent) == 4


# Scores and ranks ----------------------------------------------------------------------------------------------------


async def test_unrelated_pairs_share_a_request():
    server = Recorder()
    pairs = [(f"query {number}", f"document {number % 3}") for number in range(30)]
    async with make_client(server, limit=64) as client:
        answers = await outcomes([client.score(*pair) for pair in pairs])
    assert [answer.score for answer in answers] == [score_of(*pair) for pair in pairs]
    (body,) = server.bodies("/score")
    assert sorted(zip(body["text_1"], body["text_2"], strict=True)) == sorted(pairs)


DOCUMENTS = ["blue whales", "the red fox", "red", "a fox that is red", "stones"]


async def test_a_ranking_begins_with_the_best():
    server = Recorder()
    async with make_client(server) as client:
        ranked = await client.rerank("red fox", DOCUMENTS)
        best = await client.rerank("red fox", iter(DOCUMENTS), top_n=2)
    scores = [score_of("red fox", document) for document in DOCUMENTS]
    places = sorted(range(5), key=lambda place: -scores[place])
    assert ranked == [RankedDocument(place, scores[place], DOCUMENTS[place]) for place in places]
    assert best == ranked[:2]
    assert server.bodies("/score")[0]["text_1"] == "red fox"


async def test_equal_documents_keep_their_order():
    async with make_client(Recorder()) as client:
        ranked = await client.rerank("a", ["b", "b", "b"])
        assert await client.rerank("a", []) == []
    assert [document.index for document in ranked] == [0, 1, 2]


@pytest.fixture
def only_ranks(monkeypatch):
    """The server ranks documents, and scores no other pairs."""
    ranks = {kind: SERVERS["openai"].routes[kind] for kind in (Kind.SCORE, Kind.RERANK)}
    monkeypatch.setitem(SERVERS, "vllm", replace(SERVERS["vllm"], routes=ranks, caps={Kind.SCORE: 1}))


async def test_where_a_server_only_ranks_a_query_is_one_request(only_ranks):
    server = Recorder()
    async with make_client(server) as client:
        both = await outcomes([client.rerank("red fox", DOCUMENTS), client.rerank("whale", DOCUMENTS, top_n=1)])
        alone = await outcomes([client.score("red", "a"), client.score("fox", "b")])
    for query, ranked in zip(("red fox", "whale"), both, strict=True):
        scores = [score_of(query, document) for document in DOCUMENTS]
        assert [(each.index, each.score) for each in ranked][0] == (scores.index(max(scores)), max(scores))
        assert all(each.score == scores[each.index] for each in ranked)
    assert [len(ranked) for ranked in both] == [5, 1]
    assert [answer.score for answer in alone] == [score_of("red", "a"), score_of("fox", "b")]
    asked = server.bodies("/rerank")
    assert sorted((body["query"], len(body["documents"])) for body in asked) == [
        ("fox", 1),
        ("red", 1),
        ("red fox", 5),
        ("whale", 5),
    ]


async def test_pairs_with_different_queries_are_no_list_there(only_ranks, monkeypatch):
    # Nothing says beforehand that this server takes none: the list is taken apart, and nobody fails.
    monkeypatch.setitem(SERVERS, "vllm", replace(SERVERS["vllm"], caps={}))
    server = Recorder()
    async with make_client(server) as client:
        answers = await outcomes([client.score(f"q {number}", "d") for number in range(6)])
    assert [answer.score for answer in answers] == [score_of(f"q {number}", "d") for number in range(6)]
    assert [len(body["documents"]) for body in server.bodies("/rerank")] == [1] * 6


async def test_a_documents_error_names_it_and_ends_the_others():
    server = Recorder(max_model_len_tokens=64)
    async with make_client(server) as client:
        with pytest.raises(BadRequest) as caught:
            await client.rerank("a", ["b", "c", "much " * 100, "d"])
        assert caught.value.__notes__ == ["document 2"]
        await client.drain()
        statistics = client.statistics()
    assert (statistics.in_flight, statistics.queued) == (0, 0)


async def test_a_cancelled_ranking_leaves_nothing_behind(monkeypatch):
    held = anyio.Event()
    server = scripted(monkeypatch, Reply(chunks=[held]))
    async with make_client(server) as client:
        with anyio.move_on_after(1.0) as scope:
            await client.rerank("a", ["b", "c"])
        assert scope.cancelled_caught
        assert client.statistics().cancelled == 2
        await client.drain()
    assert [sent.state for sent in server.sent] == ["cancelled"] or server.sent[0].state == "closed"


# Classes and tokens --------------------------------------------------------------------------------------------------


async def test_each_text_gets_its_own_class():
    server = Recorder()
    async with make_client(server) as client:
        texts = [f"text {number}" for number in range(20)]
        answers = await outcomes([client.classify(text) for text in texts])
        by_ids = await client.classify([5, 6])
    for text, answer in zip(texts, answers, strict=True):
        probabilities = probabilities_of(text)
        assert type(answer) is Classification
        assert answer.probabilities == tuple(probabilities)
        assert answer.label == f"LABEL_{probabilities.index(max(probabilities))}"
    assert by_ids.usage == Usage(2, 0)
    assert [len(body["input"]) for body in server.bodies("/classify")] == [20, 2]


async def test_texts_are_tokenized_one_by_one():
    server = Recorder()
    async with make_client(server) as client:
        one, other = await outcomes([client.tokenize("hello world"), client.tokenize("hello")])
        empty = await client.tokenize("")
    assert (len(one), len(other), one[: len(other)]) == (4, 2, other)
    assert empty == []
    assert [body["prompt"] for body in server.bodies("/tokenize")].count("hello") == 1


async def test_a_path_that_is_not_there_is_told_of_its_kind_alone():
    server = Recorder(guise=COMPLETIONS_ALONE)
    async with make_client(server) as client:
        answers = await outcomes([client.embed("a"), *[client.complete(f"{n}", max_tokens=1) for n in range(3)]])
        # Twice, so that such calls are known to be refused; the others for the same model are served all the same.
        answers += await outcomes([client.embed("a"), *[client.complete(f"{n}", max_tokens=1) for n in range(3)]])
    assert all(isinstance(answer, NotFound) for answer in answers[::4])
    assert answers[0].message.endswith("the server has no embedding calls; an embedding model has to be served")
    assert all(answer.text for place, answer in enumerate(answers) if place % 4)


# Likelihoods ---------------------------------------------------------------------------------------------------------


async def test_likelihoods_travel_in_lists():
    server = Recorder()
    pairs = [(f"given {number}", f" and {number}") for number in range(12)]
    async with make_client(server) as client:
        answers = await outcomes([client.log_likelihood(own, given=given) for given, own in pairs])
        alone = await client.log_likelihood(" and 3", given="given 3")
    assert [len(body["prompt"]) for body in server.bodies("/completions")][0] == 12
    assert all(body["max_tokens"] == 0 and body["echo"] for body in server.bodies("/completions"))
    for (_, own), answer in zip(pairs, answers, strict=True):
        assert "".join(token.text for token in answer.tokens) == own
        assert answer.total == sum(token.log_likelihood for token in answer.tokens)
        assert answer.is_greedy
    assert answers[3].total == alone.total
    assert answers[3].tokens == alone.tokens


async def test_nothing_stands_before_the_first_token():
    async with make_client(Recorder()) as client:
        answer = await client.log_likelihood("one two")
    assert [token.log_likelihood is None for token in answer.tokens] == [True, False]
    assert answer.total == answer.tokens[1].log_likelihood


async def test_with_token_ids_the_boundary_is_a_count():
    async with make_client(Recorder()) as client:
        answer = await client.log_likelihood([7, 8], given=[5, 6, 4])
        bare = await client.log_likelihood([7, 8])
    assert [token.text for token in answer.tokens] == [" 7", " 8"]
    assert [token.log_likelihood is None for token in bare.tokens] == [True, False]
    assert answer.usage.prompt_tokens == 5


async def test_ids_that_do_not_come_back_are_no_likelihood():
    server = ScriptedTransport(echoed(["a", "b"], [None, -1.0], [None, {"b": -1.0}]))
    async with make_client(server) as client:
        with pytest.raises(DialectError, match="echo"):
            await client.log_likelihood([7], given=[5, 6])


async def test_a_token_across_the_boundary_is_the_continuations():
    async with make_client(Recorder()) as client:
        # The simulated model's pieces have at most three letters after a blank: " tow" and "er".
        answer = await client.log_likelihood("wer", given="the to")
    assert "".join(token.text for token in answer.tokens).endswith("wer")
    assert "".join(token.text for token in answer.tokens) != "wer"


def echoed(tokens, numbers, tops, **fields):
    def reply(sent):
        logprobs = {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops, "text_offset": []}
        choice = {"index": 0, "text": "".join(tokens), "finish_reason": "length", "logprobs": logprobs}
        headers = {"content-type": "application/json"}
        return Reply(headers=headers, chunks=[json.dumps({"choices": [choice], **fields}).encode()])

    return reply


async def test_a_likelier_token_is_told_by_its_value():
    tops = [None, {"b": -1.0, "x": -0.5}, {"c": -0.1}]
    server = ScriptedTransport(*[echoed(["a", "b", "c"], [None, -1.0, -0.1], tops)] * 2)
    async with make_client(server) as client:
        answer = await client.log_likelihood("bc", given="a")
        assert (await client.log_likelihood("c", given="ab")).is_greedy
    assert [token.is_greedy for token in answer.tokens] == [False, True]
    assert not answer.is_greedy
    assert answer.total == pytest.approx(-1.1)


async def test_a_models_own_first_token_moves_no_boundary():
    tops = [None, {"a": -1.0}, {"b": -2.0}]
    server = ScriptedTransport(*[echoed(["<s>", "a", "b"], [None, -1.0, -2.0], tops)] * 2)
    async with make_client(server) as client:
        assert (await client.log_likelihood("b", given="a")).total == -2.0
        assert (await client.log_likelihood("ab")).total == -3.0


async def test_the_bytes_of_a_first_character_are_the_continuations():
    # As vLLM writes the tokens of "é": the first byte has no text.
    tops = [None, {"": -4.0}, {"é": -2.0}]
    server = ScriptedTransport(echoed(["a", "", "é"], [None, -4.0, -2.0], tops))
    async with make_client(server) as client:
        assert (await client.log_likelihood("é", given="a")).total == -6.0


async def test_a_server_that_generates_at_least_one_token_is_asked_for_one():
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    tops = [None, {"b": -2.0}, {"z": -9.0}]
    reply = echoed(["a", "b", "z"], [None, -2.0, -9.0], tops, usage=usage)
    server = ScriptedTransport(error(400, "max_tokens must be at least 1"), reply, reply)
    async with make_client(server) as client:
        first = await client.log_likelihood("b", given="a")
        second = await client.log_likelihood("b", given="a")
    assert first.total == second.total == -2.0
    assert [sent.body["max_tokens"] for sent in server.sent] == [0, 1, 1]


@pytest.mark.parametrize(
    "reply",
    [
        echoed(["x"], [-1.0], [{"x": -1.0}]),
        echoed(["a", "b"], [None], [None, {}]),
        echoed([], [], []),
        lambda sent: Reply(chunks=[b'{"choices":[{"index":0,"text":"ab","finish_reason":"length","logprobs":null}]}']),
    ],
    ids=["other text", "unequal", "nothing", "no logprobs"],
)
async def test_what_does_not_fit_is_no_likelihood(reply):
    async with make_client(ScriptedTransport(reply)) as client:
        with pytest.raises(DialectError, match="echo") as caught:
            await client.log_likelihood("b", given="a")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("numbers", "tops"),
    [
        ([None, -1.0, None, -0.5], [None, {"b": -1.0}, None, {"d": -0.5}]),
        ([None, None, -1.0, -0.5], [None, None, {"c": -1.0}, {"d": -0.5}]),
        ([None, -1.0, -2.0, None], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
        ([None, -1.0, float("nan"), -0.5], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
        ([None, -1.0, "-2.0", -0.5], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
        ([None, -1.0, True, -0.5], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
        ([None, -1.0, 2.0, -0.5], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
        ([None, -1.0, float("inf"), -0.5], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
        ([None, -1.0, -2.0, -0.5], [None, {"b": -1.0}, None, {"d": -0.5}]),
        ([None, -1.0, -2.0, -0.5], [None, {"b": -1.0}, {}, {"d": -0.5}]),
        ([None, -1.0, -2.0, -0.5], [None, {"b": -1.0}, {"c": None}, {"d": -0.5}]),
        ([None, -1.0, -2.0, -0.5], [None, {"b": -1.0}, {"c": float("nan")}, {"d": -0.5}]),
        ([None, -1.0, -2.0, -0.5], [None, {"b": -1.0}, ["c", -2.0], {"d": -0.5}]),
        ([None, -1.0, -(10**400), -0.5], [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}]),
    ],
)
async def test_a_token_whose_likelihood_is_not_told_leaves_no_total(numbers, tops):
    server = ScriptedTransport(*[echoed(["a", "b", "c", "d"], numbers, tops)] * 2)
    async with make_client(server) as client:
        with pytest.raises(DialectError) as caught:
            await client.log_likelihood("bcd", given="a")
        # What is not told of the part that was given does not matter.
        if numbers[3] is not None:
            assert (await client.log_likelihood("d", given="abc")).total == -0.5
    assert "log_likelihood" not in caught.value.message or "echo" in caught.value.message


async def test_an_impossible_token_is_minus_infinity_where_the_server_says_so():
    tops = [None, {"b": -1.0}, {"x": -0.1}]
    server = ScriptedTransport(echoed(["a", "b", "c"], [None, -1.0, float("-inf")], tops))
    async with make_client(server) as client:
        answer = await client.log_likelihood("bc", given="a")
    assert answer.total == float("-inf")
    assert not answer.is_greedy


def test_an_estimate_tells_no_generated_token_from_the_prompts():
    logprobs = {
        "tokens": ["a", "b", "z"],
        "token_logprobs": [None, -2.0, -9.0],
        "top_logprobs": [None, {"b": -2.0}, {"z": -9.0}],
    }
    split = make_split("b", "a", {})
    counted = Completion((Choice(0, "abz", "length", logprobs),), Usage(2, 1))
    assert read_likelihood(counted, split, generated=True).total == -2.0
    shared = Completion((Choice(0, "abz", "length", logprobs),), Usage(2, 1, completion_tokens_estimated=True))
    with pytest.raises(DialectError):
        read_likelihood(shared, split, generated=True)
    # Without a generated token the echo's own count is exact.
    assert read_likelihood(shared, make_split("bz", "a", {}), generated=False).usage == Usage(3, 0)


# Maps ----------------------------------------------------------------------------------------------------------------


async def test_a_map_may_embed_and_classify():
    server = Recorder()
    documents = [f"text {number}" for number in range(50)]
    async with make_client(server) as client:
        vectors = await client.batch_map(documents, "{}", call="embed")
        rows = [row async for row in client.stream_map(documents, lambda text: text.upper(), call="classify")]
    assert [answer.vector for answer in vectors] == [vector_of(text) for text in documents]
    assert {row.document: row.answer.probabilities for row in rows} == {
        text: tuple(probabilities_of(text.upper())) for text in documents
    }
    assert all(row.completion is None and row.error is None for row in rows)


# Bad input -----------------------------------------------------------------------------------------------------------


async def test_extra_body_passes_what_no_server_is_known_to_take():
    server = Recorder()
    async with make_client(server) as client:
        await client.score("a", "b", extra_body={"instructions": "x"})
        await client.rerank("a", ["b"], extra_body={"top_k": 1}, instruction="y", use_activation=False)
        await client.classify("a", extra_body={"zzz": 1}, user="me")
        await client.embed("a", extra_body={"dimension": 4}, truncate_prompt_tokens=4)
        await client.log_likelihood("b", given="a", extra_body={"context": "x"}, add_special_tokens=False)
    sent = [body for _, body in server.asked]
    assert [body.get("instructions") for body in sent] == ["x", None, None, None, None]
    assert [body.get("instruction") for body in sent] == [None, "y", None, None, None]
    assert [body.get("zzz") for body in sent] == [None, None, 1, None, None]
    assert [body.get("dimension") for body in sent] == [None, None, None, 4, None]
    assert [body.get("context") for body in sent] == [None, None, None, None, "x"]


async def test_extra_body_sets_nothing_that_a_likelihood_rests_on():
    async with make_client(Recorder()) as client:
        with pytest.raises(ConfigError, match="echo is set by log_likelihood"):
            await client.log_likelihood("b", given="a", extra_body={"echo": False})
