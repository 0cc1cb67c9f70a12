"""Ray Data: a data set's rows through a client, as a class for ``map_batches``.

Ray is the user's: the module imports it in the actor, and no extra brings it.

Rules:
- A wrong argument is refused when the class is made, before a row is read.
- A row that fails is a row with an error; the other rows of the batch have their answers.
- A batch comes in any of Ray's formats, and leaves as an Arrow table. Each call adds the same
  columns with the same types, whatever its rows have become: a data set's files have one schema.
- An error is named by its class and, where the error is the library's, its message, which holds no
  prompt and no key.
- The calls run in an event loop of their own. Ray's loop stands still while a batch is read, and
  while a finished batch waits for room: deadlines would pass, and answers would lie unread.
- An actor keeps nothing that its successor needs: Ray repeats the blocks of an actor that died.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchclient import BatchClient
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient.errors import BatchClientError, ConfigError
from batchclient.integrations._own_loop import OwnLoop
from batchclient.templates import make_prompt
from batchclient.types import Classification, Completion, Embedding

if TYPE_CHECKING:
    from batchclient._maps.row_calls import RowForm
    from batchclient.options import Server

__all__ = ["MapBatches"]

_TOKENS = {"prompt_tokens": "int64"}
_ERROR = {"error": "string"}
_TEXT = {"completion": "string", "finish_reason": "string", "health": "string"}
ADDED: Mapping[str, Mapping[str, str]] = {
    "complete": _TEXT | _TOKENS | {"completion_tokens": "int64"} | _ERROR,
    "chat": _TEXT | _TOKENS | {"completion_tokens": "int64"} | _ERROR | {"message": "string"},
    "embed": {"embedding": "list<float>"} | _TOKENS | _ERROR,
    "classify": {"label": "string", "probabilities": "list<double>"} | _TOKENS | _ERROR,
}
"""By call: the added columns, and their Arrow types."""
_REQUESTS = ("messages", "conversations", "prompt")
"""Rows that are requests, all with one sort of answer."""
_NOT_HERE = {
    "journal": "Ray repeats the blocks that an actor has not finished; a journal is for a map in one process",
    "fail_if": "it would judge each batch by itself; filter the data set by the column health instead",
    "docs": "the documents are the rows of a batch",
    "ordered": "rows keep their places in a batch",
    "progress": "Ray shows the progress",
    "return_exceptions": "errors are in the column error",
}
"""Arguments of a map that have no meaning here, and why."""


class MapBatches:
    """Make one call per row of a data set: a class for ``Dataset.map_batches``.

    For example::

        dataset.map_batches(
            MapBatches,
            fn_constructor_kwargs={"base_url": urls, "prompt": "Classify: {text}", "max_tokens": 1},
            compute=ray.data.ActorPoolStrategy(size=1),
            batch_size=512,
            batch_format="pyarrow",
            max_concurrency=4,
        )

    The rows in flight of an actor are at most 4 × ``batch_size`` × ``max_concurrency``: so many
    tasks at once, each with four batches of its block. ``MapBatches`` made with the same arguments
    in the driver checks the arguments there.

    The added columns are ``completion``, ``finish_reason``, ``health``, ``prompt_tokens``,
    ``completion_tokens`` and ``error``; a chat has ``message``, too, the server's own as JSON where
    that says more than its text. An ``embed`` adds ``embedding``, ``prompt_tokens`` and ``error``.
    A ``classify`` adds ``label``, ``probabilities``, ``prompt_tokens`` and ``error``. The error is
    null where a row has succeeded; all other added columns are null where the row has failed.

    Args:
        base_url: the servers, as for ``BatchClient``.
        prompt: a template with the columns' names (``"Classify: {text}"``), or a callable of a row,
            which is a mapping, as for ``BatchClient.batch_map``. ``None``: the rows are requests.
        rows: their form: ``"messages"``, ``"conversations"`` or ``"prompt"``.
        call: ``"complete"``, ``"chat"``, ``"embed"`` or ``"classify"``.
        arguments: of ``BatchClient`` (``model``, ``api_key``, ``limit``, ``timeout_s``, …) and of
            the call (``max_tokens``, ``response_model``, …). A key is better given as
            ``BATCHCLIENT_API_KEY`` in the actor's environment.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        base_url: str | Server | Sequence[str | Server] | None = None,
        *,
        prompt: str | Callable[[Any], Any] | None = None,
        rows: RowForm | None = None,
        call: str = "complete",
        **arguments: Any,
    ) -> None:
        if not isinstance(call, str) or call not in ADDED:
            raise ConfigError(f"call is one of {', '.join(ADDED)}, not {call!r:.40}", field="call")
        for name in arguments:
            if name in _NOT_HERE:
                raise ConfigError(f"{name}: {_NOT_HERE[name]}", field=name)
        if (prompt is None) != (rows in _REQUESTS):
            forms = ", ".join(_REQUESTS)
            raise ConfigError(f"prompt: give a template, or rows as one of {forms} without one", field="prompt")
        if call == "complete" and rows in ("messages", "conversations"):
            call = "chat"
        if arguments.get("n", 1) != 1:
            raise ConfigError("n: a row holds one completion; repeat the row n times", field="n")
        self._call = call
        self._prompt = prompt
        self._rows = rows
        if prompt is not None:
            make_prompt(prompt)
        if isinstance(prompt, str) and "{}" in prompt.replace("{{", "").replace("}}", ""):
            raise ConfigError("prompt: a row has columns: write {name} instead of {}", field="prompt")
        own: dict[str, Any] = {name: arguments[name] for name in arguments if name in BATCH_CLIENT_ARGUMENTS}
        self._params: dict[str, Any] = {name: arguments[name] for name in arguments if name not in own}
        self._client = BatchClient(base_url, **own)
        self._own_loop = OwnLoop()
        # What is wrong with a parameter is said here, not once per row.
        self._client.stream_map((), prompt, rows=rows, call=call, **self._params)  # type: ignore[call-overload]

    async def __call__(self, batch: Any) -> Any:
        """Return a batch as an Arrow table with the added columns.

        Raises:
            ConfigError: the batch has a column of an added name, or the servers have several
                models.
            BatchClientError: the servers were to be asked for their model, and that failed.
        """
        from ray.data.block import BlockAccessor

        table: Any = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        for name in ADDED[self._call]:
            if name in table.column_names:
                raise ConfigError(f"the data set has a column {name!r} already: rename_columns first", field="call")
        return _with_columns(table, self._call, await self._own_loop.run(self._answers(table)))

    async def _answers(self, table: Any) -> list[Any]:
        answers: list[Any] = await self._client.batch_map(  # type: ignore[call-overload]
            table, self._prompt, rows=self._rows, call=self._call, return_exceptions=True, **self._params
        )
        return [_one_choice(answer) for answer in answers]


