"""The import graph of the package: circles of imports, the longest chain, and a few sizes.

    python -m scripts.import_graph

Rules:
- An edge is an ``import`` anywhere in a module, also inside a function: a late import is needed all
  the same.
- ``from package import name`` counts for the module ``package.name`` if there is one, else for
  ``package``.
- The *runtime* graph leaves out the imports under ``if TYPE_CHECKING:``; the *typed* graph has
  them, too.
- A circle is a strongly connected component of two modules or more (R. Tarjan, "Depth-First Search
  and Linear Graph Algorithms", SIAM J. Computing 1(2), 1972).
- A chain is a path of imports in the typed graph, each circle being one link of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["circles", "imports_of", "longest_chain", "modules_of"]

SOURCE = Path(__file__).parent.parent / "src" / "batchclient"

Graph = Mapping[str, frozenset[str]]
"""By module, the modules of the package that it imports."""


def modules_of(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Parse a package; return its modules by name."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        modules[name] = ast.parse(path.read_text("utf-8"), str(path))
    return modules


def imports_of(modules: Mapping[str, ast.Module], *, typed: bool) -> Graph:
    """Return who imports whom; ``typed``: what stands under ``if TYPE_CHECKING:`` as well."""
    graph = {}
    for name, tree in modules.items():
        found = {target for node in _statements(tree, typed=typed) for target in _targets(node, modules)}
        graph[name] = frozenset(found - {name})
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the circles, the largest first, each with its modules in the order of their names."""
    found = [sorted(component) for component in _components(graph) if len(component) > 1]
    return sorted(found, key=lambda circle: (-len(circle), circle))


def longest_chain(graph: Graph) -> list[str]:
    """Return the longest path of imports, from the module that nobody need import down."""
    best: dict[str, list[str]] = {}
    # A component comes after all that it imports.
    for component in _components(graph):
        below = [best[target] for name in component for target in graph[name] if target not in component]
        chain = max(below, key=len, default=[])
        for name in component:
            best[name] = [" = ".join(sorted(component)), *chain]
    return max(best.values(), key=len)


def _statements(node: ast.AST, *, typed: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not typed and isinstance(child, ast.If) and _is_type_checking(child.test):
            yield from _statements(ast.Module(child.orelse, []), typed=typed)
            continue
        yield child
        yield from _statements(child, typed=typed)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _targets(node: ast.AST, modules: Mapping[str, ast.Module]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom) and node.module in modules:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules else node.module


def _components(graph: Graph) -> list[list[str]]:
    """Tarjan's algorithm: strongly connected components, each after all that it leads to."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_ones: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        open_ones.append(name)
        for target in sorted(graph[name]):
            if target not in numbers:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in open_ones:
                lowest[name] = min(lowest[name], numbers[target])
        if lowest[name] == numbers[name]:
            at = open_ones.index(name)
            found.append(open_ones[at:])
            del open_ones[at:]

    for name in graph:
        if name not in numbers:
            visit(name)
    return found


def _statement_count(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def _prose_lines(tree: ast.Module) -> int:
    """Lines of docstrings, those of attributes included: every text that is a statement by itself."""
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in texts if isinstance(node.value.value, str)
    )


def main() -> int:
    modules = modules_of()
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in SOURCE.rglob("*.py"))
    prose = sum(map(_prose_lines, modules.values()))
    in_root = [name for name in modules if name.count(".") == 1 and (SOURCE / f"{name.partition('.')[2]}.py").exists()]
    print(f"modules: {len(modules)}, in the package's root: {len(in_root)}")
    print(f"statements: {sum(map(_statement_count, modules.values()))}")
    print(f"lines: {lines}, of docstrings: {prose} ({prose / lines:.0%})")
    for words, typed in (("at run time", False), ("with the imports for types", True)):
        graph = imports_of(modules, typed=typed)
        found = circles(graph)
        print(f"circles {words}: {len(found)}")
        for circle in found:
            print(f"  {len(circle)}: {', '.join(name.partition('.')[2] or name for name in circle)}")
    chain = longest_chain(imports_of(modules, typed=True))
    print(f"longest chain: {len(chain)}")
    print("  " + " > ".join(link.replace("batchclient.", "") for link in chain))
    return 1 if circles(imports_of(modules, typed=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
