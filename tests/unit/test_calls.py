"""Priority and tenant on the way from a caller's arguments to a request."""

import pytest

from batchclient import ConfigError, Queue
from batchclient._calls.call import Call
from batchclient._calls.make import CallMaker

from batchclient._settings import make_settings
from tests.core import Kind, Shape
from tests.inspection import held


def maker(**settings):
    return CallMaker(make_settings("balanced", {"base_url": "http://s/v1", "model": "m", **settings}))


def shape(made, priority=0, tenant=None, **params):
    call = Call(Kind.COMPLETION, "p", params, timeout_s=None, priority=priority, tenant=tenant)
    return made.make(call, None, 0.0).shape


def test_calls_of_two_classes_or_tenants_have_two_keys_and_one_answer_key():
    made = maker()
    lanes = [(0, None), (1, None), (-1, None), (0, "a"), (0, "b"), (1, "a")]
    shapes = [shape(made, *lane) for lane in lanes]
    assert len({one.key for one in shapes}) == len(lanes)
    assert {one.answer_key for one in shapes} == {shapes[0].key}
    assert [(one.priority, one.tenant) for one in shapes] == lanes
    assert all(shape(made, *lane) is one for lane, one in zip(lanes, shapes, strict=True))


def test_a_tenant_is_never_taken_for_another_ones_parameters():
    made = maker()
    keys = {shape(made, 0, tenant, stop=stop).key for tenant in ("a", 'a"]', "", None)[:2] for stop in ("x", "y")}
    assert len(keys) == 4


def test_the_server_is_told_of_a_priority_only_where_that_was_asked_for():
    made = maker(queue=Queue(tell_server=True))
    assert not shape(maker(), 3).tells_priority
    assert [shape(made, priority, "a").tells_priority for priority in (3, -2, 0)] == [True, True, False]
    assert shape(made, 3, seed=1).body == shape(made, seed=1).body


def test_a_tenant_is_no_field_of_the_body_and_a_priority_there_is_the_servers_own():
    with pytest.raises(ConfigError) as caught:
        shape(maker(), extra_body={"tenant": 1})
    assert caught.value.field == "tenant"
    made = shape(maker(queue=Queue(tell_server=True)), 7, extra_body={"priority": 1000})
    assert b'"priority":1000' in made.body
    assert (made.priority, made.tells_priority) == (7, False)


def test_many_keys_do_not_pile_up():
    made = maker()
    for seed in range(5000):
        shape(made, 1, seed=seed)
    assert held(made, Shape) <= 2 * 4096


def test_a_conversation_is_shown_the_way_to_chat():
    with pytest.raises(ConfigError, match=r"goes to chat\(\)") as caught:
        maker().make(Call(Kind.COMPLETION, [{"role": "user", "content": "x"}], {}), None, 0.0)
    assert caught.value.field == "prompt"
