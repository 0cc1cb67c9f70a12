"""A client without a model asks its server for it: once, before the first call, with that call's deadline and retries."""

from functools import partial

import anyio
import pytest
from tests.seams import connected
from tests.shell.clocks import count_alive
from tests.shell.scripted import Pages, Reply, ScriptedTransport, error, make_client, settle
from tests.shell.test_detection import VLLM, models, ok
from tests.shell.test_retries import Says

from batchclient import (
    AuthenticationFailed,
    Backoff,
    BatchClient,
    CallAborted,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    ServerFault,
)
from batchclient.simulator import SimulatedServer, SimulatorTransport
from tests.guises import GUISES

QUICK = Backoff(max_attempts=3, base_s=0.0)


class Server(ScriptedTransport):
    """Answers calls as the scripted server, and plain pages before them."""

    def __init__(self, pages, *script, **arguments):
        super().__init__(*script, **arguments)
        self.about = Pages(pages)

    async def send(self, request, timeouts):
        if request.method == "GET":
            return await self.about.send(request, timeouts)
        return await super().send(request, timeouts)


def make(server, **arguments):
    return make_client(server, **{"model": None, "retry": QUICK, **arguments})


async def outcomes(*calls):
    """What each of some calls ends with."""
    results = [None] * len(calls)

    async def one(place, call):
        try:
            results[place] = await call()
        except Exception as error:
            results[place] = error

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(one, place, call)
    return results


async def test_one_question_for_all_calls_and_then_none():
    server = Server({"/models": models("the/model")})
    async with make(server) as client:
        started = anyio.current_time()
        done = await outcomes(*(partial(client.complete, f"{number}") for number in range(8)))
        assert [each.text for each in done] == [f"<{number}|0>" for number in range(8)]
        assert anyio.current_time() - started == pytest.approx(0.01), "one round trip"
        assert len(server.sent) == 1, "they travel together"
        await client.complete("later")
    assert server.about.asked == ["/models"]
    assert {each.body["model"] for each in server.sent} == {"the/model"}


async def test_a_call_that_names_a_model_waits_for_nothing():
    server = Server({"/models": "hangs"})
    async with make(server) as client:
        await client.complete("p", model="mine")
    assert (server.about.asked, server.sent[0].body["model"]) == ([], "mine")


async def test_a_map_asks_too_before_it_reads():
    read = []

    def documents():
        for number in range(5):
            read.append(number)
            yield str(number)

    server = Server({"/models": models("m")})
    async with make(server) as client:
        answers = await client.batch_map(documents(), "{}")
        assert [each.text for each in answers] == [f"<{number}|0>" for number in range(5)]
        assert [row.completion.text async for row in client.stream_map(["x"], "{}")] == ["<x|0>"]
    assert server.about.asked == ["/models"]
    assert server.sent[0].body["model"] == "m"


async def test_a_map_whose_server_does_not_say_fails_before_it_reads():
    server, read = Server({"/models": models("a", "b")}), []
    async with make(server) as client:
        with pytest.raises(ConfigError, match="'a', 'b'"):
            await client.batch_map((read.append(1) for _ in range(3)), str)
    assert (read, server.sent) == ([], [])


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "p", "timeout_s": -1}, "timeout_s"),
        ({"prompt": "p", "priority": 1000}, "priority"),
        ({"prompt": "p", "max_tokens": "x"}, "max_tokens"),
        ({"prompt": "p", "model": 5}, "model"),
        ({"prompt": "p", "model": ""}, "model"),
    ],
    ids=str,
)
async def test_bad_input_is_refused_at_once_all_the_same(call, field):
    server = Server({"/models": "hangs"})
    async with make(server) as client:
        with pytest.raises(ConfigError) as caught:
            await client.complete(**call)
    assert caught.value.field == field
    assert server.about.asked == []


# What the server says ------------------------------------------------------------------------------------------------


