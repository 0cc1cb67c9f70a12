"""``probabilities=True``: how likely each label is, by one token, or by scores where their first tokens are shared."""

import json
import logging
import math
import re

import anyio
import pytest
from tests.core import Kind, Submitted
from tests.seams import watch_cores

from batchclient import BadRequest, Batching, ConfigError, DialectError, Price, Server

from .scripted import Reply, ScriptedTransport, error, make_client

LABELS = ["good", "bad", "very bad"]
NUMBERS = {"good": 0.2, "bad": 0.5, "very bad": 0.25}
_PIECES = re.compile(r"</s>| ?[^\s:<>(：]+|\s|[:<>(：]")
CHAT = [{"role": "user", "content": "x?"}]


class Model:
    """A server whose tokens are words, with the blank before them: ids in the order in which they were first seen.

    Args:
        tells: how it tells a chosen token: ``"ids"``, or ``"top"``: those of the likeliest alone, as before.
        likely: the probability of each word, with or without a blank, or of two: of the second behind the first.
        end: what its template ends an answer with.
    """

    def __init__(self, tells="ids", likely=NUMBERS, end="</s>"):
        self.tells, self.likely, self.end = tells, likely, end
        self.words = []
        self.server = ScriptedTransport()
        self.server.script = _Always(self.answer)

    def pieces(self, text):
        return _PIECES.findall(text)

    def ids(self, text):
        for piece in self.pieces(text):
            if piece not in self.words:
                self.words.append(piece)
        return [self.words.index(piece) for piece in self.pieces(text)]

    def of(self, piece, before=""):
        word = piece.strip(" ")
        return math.log(self.likely.get(f"{before.strip()} {word}", self.likely.get(word, 1e-6)))

    def answer(self, sent):
        body = sent.body
        if sent.request.path == "/tokenize":
            if "messages" in body:
                text = "".join(f"<{each['role']}> {each['content']}" for each in body["messages"])
                if body["messages"][-1]["role"] != "assistant":
                    text += "<assistant>"
                elif not body.get("continue_final_message"):
                    text += self.end
            else:
                text = body["prompt"]
            return Reply(chunks=[json.dumps({"tokens": self.ids(text)}).encode()])
        if body.get("echo"):
            choices = [self.echoed(place, prompt) for place, prompt in enumerate(sent.prompts)]
        else:
            choices = [self.told(place, body) for place in range(1 if "messages" in body else len(sent.prompts))]
        return Reply(chunks=[json.dumps({"choices": choices}).encode()])

    def echoed(self, index, prompt):
        pieces = [self.words[each] for each in prompt] if isinstance(prompt, list) else self.pieces(prompt)
        numbers = [None, *map(self.of, pieces[1:], pieces)]
        tops = [None if number is None else {"x": number} for number in numbers]
        told = {"tokens": pieces, "token_logprobs": numbers, "top_logprobs": tops}
        return {"index": index, "text": "".join(pieces), "finish_reason": "length", "logprobs": told}

    def told(self, index, body):
        ids = body["logprob_token_ids"] if self.tells == "ids" else range(1)
        told = {f"token_id:{each}": self.of(self.words[each]) for each in ids}
        choice = {"index": index, "finish_reason": "length", "token_ids": [7]}
        if "messages" in body:
            top = [{"token": name, "logprob": number} for name, number in told.items()]
            message = {"role": "assistant", "content": "Z"}
            return choice | {"message": message, "logprobs": {"content": [{"token": "Z", "top_logprobs": top}]}}
        return choice | {"text": "Z", "logprobs": {"tokens": ["Z"], "token_logprobs": [-9], "top_logprobs": [told]}}

    def sent(self, path="/completions"):
        return [each.body for each in self.server.sent if each.request.path == path]

    def client(self, **settings):
        return make_client(self.server, **{"dialect": "vllm", **settings})


class _Always(list):
    def __init__(self, step):
        super().__init__([step])

    def pop(self, _):
        return self[0]


