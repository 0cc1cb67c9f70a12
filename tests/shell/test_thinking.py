"""``thinking_tokens``: the field of each server, the way without one, and what is told of a server that ignores both."""

import json
from functools import partial

import anyio
import pytest

from batchclient import (
    BadRequest,
    Batching,
    CallAborted,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    Price,
    Repair,
    Server,
    SyncBatchClient,
)
from batchclient.health import health_of
from tests.seams import connected
from tests.shell.scripted import Pages, Reply, ScriptedTransport, error, make_client, settle

ANSWER = [" The", " answer", " is", " 42", "."]
NO_FLAG = (
    "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser "
    "and/or --reasoning-config to use thinking_token_budget."
)
IDS = {"<think>": 1, "</think>": 2, "\n": 3}


class Thinker(ScriptedTransport):
    """A server whose model thinks 100 tokens, and then answers with five.

    Args:
        flag: whether it heeds ``thinking_token_budget`` (and refuses it else), as vLLM; ``None``: it ignores all.
        parser: whether the reasoning of chats stands apart.
        tag: by which the model begins to think; empty: it does not.
    """

    def __init__(
        self, flag=False, parser=False, tag="<think>", close="</think>", thoughts=100, counts=None, answer=ANSWER
    ):
        super().__init__()
        self.flag, self.parser, self.tag, self.close, self.thoughts = flag, parser, tag, close, thoughts
        self.counts, self.answer = counts, answer
        self.refuses_late = False
        self.bodies = []

    async def send(self, request, timeouts):
        self.script = [self.tell]
        return await super().send(request, timeouts)

    def rest(self, told):
        """What follows a part of the answer."""
        begun = next(count for count in range(len(self.answer) + 1) if "".join(self.answer[:count]) == told)
        return self.answer[begun:]

    def tell(self, sent):
        self.bodies.append(body := sent.body)
        if sent.request.path.endswith("/tokenize"):
            return Reply(chunks=[json.dumps({"tokens": [3, 2, 3, 3], "count": 4, "max_model_len": 9}).encode()])
        budget = body.get("thinking_token_budget")
        if budget is not None and self.flag is False:
            # So vLLM refuses streams.
            told = {"error": {"message": NO_FLAG, "type": "BadRequestError", "code": 400}}
            said = b"data: " + json.dumps(told).encode() + b"\n\ndata: [DONE]\n\n"
            return Reply(chunks=[said]) if body.get("stream") and self.refuses_late else error(400, NO_FLAG)
        messages, given = body.get("messages"), body.get("prompt")
        if messages is not None:
            is_begun = messages[-1]["role"] == "assistant"
            assert is_begun == bool(body.get("continue_final_message"))
            given = messages[-1]["content"] if is_begun else ""
        if isinstance(given, list):
            text = "".join({1: "<think>", 2: "</think>", 3: "\n"}.get(each, " t") for each in given)
        else:
            text = given
        thoughts = self.thoughts if budget is None or not self.flag else min(budget, self.thoughts)
        kwargs = body.get("chat_template_kwargs") or {}
        if not self.tag or kwargs.get("enable_thinking") is False:
            tokens = self.rest(text.rpartition("?")[2])
        elif self.close in text:
            tokens = self.rest(text.rpartition(self.close)[2].lstrip("\n"))
        else:
            is_open = self.tag in text
            done = text.count(" t") if is_open else 0
            tokens = [*([] if is_open else [self.tag]), *[" t"] * (thoughts - done), self.close, *self.answer]
        bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("n_predict") or 1000
        made = tokens[:bound]
        choice = {"index": 0, "finish_reason": "length" if len(tokens) > bound else "stop"}
        said = "".join(made)
        details = {}
        if messages is not None:
            message = {"role": "assistant", "content": said}
            if self.parser:
                # A plain reply's parser takes all before a closing tag for reasoning, as vLLM's does.
                before, closed, after = said.removeprefix(self.tag).partition(self.close)
                message = {"role": "assistant", "reasoning": before, "content": after or None}
                details = {"completion_tokens_details": {"reasoning_tokens": before.count(" t")}}
            choice["message"] = message
        else:
            choice["text"] = said
            if body.get("return_token_ids"):
                choice["token_ids"] = [IDS.get(each, 9) for each in made]
        usage = {"prompt_tokens": 3, "completion_tokens": len(made), **details, **(self.counts or {})}
        return Reply(chunks=[json.dumps({"choices": [choice], "usage": usage}).encode()])