async def test_several_models_are_named_and_none_is_guessed():
    server = Server({"/models": models("b/one", "a/two")})
    async with make(server) as client:
        first, second = await outcomes(partial(client.complete, "p"), partial(client.complete, "q"))
        assert isinstance(first, ConfigError) and first.field == "model"
        assert "'b/one', 'a/two'" in str(first) and "model=" in str(first)
        assert first is not second and str(first) == str(second)
        assert (await client.complete("p", model="a/two")).text == "<p|0>"
    assert server.about.asked == ["/models"]


async def test_a_thousand_models_are_not_all_named():
    server = Server({"/models": models(*(f"model-{number}" for number in range(1000)))})
    async with make(server) as client:
        with pytest.raises(ConfigError, match="and 980 more") as caught:
            await client.complete("p")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "page",
    [Reply(404), Reply(500), ok(data=[]), ok(), Reply(200, {}, [b"<html>"])],
    ids=["404", "500", "none", "{}", "html"],
)
async def test_a_server_that_does_not_say_leaves_the_name_to_the_caller(page):
    server = Server({"/models": page})
    async with make(server) as client:
        with pytest.raises(ConfigError, match="does not say") as caught:
            await client.complete("p")
        assert caught.value.field == "model"
        assert (await client.complete("p", model="m")).text == "<p|0>"
    assert len(server.about.asked) <= 3


async def test_another_model_after_a_restart_is_asked_for_when_the_old_one_is_not_found():
    server = Server({"/models": models("old")})
    async with make(server, retry=Backoff(max_attempts=1)) as client:
        await client.complete("p")
        server.about.pages = {"/models": models("new")}
        server.script = [error(404, "The model `old` does not exist.")]
        (failed,) = await outcomes(partial(client.complete, "q"))
        assert failed.status == 404
        # The model is refused for a while; what names another is not concerned.
        await client.complete("r")
    assert [each.body["model"] for each in server.sent] == ["old", "old", "new"]


async def test_a_route_that_is_not_there_is_no_reason_to_ask_again():
    server = Server({"/models": models("m")})
    pages = Reply(404, {"content-type": "text/html"}, [b"<html>nginx</html>"])
    routes = [error(404, "Not Found"), error(404, "File Not Found"), Reply(404), pages]
    async with BatchClient("http://my-model/v1", http=lambda *_: server, probe=False) as client:
        await client.complete("p")
        for missing in routes:
            server.script = [missing]
            (failed,) = await outcomes(partial(client.complete, "p", max_tokens=4))
            assert failed.status == 404
            await client.complete("q")
        # Nor is the advice what to serve.
        server.script = [error(404, "Not Found")]
        (failed,) = await outcomes(partial(client.embed, "p"))
        assert failed.message.endswith("an embedding model has to be served")
        await client.complete("q")
    assert server.about.asked == ["/models"]


# Trouble -------------------------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_as_a_calls():
    server = Server({"/models": ConnectFailed("nobody listens")})
    async with make(server, retry=Backoff(max_attempts=9, base_s=0.0)) as client:
        first, second = await outcomes(partial(client.complete, "p"), partial(client.complete, "q"))
        assert type(first) is type(second) is ConnectFailed
        assert first is not second
        assert first.attempt == 3
        assert server.about.asked == ["/models"] * 3
        # A later call asks anew.
        server.about.pages = {"/models": models("m")}
        assert (await client.complete("p")).text == "<p|0>"


async def test_a_policy_says_when_it_is_asked_again():
    server = Server({"/models": Reply(503, {"retry-after": "7"}, [b'{"error":{"message":"Loading model"}}'])})
    async with make(server, retry=Backoff(max_attempts=2, base_s=0.0)) as client:
        started = anyio.current_time()
        with pytest.raises(ServerFault, match="Loading model.*asked for its model") as caught:
            await client.complete("p")
        assert caught.value.attempt == 2
        assert anyio.current_time() - started == pytest.approx(7.02)