def near(numbers, other):
    return pytest.approx(numbers | {"other": other})


async def test_one_token_tells_the_probability_of_each_label():
    model = Model()
    async with model.client() as client:
        answer = await client.complete("Is it good?", labels=LABELS, probabilities=True)
        assert answer.probabilities == near({"good": 0.2, "bad": 0.5, "very bad": 1e-6}, 0.3 - 1e-6)
        assert [*answer.probabilities] == [*LABELS, "other"]
        assert (answer.label, answer.text, answer.health) == ("bad", "bad", "ok")
        assert answer.choices[0].logprobs is None
        told = answer.as_dict()
        assert told["label"] == "bad" and told["probabilities"] == answer.probabilities
        body = model.sent()[-1]
        assert body["max_tokens"] == 1 and body["return_tokens_as_token_ids"] is True
        assert [model.words[each] for each in body["logprob_token_ids"]] == [" good", " bad", " very"]
        assert not {"labels", "probabilities", "structured_outputs"} & body.keys()
        asked = len(model.server.sent)
        await client.complete("And this one?", labels=LABELS, probabilities=True, max_tokens=8)
        assert len(model.server.sent) == asked + 1, "how labels begin is asked once"
        assert model.sent()[-1]["max_tokens"] == 1, "of more tokens nothing is told"


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["yes", "no"], ["other: 0.898 on the mean: the prompt does not ask for a label"]),
        (["cold", "hot"], []),
    ],
)
async def test_labels_that_the_prompt_does_not_ask_for_are_told_once(caplog, labels, told):
    caplog.set_level(logging.WARNING, "batchclient")
    model = Model(likely=NUMBERS | {"yes": 0.002, "no": 0.1, "cold": 0.3, "hot": 0.3})
    async with model.client() as client:
        await client.batch_map([f"{n}?" for n in range(19)], "{}", labels=labels, probabilities=True)
        assert caplog.messages == []
        await client.batch_map([f"{n}?" for n in range(40)], "{}", labels=labels, probabilities=True)
    assert caplog.messages == told
    assert all((each.event, round(each.other, 3)) == ("labels_unlikely", 0.898) for each in caplog.records)


@pytest.mark.parametrize("prompt", ["Say it:\n", "Say it: ", "(", "评价："])
async def test_where_the_prompt_s_end_asks_for_no_blank_the_labels_have_none(prompt):
    model = Model()
    async with model.client() as client:
        await client.complete(prompt, labels=LABELS, probabilities=True)
    assert [model.words[each] for each in model.sent()[-1]["logprob_token_ids"]] == ["good", "bad", "very"]


async def test_a_chat_s_labels_begin_as_its_template_says():
    model = Model()
    async with model.client() as client:
        answer = await client.chat(CHAT, labels=LABELS, probabilities=True)
    assert answer.label == "bad" and answer.message == {"role": "assistant", "content": "bad"}
    body = model.sent("/chat/completions")[-1]
    assert (body["logprobs"], body["max_tokens"]) == (True, 1)
    assert [model.words[each] for each in body["logprob_token_ids"]] == [" good", " bad", " very"]


async def test_a_chat_is_kept_from_thinking_by_its_template_and_makes_one_token():
    model = Model()
    async with model.client() as client:
        await client.chat(CHAT, labels=LABELS, probabilities=True, thinking_tokens=0)
        (answer,) = await client.batch_map(
            ["x?"], "{}", call="chat", labels=LABELS, probabilities=True, thinking_tokens=0
        )
    assert answer.label == "bad"
    for body in [*model.sent("/chat/completions"), *(each for each in model.sent("/tokenize") if "messages" in each)]:
        assert body["chat_template_kwargs"]["enable_thinking"] is False
        assert body.get("max_tokens") in (1, None) and "thinking_token_budget" not in body


SHARED = ["very good", "very bad"]