def page(**body):
    return Reply(chunks=[json.dumps(body).encode()])


def user(text="Why?"):
    return [{"role": "user", "content": text}]


def one_by_one(server, **arguments):
    return make_client(server, **{"dialect": "vllm", "batching": Batching(max_size=1), **arguments})


async def test_a_server_with_a_field_gets_it_and_room_for_the_answer_and_both_tags():
    server = Thinker(flag=True, parser=True)
    async with one_by_one(server) as client:
        answer = await client.chat(user(), max_tokens=5, thinking_tokens=20)
        (body,) = server.bodies
        assert (body["thinking_token_budget"], body["max_tokens"]) == (20, 27)
        assert "thinking_tokens" not in body
        assert (answer.text, answer.health) == (" The answer is 42.", "ok")
        assert (answer.usage.reasoning_tokens, client.statistics().reasoning_tokens) == (20, 20)
        assert client.statistics().over_thinking_budget == 0


async def test_a_refusal_in_a_stream_is_learnt_as_any_other():
    server = Thinker()
    server.refuses_late = True
    async with one_by_one(server) as client:
        for _ in range(2):
            answer = await client.complete("Why?", max_tokens=5, thinking_tokens=20)
            assert answer.text.endswith("</think>\n\n The answer is 42.")
        assert [body.get("thinking_token_budget") for body in server.bodies] == [20, None, None, None, None]


@pytest.mark.parametrize("parser", [True, False])
async def test_without_the_flag_a_chat_is_stopped_closed_and_gone_on_with(parser):
    server = Thinker(parser=parser)
    async with one_by_one(server) as client:
        answer = await client.chat(user(), max_tokens=5, thinking_tokens=20)
        refused, first, second = server.bodies
        assert refused["thinking_token_budget"] == 20 and "thinking_token_budget" not in first | second
        assert (first["max_tokens"], second["max_tokens"]) == (20, 5)
        begun = second["messages"][-1]["content"]
        assert begun == "<think>" + "\n" * parser + " t" * 19 + "\n</think>\n\n"
        text = " The answer is 42."
        assert answer.text == text if parser else answer.text.rpartition("</think>\n\n")[2] == text
        if parser:
            assert answer.message == {"role": "assistant", "reasoning": " t" * 19, "content": text}
        assert (answer.health, answer.finish_reason, answer.attempts) == ("ok", "stop", 2)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 25)
        assert answer.usage.reasoning_tokens == 20
        # The refusal is learnt, and no part is counted as an answer.
        await client.chat(user("And?"), max_tokens=5, thinking_tokens=20)
        now = client.statistics()
        assert [body.get("thinking_token_budget") for body in server.bodies[3:]] == [None, None]
        assert (now.health["ok"], sum(now.health.values()), now.reasoning_tokens) == (2, 2, 40)
        assert (now.submitted, now.succeeded, now.failed, now.errors) == (2, 2, 0, {})


@pytest.mark.parametrize("tag", ["<think>", "[THINK]", "<seed:think>", "<|START_THINKING|>"])
async def test_a_completions_thinking_is_closed_by_the_tag_that_has_opened_it(tag):
    close = {"<|START_THINKING|>": "<|END_THINKING|>"}.get(tag, tag[0] + "/" + tag[1:])
    for prompt in ("Why?", f"Why?{tag}", f"Why? {tag}\n"):
        server = Thinker(tag=tag, close=close)
        async with one_by_one(server) as client:
            answer = await client.complete(prompt, max_tokens=5, thinking_tokens=20)
            assert server.bodies[-1]["prompt"].endswith(f" t\n{close}\n\n")
            assert answer.text.endswith(f"\n{close}\n\n The answer is 42.")
            assert (answer.usage.completion_tokens, answer.usage.reasoning_tokens, answer.health) == (25, 20, "ok")


