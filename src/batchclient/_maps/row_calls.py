"""From a row to its call: the form of the row, its input, and the parameters of its own.

Rules:
- The first row tells the form of all, unless the caller does. A template wins over what is there.
- The parameters of a row are those of its Batch line's body, or of its field ``params``; with
  ``row_params="take"`` fields by their names, too: the names of the call that the row makes.
- Nothing is left out in silence. A field with a parameter's name and its type is sent, or the row
  is refused by that name; ``row_params="ignore"`` says that such fields are data, and ``settle``
  names those of the first row.
- A row's own parameters stand before the job's (``merged``). What a job says for all rows, and the
  call of a row has not, is left out for that row.
- A null in a table is a gap, also within its structs. JSON in a text has been written so, and is
  sent so.
- What is no parameter that is known here travels as it is, as ``extra_body`` does. What the client
  owns, such as ``stream``, is refused where the call is made.
- No client, no file and no text of a row in an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from batchclient._calls.inputs import HIGHEST_PRIORITY, is_conversation
from batchclient._calls.tables import kind_of, listed
from batchclient._core.kinds import Kind
from batchclient.dialects._fields import FIELDS, FIELDS_OF_KIND
from batchclient.dialects._kinds import KINDS as KINDS_OF_CALLS
from batchclient.dialects._kinds import known_fields, typed_fields
from batchclient.errors import ConfigError
from batchclient.templates import check_given, fields_of, make_prompt
from batchclient.types import NOT_GIVEN, NotGiven

__all__ = [
    "KINDS",
    "ROW_FORMS",
    "RowCall",
    "RowCalls",
    "RowForm",
    "RowParams",
    "known_names",
    "merged",
    "parameter_types",
]

RowForm = Literal["batch", "messages", "prompt", "conversations", "template"]
ROW_FORMS: tuple[RowForm, ...] = ("batch", "messages", "prompt", "conversations", "template")
RowParams = Literal["take", "ignore"]

KINDS = {KINDS_OF_CALLS[kind].method: kind for kind in Kind if kind is not Kind.TOKENS}
"""The kinds of calls, by their names."""
_ROUTES = {
    "/chat/completions": ("chat", "messages"),
    "/completions": ("complete", "prompt"),
    "/embeddings": ("embed", "input"),
    "/classify": ("classify", "input"),
    "/score": ("score", ""),
    "/rerank": ("rerank", ""),
}
"""The calls of Batch lines and their inputs, by what follows the version in ``url``."""
_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"), ("query", "documents"))
"""The names that servers have for a query and its documents."""
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool",
}  # fmt: skip
"""The roles of ShareGPT's speakers."""
_CHATS = ("complete", "chat")
"""A row that is a chat needs no word of it: a completion is what is asked for by default."""
_OWN = ("model", "timeout_s", "priority")
"""Parameters of a row that are arguments of its call."""
_SESSION: Any = ("session",)
"""The key of a row's session while its parameters are read: a column of that name is data."""
_DATA = {"params", "thinking_tokens"}
"""Columns that are no parameters by themselves: a job's data may well have the second."""
_SPECIAL = frozenset({*_OWN, "extra_body"})
_BOUNDS = frozenset({"max_tokens", "max_completion_tokens"})
"""Two names of one bound."""
_ANY: frozenset[type] = frozenset({str, int, float, bool, list, dict})
"""All types of JSON: of a parameter that has no type here."""
_OF_PYTHON: dict[type, Any] = {str: str, bool: bool, int: Real, float: Real, list: (list, tuple), dict: Mapping}
"""The types of JSON, and what Python's programs have for them; numpy's numbers are ``Real``."""


class RowCall(NamedTuple):
    """The call of one row.

    Args:
        call: ``complete``, ``chat``, ``embed``, ``classify``, ``score`` or ``rerank``.
        item: the input: a text or token ids; a conversation; of ``score`` and ``rerank`` the query,
            the documents (a text is one), and how many of them are wanted (``None``: all).
        params: the job's parameters and the row's own.
        model: the row's own; ``None``: it has none.
        timeout_s: the row's own, seconds.
        priority: the row's own; ``None``: it has none.
        own: the names of the parameters that the row itself set.
        session: the row's own, of its ``params``.
    """

    call: str
    item: Any
    params: Mapping[str, Any]
    model: str | None = None
    timeout_s: float | NotGiven | None = NOT_GIVEN
    priority: int | None = None
    own: frozenset[str] = frozenset()
    session: str | None = None

    def __repr__(self) -> str:
        # Tracebacks with values show it: no prompt, and no field of the row's.
        return f"<RowCall {self.call}>"