async def test_labels_that_share_their_first_token_are_scored_in_a_list():
    model = Model(likely={"very": 0.5, "good": 0.3, "bad": 0.1})
    async with model.client() as client:
        answer = await client.complete("So:", labels=SHARED, probabilities=True)
    assert answer.probabilities == near({"very good": 0.75, "very bad": 0.25}, None)
    assert (answer.label, answer.text, answer.health) == ("very good", "very good", "ok")
    body = model.sent()[-1]
    assert body["prompt"] == ["So: very good", "So: very bad"]
    assert (body["echo"], body["logprobs"], body["max_tokens"]) == (True, 1, 0)


async def test_a_chat_s_labels_are_scored_by_their_tokens():
    model = Model(likely={"very": 0.5, "good": 0.3, "bad": 0.1})
    async with model.client() as client:
        answer = await client.chat(CHAT, labels=SHARED, probabilities=True)
        (again,) = await client.batch_map([CHAT], lambda row: row, call="chat", labels=SHARED, probabilities=True)
    for each in (answer, again):
        assert each.probabilities == near({"very good": 0.75, "very bad": 0.25}, None)
        assert each.message == {"role": "assistant", "content": "very good"}
    texts = ["".join(model.words[each] for each in prompt) for prompt in model.sent()[-1]["prompt"]]
    assert texts == ["<user> x?<assistant> very good", "<user> x?<assistant> very bad"]


CONTINUED = ["New York", "New York City", "Rome"]
OF_CITIES = {"New": 0.5, "York": 0.8, "City": 0.9, "Rome": 0.1, "City \n": 1.0, "York \n": 0.1, "Rome \n": 1.0}


async def test_a_label_that_continues_another_may_be_the_likelier_one():
    model = Model(likely=OF_CITIES)
    async with model.client() as client:
        answer = await client.complete("Where?", labels=CONTINUED, probabilities=True)
    whole = 0.5 * 0.8 * 0.1 + 0.5 * 0.8 * 0.9 + 0.1
    assert answer.label == "New York City"
    assert answer.probabilities == near(
        {"New York": 0.04 / whole, "New York City": 0.36 / whole, "Rome": 0.1 / whole}, None
    )
    assert model.sent()[-1]["prompt"] == ["Where? New York\n", "Where? New York City\n", "Where? Rome\n"]


async def test_in_a_chat_a_label_that_continues_another_ends_as_its_template_ends_an_answer():
    model = Model(likely={name.replace("\n", "</s>"): number for name, number in OF_CITIES.items()}, end="</s>\n")
    async with model.client() as client:
        answer = await client.chat(CHAT, labels=CONTINUED, probabilities=True)
    assert answer.label == "New York City"
    texts = ["".join(model.words[each] for each in prompt) for prompt in model.sent()[-1]["prompt"]]
    assert texts == [f"<user> x?<assistant> {label}</s>" for label in CONTINUED]
    model = Model(end="!\n")  # one token with the last word
    async with model.client() as client:
        await client.chat(CHAT, labels=CONTINUED, probabilities=True)
    texts = ["".join(model.words[each] for each in prompt) for prompt in model.sent()[-1]["prompt"]]
    assert texts == [f"<user> x?<assistant> {label}!\n" for label in CONTINUED]
    model = Model(end="")
    async with model.client() as client:
        with pytest.raises(ConfigError, match="one label begins with another") as caught:
            await client.chat(CHAT, labels=CONTINUED, probabilities=True)
    assert caught.value.field == "labels"


async def test_a_completion_of_a_model_that_thinks_is_told_to_be_a_chat():
    model = Model()
    told = model.told
    model.told = lambda place, body: told(place, body) | {"text": "<think>"}
    async with model.client() as client:
        for params in ({}, {"thinking_tokens": 0}):
            with pytest.raises(ConfigError, match=r"thinks before it answers: ask by chat\(\), .* thinking_tokens=0"):
                await client.complete("x", labels=LABELS, probabilities=True, **params)


