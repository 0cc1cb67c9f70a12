"""Whose is what: the one right answer of every call, written into any server's reply, and told from all others'.

Rules:
- A call is known by its number, which is in its prompt. Every letter of its answer is its own: a letter of another's shows.
- A reply keeps its shape: only texts, vectors and numbers are replaced, in as many pieces as they came.
- Letters are none that JSON's escapes have, so that no damage to a text makes one of another's.
"""

import base64
import re
import struct

__all__ = [
    "Owner",
    "foreign",
    "items_in",
    "owners_in",
    "prompt_of",
    "right_answer",
    "text_told",
    "texts_in",
    "write_answers",
]

LETTERS = "ghijklmopqsvwxyzGHIJKLMNOPQRSTUVWXYZ"
_NUMBER = re.compile(rb"call-(\d+)")

Owner = tuple[int, int]
"""(call, its choice)."""


def prompt_of(call):
    return f"call-{call}"


def owners_in(body, n):
    """Who each choice of a reply to a request belongs to. SGLang's list repeats a prompt for each of its choices."""
    calls = [int(each) for each in _NUMBER.findall(body)]
    if len(set(calls)) < len(calls):
        return [(call, calls[:place].count(call)) for place, call in enumerate(calls)]
    return [(call, k) for call in calls for k in range(n)]


def text_of(call, k=0):
    own = LETTERS[call]
    return f'{own} {own}"漢\n{own}\\{own}🙂{own * 2}/{own}{"é" * (k + 1)}{own * 3}'


def vector_of(call):
    own = call + 1.0
    return [own, 2 * own, -own, own / 2]


def score_of(call):
    return round(0.0271828 * (call + 1), 7)


def right_answer(kind, call, n):
    """What a call is to be answered with, as ``told`` tells it."""
    if kind == "embed":
        return vector_of(call)
    if kind == "score":
        return score_of(call)
    if kind == "classify":
        return [score_of(call), 1 - score_of(call)]
    return [text_of(call, k) for k in range(n)]


def foreign(kind, call, told):
    """What of an answer is another call's."""
    if kind in ("embed", "score", "classify"):
        return [other for other in range(len(LETTERS)) if other != call and right_answer(kind, other, 1) == told]
    return sorted(set("".join(map(str, told))) & set(LETTERS) - {LETTERS[call]})


def items_in(event):
    """(Index, item) of the choices, results or vectors that one event or body of any server holds."""
    items = event
    if isinstance(event, dict):
        lists = (event[name] for name in ("choices", "data", "results") if isinstance(event.get(name), list))
        items = next(lists, [event] if {"content", "meta_info"} & event.keys() else [])
    if not isinstance(items, list):
        return []
    # Where a server has no numbers the place is meant.
    return [(item.get("index", place), item) for place, item in enumerate(items) if isinstance(item, dict)]


def texts_in(item):
    """(Holder, name) of the texts of a choice; the arguments of its tool calls are its text, too."""
    holder = next((item[name] for name in ("message", "delta") if name in item), item)
    functions = [tool["function"] for tool in holder.get("tool_calls") or ()]
    found = [(holder, name) for name in ("text", "content")] + [(function, "arguments") for function in functions]
    return [(holder, name) for holder, name in found if isinstance(holder.get(name), str)]


def text_told(choice):
    """The same of a choice as a client hands it out."""
    tools = (choice.message or {}).get("tool_calls") or ()
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in tools]
    told = [function.get("arguments") if isinstance(function, dict) else None for function in functions]
    return choice.text + "".join(each if isinstance(each, str) else "?" for each in told)


def write_answers(events, owners):
    """Replace what was answered by the owners' right answers."""
    places = {}
    for event in events:
        for index, item in items_in(event):
            call, k = owners[index]
            texts = [(holder, name, "meta_info" in item) for holder, name in texts_in(item)]
            if texts:
                places.setdefault((call, k), []).extend(texts)
            elif "embedding" in item:
                vector = vector_of(call)
                packed = isinstance(item["embedding"], str)
                item["embedding"] = base64.b64encode(struct.pack("<4f", *vector)).decode() if packed else vector
            elif "probs" in item:
                item["probs"] = [score_of(call), 1 - score_of(call)]
            elif {"score", "relevance_score"} & item.keys():
                item["relevance_score" if "relevance_score" in item else "score"] = score_of(call)
    for (call, k), found in places.items():
        # An opening event's empty text stays empty.
        found = [each for each in found if each[0][each[1]]] or found[-1:]
        text = text_of(call, k)
        for number, (holder, name, is_whole) in enumerate(found):
            start, end = (len(text) * at // len(found) for at in (number, number + 1))
            # SGLang's events hold the whole text so far.
            holder[name] = text[:end] if is_whole else text[start:end]