async def test_token_ids_go_on_with_the_ids_of_the_tag_which_are_asked_for_once():
    server = Thinker()
    async with one_by_one(server) as client:
        for _ in range(2):
            answer = await client.complete([7, 8], max_tokens=5, thinking_tokens=20)
            assert answer.text.endswith("\n</think>\n\n The answer is 42.") and answer.choices[0].token_ids is None
        asked = [body.get("prompt") for body in server.bodies[1:]]
        parts = [7, 8, 1, *[9] * 19, 3, 2, 3, 3]
        assert asked == [[7, 8], "\n</think>\n\n", parts, [7, 8], parts]
        with_ids = await client.complete([7, 8], max_tokens=5, thinking_tokens=20, return_token_ids=True)
        assert with_ids.choices[0].token_ids == (*parts[2:], *[9] * 5)


async def test_where_the_thinking_has_ended_the_answer_goes_on_with_what_is_left():
    server = Thinker(thoughts=4)
    async with one_by_one(server) as client:
        answer = await client.complete("Why?", max_tokens=5, thinking_tokens=8)
        # Eight tokens: the two tags, four thoughts, two words.
        assert [body["max_tokens"] for body in server.bodies] == [15, 8, 5]
        assert answer.text == "<think> t t t t</think> The answer is 42."
        assert answer.usage.completion_tokens == 11
        short = Thinker(thoughts=1)
    async with one_by_one(short) as client:
        answer = await client.chat(user(), max_tokens=5, thinking_tokens=40)
        assert len(short.bodies) == 2 and answer.text == "<think> t</think> The answer is 42."


async def test_a_completion_that_does_not_think_is_closed_by_no_tag():
    server = Thinker(tag="")
    async with one_by_one(server) as client:
        answer = await client.complete("Why?", max_tokens=12, thinking_tokens=0)
        assert answer.text == " The answer is 42."
        assert answer.usage.reasoning_tokens == 0


async def test_a_chat_that_shows_no_thinking_goes_on_without_a_tag_and_within_max_tokens():
    server = Thinker(tag="", answer=[*ANSWER, " Or", " 43", ".", " Or", " 44", "."])
    async with one_by_one(server) as client:
        answer = await client.chat(user(), max_tokens=10, thinking_tokens=8)
        assert [body["max_tokens"] for body in server.bodies] == [20, 8, 2]
        assert answer.text == " The answer is 42. Or 43. Or 44"
        assert (answer.usage.completion_tokens, answer.usage.reasoning_tokens, answer.health) == (10, 0, "truncated")
        within = await client.chat(user(), max_tokens=8, thinking_tokens=8)
        assert (len(server.bodies), within.text) == (4, " The answer is 42. Or 43.")


async def test_a_small_budget_is_eight_tokens_and_leaves_the_answer_whole():
    server = Thinker()
    async with one_by_one(server) as client:
        answer = await client.complete("Why?", max_tokens=5, thinking_tokens=2)
        assert [body["max_tokens"] for body in server.bodies] == [9, 8, 5]
        assert answer.text == "<think>" + " t" * 7 + "\n</think>\n\n The answer is 42."
    # Also where the thinking ends by itself just there.
    short = Thinker(thoughts=6)
    async with one_by_one(short) as client:
        answer = await client.complete("Why?", max_tokens=5, thinking_tokens=2)
        assert answer.text == "<think>" + " t" * 6 + "</think> The answer is 42."


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
async def test_a_chat_that_is_told_not_to_think_is_one_request_for_max_tokens(switch):
    server = Thinker(tag="", answer=[*ANSWER, " Or", " 43", "."])
    async with one_by_one(server) as client:
        kwargs = {switch: False}
        answer = await client.chat(user(), max_tokens=6, thinking_tokens=2, chat_template_kwargs=kwargs)
        assert (answer.text, answer.health) == (" The answer is 42. Or", "truncated")
        _, sent = server.bodies
        assert (sent["max_tokens"], sent["chat_template_kwargs"]) == (6, kwargs)


async def test_a_thinking_that_a_template_has_begun_shows_at_its_end():
    server = Thinker(tag="", answer=[*[" t"] * 9, "</think>", *ANSWER])
    async with one_by_one(server) as client:
        answer = await client.chat(user(), max_tokens=20, thinking_tokens=8)
        assert (answer.text, answer.usage.reasoning_tokens) == (" t" * 9 + "</think> The answer is 42.", 7)