async def test_a_server_that_does_not_tell_chosen_tokens_is_asked_for_scores():
    model = Model(tells="top")
    async with model.client() as client:
        answer = await client.complete("So:", labels=["good", "bad"], probabilities=True)
    assert answer.probabilities == near({"good": 2 / 7, "bad": 5 / 7}, None)


async def test_rows_of_one_template_share_requests():
    model = Model()
    async with model.client(batching=Batching(max_size=8)) as client:
        answers = await client.batch_map([f"{n}?" for n in range(8)], "{}", labels=LABELS, probabilities=True)
        assert {answer.label for answer in answers} == {"bad"}
        assert [len(body["prompt"]) for body in model.sent() if isinstance(body["prompt"], list)] == [8]
        answers = await client.batch_map([f"{n}?" for n in range(4)], "{}", labels=SHARED, probabilities=True)
        assert [answer.probabilities["other"] for answer in answers] == [None] * 4
        assert len(model.sent()[-1]["prompt"]) == 8


async def test_rows_end_with_the_error_of_what_was_to_be_found_out():
    model = Model()
    model.server.script = _Always(lambda sent: error(400, "no tokenizer here"))
    async with model.client() as client:
        results = await client.batch_map(["a?", "b?"], "{}", labels=LABELS, probabilities=True, return_exceptions=True)
        assert [type(each).__name__ for each in results] == ["BadRequest"] * 2 and results[0] is not results[1]


async def test_a_row_whose_prompt_is_token_ids_fails_alone():
    model = Model()
    async with model.client() as client:
        answers = await client.batch_map(
            [[1, 2], "b?"], lambda row: row, labels=LABELS, probabilities=True, return_exceptions=True
        )
    assert type(answers[0]) is ConfigError and "a text" in str(answers[0]) and answers[1].label == "bad"


async def test_a_map_that_is_left_meanwhile_sends_nothing_more():
    model = Model()
    model.server.held = True
    async with model.client() as client:
        async with client.stream_map(["a?"], "{}", labels=LABELS, probabilities=True) as rows:
            with anyio.move_on_after(1):
                await rows.__anext__()
        model.server.release()
    assert not model.sent()


async def test_a_reply_without_a_label_s_token_is_an_error():
    model = Model()
    async with model.client(retry=None) as client:
        await client.complete("a?", labels=LABELS, probabilities=True)
        model.tells = "top"
        with pytest.raises(DialectError, match="first token"):
            await client.complete("a?", labels=LABELS, probabilities=True)


@pytest.mark.parametrize("number", [math.nan, math.inf, 5.0, -(10**400)])
async def test_a_number_that_is_no_logarithm_of_a_probability_is_an_error(number):
    model = Model()
    async with model.client(retry=None) as client:
        await client.complete("a?", labels=LABELS, probabilities=True)
        model.of = lambda *_: number
        with pytest.raises(DialectError, match="first token"), anyio.fail_after(5):
            await client.complete("a?", labels=LABELS, probabilities=True)


async def test_servers_of_several_models_are_not_asked_by_one_model_s_tokens():
    model, asked = Model(), {"labels": LABELS, "probabilities": True}
    servers = [Server("http://own/v1"), Server("http://hosted/v1", model="big", price=Price(input=1.0))]
    async with model.client(base_url=servers) as client:
        with pytest.raises(ConfigError, match="tokens for a label: name one of big, m") as caught:
            await client.complete("Is it good?", **asked)
        assert caught.value.field == "model"
        (answer,) = await client.batch_map(["Is it good?"], "{}", **asked, return_exceptions=True)
        assert isinstance(answer, ConfigError)
        assert (await client.complete("Is it good?", model="big", **asked)).label == "bad"
        # Scored labels of a completion are texts.
        either = await client.complete("Is it good?", labels=["very good", "very bad"], probabilities=True)
        assert either.probabilities["other"] is None
        asked_before = len(model.sent("/tokenize"))
        await client.remove_endpoint("http://own/v1")
        assert (await client.complete("Is it good?", **asked)).label == "bad"
        assert len(model.sent("/tokenize")) > asked_before, "the other model's tokens are its own"


