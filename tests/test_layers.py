"""What the contracts of ``make lint`` cannot say: which imports are needed, no circles, no calls for the time."""

import ast
from collections import deque
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

from tests.core import Batch, FailureKind, Request, Woke
from tests.inspection import reachable
from tests.playbook.playbook import Playbook, calls, failed, shape

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "batchclient"
CORE = sorted((SOURCE / "_core").rglob("*.py"))
PURE = [*CORE, *sorted((SOURCE / "dialects").glob("*.py"))]
# What the core needs of the standard library; anything else wants a reason.
KNOWN_TO_THE_CORE = {
    "__future__",
    "abc",
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
MOST_LINES_OF_A_METHOD = 8
ASKS_THE_WORLD = {"open", "print", "input", "hash", "exec", "eval", "__import__"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: imports are absolute"
            yield node.module


def place(path, node=None):
    return f"{path.relative_to(SOURCE)}:{node.lineno if node else 1}"


def nodes(paths):
    """Each node of these files, with its file."""
    return ((path, node) for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8"))))


def test_the_core_imports_only_itself_and_plain_tools():
    assert {"scheduler.py", "queue.py", "messages.py"} <= {path.name for path in CORE}
    for path in CORE:
        assert {name.split(".")[0] for name in imported(path)} <= KNOWN_TO_THE_CORE, place(path)
        ours = {name for name in imported(path) if name.startswith("batchclient")}
        own = ("batchclient._core", "batchclient.types", "batchclient.errors", "batchclient.health")
        assert all(name.startswith(own) for name in ours), place(path)
        assert len(path.read_text("utf-8").splitlines()) <= 500, f"{place(path)}: no module swallows the project"


def test_pure_code_imports_no_clock_no_dice_and_no_io():
    for path in PURE:
        assert not {name.split(".")[0] for name in imported(path)} & CLOCKS_AND_DICE, place(path)


def test_pure_code_never_asks_for_the_time_of_day():
    for path, node in nodes(PURE):
        if isinstance(node, ast.Attribute):
            assert (
                node.attr not in ("now", "utcnow", "today", "monotonic", "perf_counter")
                or isinstance(node.value, ast.Name)
                and node.value.id in ("self", "sample", "event", "turn", "failed")
            ), place(path, node)
        asynchronous = (ast.Await, ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor)
        assert not isinstance(node, asynchronous), place(path, node)


def test_the_core_calls_nothing_that_asks_the_world():
    for path, node in nodes(CORE):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ASKS_THE_WORLD, place(path, node)


def test_the_transport_alone_imports_the_http_library_beside_the_integrations():
    importers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if {"httpx", "httpx2"} & {name.split(".")[0] for name in imported_at_run_time(path)}
    }
    integrations = {"integrations/httpx.py", "integrations/httpx2.py"}
    assert importers == {"transport/_libraries.py"} | integrations


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


def test_tests_and_benchmarks_enter_the_core_and_the_simulator_by_their_doors():
    """So that what is inside can be written anew: ``tests/core.py``, and the simulator's package."""
    doors = {
        "batchclient._core": ("tests/core.py",),
        "batchclient.simulator.": ("tests/simulator/", "tests/guises/", "tests/fakes/old_vllm.py", "benchmarks/lab/"),
    }
    for folder in ("tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            for inside, allowed in doors.items():
                text = path.read_text("utf-8")
                if inside not in text or name.startswith(allowed):
                    continue
                tree = ast.walk(ast.parse(text))
                modules = [each.module or "" for each in tree if isinstance(each, ast.ImportFrom)]
                assert not any(each.startswith(inside) for each in modules), name


def test_no_module_is_part_of_a_circle_of_imports():
    """Imports within functions and those for types alone are counted, too."""
    graph = grimp.build_graph("batchclient", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    # The registry loads these by name, which no import statement shows.
    imports["batchclient.dialects"] |= {name for name in imports if fnmatch(name, "batchclient.dialects.*")}
    TopologicalSorter(imports).prepare()  # a CycleError names the circle


JUDGES = {"failures.py", "outcomes/table.py"}
"""In the core, who reads what a failure is: what everybody else asks for is a property of ``Failure``."""


def test_two_modules_of_the_core_read_a_failures_kind_status_or_error():
    reading = {
        path.relative_to(SOURCE / "_core").as_posix()
        for path, node in nodes(CORE)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Attribute)
        and side.attr in {"error", "kind", "retryable", "status"}
        and (ast.unparse(side.value).endswith("failure") or path.name == "failures.py")
    }
    assert reading == JUDGES


def contents(value):
    """What a collection holds, however deep in collections."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, deque)):
        for one in value:
            yield from contents(one)
    else:
        yield value


def holders_of_waiting_calls(scheduler):
    """The classes of the core whose attributes hold calls that wait, or groups of them."""
    for each in reachable(scheduler):
        family = type(each).__mro__
        if not family[0].__module__.startswith("batchclient._core") or isinstance(each, (Request, Batch)):
            continue
        names = {name for kind in family for name in getattr(kind, "__slots__", ())} | set(
            getattr(each, "__dict__", ())
        )
        held = [one for name in names for one in contents(getattr(each, name, None))]
        if any(type(one).__name__ == "Group" or (isinstance(one, Request) and one.batch is None) for one in held):
            # Each sort of index is one of a group's.
            yield "Index" if "Index" in {kind.__name__ for kind in family} else family[0].__name__


def test_calls_wait_in_six_structures_and_nowhere_else():
    found = set()
    for order in ("fcfs", "shortest_first", "deadline"):
        play = Playbook(limit=2, max_size=1, order=order, max_queued=3)
        first, second = calls("first second", shape(alone_reason="so that each is a request"))
        play.submit(first, second) >> Woke()
        play >> failed(first, FailureKind.MAYBE_PROCESSED, delay=9.0)
        play.submit(*calls("a b c d e f", deadline=30.0), *calls("g", deadline=20.0)) >> Woke()
        assert (play.backing_off, play.waiting > 0) == (1, True)
        found.update(holders_of_waiting_calls(play.scheduler))
    # What failed is kept with the group of its calls.
    assert found - {"FailedBatch"} == {"Queue", "Lane", "Group", "Index", "Later", "Deadlines"}


def test_a_method_that_a_program_calls_is_a_facade():
    """``client.py`` shows what a client can do; how it is done stands elsewhere."""
    for path, node in nodes([SOURCE / "client.py"]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
            body = [each for each in node.body if not isinstance(getattr(each, "value", None), ast.Constant)]
            lines = sum(each.end_lineno - each.lineno + 1 for each in body)
            assert lines <= MOST_LINES_OF_A_METHOD, f"{place(path, node)}: {node.name} has {lines} lines"
