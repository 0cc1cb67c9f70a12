"""Servers that are not there yet, in virtual time: with ``wait_for_server_s`` no call is sent before a server's first answer."""

from functools import partial

import anyio
import pytest
from tests.shell.scripted import Pages, Reply, ScriptedTransport, error, make_client
from tests.shell.test_detection import LLAMACPP, VLLM, models
from tests.shell.test_server_model import outcomes
from tests.unit.test_log import records

from batchclient import (
    AuthenticationFailed,
    Backoff,
    BatchClient,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    NoServerAnswered,
    ServerFault,
)

URL = "http://scripted/v1"
LOADING = {**LLAMACPP, "/props": error(503, "Loading model", kind="unavailable_error")}
REFUSED = ConnectFailed("no connection to scripted: refused")


class Late(ScriptedTransport):
    """Answers from a time on; before, its pages and calls are ``absent``."""

    def __init__(self, comes_at, absent=REFUSED, pages=VLLM):
        super().__init__()
        self.comes_at, self.absent, self.about = comes_at, absent, Pages(pages)

    async def send(self, request, timeouts):
        is_there = anyio.current_time() >= self.comes_at
        if request.method == "GET" and is_there:
            return await self.about.send(request, timeouts)
        if not is_there and request.method == "GET":
            before = self.absent if isinstance(self.absent, dict) else dict.fromkeys(["/models"], self.absent)
            return await Pages(before).send(request, timeouts)
        if not is_there:
            self.script.insert(0, self.absent)
        return await super().send(request, timeouts)


def make(server, **arguments):
    return make_client(server, **{"wait_for_server_s": 600.0, "retry": Backoff(max_attempts=1), **arguments})


def several(*servers, **arguments):
    by_url = {f"http://{name}/v1": server for name, server in zip("abc", servers, strict=False)}
    defaults = {"model": "m", "probe": False, "wait_for_server_s": 600.0, "retry": Backoff(max_attempts=1)}
    return BatchClient(list(by_url), http=lambda url, _: by_url[url], **{**defaults, **arguments})


@pytest.mark.parametrize("model", ["m", None])
@pytest.mark.parametrize(
    "absent",
    [REFUSED, ConnectionLost("reset"), error(502), error(503), error(504), LOADING],
    ids=["refused", "broken", "502", "503", "504", "loading"],
)
async def test_calls_wait_for_the_server_without_an_attempt(model, absent):
    began = anyio.current_time()
    server = Late(began + 60.0, absent)
    async with make(server, model=model) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.batch_map, [f"{number}" for number in range(5)], "{}")
            answer = await client.complete("p")
            waited_s = anyio.current_time() - began
    assert (answer.text, answer.attempts) == ("<p|0>", 1)
    assert 60.0 <= waited_s < 66.0
    assert all(sent.state == "read" for sent in server.sent), "no call was a probe"


async def test_without_a_bound_they_wait_as_long_as_it_takes():
    server = Late(anyio.current_time() + 2000)
    with records() as kept:
        async with make(server, wait_for_server_s=float("inf"), outage_patience_s=float("inf")) as client:
            assert (await client.complete("p")).text == "<p|0>"
    assert not any("inf" in record.getMessage() for record in kept)


@pytest.mark.parametrize("model", ["m", None])
@pytest.mark.parametrize(
    ("page", "raised"),
    [
        (error(401), AuthenticationFailed),
        (error(403), AuthenticationFailed),
        (CertificateRefused("it has expired"), CertificateRefused),
        ("hangs", None),
        (Reply(404), None),
    ],
    ids=["401", "403", "certificate", "silence", "404"],
)
async def test_what_is_an_answer_lets_the_calls_go(page, raised, model):
    server, began = Late(0.0, pages={"/models": page}), anyio.current_time()
    server.script = [] if raised is None else [page]
    if model is None and raised is None:
        pytest.skip("the server names no model")
    async with make(server, model=model) as client:
        (ended,) = await outcomes(partial(client.complete, "p"))
        assert anyio.current_time() - began < 3.0
    assert raised is None and ended.text == "<p|0>" or isinstance(ended, raised)