@pytest.mark.parametrize(
    ("params", "field", "words"),
    [
        ({}, "probabilities", "give labels"),
        ({"labels": LABELS, "n": 2}, "n", "leave n out"),
        ({"labels": LABELS, "logprobs": 3}, "logprobs", "the client's own"),
        ({"labels": LABELS, "extra_body": {"post_sampling_probs": True}}, "post_sampling_probs", "the client's own"),
        ({"labels": ["this", "other"]}, "labels", "'other'"),
    ],
)
async def test_what_does_not_go_with_probabilities_is_refused(params, field, words):
    model = Model()
    async with model.client() as client:
        with pytest.raises(ConfigError, match=words) as caught:
            await client.complete("x", probabilities=True, **params)
        assert caught.value.field == field
        with pytest.raises(ConfigError, match=words):
            client.stream_map(["x"], "{}", probabilities=True, **params)
        with pytest.raises(ConfigError, match="one token"):
            client.stream("x", labels=LABELS, probabilities=True)
        with pytest.raises(ConfigError, match="a text"):
            await client.complete([1, 2], labels=LABELS, probabilities=True)
    assert not model.server.sent


@pytest.mark.parametrize("dialect", ["openai", "tgi", "sglang"])
async def test_a_server_that_is_not_known_to_tell_them_is_asked_nothing(dialect):
    model = Model()
    async with model.client(dialect=dialect) as client:
        with pytest.raises(ConfigError, match="as vLLM and llama.cpp do"):
            await client.complete("x", labels=LABELS, probabilities=True)
    assert not model.server.sent


async def test_a_map_on_a_server_that_tells_no_probabilities_is_refused_whole():
    server = ScriptedTransport()
    async with make_client(server, dialect="tgi") as client:
        with pytest.raises(ConfigError, match="a tgi server does not tell the probabilities of labels") as refused:
            await client.batch_map(["x", "y"], "{}", labels=["a", "b"], probabilities=True, return_exceptions=True)
        assert refused.value.field == "probabilities"


@pytest.mark.parametrize("labels", [LABELS, SHARED])
async def test_a_call_for_probabilities_is_checked_as_the_caller_gave_it(labels):
    model = Model()
    wrong = [
        ({"temprature": 0}, "temprature"),
        ({"model_x": 1}, "model_x"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"timeout": 1}, "timeout"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"labels": None}, "probabilities"),
    ]
    async with model.client() as client:
        await client.complete("x", labels=labels, probabilities=True)
        asked = len(model.server.sent)
        for params, field in wrong:
            for call, item in ((client.complete, "x"), (client.chat, CHAT)):
                with pytest.raises(ConfigError) as caught:
                    await call(item, **{"labels": labels, "probabilities": True, **params})
                assert caught.value.field == field
        rows = [{"prompt": "x", "params": {"labels": None, "probabilities": True}}]
        (error,) = await client.batch_map(rows, return_exceptions=True)
        assert type(error) is ConfigError and error.field == "probabilities"
    assert len(model.server.sent) == asked


async def test_labels_that_are_scored_take_no_prompt_that_is_cut():
    model = Model()
    cut = {"extra_body": {"truncate_prompt_tokens": 3}}
    async with model.client() as client:
        await client.complete("x", labels=LABELS, probabilities=True, **cut)
        assert model.sent()[-1]["truncate_prompt_tokens"] == 3
        with pytest.raises(ConfigError) as caught:
            await client.complete("x", labels=SHARED, probabilities=True, **cut)
        assert caught.value.field == "truncate_prompt_tokens"


