"""Records what a real server answers, byte for byte: the common half of the capture.py of each folder beside this file.

Each case becomes NAME.json: the request, the status, a few headers, and the body as text (for a stream the exact SSE text).
Pages that are no JSON become NAME.txt.
"""

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KEPT_HEADERS = (
    "content-type", "transfer-encoding", "retry-after", "keep-alive", "connection",
    "endpoint-load-metrics", "x-litellm-version", "rate_limit_type",
)  # fmt: skip
TRY_TIMEOUT_S = 120.0
"""A vLLM's first request for log-probabilities compiles something, which has taken 14 s."""
Body = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One exchange: `body` is sent as JSON, or as it is where it is a text."""

    path: str
    body: Body | list[Any] | str | None = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def get(path: str, **headers: str) -> Case:
    return Case(path, None, "GET", headers)


def record(base: str, case: Case) -> Body:
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TRY_TIMEOUT_S)
    sent = case.body if case.body is None or isinstance(case.body, str) else json.dumps(case.body)
    try:
        connection.request(case.method, case.path, sent, case.headers | {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode("utf-8")
    finally:
        connection.close()
    kept = {name: value for name in KEPT_HEADERS if (value := response.getheader(name)) is not None}
    request: Body = {"method": case.method, "path": case.path}
    if case.headers:
        request["headers"] = case.headers
    if case.body is not None:
        request["text" if isinstance(case.body, str) else "json"] = case.body
    return {"request": request, "status": response.status, "headers": kept, "body_text": text}


def save(folder: Path, name: str, result: Body) -> None:
    # One line per key: readable in a diff, and a long list of prompts stays one line.
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    (folder / f"{name}.json").write_text("{\n" + lines + "\n}\n", "utf-8")
    print(result["status"], name, result["body_text"][:150].replace("\n", "\\n"))


def capture(
    folder: Path, base: str, cases: Mapping[str, Case], names: Sequence[str] = (), pages: Sequence[str] = ()
) -> None:
    """Record the cases (or those of these names); `pages` are kept as plain text."""
    for name, case in cases.items():
        if names and name not in names:
            continue
        result = record(base, case)
        if name in pages:
            (folder / f"{name}.txt").write_text(result["body_text"], "utf-8")
            print(result["status"], name)
        else:
            save(folder, name, result)
