"""What is done to a reply, and what may come of it.

Every mutation says whose bytes it touched: theirs may be spoilt where nobody can see it, a letter doubled in a text. Everyone else is to be answered
as if nothing had been.
"""

from tests.mutations import in_the_json, on_the_wire

__all__ = ["draw"]

_FAMILIES = {
    on_the_wire.in_pieces: 1,
    on_the_wire.closed: 3,
    on_the_wire.cut: 3,
    on_the_wire.delayed: 2,
    on_the_wire.body_damaged: 5,
    on_the_wire.wire_damaged: 4,
    in_the_json.field: 9,
    in_the_json.choice_moved: 3,
    in_the_json.event: 4,
    on_the_wire.more_follows: 3,
    on_the_wire.length: 2,
}
"""How often each is drawn, among those that a reply can have."""


def draw(rng, reply, strangers):
    """Draw a mutation of a reply.

    Args:
        rng: decides.
        reply: the whole and right one.
        strangers: calls that nobody made, whose answers no caller may ever get.
    """
    while True:
        family = rng.choices(list(_FAMILIES), list(_FAMILIES.values()))[0]
        found = family(rng, reply, strangers)
        if found is not None:
            found.kind = family.__name__.replace("_", " ")
            return found
