"""Parameters as a caller gives them: a field that no call has goes in ``extra_body``."""

from tests.core import Kind
from batchclient.dialects._kinds import known_fields
from batchclient.dialects._fields import FIELDS

__all__ = ["as_given"]


def as_given(fields, kind=Kind.COMPLETION):
    """Return a body's fields as the parameters of a call that sends them."""
    named = known_fields(kind) | FIELDS.keys()
    params = {name: value for name, value in fields.items() if name in named}
    extra = {name: value for name, value in fields.items() if name not in named}
    return params | {"extra_body": extra | (params.get("extra_body") or {})} if extra else params