async def test_a_chat_that_goes_on_amid_a_thinking_is_closed_by_its_tag():
    server = Thinker()
    begun = [*user(), {"role": "assistant", "content": "<think>\n"}]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    async with one_by_one(server) as client:
        answer = await client.chat(begun, max_tokens=5, thinking_tokens=20, **going_on)
        assert answer.text == " t" * 20 + "\n</think>\n\n The answer is 42."


async def test_no_thinking_at_all_is_the_templates_switch_and_costs_no_second_request():
    server = Thinker()
    async with one_by_one(server) as client:
        answer = await client.chat(user(), max_tokens=5, thinking_tokens=0)
        off = {"enable_thinking": False, "thinking": False}
        assert [body.get("chat_template_kwargs") for body in server.bodies] == [None, off]
        assert (server.bodies[-1]["max_tokens"], answer.text) == (5, " The answer is 42.")
        await client.chat(user(), max_tokens=5, thinking_tokens=0, chat_template_kwargs={"thinking": True, "a": 1})
        assert server.bodies[-1]["chat_template_kwargs"] == {"enable_thinking": False, "thinking": True, "a": 1}


async def test_a_server_that_refuses_the_field_keeps_the_calls_that_its_template_keeps_from_thinking():
    server, dear = Thinker(), Server("http://dear/v1", model="big", price=Price(output=1.0))
    async with one_by_one(server, base_url=[Server("http://own/v1"), dear]) as client:
        for _ in range(2):
            answer = await client.chat(user(), max_tokens=5, thinking_tokens=0)
            assert answer.text == " The answer is 42."
        assert ["thinking_token_budget" in body for body in server.bodies] == [True, False, False]
        assert (client.statistics().costs, client.statistics().overflows) == ({}, {})


async def test_a_server_that_ignores_it_is_told_of_once_with_what_helps_there(caplog):
    server = Thinker(flag=None)
    async with one_by_one(server) as client:
        await client.batch_map([f"{place}?" for place in range(3)], "{}", max_tokens=5, thinking_tokens=20)
        now = client.statistics()
        # 27 tokens of reasoning of each are within a fifth and eight tokens more.
        assert (now.over_thinking_budget, now.reasoning_tokens) == (0, 78 + 3)
        await client.batch_map([f"{place}?" for place in range(3)], "{}", max_tokens=50, thinking_tokens=20)
        assert client.statistics().over_thinking_budget == 3
        (record,) = [each for each in caplog.records if each.event == "thinking_ignored"]
        assert "--reasoning-parser" in record.message and "0.19" in record.message
        assert (record.tokens, record.allowed) == (72, 20)
        (decision,) = [each for each in client.story() if each.what == "ignores thinking_tokens"]
        assert "--reasoning-parser" in decision.why


@pytest.mark.parametrize("told", [{"reasoning_tokens": 44}, {"completion_tokens_details": {"reasoning_tokens": 44}}])
async def test_the_servers_own_count_of_reasoning_stands_before_an_estimate(told):
    server = Thinker(flag=None, counts=told)
    async with one_by_one(server) as client:
        answer = await client.chat(user(), max_tokens=200, thinking_tokens=20)
        assert answer.usage.reasoning_tokens == 44
        plain = await client.chat(user(), max_tokens=200)
        assert plain.usage.reasoning_tokens == 44 and client.statistics().reasoning_tokens == 44
        assert client.statistics().over_thinking_budget == 1


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"n": 2}, "n"),
        ({"stop": ["x"]}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"include_reasoning": False}, "include_reasoning"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
async def test_what_the_way_without_a_field_cannot_do_is_refused_by_name(params, name):
    server = Thinker()
    async with one_by_one(server, dialect="sglang") as client:
        with pytest.raises(ConfigError, match=f"thinking_tokens goes without {name} on a sglang server") as refused:
            await client.chat(user(), max_tokens=5, thinking_tokens=20, **params)
        assert refused.value.field == "thinking_tokens" and "--enable-strict-thinking" in str(refused.value)
        assert server.bodies == []


async def test_no_logprobs_beside_the_texts_own_are_logprobs_and_a_penalty_of_zero_is_none():
    async with one_by_one(Thinker()) as client:
        with pytest.raises(ConfigError, match="thinking_tokens goes without logprobs"):
            await client.complete("Why?", max_tokens=5, thinking_tokens=20, logprobs=0)
        asked = {
            "presence_penalty": 0,
            "frequency_penalty": 0.0,
            "stop": [],
            "repetition_penalty": 1.0,
            "logprobs": None,
        }
        answer = await client.complete("Why?", max_tokens=5, thinking_tokens=20, **asked)
        assert answer.health == "ok"


