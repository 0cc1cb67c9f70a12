"""The pytest plugin of batchclient: ``llm_server``, ``llm_server_factory``, ``mock_llm`` and
``virtual_clock``.

Rules:
- Every run of pytest loads the plugin wherever batchclient is installed. So the plugin imports
  nothing but pytest, and is no module of ``batchclient``: the package would be imported first. A
  fixture imports its parts when a test asks for it.
- The fixtures work in plain functions, with pytest-asyncio and with anyio's plugin.
- Settings are given with ``@pytest.mark.parametrize(NAME, [{…}], indirect=True)``.
- Another plugin may have a fixture of the same name (pytest-mockllm has ``mock_llm``). Chance then
  picks the test's fixture, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING, Any
from warnings import warn

import pytest

if TYPE_CHECKING:
    from batchclient.testing import EmbeddedServer, MockLLM, VirtualClock

__all__ = ["llm_server", "llm_server_factory", "mock_llm", "virtual_clock"]


@pytest.fixture
def llm_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A real HTTP server on a free loopback port that behaves as vLLM.

    See ``batchclient.testing.EmbeddedServer``.
    """
    from batchclient.testing import EmbeddedServer

    with EmbeddedServer(**_settings(request)) as server:
        yield server


@pytest.fixture
def llm_server_factory() -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts servers with their own settings, such as ``guise="tgi"``, until the test ends."""
    from batchclient.testing import EmbeddedServer

    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(EmbeddedServer(*args, **settings))


@pytest.fixture
def mock_llm(request: pytest.FixtureRequest) -> Iterator[MockLLM]:
    """A scripted server in the test's process, without a socket.

    See ``batchclient.testing.MockLLM``.
    """
    from batchclient.testing import MockLLM

    with MockLLM(**_settings(request)) as mock:
        yield mock


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest) -> Iterator[VirtualClock]:
    """Time that passes without waiting, in the test's event loop.

    See ``batchclient.testing.VirtualClock``.
    """
    from batchclient.testing import VirtualClock

    with VirtualClock(**_settings(request)) as clock:
        yield clock


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Warn of fixtures that another plugin has under the same name, if a test asks for one."""
    told: set[str] = set()
    for item in items:
        known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        for name in known.keys() & set(__all__) - told:
            of_plugins = [each for each in known[name] if _is_of_a_plugin(each.func.__module__, item)]
            modules = [each.func.__module__ for each in of_plugins]
            last = known[name][-1]
            # A project's own fixture of the name is its choice, unless it is made of the plugins'
            # fixtures.
            if __name__ in modules and len(set(modules)) > 1 and (last is of_plugins[-1] or name in last.argnames):
                told.add(name)
                _tell(_clash(name, modules, config))


def _tell(message: str) -> None:
    try:
        warn(message, pytest.PytestWarning, stacklevel=1)
    except pytest.PytestWarning as error:  # of a project that makes errors of warnings
        raise pytest.UsageError(str(error)) from None


def _is_of_a_plugin(module: str, item: pytest.Item) -> bool:
    """Whether a fixture's module is neither a conftest nor the test's own."""
    return module.rpartition(".")[2] != "conftest" and module != getattr(getattr(item, "module", None), "__name__", "")


def _clash(name: str, modules: Sequence[str], config: pytest.Config) -> str:
    packages = packages_distributions()
    modules = [module.partition(".")[0] for module in modules]
    named = {module: packages.get(module, [module])[0] for module in modules} | {__name__: "batchclient"}
    registered = sorted(
        plugin_name
        for plugin_name, plugin in config.pluginmanager.list_name_plugin()
        if getattr(plugin, "__name__", "").partition(".")[0] in named
    )
    return (
        f"pytest plugins have a fixture {name} each: {' and '.join(sorted(named.values()))}. Tests get the one of "
        f"{named[modules[-1]]}. To choose, turn the other plugin off "
        f"({' or '.join(f'-p no:{each}' for each in registered)}), or define {name} in conftest.py: "
        "batchclient.testing has what batchclient's fixtures are made of"
    )


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings from ``parametrize(…, indirect=True)``.

    Raises:
        pytest.UsageError: there are no settings by name.
    """
    settings = getattr(request, "param", {})
    if not isinstance(settings, dict):
        message = f"{request.fixturename} is parametrized with settings by name, as [{{…}}]; not with {settings!r:.60}"
        raise pytest.UsageError(message)
    return settings
