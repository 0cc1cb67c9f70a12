"""Imports point inward, and the core knows no clock, no randomness and no I/O."""

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scripts import import_graph

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "batchclient"
CORE = sorted((SOURCE / "_core").rglob("*.py"))
PURE = [*CORE, *sorted((SOURCE / "dialects").glob("*.py"))]
# What the core needs of the standard library; anything else wants a reason.
KNOWN_TO_THE_CORE = {
    "__future__",
    "batchclient",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
    "zlib",
}
CLOCKS_AND_DICE = {"time", "random", "secrets", "uuid", "os", "asyncio", "threading", "socket", "logging", "subprocess"}
ASKS_THE_WORLD = {"open", "print", "input", "hash", "exec", "eval", "__import__"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: imports are absolute"
            yield node.module


def named(paths):
    return [pytest.param(path, id=str(path.relative_to(SOURCE))) for path in paths]


def test_the_contracts_of_pyproject_hold():
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_core_to_look_at():
    assert {"scheduler.py", "queue.py", "messages.py"} <= {path.name for path in CORE}


@pytest.mark.parametrize("path", named(CORE))
def test_the_core_imports_only_itself_and_plain_tools(path):
    assert {name.split(".")[0] for name in imported(path)} <= KNOWN_TO_THE_CORE
    ours = {name for name in imported(path) if name.startswith("batchclient")}
    assert all(name.startswith(("batchclient._core", "batchclient.types", "batchclient.errors")) for name in ours)


@pytest.mark.parametrize("path", named(PURE))
def test_pure_code_imports_no_clock_no_dice_and_no_io(path):
    assert not {name.split(".")[0] for name in imported(path)} & CLOCKS_AND_DICE


@pytest.mark.parametrize("path", named(PURE))
def test_pure_code_never_asks_for_the_time_of_day(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            assert (
                node.attr not in ("now", "utcnow", "today", "monotonic", "perf_counter")
                or isinstance(node.value, ast.Name)
                and node.value.id in ("self", "sample", "event", "look")
            ), f"{path.name}:{node.lineno}"
        assert not isinstance(node, (ast.Await, ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor))


@pytest.mark.parametrize("path", named(CORE))
def test_the_core_calls_nothing_that_asks_the_world(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ASKS_THE_WORLD, f"{path.name}:{node.lineno}"


def test_the_transport_alone_imports_the_http_library_beside_the_integrations():
    importers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if {"httpx", "httpx2", "httpx_aiohttp", "aiohttp"} & {name.split(".")[0] for name in imported_at_run_time(path)}
    }
    integrations = {"integrations/httpx.py", "integrations/httpx2.py"}
    assert importers == {f"transport/{name}.py" for name in ("_library", "_aiohttp")} | integrations


def imported_at_run_time(path):
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_no_module_is_part_of_a_circle_of_imports():
    graph = dict(import_graph.imports_of(import_graph.modules_of(), typed=True))
    # Registries load these by name, which no import statement shows.
    for registry, kind in (("dialects", "dialects.*"), ("simulator.guises", "simulator.guise_*")):
        loaded = {name for name in graph if fnmatch(name, f"batchclient.{kind}")}
        graph[f"batchclient.{registry}"] |= loaded
    assert import_graph.circles(graph) == []


def test_a_circle_is_found_also_where_types_alone_close_it():
    one = ast.parse("from package.two import f")
    two = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import three")
    three = ast.parse("def g():\n    import package.one")
    modules = {"package": ast.parse(""), "package.one": one, "package.two": two, "package.three": three}
    assert import_graph.circles(import_graph.imports_of(modules, typed=False)) == []
    circle = ["package.one", "package.three", "package.two"]
    assert import_graph.circles(import_graph.imports_of(modules, typed=True)) == [circle]


@pytest.mark.parametrize("path", named(CORE))
def test_no_module_of_the_core_swallows_the_project(path):
    assert len(path.read_text("utf-8").splitlines()) <= 500