async def test_a_stream_has_the_field_or_is_refused():
    async with one_by_one(Thinker(flag=True, parser=True)) as client:
        async with client.stream_chat(user(), max_tokens=5, thinking_tokens=20) as pieces:
            assert "".join([piece.text async for piece in pieces]) == " The answer is 42."
    server = Thinker()
    async with one_by_one(server, dialect="sglang") as client:
        with pytest.raises(ConfigError, match="without stream"):
            async with client.stream_chat(user(), max_tokens=5, thinking_tokens=20) as pieces:
                [piece async for piece in pieces]
        assert server.bodies == []


@pytest.mark.parametrize("dialect", ["openai", "tgi", None])
async def test_a_server_without_any_way_is_sent_nothing(dialect):
    server = Thinker()
    async with one_by_one(server, dialect=dialect) as client:
        for call in (
            client.chat(user(), thinking_tokens=20),
            client.complete("Why?", max_tokens=5, thinking_tokens=20),
        ):
            with pytest.raises(ConfigError, match="has no field for thinking_tokens"):
                await call
        assert server.bodies == []
        # A map is refused whole: it is not its rows that are wrong.
        with pytest.raises(ConfigError, match="has no field for thinking_tokens"):
            await client.batch_map(["Why?"], "{}", max_tokens=5, thinking_tokens=20, return_exceptions=True)
        assert server.bodies == []


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"thinking_tokens": -1, "max_tokens": 5}, "thinking_tokens is a whole number of at least 0"),
        ({"thinking_tokens": 2.0, "max_tokens": 5}, "thinking_tokens is a whole number of at least 0"),
        ({"thinking_tokens": 10**23, "max_tokens": 5}, "thinking_tokens is at most 10,000,000"),
        ({"thinking_tokens": 20}, "a completion with thinking_tokens needs max_tokens"),
    ],
)
async def test_a_wrong_budget_is_refused_by_name(params, says):
    async with one_by_one(Thinker()) as client:
        with pytest.raises(ConfigError, match=says):
            await client.complete("Why?", **params)
        with pytest.raises(ConfigError, match=says):
            await client.batch_map(["Why?"], "{}", **params)


@pytest.mark.parametrize("budget", [0, 20])
@pytest.mark.parametrize("name", ["chat_template_kwargs", "custom_params"])
async def test_what_a_budget_goes_into_is_an_object_or_refused_by_name(name, budget):
    server = Thinker(flag=True)
    async with one_by_one(server) as client:
        with pytest.raises(ConfigError, match=f"{name} is an object, not 'x'") as refused:
            await client.chat(user(), max_tokens=5, thinking_tokens=budget, extra_body={name: "x"})
        assert refused.value.field == name and server.bodies == []
        await client.chat(user(), max_tokens=5, thinking_tokens=budget, extra_body={name: None})


@pytest.mark.parametrize("budget", [0, 20])
async def test_a_server_that_refuses_what_its_template_would_read_is_named(budget):
    said = "1 validation error: chat_template_kwargs: Extra inputs are not permitted"
    server = ScriptedTransport(*[error(400, said)] * 3)
    async with one_by_one(server, dialect="trtllm") as client:
        for _ in range(2):
            with pytest.raises(ConfigError, match="a trtllm server has no field for thinking_tokens"):
                await client.chat(user(), max_tokens=5, thinking_tokens=budget)
        assert len(server.sent) == 1


async def test_a_null_is_no_budget():
    server = Thinker(thoughts=1)
    async with one_by_one(server, dialect="openai") as client:
        await client.complete("Why?", max_tokens=5, thinking_tokens=None)
        assert "thinking_tokens" not in server.bodies[0]