def _with_columns(table: Any, call: str, answers: Sequence[Any]) -> Any:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "list<float>": pa.list_(pa.float32()),
        "list<double>": pa.list_(pa.float64()),
    }
    rows = [columns_of(answer) for answer in answers]
    for name, kind in ADDED[call].items():
        table = table.append_column(name, pa.array([row.get(name) for row in rows], types[kind]))
    return table


def columns_of(answer: Any) -> dict[str, Any]:
    """Return the added columns of a row: an answer's or an exception's."""
    if isinstance(answer, Exception):
        return {"error": _described(answer)}
    usage = answer.usage
    tokens = (
        {} if usage is None else {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    )
    match answer:
        case Completion():
            columns = {"completion": answer.text, "finish_reason": answer.finish_reason, "health": answer.health}
            return columns | {"message": _message(answer)} | tokens
        case Embedding():
            return {"embedding": answer.vector} | tokens
        case Classification():
            return {"label": answer.label, "probabilities": list(answer.probabilities)} | tokens
    return tokens


def _one_choice(answer: Any) -> Any:
    if len(getattr(answer, "choices", ())) > 1:
        return ConfigError("n: a row holds one completion; repeat the row n times", field="n")
    return answer


def _message(completion: Completion) -> str | None:
    """Return a chat's message where it says more than its text."""
    message = completion.choices[0].message
    return None if message is None or message.keys() <= {"role", "content"} else json.dumps(message, ensure_ascii=False)


def _described(error: Exception) -> str:
    if not isinstance(error, BatchClientError):
        return type(error).__name__
    message = error.message
    if message.startswith("document "):
        # The place within a batch says nothing to the reader of a data set.
        message = message.partition(": ")[2] or message
    return f"{type(error).__name__}: {message}"