@pytest.mark.parametrize("model", ["m", None])
async def test_the_wait_ends_with_an_error_that_names_each_server_and_is_not_repeated(model):
    down, loading = Late(1e6), Late(1e6, error(503))
    async with several(down, loading, model=model, wait_for_server_s=30.0) as client:
        began = anyio.current_time()
        ended = await outcomes(*[partial(client.complete, f"{number}") for number in range(2)])
        assert anyio.current_time() - began == pytest.approx(30.0, abs=0.1)
        message = f"no server answered in 30 s: http://a/v1 ({REFUSED}), http://b/v1 (503: Service Unavailable)"
        assert {(type(each), str(each), each.attempt) for each in ended} == {(NoServerAnswered, message, 0)}
        (later,) = await outcomes(partial(client.complete, "later"))
        assert type(later) in (ConnectFailed, ServerFault) or later.status == 503
        assert anyio.current_time() - began < 31.0


@pytest.mark.parametrize("model", ["m", None])
async def test_a_server_whose_gateway_lets_one_page_through_is_there(model):
    hidden = [{**VLLM, "/version": page} for page in (error(502), error(503), error(504), ConnectionLost("reset"))]
    for pages in hidden:
        began = anyio.current_time()
        async with make(Late(began, pages=pages), model=model) as client:
            await client.complete("p")
            assert anyio.current_time() - began < 1.0


async def test_a_gateways_page_after_a_list_of_models_that_names_no_model_is_not_waited_for():
    behind = Late(0.0, pages={"/models": models("org/m", owned_by="org/m"), "/info": error(503)})
    async with make(behind, model=None) as client:
        (ended,) = await outcomes(partial(client.complete, "p", timeout_s=100.0))
    assert isinstance(ended, ServerFault)


@pytest.mark.parametrize("silent_first", [False, True])
async def test_the_wait_counts_from_the_question_for_the_model(silent_first):
    servers = [Late(1e6), Late(0.0, pages={"/models": "hangs"})]
    async with several(*reversed(servers) if silent_first else servers, model=None, wait_for_server_s=15.0) as client:
        began = anyio.current_time()
        (ended,) = await outcomes(partial(client.complete, "p"))
        assert (type(ended), anyio.current_time() - began) == (NoServerAnswered, pytest.approx(15.0, abs=0.1))


@pytest.mark.parametrize("model", ["m", None])
async def test_a_call_made_after_the_last_one_was_cancelled_has_the_whole_wait(model):
    async with make(Late(1e6), model=model, wait_for_server_s=15.0) as client:
        with anyio.move_on_after(9.0):
            await client.complete("p")
        await anyio.sleep(60.0)
        began = anyio.current_time()
        (ended,) = await outcomes(partial(client.complete, "p"))
        assert (type(ended), anyio.current_time() - began) == (NoServerAnswered, pytest.approx(15.0, abs=0.1))


async def test_a_server_that_is_too_busy_to_name_its_model_is_there():
    busy, again_and_again = Late(0.0, pages={"/models": error(429)}), Backoff(max_attempts=1000)
    async with make(busy, model=None, wait_for_server_s=5.0, retry=again_and_again) as client:
        (ended,) = await outcomes(partial(client.complete, "p", timeout_s=20.0))
    assert isinstance(ended, DeadlineExceeded)


async def test_a_given_dialect_stays():
    server = Late(0.0, pages=LLAMACPP)
    async with make(server, dialect="vllm") as client:
        await client.complete("p")
    assert server.sent[0].request.path == "/completions"


async def test_without_a_wait_nothing_is_asked():
    server = Late(0.0)
    async with make(server, wait_for_server_s=0.0) as client:
        await client.complete("p")
        assert client.statistics().endpoints[0].state == "healthy"
    assert server.about.asked == []
