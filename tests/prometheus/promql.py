"""The names of metrics and of labels in a query. A few expressions are enough for queries of ours."""

import re

_TEXT = re.compile(r'"[^"]*"')
_LISTED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_RANGE = re.compile(r"\[[^\]]*\]|\boffset \d+[smhd]\b")
_NAME = re.compile(r"[A-Za-z_:][\w:]*\b(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool"}


def metrics_in(query):
    """The names of series, such as those of a histogram's buckets."""
    bare = _RANGE.sub(" ", _MATCHERS.sub(" ", _LISTED.sub(" ", _TEXT.sub('""', query))))
    return set(_NAME.findall(bare)) - _WORDS


def labels_in(query):
    """The labels that it sums by, or selects by."""
    listed = {label.strip() for labels in _LISTED.findall(query) for label in labels.split(",")}
    return listed | {label for matchers in _MATCHERS.findall(query) for label in _LABEL.findall(matchers)}