async def test_a_row_has_its_own_budget_and_a_column_of_the_name_is_data():
    server = Thinker(flag=True)
    rows = [{"prompt": "Why?", "params": {"thinking_tokens": 20, "max_tokens": 5}, "thinking_tokens": "many"}]
    async with one_by_one(server) as client:
        await client.batch_map(rows)
        assert (server.bodies[0]["thinking_token_budget"], server.bodies[0]["max_tokens"]) == (20, 27)
        await client.batch_map([{"prompt": "Why?", "thinking_tokens": 3}], row_params="take", max_tokens=5)
        assert server.bodies[1].keys().isdisjoint({"thinking_tokens", "thinking_token_budget"})


async def test_200_rows_without_the_flag_are_held_and_answered_whole():
    server = Thinker()
    async with make_client(server, dialect="vllm", batching=Batching(max_size=1), limit=16) as client:
        rows = await client.batch_map([f"{place}?" for place in range(200)], "{}", max_tokens=5, thinking_tokens=20)
        assert {row.text.rpartition("</think>\n\n")[2] for row in rows} == {" The answer is 42."}
        assert max(row.usage.reasoning_tokens for row in rows) <= 28
        assert rows.health["ok"] == 200


async def test_what_is_known_of_the_server_is_waited_for():
    server = Thinker(flag=True)
    pages = Pages({"/models": page(data=[{"id": "m", "owned_by": "vllm"}]), "/version": page(version="0.18.3")})
    seams = {"calls": lambda url: server, "detection": lambda url: pages, "asks_first": True}
    async with connected(**seams, model="m", batching=Batching(max_size=1)) as client:
        answer = await client.complete("Why?", max_tokens=5, thinking_tokens=20)
        # 0.18 drops the field in silence: it is not sent there.
        assert [body.get("thinking_token_budget") for body in server.bodies] == [None, None]
        assert answer.text.endswith("</think>\n\n The answer is 42.")


async def test_a_caller_who_leaves_between_the_parts_ends_both():
    server = Thinker()
    async with one_by_one(server) as client:
        with anyio.move_on_after(1):
            server.held = True
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: client.complete("Why?", max_tokens=5, thinking_tokens=20))
                await server.arrived(1)
                server.sent[0].release()
                await server.arrived(2)
                group.cancel_scope.cancel()
        await settle()
        assert server.states[1] == "cancelled" and len(server.sent) == 2
        assert client.statistics().in_flight == 0


async def test_a_drain_waits_for_both_parts():
    server = Thinker()
    async with one_by_one(server) as client, anyio.create_task_group() as group:
        texts = []

        async def ask():
            texts.append((await client.complete("Why?", max_tokens=5, thinking_tokens=20)).text)

        group.start_soon(ask)
        await server.arrived(1)
        await client.drain()
        assert texts[0].endswith("</think>\n\n The answer is 42.")


@pytest.mark.parametrize("item", ["Why?", [7, 8]], ids=["text", "ids"])
async def test_a_rows_time_is_that_of_both_parts(item):
    class Slow(Thinker):
        async def send(self, request, timeouts):
            await anyio.sleep(0.8)
            return await super().send(request, timeouts)

    async with one_by_one(Slow()) as client:
        await client.complete(item, max_tokens=5, thinking_tokens=20)
        for timeout_s, fails in ((1.2, True), (1.8, False)):
            began = anyio.current_time()
            (row,) = await client.batch_map(
                [item], lambda it: it, max_tokens=5, thinking_tokens=20, timeout_s=timeout_s, return_exceptions=True
            )
            assert isinstance(row, DeadlineExceeded) == fails and anyio.current_time() - began < timeout_s + 0.1


async def test_a_failed_second_part_is_the_calls_failure():
    class Refusing(Thinker):
        def tell(self, sent):
            if "</think>" in json.dumps(sent.body):
                return error(400, "no such template")
            return super().tell(sent)

    async with one_by_one(Refusing()) as client:
        with pytest.raises(BadRequest, match="no such template"):
            await client.complete("Why?", max_tokens=5, thinking_tokens=20)


async def test_equal_calls_in_flight_share_one_generation_in_parts():
    server = Thinker()
    async with one_by_one(server, batching=Batching(max_size=1, single_flight=True)) as client:
        answers = []

        async def ask():
            answers.append(await client.complete("Why?", max_tokens=5, thinking_tokens=20, temperature=0))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        assert len({answer.text for answer in answers}) == 1 and len(server.bodies) == 3