class RowCalls:
    """Makes the calls of a job's rows.

    Args:
        form: of all rows; ``None``: the first row tells it.
        call: what is asked for where neither the form nor the row says it.
        template: a template, or a function from a row to its input.
        named: the fields that a template which is a function names: they are data.
        params: the job's, which a row's own replace.
        row_params: whether fields with a parameter's name are parameters (``"take"``) or data
            (``"ignore"``); ``None``: a row with such a field is refused.
        is_table: whether the rows are a table's: nulls are gaps, and columns may be JSON as text.

    Attributes:
        form: ``None`` until it is known.

    Raises:
        ConfigError: an argument is wrong, or there is a template, and a form without one.
    """

    def __init__(
        self,
        form: RowForm | None = None,
        *,
        call: str = "complete",
        template: str | Callable[[Any], Any] | None = None,
        named: Collection[str] = (),
        params: Mapping[str, Any] | None = None,
        row_params: RowParams | None = None,
        is_table: bool = False,
    ) -> None:
        if form is not None and form not in ROW_FORMS:
            raise ConfigError(f"rows is one of {', '.join(ROW_FORMS)}, not {form!r:.40}", field="rows")
        if row_params not in (None, "take", "ignore"):
            raise ConfigError(f"row_params is 'take' or 'ignore', not {row_params!r:.40}", field="row_params")
        if template is None and form == "template":
            raise ConfigError("rows='template' needs a template", field="prompt")
        if template is not None and form not in (None, "template"):
            raise ConfigError(f"rows={form!r} goes without a template, which makes the prompts itself", field="rows")
        if form in ("messages", "conversations") and call not in _CHATS:
            raise ConfigError(f"rows={form!r} are answered by call='chat', not {call!r}", field="call")
        self.form: RowForm | None = form if template is None else "template"
        self._call = call
        self._params: Mapping[str, Any] = {} if params is None else params
        self._row_params = row_params
        self._is_table = is_table
        self._fill = None if template is None else make_prompt(template, is_chat=call == "chat")
        names = fields_of(template) if isinstance(template, str) else named
        self._used = {"id", *names, *(name.partition(".")[0].partition("[")[0] for name in names)}
        """Fields that are the input, or name the row."""
        self._looked_for: dict[str, frozenset[str]] = {}
        """By call, the names of its parameters that are none of these fields."""
        self._object = "params" if "params" not in self._used else None
        """The field that holds parameters."""

    def __repr__(self) -> str:
        return f"<RowCalls: {self.form or 'not settled'}>"

    def settle(self, first: Any) -> str:
        """Find out the form by the first row; return a sentence about the rows.

        Raises:
            ConfigError: the row has no form, or not the one that was given; or it has parameters of
                its own, and nobody has said whether they are meant.
        """
        form = self._form_of(first) if self.form is None else self.form
        before, self.form = self.form, form
        try:
            call = self.read(first)
        except BaseException:
            self.form = before
            raise
        told = _SENTENCES[form].format(call=call.call)
        if is_conversation(call.item) and _is_answer(call.item[-1]):
            told += "; the first chat ends with the assistant's turn, with which many servers go on"
        found = ", ".join(self._found_in(first, call.call) if isinstance(first, Mapping) else ())
        if not found:
            return told
        if self._row_params == "ignore":
            return f"{told}; columns that are data, and no parameters: {found} (row_params='take' sends them)"
        return f"{told}; each row's own parameters: {found}"

    def read(self, row: Any) -> RowCall:
        """Return the call of a row.

        Raises:
            ConfigError: the row makes none; ``field`` is what is at fault.
        """
        if self.form is None:
            self.settle(row)
        form = self.form
        assert form is not None, "a row that settles nothing is refused"
        if form == "template":
            assert self._fill is not None
            call, item = self._call, self._fill(row)
            if call == "chat":
                item = self._or_chat(item)
            if not isinstance(row, (dict, Mapping)):
                return RowCall(*_as_chat(call, item), self._params)
            own: Any = None
        elif not isinstance(row, (dict, Mapping)):
            raise ConfigError(f"the row is {kind_of(row)}, not a mapping", field="rows")
        elif form == "batch":
            call, item, own = self._batch_line(row)
        else:
            call, item, own = self._call, _READERS[form](self, row), None
            if call not in _CHATS and is_conversation(item):
                raise ConfigError(f"a conversation is answered by call='chat', not {call!r}", field="call")
        call, item = _as_chat(call, item)
        session: Any = None
        if self._object in row or not self._looked_for_by(call).isdisjoint(row):
            own = self._with_fields(row, call, own)
            # Beside the body of a Batch line, which is the server's.
            session = own.pop(_SESSION, None) if own else None
        made = self._with_own(call, item, own) if own else RowCall(call, item, self._params)
        return made if session is None else made._replace(session=session, own=made.own | {"session"})

    # The form of a row -----------------------------------------------------------------------------------------------

    def _form_of(self, row: Any) -> RowForm:
        if isinstance(row, Mapping):
            if "url" in row and isinstance(row.get("body"), Mapping):
                return "batch"
            if isinstance(self._list_of(row.get("messages")), (list, tuple)):
                return "messages"
            if _is_turns(self._list_of(row.get("conversations"))):
                return "conversations"
            if "prompt" in row or (self._call in ("embed", "classify") and "input" in row):
                return "prompt"
            for name in ("messages", "conversations"):
                check_given(row.get(name, ""), name)
        if isinstance(row, str):
            raise ConfigError("a template is missing: plain texts take '{}', or 'Summarise: {}'", field="prompt")
        names = ", ".join(map(str, row))[:200] if isinstance(row, Mapping) else kind_of(row)
        raise ConfigError(
            "a template is missing, such as 'Summarise: {text}': the first row has no messages, prompt or conversations"
            f", and is no line of an OpenAI Batch file; it has: {names or 'nothing'}",
            field="prompt",
        )

    def _list_of(self, value: Any) -> Any:
        """Return a field, as a list if it is an array, or in a table JSON as a text."""
        value = listed(value)
        if self._is_table and isinstance(value, str) and value.lstrip().startswith("["):
            with suppress(ValueError, RecursionError):
                return json.loads(value)
        return _without_nulls(value, "content") if self._is_table and is_conversation(value) else value

    def _or_chat(self, value: Any) -> Any:
        """Return a field, or the conversation that a table has in it as JSON; ``[1]`` is a text."""
        messages = self._list_of(value)
        return messages if is_conversation(messages) and "role" in messages[0] else value

    # Inputs ----------------------------------------------------------------------------------------------------------

    def _messages(self, row: Mapping[str, Any]) -> Any:
        if "messages" not in row:
            raise ConfigError("the row has no field 'messages'", field="messages")
        check_given(row["messages"], "messages")
        messages = self._list_of(row["messages"])
        if not is_conversation(messages):
            raise ConfigError(f"messages is a list of messages, not {_kind_said(messages)}", field="messages")
        return messages

    def _conversations(self, row: Mapping[str, Any]) -> Any:
        if "conversations" in row:
            check_given(row["conversations"], "conversations")
        turns = self._list_of(row.get("conversations"))
        if not _is_turns(turns):
            said = "'from' and 'value', or 'role' and 'content'"
            raise ConfigError(f"conversations is a list of turns with {said}", field="conversations")
        is_openais = "role" in turns[0]
        messages = [*turns] if is_openais else []
        for place, turn in enumerate(() if is_openais else turns):
            speaker = turn.get("from") if isinstance(turn, Mapping) else None
            role = _SPEAKERS.get(speaker) if isinstance(speaker, str) else None
            if role is None or not isinstance(turn.get("value"), str):
                said = f"from is one of {', '.join(_SPEAKERS)}, and value a text"
                raise ConfigError(f"turn {place} of conversations: {said}", field="conversations")
            messages.append({"role": role, "content": turn["value"]})
        while messages and _is_answer(messages[-1]):
            # What is asked for.
            messages.pop()
        if not messages:
            raise ConfigError("conversations has nothing but answers", field="conversations")
        system = row.get("system")
        if isinstance(system, str) and system and messages[0].get("role") != "system":
            messages.insert(0, {"role": "system", "content": system})
        return messages

    def _prompt(self, row: Mapping[str, Any]) -> Any:
        name = "input" if self._call not in _CHATS and "input" in row else "prompt"
        if name not in row:
            raise ConfigError(f"the row has no field {name!r}", field=name)
        check_given(row[name], name)
        value = listed(row[name])
        value = self._or_chat(value) if self._call in _CHATS else value
        return value if is_conversation(value) else _one_input(value, name)

    def _batch_line(self, row: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
        url, body, method = row.get("url"), row.get("body"), row.get("method")
        path = url.removeprefix("/v1").removeprefix("/v2") if isinstance(url, str) else ""
        if path not in _ROUTES:
            taken = ", ".join(f"/v1{each}" for each in _ROUTES)
            raise ConfigError(f"url is one of {taken}, not {url!r:.40}", field="url")
        if method not in (None, "POST"):
            raise ConfigError(f"method is POST, not {method!r:.40}", field="method")
        if not isinstance(body, Mapping):
            raise ConfigError(f"body is a request, not {kind_of(body)}", field="body")
        call, name = _ROUTES[path]
        own = _without_nulls(body) if self._is_table else dict(body)
        # Nulls that ask for nothing.
        own = {key: value for key, value in own.items() if value is not None or key not in ("stream", "stream_options")}
        if type(own.get("priority", 0)) is not int:
            raise ConfigError(f"priority is a whole number, not {kind_of(own['priority'])}", field="priority")
        if not name:
            query, documents = next((pair for pair in _PAIRS if pair[0] in own and pair[1] in own), ("", ""))
            if not query:
                raise ConfigError(f"the body has no query and documents, which {path} is about", field="body")
            wanted = own.pop("top_n", None) if call == "rerank" else None
            return call, (_one_input(own.pop(query), query), own.pop(documents), wanted or None), own
        if name not in own:
            raise ConfigError(f"the body has no field {name!r}, which {path} is about", field=name)
        item = own.pop(name)
        if call != "chat":
            return call, _one_input(item, name), own
        item = self._list_of(body[name])
        if not is_conversation(item):
            raise ConfigError(f"messages is a list of messages, not {_kind_said(item)}", field="messages")
        return call, item, own

    # Parameters ------------------------------------------------------------------------------------------------------

    def _looked_for_by(self, call: str) -> frozenset[str]:
        names = self._looked_for.get(call)
        if names is None:
            self._looked_for[call] = names = frozenset(parameter_types(call).keys() - self._used - _DATA)
        return names

    def _found_in(self, row: Mapping[str, Any], call: str) -> list[str]:
        """Return the fields of a row that look like parameters of its call."""
        looked_for, known = self._looked_for_by(call), parameter_types(call)
        return [
            name
            for name, value in row.items()
            if (name in looked_for or name == self._object)
            and (
                (self._is_table and self._row_params is not None)
                or _fits(value, known[name])
                or _is_json_of(value, known[name])
            )
        ]

    def _with_fields(self, row: Mapping[str, Any], call: str, own: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a row's parameters: those of its body, and those of the fields beside its input."""
        looked_for = self._looked_for_by(call)
        if self._row_params == "ignore":
            return own
        given: dict[str, Any] = {}
        if self._object is not None and row.get(self._object) is not None:
            params = self._of_column(call, "params", row["params"])
            if not isinstance(params, Mapping):
                raise ConfigError(
                    f"params is an object of parameters, not {kind_of(params)}; row_params='ignore' leaves it as data",
                    field="params",
                )
            given = {_SESSION if name == "session" else name: value for name, value in params.items()}
        if self._row_params is None:
            found = () if looked_for.isdisjoint(row) else self._found_in(row, call)
            for name in found:
                if name != self._object:
                    raise ConfigError(
                        f"the row's field {name!r} has the name of a parameter: row_params='take' sends such fields, "
                        "row_params='ignore' leaves them as data",
                        field=name,
                    )
        else:
            for name, value in row.items():
                if name in looked_for and value is not None:
                    if name in given:
                        raise ConfigError(f"{name} is given twice: as a field, and in params", field=name)
                    given[name] = self._of_column(call, name, value)
        if own is None:
            return given
        twice = next((name for name in given if name in own), None)
        if twice is not None:
            raise ConfigError(f"{twice} is given twice: beside the body, and in it", field=twice)
        return own | given

    def _of_column(self, call: str, name: str, value: Any) -> Any:
        """Return the value of a parameter; in a CSV file numbers are texts, and anywhere lists and objects.

        Raises:
            ConfigError: the text is no value of the parameter.
        """
        types = parameter_types(call)[name]
        if not self._is_table:
            return json.loads(value) if _is_json_of(value, types) else value
        is_text = isinstance(value, str)
        if not is_text:
            value = _without_nulls(value)
        elif bool in types and value.lower() in ("true", "false"):
            # Python writes True, and spreadsheets TRUE.
            value = value.lower() == "true"
        elif types is _ANY or str not in types or value[:1] in ("[", "{", '"'):
            with suppress(ValueError, RecursionError):
                read = json.loads(value)
                value = value if str in types and type(read) not in types else read
        if type(value) is float and value.is_integer() and int in types and float not in types:
            # pandas writes whole numbers so, where a column has gaps.
            return int(value)
        if is_text and value is not None and type(value) not in types:
            raise ConfigError(f"the column {name!r} has a text that is no value of this parameter", field=name)
        return value

    def _with_own(self, call: str, item: Any, own: dict[str, Any]) -> RowCall:
        known, names = known_names(call), frozenset(own)
        if _SPECIAL.isdisjoint(own) and known.issuperset(own):
            return RowCall(call, item, merged(self._params, own), own=names)
        extra = own.pop("extra_body", None)
        if extra is not None and not isinstance(extra, Mapping):
            raise ConfigError(f"extra_body is a mapping, not {kind_of(extra)}", field="extra_body")
        for name in extra or ():
            if name in own:
                raise ConfigError(f"{name} is given twice: in extra_body, and beside it", field=name)
        names |= frozenset(extra or ())
        model, timeout_s, priority = (own.pop(name, None) for name in _OWN)
        if extra or not known.issuperset(own):
            given = own | dict(extra or {})
            own = {name: value for name, value in given.items() if name in known}
            extra = {name: value for name, value in given.items() if name not in known}
        if priority and self.form == "batch":
            # The body is the server's, and travels as it is. There vLLM's lowest goes first, and
            # here the highest.
            extra = {**(extra or {}), "priority": priority}
            priority = max(-HIGHEST_PRIORITY, min(HIGHEST_PRIORITY, -priority))
        if extra:
            own["extra_body"] = extra
        if model is not None and (not isinstance(model, str) or not model):
            raise ConfigError(f"model is a name, not {kind_of(model)}", field="model")
        params = merged(self._params, own)
        return RowCall(call, item, params, model, NOT_GIVEN if timeout_s is None else timeout_s, priority, names)


def merged(job: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the job's parameters with a row's own, which stand before them, in ``extra_body``, too.

    A row's ``max_tokens`` stands before the job's ``max_completion_tokens``, and the other way
    round.
    """
    if not job or not own:
        return own or job
    outer, inner = job.get("extra_body") or {}, own.get("extra_body") or {}
    said = own.keys() | inner.keys()
    if not _BOUNDS.isdisjoint(said):
        said |= _BOUNDS
    params = {**{name: value for name, value in job.items() if name not in said}, **own}
    if outer:
        params["extra_body"] = {name: value for name, value in outer.items() if name not in said} | dict(inner)
    return params


_READERS: dict[str, Callable[[RowCalls, Mapping[str, Any]], Any]] = {
    "messages": RowCalls._messages,
    "conversations": RowCalls._conversations,
    "prompt": RowCalls._prompt,
}
_SENTENCES = {
    "batch": "each row is a line of an OpenAI Batch file",
    "messages": "each row is a chat, by its messages",
    "conversations": "each row is a chat, by its conversations (ShareGPT); answers at their ends are left out",
    "prompt": "each row has its prompt, for call={call!r}",
    "template": "the template makes the prompt of each row, for call={call!r}",
}


@cache
def parameter_types(call: str | None = None) -> Mapping[str, frozenset[type]]:
    """Return the names that a row's parameters may have, with the types of JSON that each one takes.

    A parameter that takes whole numbers alone has ``int`` and no ``float``.

    Args:
        call: that the row makes; ``None``: any.
    """
    numbers = frozenset({int, float})
    found: dict[str, frozenset[type]] = {
        "model": frozenset({str}),
        "timeout_s": numbers,
        "priority": frozenset({int}),
        "params": frozenset({dict}),
    }
    if call is None or call in _CHATS:
        found |= {"stream": frozenset({bool}), "stream_options": frozenset({dict})}
    for each in KINDS if call is None else (call,):
        kind = KINDS_OF_CALLS[KINDS[each]]
        for name, annotation in typed_fields(kind.streamed_params or kind.params).items():
            found[name] = found.get(name, frozenset()) | _types_of(annotation)
        found |= dict.fromkeys(kind.others - found.keys(), _ANY)
    return found


def _types_of(annotation: Any) -> frozenset[type]:
    """Return the types that JSON has for an annotation."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return frozenset().union(*map(_types_of, get_args(annotation)))
    if origin is Literal:
        return frozenset(map(type, get_args(annotation)))
    if annotation is Any:
        return _ANY
    if annotation is float:
        return frozenset({int, float})
    if annotation in (str, bool, int):
        return frozenset({annotation})
    if annotation in (None, NoneType):
        return frozenset()
    kind = origin or annotation
    return frozenset({dict if issubclass(kind, (Mapping, dict)) else list})


def _fits(value: Any, types: Collection[type]) -> bool:
    """Whether a value is of one of JSON's types; other programs write whole numbers with a point."""
    if isinstance(value, bool):
        return bool in types
    return any(isinstance(value, _OF_PYTHON[each]) for each in types)


@cache
def known_names(call: str) -> frozenset[str]:
    """Return the names that are passed as parameters of a call, or are refused as such."""
    kind = KINDS[call]
    return known_fields(kind) | FIELDS.keys() | FIELDS_OF_KIND.get(kind, {}).keys()


def _as_chat(call: str, item: Any) -> tuple[str, Any]:
    """Return a call and its input; a conversation is a chat's, and of a chat a text is a message."""
    if call == "chat" and isinstance(item, str):
        return call, [{"role": "user", "content": item}]
    return ("chat", item) if call == "complete" and is_conversation(item) else (call, item)


def _one_input(value: Any, name: str) -> Any:
    """Return a text or token ids; several inputs in a row are refused.

    Raises:
        ConfigError: naming the field.
    """
    if isinstance(value, (list, tuple)) and value:
        if len(value) == 1 and isinstance(value[0], (str, list, tuple)):
            return value[0]
        if not all(type(each) is int for each in value):
            raise ConfigError(
                f"{name} is one text, or the token ids of one: a list of several inputs is several rows", field=name
            )
    elif not isinstance(value, (str, list, tuple)) or not (value or isinstance(value, str)):
        raise ConfigError(f"{name} is a text or token ids, not {_kind_said(value)}", field=name)
    return value


def _kind_said(value: Any) -> str:
    return "an empty list" if isinstance(value, (list, tuple)) and not value else kind_of(value)


def _is_turns(turns: Any) -> bool:
    """Whether a value is a conversation, with ShareGPT's names of fields or with OpenAI's."""
    is_list = isinstance(turns, (list, tuple)) and bool(turns) and isinstance(turns[0], Mapping)
    return is_list and ("from" in turns[0] or "role" in turns[0])


def _is_answer(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _is_json_of(value: Any, types: Collection[type]) -> bool:
    """Whether a value is a text that has JSON of one of these types, and no text is one of them."""
    if not isinstance(value, str) or str in types or not {list, dict} & {*types}:
        return False
    with suppress(ValueError, RecursionError):
        return type(json.loads(value)) in types
    return False


def _without_nulls(value: Any, kept: str = "") -> Any:
    """Return a value without the fields that structs have for other rows; ``kept`` may be null."""
    if isinstance(value, (list, tuple)):
        return [_without_nulls(each, kept) for each in value]
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None or name == kept}
    return value