async def test_a_policy_that_fails_ends_the_question_with_the_servers_error(caplog):
    for said in (float("nan"), float("inf"), "soon", ValueError("mine")):
        server = Server({"/models": Reply(503, {}, [b'{"error":{"message":"Loading model"}}'])})
        policy = Says(said)
        async with make(server, retry=policy) as client:
            with pytest.raises(ServerFault, match="Loading model"):
                await client.complete("p")
        assert (server.about.asked, len(policy.asked)) == (["/models"], 1)
    assert caplog.text.count("the retry policy failed; nothing is tried again") == 4


async def test_a_key_that_is_refused_is_not_tried_again():
    server = Server({"/models": Reply(401, {}, [b'{"error":"Invalid key sk-secret"}'])})
    async with make(server, api_key="sk-secret") as client:
        with pytest.raises(AuthenticationFailed) as caught:
            await client.complete("p")
    assert str(caught.value) == "401: Invalid key [key]; the api_key that was given was refused (asked for its model)"
    assert server.about.asked == ["/models"]


async def test_a_page_for_people_is_named_with_its_place():
    server = Server({"/models": Reply(401, {}, [b"<html>Sign in"])})
    async with make(server, api_key=None) as client:
        with pytest.raises(AuthenticationFailed) as caught:
            await client.complete("p")
    assert "401: an HTML page from http://" in str(caught.value)
    assert "(is base_url right, and an LLM server's?)" in str(caught.value)


async def test_a_server_of_pages_for_people_that_names_no_model_is_named():
    server = Server({"/models": Reply(404, {"content-type": "text/html;charset=utf-8"}, [b"<html>Not here"])})
    async with make(server) as client:
        with pytest.raises(
            ConfigError, match="no model, and http://[^ ]*, which sends HTML pages, does not say .*404; does"
        ):
            await client.complete("p")


async def test_a_deadline_counts_from_the_call():
    server = Server({"/models": "hangs"})
    async with make(server) as client:
        started = anyio.current_time()
        with pytest.raises(DeadlineExceeded, match="asked for its model: 3 s in 1 attempt$"):
            await client.complete("p", timeout_s=3.0)
        assert anyio.current_time() - started == pytest.approx(3.0)
        await settle()
        assert server.about.open == 0, "with the last that waits the question ends"
        server.about.pages = {"/models": models("m")}
        server.held = True
        with pytest.raises(DeadlineExceeded, match="server worked"):
            await client.complete("p", timeout_s=1.0)
        assert anyio.current_time() - started == pytest.approx(4.0)


@pytest.mark.parametrize(("of_client", "of_map"), [(None, {"timeout_s": 3.0}), (3.0, {}), (9.0, {"timeout_s": 3.0})])
async def test_the_time_of_a_maps_documents_bounds_the_question_before_them(of_client, of_map):
    server = Server({"/models": "hangs"})
    async with make(server, timeout_s=of_client) as client:
        started = anyio.current_time()
        with pytest.raises(DeadlineExceeded, match="asked for its model: 3 s in 1 attempt$"):
            await client.batch_map(["p"], "{}", **of_map)
        assert anyio.current_time() - started == pytest.approx(3.0)
        await settle()
        assert server.about.open == 0


async def test_a_deadline_that_passes_while_a_server_cannot_be_asked_says_how_often_and_why():
    server = Server({"/models": Reply(503, {}, [b'{"error":"Loading model"}'])})
    async with make(server, retry=Backoff(max_attempts=9, base_s=1.0)) as client:
        with pytest.raises(DeadlineExceeded, match=r"asked for its model: 2\.5 s in \d attempts?$") as caught:
            await client.complete("p", timeout_s=2.5)
    assert "Loading model" in str(caught.value.__cause__)


async def test_silence_has_an_end_without_a_deadline_too():
    server = Server({"/models": "hangs"})
    async with make(server, retry=Backoff(max_attempts=2, base_s=0.0)) as client:
        started = anyio.current_time()
        with pytest.raises(Exception, match="within 30 s"):
            await client.complete("p")
        assert anyio.current_time() - started == pytest.approx(60.0)