async def test_what_is_cut_off_amid_its_answer_goes_on_by_a_repair_without_a_budget():
    server = Thinker(flag=True, answer=[*ANSWER, " Or", " 43", "."])
    async with one_by_one(server) as client:
        (row,) = await client.batch_map(
            ["Why?"], "{}", max_tokens=5, thinking_tokens=20, repair=Repair(truncated=1, max_tokens=60)
        )
        first, second = server.bodies
        assert (first["max_tokens"], second["max_tokens"]) == (27, 33)
        assert "thinking_token_budget" not in second and row.text.endswith("</think> The answer is 42. Or 43.")


@pytest.mark.parametrize("call", ["complete", "chat"])
async def test_an_answer_in_parts_that_was_cut_off_is_repaired(call):
    server = Thinker(answer=[*ANSWER, " Or", " 43", ".", " Or", " 44", "."])
    async with one_by_one(server) as client:
        (row,) = await client.batch_map(
            ["Why?"], "{}", call=call, max_tokens=5, thinking_tokens=20, repair=Repair(truncated=2)
        )
        # A completion goes on; a chat with its reasoning is asked anew, in parts as well.
        bounds = [25] if call == "complete" else [20, 30]
        assert [body["max_tokens"] for body in server.bodies] == [27, 20, 5, *bounds]
        assert row.text.endswith("</think>\n\n The answer is 42. Or 43. Or 44.") and row.health == "ok"
        now = client.statistics()
        assert now.regained_tokens == 25 * (call == "complete") and sum(now.health.values()) == 2


async def test_a_chat_without_thinking_that_was_cut_off_is_repaired():
    server = Thinker(tag="", answer=[*ANSWER, " Or", " 43", "."])
    async with one_by_one(server) as client:
        (row,) = await client.batch_map(
            ["Why?"], "{}", call="chat", max_tokens=5, thinking_tokens=0, repair=Repair(truncated=2)
        )
        assert row.health == "ok" and [body["max_tokens"] for body in server.bodies] == [7, 5, 5]


@pytest.mark.parametrize("budget", [8, 50])
async def test_the_health_of_an_answer_in_parts_is_that_of_the_call_in_counts_too(budget):
    server = Thinker(thoughts=2, answer=[*ANSWER, *[" w"] * 100])
    async with one_by_one(server) as client:
        for prompt in ("Why?", "And?", "What?<think>"):
            # An end after four tokens was meant. With 50 the first part is the answer.
            answer = await client.complete(prompt, max_tokens=4, thinking_tokens=budget)
            assert answer.health == "ok"
        assert client.statistics().health["ok"] == sum(client.statistics().health.values()) == 3


VLLM = {"/models": page(data=[{"id": "m", "owned_by": "vllm"}]), "/version": page(version="0.32.0")}


def at(url_of_pages, calls, url="http://scripted/v1", **arguments):
    """A client of servers that are asked which they are, with the first call."""
    seams = {"calls": lambda url: calls, "detection": url_of_pages, "asks_first": True}
    return connected(url, **seams, **{"model": "m", "batching": Batching(max_size=1), **arguments})


class Steady:
    """Tries again after 0.3 s."""

    def decide(self, failure, attempt, elapsed_s, rng):
        return 0.3


@pytest.mark.parametrize("is_map", [False, True])
@pytest.mark.parametrize(
    "absent",
    [ConnectFailed("refused"), ConnectionLost("reset"), error(503), "hangs"],
    ids=["refused", "reset", "503", "hangs"],
)
async def test_a_server_that_is_away_is_waited_for_and_not_refused(absent, is_map):
    server, pages = Thinker(flag=True, parser=True), Pages({"/models": absent})
    async with at(lambda url: pages, server, retry=Steady()) as client:
        answers, budget = [], {"max_tokens": 5, "thinking_tokens": 20}

        async def ask():
            if is_map:
                answers.extend(await client.batch_map(["Why?"], "{}", call="chat", **budget))
            else:
                answers.append(await client.chat(user(), **budget))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.sleep(0.1)
            assert (client.statistics().failed, server.bodies) == (0, [])
            pages.pages = VLLM
        assert answers[0].text == " The answer is 42." and server.bodies[0]["thinking_token_budget"] == 20


