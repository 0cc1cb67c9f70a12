"""The public surface: what is exported is what is documented, and nothing of another library leaks."""

import importlib
import inspect
import pkgutil
from importlib.metadata import version
from importlib.resources import files

import batchclient
from batchclient import errors, types

PUBLIC = ["batchclient", "batchclient.options", "batchclient.errors", "batchclient.jobs", "batchclient.retry", "batchclient.templates",
          "batchclient.transport", "batchclient.types"]  # fmt: skip
EVERY = [
    module.name
    for module in pkgutil.walk_packages(batchclient.__path__, "batchclient.")
    if not module.name.startswith(("batchclient.cli", "batchclient.simulator"))
]
PROMISED = """
    BatchClient Completion Choice Usage MapResult Statistics EndpointStatistics LaneStatistics LengthStatistics Backoff RetryPolicy TenacityRetry
""".split()
OTHERS = ("httpx", "httpcore", "aiohttp", "openai")


def test_every_module_says_what_it_exports_and_each_name_exists_once():
    for name in ("batchclient", *EVERY):
        module = importlib.import_module(name)
        assert module.__doc__, name
        names = getattr(module, "__all__", [])
        assert len(set(names)) == len(names), name
        assert all(hasattr(module, one) for one in names), name
        # A private protocol of a module may be used by its siblings without being public.
        own = [
            one for one, value in vars(module).items() if getattr(value, "__module__", None) == name and one[0] != "_"
        ]
        assert not own or hasattr(module, "__all__"), f"{name} has no __all__"


def test_errors_types_of_answers_and_what_was_promised_are_public_names():
    assert {*PROMISED, *errors.__all__, *types.__all__} <= set(batchclient.__all__)
    assert all(getattr(batchclient, name) is getattr(errors, name) for name in errors.__all__)


def test_nothing_public_is_left_out_of_all():
    # Some are there when first asked for.
    assert all(hasattr(batchclient, name) for name in batchclient.__all__)
    public = {
        name for name, value in vars(batchclient).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "TYPE_CHECKING"
    }  # fmt: skip
    assert public == {name for name in batchclient.__all__ if not name.startswith("_")}


def test_every_public_object_and_method_has_a_docstring_of_its_own():
    for name in batchclient.__all__:
        if name == "__version__":
            continue
        value = getattr(batchclient, name)
        assert value.__doc__ and value.__doc__ != dict.__doc__, name
        assert not value.__doc__.startswith(f"{name}("), f"{name}: it is dataclass's"
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{attribute}"


def test_no_class_of_the_http_library_leaks():
    for name in PUBLIC:
        module = importlib.import_module(name)
        for one in module.__all__:
            value = getattr(module, one)
            assert not (getattr(value, "__module__", None) or "").startswith(OTHERS), one
            for base in getattr(value, "__mro__", ()):
                assert not base.__module__.startswith(OTHERS), f"{one} is a {base}"


def test_the_package_says_its_version_and_that_it_is_typed():
    assert batchclient.__version__ == version("batchclient")
    assert files("batchclient").joinpath("py.typed").is_file()