async def test_a_cancelled_caller_leaves_the_others_alone():
    server, before = Server({"/models": "hangs"}), count_alive()
    async with make(server) as client:
        done = []

        async def caller():
            done.append(await client.complete("stays"))

        async with anyio.create_task_group() as group:
            group.start_soon(caller)
            with anyio.move_on_after(1.0):
                await client.complete("goes")
            assert server.about.open == 1
            server.about.pages = {"/models": models("m")}
            group.cancel_scope.cancel()
        await settle()
        assert server.about.open == 0
        assert count_alive() == before
        async with anyio.create_task_group() as group:
            group.start_soon(caller)
            group.start_soon(caller)
        assert [each.text for each in done] == ["<stays|0>"] * 2


@pytest.mark.parametrize("how", ["timeout_s", "cancelled"])
async def test_a_call_that_is_tried_again_at_once_has_a_question_of_its_own(how):
    server = Server({"/models": "hangs"})
    async with make(server) as client:
        if how == "timeout_s":
            with pytest.raises(DeadlineExceeded):
                await client.complete("p", timeout_s=1.0)
        else:
            with anyio.move_on_after(1.0):
                await client.complete("p")
        server.about.pages = {"/models": models("m")}
        assert (await client.complete("p", timeout_s=1.0)).text == "<p|0>"
    assert server.about.asked == ["/models", "/models"]


@pytest.mark.parametrize(("how", "error_type"), [("aclose", ClientClosed), ("abort", CallAborted)])
async def test_ending_the_client_ends_those_that_wait(how, error_type):
    server = Server({"/models": "hangs"})
    client = make(server)
    async with client:
        async with anyio.create_task_group() as group:

            async def caller():
                with pytest.raises(error_type):
                    await client.complete("p")

            group.start_soon(caller)
            await anyio.sleep(1.0)
            ended = getattr(client, how)()
            if ended is not None:
                await ended
        await settle()
        assert server.about.open == 0


@pytest.mark.parametrize("ways", [["call"], ["map"], ["call", "map"]], ids="+".join)
async def test_draining_waits_for_those_that_wait(ways):
    server = Server({"/models": models("m")})
    client = make(server)

    asks = {"call": lambda: client.complete("p"), "map": lambda: client.batch_map(["p"], "{}")}
    done = {}

    async def caller(way):
        done[way] = await asks[way]()

    async with client, anyio.create_task_group() as group:
        for way in ways:
            group.start_soon(caller, way)
        await settle(3)
        assert not done
        await client.drain()
    texts = {way: answer.text if way == "call" else answer[0].text for way, answer in done.items()}
    assert texts == dict.fromkeys(ways, "<p|0>")


# With detection ------------------------------------------------------------------------------------------------------


async def test_what_was_read_for_the_name_is_not_read_again():
    server, pages = Server(VLLM), Pages(VLLM)
    seams = {"calls": lambda url: server, "detection": lambda url: pages}
    async with connected(**seams, probe=True, retry=QUICK) as client:
        await client.complete("p")
        await anyio.sleep(1.0)
        await client.complete("q")
        await anyio.sleep(1.0)
        assert (server.about.asked, pages.asked) == (["/models"], ["/version"])
        assert client.statistics().endpoints[0].server == "vllm 0.32.0"


async def test_of_several_servers_one_is_asked_and_the_next_if_it_is_down():
    first, second = Server({"/models": ConnectFailed("down")}), Server({"/models": models("m")})
    servers = {"http://a/v1": first, "http://b/v1": second}
    arguments = {"http": lambda url, headers: servers[url], "retry": Backoff(base_s=0.0), "limit": 2}
    async with BatchClient([*servers], **arguments) as client:
        await client.complete("p")
    assert (first.about.asked, second.about.asked) == (["/models"], ["/models"])


@pytest.mark.parametrize("guise", ["vllm", "sglang", "tgi", "llamacpp", "trtllm", "openai"])
async def test_guises(guise):
    engine = SimulatorTransport(SimulatedServer("gpu", model="org/simulated", guise=GUISES[guise]))
    async with BatchClient("http://server/v1", http=lambda url, headers: engine) as client:
        answer = await client.complete("Hello", max_tokens=4, temperature=0)
        assert answer.text