async def test_a_call_to_a_server_that_stays_away_fails_as_any_other():
    for absent, fails in ((ConnectFailed("refused"), ConnectFailed), ("hangs", DeadlineExceeded)):
        server = Thinker(flag=True)
        async with at(lambda url, absent=absent: Pages({"/models": absent}), server) as client:
            with pytest.raises(fails):
                await client.chat(user(), max_tokens=5, thinking_tokens=20, timeout_s=3)
            with pytest.raises(fails):
                async with client.stream_chat(user(), max_tokens=5, thinking_tokens=20, timeout_s=3) as pieces:
                    [piece async for piece in pieces]
            assert server.bodies == [] and client.statistics().failed == 2


async def test_a_server_that_answers_and_stays_unknown_is_sent_nothing():
    server, pages = Thinker(), Pages({"/models": page(data=[{"id": "m"}])})
    async with at(lambda url: pages, server) as client:
        for _ in range(2):
            with pytest.raises(ConfigError, match="a server that is not known has no field for thinking_tokens"):
                await client.chat(user(), max_tokens=5, thinking_tokens=20)
        assert server.bodies == []


async def test_a_hanging_server_delays_no_call_that_another_can_take():
    class Slow(Thinker):
        async def send(self, request, timeouts):
            await anyio.sleep(1)
            return await super().send(request, timeouts)

    server = Slow(flag=True, parser=True)
    for urls in (["http://a/v1", "http://b/v1"], ["http://b/v1", "http://a/v1"]):
        pages = {"http://a/v1": VLLM, "http://b/v1": {"/models": "hangs"}}
        async with at(lambda url, pages=pages: Pages(pages[url]), server, urls, limit=1) as client:
            began = anyio.current_time()
            async with anyio.create_task_group() as group:
                # One is at the server that answers, the other finds that its server hangs.
                group.start_soon(partial(client.chat, user(), max_tokens=5, thinking_tokens=20))
                answer = await client.chat(user("And?"), max_tokens=5, thinking_tokens=20)
            assert answer.text == " The answer is 42." and anyio.current_time() - began < 9


async def test_what_waits_for_a_servers_name_is_counted_and_can_be_aborted():
    server = Thinker(flag=True)
    async with at(lambda url: Pages({"/models": "hangs"}), server) as client, anyio.create_task_group() as group:

        async def ask():
            with pytest.raises(CallAborted):
                await client.chat(user(), max_tokens=5, thinking_tokens=20)

        group.start_soon(ask)
        await anyio.sleep(1)
        assert (client.statistics().submitted, client.statistics().in_flight) == (1, 1)
        client.abort()
        await settle()
        assert (client.statistics().failed, client.statistics().in_flight) == (1, 0)


async def test_a_refused_field_is_tried_again_after_two_minutes():
    server = Thinker()
    async with one_by_one(server) as client:
        await client.chat(user(), max_tokens=5, thinking_tokens=20)
        server.flag = True
        for pause_s, sent in ((100, [None, None]), (30, [20])):
            await anyio.sleep(pause_s)
            begun = len(server.bodies)
            await client.chat(user(), max_tokens=5, thinking_tokens=20)
            assert [body.get("thinking_token_budget") for body in server.bodies[begun:]] == sent


async def test_a_server_that_was_away_is_sent_the_field_again():
    class Restarted(Thinker):
        is_away = False

        def tell(self, sent):
            return ConnectFailed("refused") if self.is_away else super().tell(sent)

    server = Restarted()
    async with at(lambda url: Pages(VLLM), server) as client:
        await client.chat(user(), max_tokens=5, thinking_tokens=20)
        server.is_away = True
        with pytest.raises(ConnectFailed):
            await client.complete("a plain call")
        server.is_away, server.flag = False, True
        await client.complete("a plain call")
        # It is asked which it is now.
        await anyio.sleep(1)
        begun = len(server.bodies)
        await client.chat(user(), max_tokens=5, thinking_tokens=20)
        assert [body.get("thinking_token_budget") for body in server.bodies[begun:]] == [20]


def test_threads_have_it_too():
    server = Thinker()
    with SyncBatchClient("http://scripted/v1", model="m", dialect="vllm", http=lambda url, headers: server) as client:
        answer = client.complete("Why?", max_tokens=5, thinking_tokens=20)
        assert answer.text.endswith("</think>\n\n The answer is 42.") and health_of(answer) == "ok"
