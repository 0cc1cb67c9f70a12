"""The forms of ``OUT``: what makes bytes of a job's rows.

Rules:
- Each row of ``IN`` is in ``OUT`` once, whether it has an answer or not.
- A table has the columns of its input, ``id``, and all that an answer or an error may add, whatever
  has become of the rows. What has no column there, or does not fit its type, is in the last column,
  ``other_fields``, as JSON. So nothing is lost, and the columns of two runs are the same.
- The lines of OpenAI's Batch form have ``custom_id``, and ``response`` with the reply's body. A row
  that failed has the server's status and words in ``response``, or else ``error``. Such lines are
  in ``OUT.errors``, too. Beside these a line has the ``health`` of a generated answer, and where
  the call gave labels, ``label`` and ``probabilities``.
- A file of vectors has one for each row; of a row without one its numbers are NaN. ``OUT.ids`` has
  the ``id`` of each, and the error, as JSON lines.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from batchclient._maps.fields import encode
from batchclient.errors import BatchClientError, ConfigError
from batchclient.jobs.inputs import ending_of
from batchclient.types import Classification, Completion, Embedding, MapResult, Usage

__all__ = [
    "BESIDE",
    "OTHER",
    "BatchLines",
    "CsvRows",
    "Lines",
    "OutputForm",
    "Vectors",
    "Work",
    "Writer",
    "form_of",
    "is_packed",
]

OutputForm = Literal["jsonl", "csv", "parquet", "batch", "npy"]
Fields = Callable[[MapResult], dict[str, Any]]
"""From a result to the fields of a row of the output."""
Work = Callable[[], bytes]
"""Makes bytes in the thread that writes them, one after the other."""

OTHER = "other_fields"
"""The column of a table for what has no other."""
BESIDE: Mapping[OutputForm, str] = {"batch": ".errors", "npy": ".ids"}
"""What the second file of a form has behind the name of ``OUT``."""
_FORMS: dict[str, OutputForm] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".parquet": "parquet",
    ".pq": "parquet", ".npy": "npy",
}  # fmt: skip
_PACKABLE = ("jsonl", "csv", "batch")
_OTHERS = (
    ".arrow", ".avro", ".bz2", ".db", ".feather", ".gz", ".ipc", ".json", ".ods", ".orc", ".sqlite", ".tar", ".tgz",
    ".txt", ".xls", ".xlsx", ".xz", ".zip", ".zst",
)  # fmt: skip
"""Endings of what is not written here, or of what may be of several forms."""


def form_of(path: str, form: OutputForm | None = None) -> OutputForm:
    """Return the form of an output: the one that was given, or the one that its ending tells.

    Raises:
        ConfigError: the ending is that of another form, or of a form that is not packed.
    """
    ending, last = ending_of(path), Path(path.lower()).suffix
    ending = last if last in _OTHERS and last != ".gz" else ending
    told = form or _FORMS.get(ending)
    if told is None and (ending in _OTHERS or is_packed(path)):
        forms = ", ".join(get_args(OutputForm))
        raise ConfigError(f"--output: the ending {ending or '.gz'!r} tells no form; give --output-form, one of {forms}")
    if is_packed(path) and told not in _PACKABLE:
        raise ConfigError(f"--output: {told} is not packed by gzip; leave out .gz")
    return told or "jsonl"


def is_packed(path: str) -> bool:
    """Whether an output is packed by gzip, as its ending tells."""
    return path.lower().endswith(".gz")


class Writer:
    """Makes bytes of rows. The bytes of all rows, and those of the end, are the file.

    Args:
        fields: of a row.

    Attributes:
        head: bytes that take the place of the file's first ones at the end; empty: none do.
    """

    head: bytes = b""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def add(self, result: MapResult) -> bytes | Work:
        """Take the next row; return what can be written by now, which may be nothing."""
        raise NotImplementedError

    def beside(self, result: MapResult) -> bytes:
        """Return what the second file has of a row that was added last."""
        return b""

    def end(self) -> bytes | Work:
        """Return the end of the file, behind the rows that were added."""
        return b""


class Lines(Writer):
    """JSON lines."""

    def add(self, result: MapResult) -> bytes:
        return encode(self._fields(result)) + b"\n"


class CsvRows(Writer):
    """CSV with a header. Lists and objects are JSON, and a missing value is an empty field.

    So is NaN; an infinity is ``inf`` or ``-inf``. An empty text is in quotes. The file is UTF-8,
    and its lines end with a line feed.

    Args:
        fields: of a row.
        names: of the columns; the last one is an object of what has no other.
        delimiter: between two fields.
    """

    def __init__(self, fields: Fields, names: Sequence[str], delimiter: str = ",") -> None:
        super().__init__(fields)
        *known, self._other = self._names = names
        self._known = frozenset(known)
        self._delimiter = delimiter
        self._head = self._line(self._names)

    def add(self, result: MapResult) -> bytes:
        fields = self._fields(result)
        if not fields.keys() <= self._known:
            other = fields.pop(self._other, {})
            other |= {name: value for name, value in fields.items() if name not in self._known}
            fields[self._other] = encode(other).decode()
        head, self._head = self._head, b""
        return head + self._line([fields.get(name) for name in self._names])

    def end(self) -> bytes:
        head, self._head = self._head, b""
        return head

    def _line(self, values: Sequence[Any]) -> bytes:
        line = self._delimiter.join([self._cell(value) for value in values]) + "\n"
        return line.encode("utf-8", "backslashreplace")

    def _cell(self, value: Any) -> str:
        if value is None:
            return ""
        if type(value) is float and not math.isfinite(value):
            return "" if math.isnan(value) else str(value)
        text = value if isinstance(value, str) else encode(value).decode()
        if text.startswith('"') and not isinstance(value, str):
            text = json.loads(text)  # a time, a decimal, bytes
        is_plain = text and not ('"' in text or self._delimiter in text or "\n" in text or "\r" in text)
        return text if is_plain else '"' + text.replace('"', '""') + '"'


class BatchLines(Writer):
    """The lines of OpenAI's Batch form; in ``OUT.errors`` those of rows that failed.

    Args:
        fields: of a row.
        model: of the job, where a reply names none.
        id_column: that has the rows' ids; ``None``: it is ``custom_id`` or ``id``.
        has_health: whether the lines have it.
    """

    def __init__(
        self, fields: Fields, model: str | None = None, id_column: str | None = None, *, has_health: bool = True
    ) -> None:
        super().__init__(fields)
        self._model = model
        self._id = id_column
        self._has_health = has_health
        self._line = b""

    def add(self, result: MapResult) -> bytes:
        row, answer = result.document, result.answer
        own = row.get("custom_id", row.get("id", result.id)) if self._id is None else row.get(self._id)
        unusable = getattr(row, "fault", None) is not None
        name = f"batch_req_{result.index}"
        response: dict[str, Any] | None = None
        error: dict[str, Any] | None = None
        if answer is not None:
            body = {"id": name, "created": 0, "model": self._model} | _body_of(answer, row)
            response = {"status_code": 200, "request_id": body["id"], "body": body}
        else:
            told = self._fields(result)["error"]
            error = {"code": told["type"], "message": told["message"]}
            failure = result.error
            if isinstance(failure, BatchClientError) and failure.status is not None:
                body = {"error": {"type": told["type"], "message": told["message"], "code": failure.status}}
                response, error = {"status_code": failure.status, "request_id": name, "body": body}, None
            elif unusable:
                error |= {"file": row.file, "line": row.line} if row.file else {"line": row.line}
        is_none = own is None or (unusable and "custom_id" not in row)
        custom = None if is_none else own if isinstance(own, str) else encode(own).decode()
        line = {"id": name, "custom_id": custom, "response": response, "error": error}
        if self._has_health and result.health is not None:
            line["health"] = result.health
        if isinstance(answer, Completion):
            told = answer.as_dict()
            line |= {name: told[name] for name in ("label", "probabilities") if name in told}
        self._line = encode(line) + b"\n"
        return self._line

    def beside(self, result: MapResult) -> bytes:
        return b"" if result.error is None else self._line


def _body_of(answer: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as the body of a reply to a row's request."""
    extra = getattr(answer, "extra", {})
    told = {name: extra[name] for name in ("id", "created", "model", "service_tier") if name in extra}
    if isinstance(answer, Completion):
        is_chat = answer.message is not None
        kind = "chat.completion" if is_chat else "text_completion"
        choices = []
        for choice in answer.choices:
            said = {"message": {"content": None, **(choice.message or {})}} if is_chat else {"text": choice.text}
            made = {**choice.extra, "index": choice.index, **said, "logprobs": choice.logprobs}
            made["finish_reason"] = choice.finish_reason
            if choice.token_ids is not None:
                made["token_ids"] = list(choice.token_ids)
            choices.append(made)
        return {"object": kind, **told, "choices": choices, **_usage_of(answer.usage)}
    if isinstance(answer, Embedding):
        vector = [float(f"{number:.9g}") for number in answer.vector]
        data = [{"object": "embedding", "index": 0, "embedding": vector}]
    elif isinstance(answer, Classification):
        data = [{"index": 0, "label": answer.label, "probs": list(answer.probabilities)}]
    else:
        # A score, or those of several documents.
        is_rerank = str(row.get("url")).endswith("/rerank")
        scores = getattr(answer, "scores", None) or [answer.score]
        name = "relevance_score" if is_rerank else "score"
        data = [
            {"index": place, name: score} for place, score in zip(getattr(answer, "places", [0]), scores, strict=True)
        ]
        if is_rerank:
            return {**told, "results": data, **_usage_of(answer.usage)}
    return {"object": "list", **told, "data": data, **_usage_of(answer.usage)}


