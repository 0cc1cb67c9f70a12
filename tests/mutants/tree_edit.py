"""Edits of one function's syntax tree, written as source text: ``gone`` replaces ``there``.

- Trees are compared without positions. Line breaks, comments, quotes and needless brackets make no
  difference, and the function may move within its module.
- The text changes at that one place alone, so a failing test shows lines that its reader knows.
"""

import ast
import textwrap
from difflib import get_close_matches

__all__ = ["edit"]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def edit(source, where, there, gone):
    """Return the source with ``gone`` in the place of ``there``.

    Args:
        source: the module's text.
        where: the qualified name of a function, class or constant; "" for the whole module.
        there: an expression, or statements that follow each other. ``where`` has it once.
        gone: the same kind. ``pass`` takes statements out.

    Raises:
        ValueError: there is no ``where``, or it has ``there`` never or twice. The error says what
            is found instead.
    """
    tree = ast.parse(source)
    scopes = [node for name, node in _named(tree) if name == where] if where else [tree]
    if not scopes:
        raise ValueError(f"there is no {where}; {_nearest_names(tree, where)}")
    old, new = _parse(there, gone)
    places = [place for scope in scopes for place in _places(scope, old)]
    found = [place for place in places if _same(place, old)]
    if len(found) != 1:
        lines = ", ".join(str(place[0].lineno) for place in found)
        instead = f"lines {lines}" if found else _nearest_place(tree, places, old)
        raise ValueError(f"{where or 'the module'} has {len(found)} times: {there}\n{instead}")
    edited = _replaced_text(source, found[0], gone)
    if not _is_source_of(_replaced_tree(tree, found[0], new), edited):
        raise ValueError(f"{where or 'the module'}: cannot be replaced in the text: {there}")
    return edited


def _parse(there, gone):
    """Both as expressions, where both are; else both as statements."""
    try:
        return tuple([ast.parse(text, mode="eval").body] for text in (there, gone))
    except SyntaxError:
        return tuple(ast.parse(textwrap.dedent(text)).body for text in (there, gone))


def _same(nodes, others):
    if list(map(type, nodes)) != list(map(type, others)):
        return False  # Most differ so, and a dump takes long.
    return list(map(ast.dump, nodes)) == list(map(ast.dump, others))


def _is_source_of(tree, text):
    try:
        return _same([ast.parse(text)], [tree])
    except SyntaxError:
        return False


def _named(node, prefix=""):
    """(qualified name, node) of all that is defined or assigned within a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield prefix + child.name, child
            yield from _named(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
            yield from ((prefix + target.id, child) for target in targets if isinstance(target, ast.Name))
            yield from _named(child, prefix)


def _places(scope, pattern):
    """Where a pattern may be: every expression, or every run of as many statements."""
    if isinstance(pattern[0], ast.expr):
        return [[node] for node in ast.walk(scope) if isinstance(node, ast.expr)]
    blocks = [block for node in ast.walk(scope) for block in _blocks(node)]
    return [block[i : i + len(pattern)] for block in blocks for i in range(len(block) - len(pattern) + 1)]


def _blocks(node):
    values = [value for _, value in ast.iter_fields(node)]
    return [value for value in values if isinstance(value, list) and value and isinstance(value[0], ast.stmt)]


def _replaced_text(source, place, gone):
    first, last = place[0], place[-1]
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: first.lineno - 1])) + first.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    if isinstance(first, ast.expr):
        text = f"({gone})"
    else:
        text = textwrap.indent(textwrap.dedent(gone).strip(), " " * first.col_offset).lstrip()
    whole = source.encode()
    return (whole[:start] + text.encode() + whole[end:]).decode()


def _replaced_tree(tree, place, new):
    """The tree, changed in place."""
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if value is place[0]:
                setattr(node, field, new[0])
                return tree
            if isinstance(value, list):
                for i, each in enumerate(value):
                    if each is place[0]:
                        value[i : i + len(place)] = new
                        return tree
    raise AssertionError("a place is in its tree")


def _nearest_names(tree, where):
    names = [name for name, _ in _named(tree)]
    last = where.rpartition(".")[2]
    alike = [name for name in names if name.rpartition(".")[2] == last] or get_close_matches(where, names, cutoff=0.3)
    return f"nearest: {', '.join(alike) or 'nothing'}"


def _nearest_place(tree, places, pattern):
    elsewhere = [name for name, node in _named(tree) if any(_same(place, pattern) for place in _places(node, pattern))]
    if elsewhere:
        return f"it is within {elsewhere[-1]}"
    texts = {"\n".join(map(ast.unparse, place)): place[0].lineno for place in places}
    alike = get_close_matches("\n".join(map(ast.unparse, pattern)), texts, n=1, cutoff=0.3)
    return f"nearest, in line {texts[alike[0]]}: {alike[0]}" if alike else "nothing there is like it"
