"""Settings: presets, groups, and the forms in which they are kept; ``shell/test_bad_input`` has what is refused."""

from dataclasses import asdict, fields

import pytest

from tests.core import Kind
from batchclient import AdaptiveLimit, Batching, Http, Queue, Server, Telemetry
from batchclient._settings import make_settings
from batchclient._settings import PRESETS
from batchclient.dialects import make_dialect

URL = "http://localhost:8000/v1"


def make(preset="balanced", **arguments):
    return make_settings(preset, {"base_url": URL, **arguments})


def core_of(settings):
    return settings.scheduler(make_dialect("vllm"))


def test_the_presets_are_those_that_are_promised():
    assert sorted(PRESETS) == ["balanced", "latency", "throughput"]


def test_latency_waits_for_nothing():
    settings = core_of(make("latency"))
    assert (settings.linger_s, settings.refill_s, settings.refill_ratio) == (0.0, 0.0, 0.0)


def test_an_argument_wins_over_the_preset():
    settings = make("throughput", limit=7, batching=Batching(linger_s=0.0))
    assert (settings.limit, core_of(settings).linger_s, core_of(settings).max_size) == (7, 0.0, 64)


def test_a_group_changes_the_fields_that_it_gives_and_no_other():
    for preset in sorted(PRESETS):
        given, plain = core_of(make(preset, batching=Batching(max_size=8))), core_of(make(preset))
        assert given.max_size == 8
        plain.max_size = 8
        assert asdict(given) == asdict(plain)


def test_none_means_not_given():
    assert make("latency", limit=None, batching=None) == make("latency")


def test_urls_are_kept_in_one_spelling():
    for given, kept in [
        (URL, (URL,)),
        (URL + "/", (URL,)),
        (f"  {URL}\n", (URL,)),
        ([URL, "https://b.example/v1/"], (URL, "https://b.example/v1")),
        ((URL,), (URL,)),
        ("http://[::1]:8000/v1", ("http://[::1]:8000/v1",)),
        ("HTTP://Localhost/V1", ("http://localhost/V1",)),
        ("http://a:80/v1", ("http://a/v1",)),
        ("https://a:443", ("https://a",)),
        ("http://a:443/v1", ("http://a:443/v1",)),
        ("http://a:8080/v1", ("http://a:8080/v1",)),
        ("http://[FE80::80]:80/v1", ("http://[fe80::80]/v1",)),
        ("http://a:/v1?Key=B:80", ("http://a/v1?Key=B:80",)),
    ]:
        assert tuple(server.url for server in make(base_url=given).base_url) == kept


def test_the_value_of_a_header_is_never_shown():
    assert "sk-secret" not in repr(make(headers={"authorization": "Bearer sk-secret"}))


def test_settings_cannot_be_changed():
    with pytest.raises(Exception, match="cannot assign"):
        make().limit = 5


def test_the_headers_are_a_copy():
    mine = {"a": "b"}
    settings = make(headers=mine)
    mine["c"] = "d"
    assert settings.headers == {"a": "b"}


def padding():
    """A server whose lists are padded to their longest."""
    dialect = make_dialect("vllm")
    dialect.caps, dialect.length_reach = {Kind.COMPLETION: 100}, 2
    return dialect


def test_the_core_gets_its_numbers():
    given = {"linger_s": 0.5, "list_tokens": 77, "chat_list_tokens": 9}
    queue = Queue(max_calls=9, when_full="raise")
    numbers = make(queue=queue, batching=Batching(max_size=500, **given)).scheduler(padding())
    assert {name: getattr(numbers, name) for name in given} == given
    assert (numbers.max_queued, numbers.raise_when_full, numbers.length_reach) == (9, True, 2)
    assert (numbers.max_size, numbers.known_caps) == (500, {Kind.COMPLETION: 100})
    assert make().scheduler(make_dialect("vllm")).raise_when_full is False


def test_every_setting_is_an_argument_of_the_client():
    import inspect

    from batchclient import BatchClient

    arguments = set(inspect.signature(BatchClient).parameters)
    assert {field.name for field in fields(make())} <= arguments


def test_what_can_be_set_is_counted():
    """Things to set, wherever they stand; a new one takes the place of another, or says why not in this number."""
    import inspect

    from batchclient import BatchClient

    arguments = inspect.signature(BatchClient).parameters.keys() - {"unknown"}
    groups = {
        each: {field.name for field in fields(each)} for each in (AdaptiveLimit, Batching, Http, Queue, Telemetry)
    }
    own = {field.name for field in fields(Server)} - {"url"}
    assert len(arguments) == 17
    # A group is no setting beside its fields, but for the limit, and for http, which takes a client, too.
    assert len(arguments - {"batching", "queue", "telemetry"}) + sum(map(len, groups.values())) + len(own) == 47


def test_the_preset_is_kept():
    for preset in sorted(PRESETS):
        assert make(preset).preset == preset


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [
        ("latency", (16, 0.0, 0.0, 0.0, 1.0)),
        ("balanced", (32, 0.001, 0.1, 0.125, 5.0)),
        ("throughput", (64, 0.005, 0.5, 0.25, 30.0)),
    ],
)
def test_the_core_gets_the_numbers_that_the_page_of_settings_has_for_a_preset(preset, numbers):
    core = make(preset).scheduler(make_dialect("vllm"))
    assert (core.max_size, core.linger_s, core.refill_s, core.refill_ratio, core.starvation_s) == numbers
