"""What stands in a function is found by its tree and replaced in the text alone."""

import ast

import pytest

from tests.mutants.tree_edit import edit

SOURCE = """\
LIMIT = 3


class Queue:
    def add(self, item):
        if len(self.items) < LIMIT:
            self.items.append(item)
        elif self.full:
            self.refuse(f"é: {item!r}", "full")

    def clear(self):
        self.size = 0
        for item in self.items:
            item.close()
        self.size = 0
"""
IN_ANOTHER_LAYOUT = """\
LIMIT = 3
class Queue:
  def add(self, item):
    if (
        len( self.items )  # é: those that wait
        < LIMIT
    ): self.items.append(item)
    elif (self.full):
        # Nobody takes it.
        self.refuse(f'é: {item!r}',
                    'full')
  def clear(self):
    self.size = 0
    for item in self.items:
      item.close()
    self.size = 0
"""


@pytest.mark.parametrize(
    ("where", "there", "gone", "before", "after"),
    [
        ("Queue.add", "len(self.items) < LIMIT", "True", "len(self.items) < LIMIT", "(True)"),
        ("Queue.add", "self.full", "False", "self.full", "(False)"),
        ("Queue.add", "self.items.append(item)", "pass", "self.items.append(item)", "pass"),
        ("Queue.add", "'full'", "None", '"full"', "(None)"),
        ("Queue.clear", "item.close()", "end(item)\nend(self)", "item.close()", "end(item)\n            end(self)"),
        (
            "Queue.clear",
            "for item in self.items: item.close()\nself.size = 0",
            "pass",
            "for item in self.items:\n            item.close()\n        self.size = 0",
            "pass",
        ),
        ("Queue", "item.close()", "pass", "item.close()", "pass"),
        ("LIMIT", "3", "4", "LIMIT = 3", "LIMIT = (4)"),
        ("", "LIMIT = 3", "pass", "LIMIT = 3", "pass"),
    ],
)
def test_nothing_else_changes_and_the_layout_makes_no_difference(where, there, gone, before, after):
    edited = edit(SOURCE, where, there, gone)
    assert edited == SOURCE.replace(before, after) != SOURCE
    assert ast.dump(ast.parse(edit(IN_ANOTHER_LAYOUT, where, there, gone))) == ast.dump(ast.parse(edited))


@pytest.mark.parametrize(
    ("where", "there", "error"),
    [
        ("Queue.clear", "self.size = 0", "has 2 times: self.size = 0\nlines 12, 15"),
        ("Queue.add", "len(self.items) <= LIMIT", "has 0 times.*\nnearest, in line 6: len\\(self.items\\) < LIMIT"),
        ("Queue.add", "item.close()", "has 0 times.*\nit is within Queue.clear"),
        ("Queue.add", "yield from nothing", "has 0 times.*\nnothing there is like it"),
        ("Queues.add", "self.full", "there is no Queues.add; nearest: Queue.add"),
        ("Queue.empty", "self.full", "there is no Queue.empty; nearest: Queue"),
        ("Queue.add", "if self.full: self.refuse(f'é: {item!r}', 'full')", "cannot be replaced in the text"),
    ],
)
def test_an_error_says_what_is_there_instead(where, there, error):
    with pytest.raises(ValueError, match=error):
        edit(SOURCE, where, there, "None")
