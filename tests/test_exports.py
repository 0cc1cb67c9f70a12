"""The public surface: what is exported is what is documented, and nothing of another library leaks."""

import importlib
import inspect
import pkgutil

import pytest

import batchclient

PUBLIC = ["batchclient", "batchclient.config", "batchclient.errors", "batchclient.jobs", "batchclient.retry", "batchclient.templates",
          "batchclient.transport", "batchclient.types"]  # fmt: skip
EVERY = sorted(
    module.name
    for module in pkgutil.walk_packages(batchclient.__path__, "batchclient.")
    if not module.name.startswith(("batchclient.cli", "batchclient.simulator"))
)
PROMISED = """
    BatchClient Completion Choice Usage MapResult Statistics EndpointStatistics LaneStatistics Backoff RetryPolicy TenacityRetry
""".split()


def exported(name):
    module = importlib.import_module(name)
    return {one: getattr(module, one) for one in module.__all__}


@pytest.mark.parametrize("name", ["batchclient", *EVERY])
def test_every_name_that_is_exported_exists_and_is_there_once(name):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    # Their order is the linter's business (RUF022).
    assert len(set(names)) == len(names)
    assert all(hasattr(module, one) for one in names)


@pytest.mark.parametrize("name", EVERY)
def test_a_module_says_what_it_exports(name):
    module = importlib.import_module(name)
    own = [
        one
        for one, value in vars(module).items()
        if getattr(value, "__module__", None) == name and not one.startswith("_")
    ]
    # A private protocol of a module may be used by its siblings without being public.
    assert not own or hasattr(module, "__all__"), f"{name} has no __all__"


@pytest.mark.parametrize("name", ["batchclient", *EVERY])
def test_every_module_has_a_docstring(name):
    assert importlib.import_module(name).__doc__


def test_the_names_that_were_promised_are_there():
    assert set(PROMISED) <= set(batchclient.__all__)


def test_every_error_is_a_public_name():
    from batchclient import errors

    assert set(errors.__all__) <= set(batchclient.__all__)
    assert all(getattr(batchclient, name) is getattr(errors, name) for name in errors.__all__)


def test_every_type_of_an_answer_is_a_public_name():
    from batchclient import types

    assert set(types.__all__) <= set(batchclient.__all__)


def test_nothing_public_is_left_out_of_all():
    # Some are there when first asked for.
    assert all(hasattr(batchclient, name) for name in batchclient.__all__)
    public = {
        name for name, value in vars(batchclient).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "TYPE_CHECKING"
    }  # fmt: skip
    assert public == {name for name in batchclient.__all__ if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in batchclient.__all__ if name != "__version__"])
def test_every_public_object_has_a_docstring(name):
    value = getattr(batchclient, name)
    assert value.__doc__ and value.__doc__ != dict.__doc__
    assert not value.__doc__.startswith(f"{name}("), "a docstring of its own, not dataclass's"


def public_methods():
    for name in batchclient.__all__:
        value = getattr(batchclient, name)
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield pytest.param(member, id=f"{name}.{attribute}")


@pytest.mark.parametrize("member", list(public_methods()))
def test_every_public_method_has_a_docstring(member):
    assert inspect.getdoc(member)


@pytest.mark.parametrize("name", PUBLIC)
def test_no_class_of_the_http_library_leaks(name):
    for one, value in exported(name).items():
        assert not (getattr(value, "__module__", None) or "").startswith(("httpx", "httpcore", "aiohttp", "openai"))
        for base in getattr(value, "__mro__", ()):
            assert not base.__module__.startswith(("httpx", "httpcore", "aiohttp", "openai")), f"{one} is a {base}"


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert batchclient.__version__ == version("batchclient")


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("batchclient").joinpath("py.typed").is_file()