async def test_a_parameter_that_the_server_refuses_decides_nothing_for_later_calls():
    model = Model()
    answer = model.answer
    model.server.script = _Always(lambda sent: error(400, "hot") if "temperature" in sent.body else answer(sent))
    async with model.client() as client:
        for call, item in ((client.complete, "x"), (client.chat, CHAT)):
            with pytest.raises(BadRequest, match="hot"):
                await call(item, labels=LABELS, probabilities=True, temperature=-1)
            told = await call(item, labels=LABELS, probabilities=True)
            assert told.probabilities["other"] is not None


@pytest.mark.parametrize(("begun", "first"), [("It is", " good"), ("It is (", "good")])
async def test_in_a_chat_that_goes_on_with_an_answer_a_label_begins_as_its_end_asks(begun, first):
    model = Model()
    chat = [*CHAT, {"role": "assistant", "content": begun}]
    on = {"add_generation_prompt": False, "continue_final_message": True}
    async with model.client() as client:
        await client.chat(CHAT, labels=LABELS, probabilities=True)
        answer = await client.chat(chat, labels=LABELS, probabilities=True, **on)
    assert answer.label == "bad" and answer.probabilities["other"] is not None
    body = model.sent("/chat/completions")[-1]
    assert model.words[body["logprob_token_ids"][0]] == first and body["continue_final_message"] is True


# llama.cpp: the likeliest tokens alone


class Llama(Model):
    """A llama-server: it tells the likeliest tokens, as many as are asked for.

    Args:
        others: how many tokens are likelier than any that was tokenized.
        amid: whether the token that it makes unasked ends amid a letter: of that one nothing is told.
        likely: as a ``Model``'s.
    """

    def __init__(self, others=0, *, amid=False, likely=NUMBERS):
        super().__init__(likely=likely)
        self.others, self.amid = others, amid

    def answer(self, sent):
        body, path = sent.body, sent.request.path
        if path == "/apply-template":
            messages = [dict(each) for each in body["messages"]]
            begun = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
            text = "".join(f"<{each['role']}> {each['content']}" for each in messages) + "<assistant>" + begun
            return Reply(chunks=[json.dumps({"prompt": text}).encode()])
        if path == "/tokenize":
            return Reply(chunks=[json.dumps({"tokens": self.ids(body.get("content", ""))}).encode()])
        chat = "messages" in body
        most = body["top_logprobs"] if chat else body["n_probs"]
        tokens = [(10**6 + each, f"t{each}", math.log(0.5 / self.others)) for each in range(self.others)]
        tokens += [(place, word, self.of(word)) for place, word in enumerate(self.words)]
        tops = [{"id": place, "token": text, "bytes": [], "logprob": number} for place, text, number in tokens[:most]]
        told = [tops[0] | {"top_logprobs": tops}]
        if self.amid and "grammar" not in body:
            told = []
        if chat:
            message = {"role": "assistant", "content": "Z"}
            choice = {"index": 0, "finish_reason": "length", "message": message, "logprobs": {"content": told}}
            reply = {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
            return Reply(chunks=[json.dumps(reply).encode()])
        end = {"stop": True, "stop_type": "limit", "tokens_evaluated": 9, "tokens_predicted": 1}
        items = [{"index": place, "content": "Z", **end} for place in range(len(sent.prompts))]
        items = [item | ({"completion_probabilities": told} if told else {}) for item in items]
        return Reply(chunks=[json.dumps(items if isinstance(body["prompt"], list) else items[0]).encode()])

    def client(self, **settings):
        return super().client(**{"dialect": "llamacpp", **settings})


async def test_all_that_one_call_asks_has_one_time(monkeypatch):
    deadlines = []

    def look(event):
        if type(event) is Submitted and event.request.shape.kind is Kind.COMPLETION:
            deadlines.append(event.request.deadline)

    class Slow(Llama):
        def answer(self, sent):
            reply = super().answer(sent)
            return Reply(chunks=[0.5, *reply.chunks])

    watch_cores(monkeypatch, told=look)
    async with Slow(3000).client() as client:
        await client.complete("So:", labels=["good", "bad"], probabilities=True, timeout_s=60.0)
    assert len(deadlines) == 3 and len({*deadlines}) == 1


async def test_llama_cpp_tells_the_likeliest_tokens_before_sampling_and_grammar():
    model = Llama()
    async with model.client() as client:
        answer = await client.complete("Is it good?", labels=LABELS, probabilities=True, stop=["Z"])
    assert answer.probabilities == near({"good": 0.2, "bad": 0.5, "very bad": 1e-6}, 0.3 - 1e-6)
    assert (answer.label, answer.text, answer.health, answer.usage.completion_tokens) == ("bad", "bad", "ok", 1)
    (body,) = model.sent("/completion")
    assert (body["n_predict"], body["n_probs"]) == (1, 128)
    assert not {"grammar", "labels", "probabilities", "stop", "logprob_token_ids", "post_sampling_probs"} & body.keys()


async def test_llama_cpp_writes_a_chat_by_its_template_before_its_labels_are_tokenized():
    model = Llama()
    async with model.client() as client:
        answer = await client.chat(CHAT, labels=LABELS, probabilities=True)
        assert await client.tokenize(CHAT) == model.ids("<user> x?<assistant>")
    assert answer.probabilities == near({"good": 0.2, "bad": 0.5, "very bad": 1e-6}, 0.3 - 1e-6)
    assert answer.message == {"role": "assistant", "content": "bad"}
    assert "<user> x<assistant> very bad" in [each["content"] for each in model.sent("/tokenize")]
    (body,) = model.sent("/chat/completions")
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 128)


