"""Tests go through contracts: none reads or writes a private attribute of an object that is not its own.

A private attribute may change with every refactoring. A test that looks at one pins how the code is
made instead of what it does. A test may use public methods, ``statistics()``, what the server saw,
the system's threads, tasks and sockets, and the seams of ``tests/seams.py``.

A test's own objects are ``self``, ``cls``, ``super()`` and modules. Names in ``getattr``, ``setattr``
and ``monkeypatch.setattr`` count, and so does Python within a string.
"""

import ast
import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent
OTHERS = {
    "command_line.py": {"_get_command"},
    "drop_in/test_behaviour.py": {"_post", "_request_id"},
    "drop_in/test_same_answers.py": {"_request_id"},
    "drop_in/test_sharing.py": {"_auth_headers"},
    "drop_in/test_tracers.py": {"_prepare_request"},
    "integrations/openai/test_openai.py": {"_calculate_retry_timeout", "_request_id"},
    "integrations/test_instructor.py": {"_raw_response"},
    "integrations/test_langchain.py": {"_calculate_retry_timeout"},
    "testing/test_clock.py": {"_selector"},
}
"""By file, attributes of other libraries' objects that have no public name."""
EXCEPTIONS = {
    "shell/test_kept_clients.py": {"_engine"},
    "simulation/run.py": {"_engine"},
    "simulator/measure.py": {"_child"},
    "snapshots/surface.py": {"_is_protocol"},
}
"""By file, private attributes that are still looked at. This list may only become shorter."""

_IMPORTS = re.compile(r"^\s*(from|import) .*$", re.MULTILINE)
_PERHAPS = re.compile(r"(?<!\bself)\._[A-Za-z]|[\"']_[A-Za-z]")
"""Every private name looks like this. A file without a match needs no syntax tree."""
_BY_NAME = {"delattr", "getattr", "hasattr", "setattr"}


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def private_names(tree):
    """The private attributes that a module of the tests looks at."""
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    own = {"self", "cls"} | modules
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in own:
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield name
            case ast.Call(func=ast.Attribute(attr=function) | ast.Name(id=function)) if function in _BY_NAME:
                yield from (name for name in map(last_name, node.args) if is_private(name))
            case ast.Constant(value=str(text)) if "import " in text and "\n" in text:
                yield from private_names(parsed(text))


def parsed(text):
    """Code within a string; of another text, nothing."""
    try:
        return ast.parse(dedent(text))
    except SyntaxError:
        return ast.Module([], [])


def last_name(argument):
    """The attribute that a string names, as ``"package.module.attribute"`` or by itself."""
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return argument.value.rpartition(".")[2] if is_text else ""


def test_no_test_looks_at_what_is_private():
    found = {}
    for path in sorted(set(ROOT.rglob("*.py")) - {Path(__file__)}):
        text = path.read_text("utf-8")
        names = set(private_names(ast.parse(text))) if _PERHAPS.search(_IMPORTS.sub("", text)) else set()
        if names:
            found[path.relative_to(ROOT).as_posix()] = names
    allowed = {file: OTHERS.get(file, set()) | EXCEPTIONS.get(file, set()) for file in OTHERS | EXCEPTIONS}
    for file in found | allowed:
        more = found.get(file, set()) - allowed.get(file, set())
        less = allowed.get(file, set()) - found.get(file, set())
        assert not more, f"{file} looks at what is private: {sorted(more)}"
        assert not less, f"{file} does so no more; take it out of the list: {sorted(less)}"


def test_each_way_of_looking_is_seen():
    ways = """
import batchclient._feedback
client._runner
client._runner._tasks = {}
setattr(client, "_settings", None)
monkeypatch.setattr("batchclient._threads.bridge._GATHER_S", 1)
in_python('''
    import os
    client._nursery
    os._exit(0)
''')
self._own
super()._own
batchclient._feedback
client.__class__
"""
    assert sorted(private_names(ast.parse(ways))) == [
        "_GATHER_S",
        "_nursery",
        "_runner",
        "_runner",
        "_settings",
        "_tasks",
    ]
