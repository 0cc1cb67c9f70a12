"""What goes wrong with the values of a reply: fields at any depth, choices and events."""

from copy import deepcopy

from tests.mutations.answers import items_in
from tests.mutations.cases import DONE
from tests.mutations.mutation import Mutation, all_calls, body_of, calls_in, sent

_HOLDERS = ("choices", "data", "results")
_NEAR_THE_TOP, _DEEPEST = 3, 8
_SAYS_THE_END = ("finish_reason", "stop")

# Fields ---------------------------------------------------------------------------------------------------------------


def _paths(value, path=()):
    """The path of every field and list member within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from _paths(each, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _retyped(rng, value):
    kinds = {str: "7", int: 7, list: [value], dict: {"x": value}}
    kind = int if type(value) in (bool, float) else type(value)
    return rng.choice([other for each, other in kinds.items() if each is not kind])


def field(rng, reply, strangers):
    number = rng.choice([n for n, event in enumerate(reply.events) if event is not DONE and event is not None])
    events = deepcopy(reply.events)
    # Half of them near the top: most fields stand in lists of log-probabilities.
    deepest = rng.choice((_NEAR_THE_TOP, _DEEPEST))
    path = rng.choice(sorted({path for path in _paths(events[number]) if len(path) <= deepest}, key=str))
    holder, key = _at(events[number], path[:-1]), path[-1]
    value = holder[key]
    how = rng.choice(("dropped", "nulled", "retyped"))
    if (how != "dropped" and value is None) or (how == "retyped" and key in _SAYS_THE_END and not value):
        return None
    if how == "dropped":
        del holder[key]
    else:
        holder[key] = None if how == "nulled" else _retyped(rng, value)
    tainted, spared = _reach(reply, reply.events[number], path, how)
    steps = sent(rng, reply, body_of(reply, events, ascii_only=rng.random() < 0.5))
    return Mutation(f"event {number}: {'.'.join(map(str, path))} {how} ({value!r:.40})", steps, tainted, spared)


def _reach(reply, event, path, how):
    """(tainted, spared) of a change to a field."""
    everyone = all_calls(reply)
    items = items_in(event)
    is_item = len(items) == 1 and items[0][1] is event
    in_list = isinstance(event, list) or path[0] in _HOLDERS
    if not is_item and not in_list:
        return frozenset(), everyone  # about the reply, not of any answer
    depth = 0 if is_item else 1 if isinstance(event, list) else 2
    if len(path) <= depth:
        # The list of choices, or a choice as a whole.
        touched = frozenset(calls_in(reply, event))
        return touched, everyone if not touched and how != "retyped" else frozenset()
    index, _ = items[0] if is_item else items[path[depth - 1]]
    own = frozenset({reply.owners[index][0]})
    # A vector of another length than the others' says nothing of which is right.
    concerns_all = path[depth] == "index" or (path[depth] == "embedding" and len(path) > depth + 1)
    return own, frozenset() if concerns_all else everyone - own


def choice_moved(rng, reply, strangers):
    """A choice stands in the next reply, instead of this one or as well."""
    if reply.streamed or not items_in(reply.events[0]) or items_in(reply.events[0])[0][1] is reply.events[0]:
        return None
    events = deepcopy(reply.events)
    items = _list_in(events[0])
    place = rng.randrange(len(items))
    # Whose call then goes alone is handed its reply as it came, where it asked for that.
    moves = not reply.handed_on and rng.random() < 0.5
    moved = items.pop(place) if moves else items[place]

    def then(after):
        events = deepcopy(after.events)
        if isinstance(items := _list_in(events[0]), list):
            items.insert(rng.randint(0, len(items)), moved)
        return sent(rng, after, body_of(after, events))

    what = f"a choice {'moved' if moves else 'repeated'} into the next reply"
    return Mutation(what, sent(rng, reply, body_of(reply, events)), then=then)


def _list_in(event):
    if isinstance(event, list):
        return event
    return next((event[name] for name in _HOLDERS if name in event), None)


# Events ---------------------------------------------------------------------------------------------------------------


def event(rng, reply, strangers):
    if not reply.streamed:
        return None
    events = list(reply.events)
    number = rng.randrange(len(events))
    own, everyone = calls_in(reply, events[number]), all_calls(reply)
    how = rng.choice(("dropped", "doubled", "swapped"))
    if how == "dropped":
        del events[number]
        tainted, spared = own, everyone - own
    elif how == "doubled":
        events.insert(number, events[number])
        # One that comes twice after its choice's end spoils the list.
        tainted, spared = own, frozenset() if own else everyone
    else:
        if number + 1 == len(events):
            return None
        other = calls_in(reply, events[number + 1])
        events[number : number + 2] = events[number + 1], events[number]
        tainted, spared = (own, everyone - own) if own == other else (frozenset(), everyone)
        if own == other:
            # The first after the last: as doubled.
            spared = frozenset()
    return Mutation(
        f"event {number} {how}", sent(rng, reply, body_of(reply, events)), frozenset(tainted), frozenset(spared)
    )