@pytest.mark.parametrize(("others", "asked"), [(100, [128]), (200, [128, 2048]), (3000, [128, 2048, 32768])])
async def test_llama_cpp_is_asked_for_more_tokens_until_each_label_s_is_among_them(others, asked):
    model = Llama(others, likely={"good": 1e-4, "bad": 3e-4})
    async with model.client() as client:
        (answer,) = await client.batch_map(["So:"], "{}", labels=["good", "bad"], probabilities=True)
    assert answer.probabilities == near({"good": 1e-4, "bad": 3e-4}, 1 - 4e-4)
    assert [body["n_probs"] for body in model.sent("/completion")] == asked
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9 * len(asked), len(asked))
    assert answer.attempts == len(asked)


async def test_where_llama_cpp_makes_a_token_that_ends_amid_a_letter_it_is_told_to_make_another():
    model = Llama(amid=True)
    async with model.client() as client:
        answer = await client.complete("So:", labels=["good", "bad"], probabilities=True)
        spoken = await client.chat(CHAT, labels=["good", "bad"], probabilities=True)
    assert answer.probabilities == spoken.probabilities == near({"good": 0.2, "bad": 0.5}, 0.3)
    assert [body.get("grammar") for body in model.sent("/completion")] == [None, 'root ::= ":"']


async def test_a_llama_cpp_that_tells_nothing_is_asked_no_more_in_the_end():
    model = Llama(10**6)
    async with model.client() as client:
        with pytest.raises(DialectError, match="each label's first token"):
            await client.complete("So:", labels=["good", "bad"], probabilities=True)
    assert [body["n_probs"] for body in model.sent("/completion")] == [128, 2048, 32768, 524288]


@pytest.mark.parametrize("call", ["complete", "chat"])
async def test_labels_that_share_their_first_token_are_refused_where_nothing_scores_them(call):
    model = Llama()
    async with model.client() as client:
        with pytest.raises(
            ConfigError, match="'very good' and 'very bad' begin with the same token.* differ"
        ) as caught:
            await getattr(client, call)(
                "So:" if call == "complete" else CHAT, labels=["fine", *SHARED], probabilities=True
            )
    assert caught.value.field == "labels"
    assert not model.sent("/completion") and not model.sent("/chat/completions")