def _usage_of(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    told = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + (completion or 0)}
    return {"usage": told}


class Vectors(Writer):
    """NumPy's ``.npy``: a row of 32-bit floats for each row; beside it the ids, as JSON lines.

    The number of rows is known at the end, when ``head`` takes its place.

    Args:
        fields: of a row.
        id_column: that has the rows' ids.
    """

    _HEAD_BYTES = 128
    """Room for two numbers of twenty digits each; NumPy wants a multiple of 64."""

    def __init__(self, fields: Fields, id_column: str = "id") -> None:
        super().__init__(fields)
        self._id = id_column
        self._rows = 0
        self._size: int | None = None
        self._fault = ""

    @property
    def head(self) -> bytes:  # type: ignore[override]
        """The header, for the rows until now (NumPy, ``numpy.lib.format``, version 1.0)."""
        shape = (self._rows, self._size or 0)
        kind = "<f4" if sys.byteorder == "little" else ">f4"
        text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
        room = self._HEAD_BYTES - 10
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", room) + text.ljust(room - 1) + b"\n"

    def add(self, result: MapResult) -> bytes:
        self._rows += 1
        self._fault = ""
        vector = result.answer.vector if isinstance(result.answer, Embedding) else None
        missing = b""
        if vector is not None and self._size is None:
            self._size = len(vector)
            # The rows before had no vector, and nobody knew how long one is.
            missing = bytes(self._HEAD_BYTES) + self._nan() * (self._rows - 1)
        if vector is not None and len(vector) != self._size:
            self._fault = f"the vector has {len(vector)} numbers, and the first one {self._size}"
            vector = None
        return missing + (self._nan() if vector is None else vector.tobytes())

    def beside(self, result: MapResult) -> bytes:
        told = self._fields(result)
        if result.document.fault is None:  # the input's own fields are not told
            failed = {} if result.error is None else {"error": told["error"]}
            told = {"id": told.get(self._id), **failed}
        if self._fault:
            told["error"] = {"type": "ValueError", "message": self._fault}
        return encode(told) + b"\n"

    def end(self) -> bytes:
        return bytes(self._HEAD_BYTES) if self._size is None else b""

    def _nan(self) -> bytes:
        return struct.pack("f", float("nan")) * (self._size or 0)
