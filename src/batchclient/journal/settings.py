"""``Journal``: the file in which a map keeps its answers, and what decides them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchclient.errors import ConfigError

__all__ = ["Journal"]


class Journal:
    """The file in which a map keeps its answers, so that a later run takes them from there.

    The file is one of JSON lines, readable for its owner alone, for one job, and written by one
    process at a time, on whichever machine. Beside it is ``PATH.lease`` while it is in use.

    Args:
        path: of the file, in an existing folder. A link is refused.
        resume: go on with a journal that is there; ``False``: refuse it.
        retry_failed: run also those rows again that failed for good. Rows that failed and may
            succeed now (the key, the model, the server, the time) run again in any case.
        settings: JSON values by name that decide the answers beside template, call, model and
            parameters: the version of a prompt function, for example. A journal with another value
            is refused.
        dedupe: equal rows (of one prompt) are asked once, and share the answer or the error. The
            others count as reused. A failure that may pass is shared by the rows under way.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume: bool = True,
        retry_failed: bool = False,
        settings: Mapping[str, Any] | None = None,
        dedupe: bool = False,
    ) -> None:
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigError(f"journal is the path of a file, not {path!r:.60}", field="journal")
        for name, flag in (("resume", resume), ("retry_failed", retry_failed), ("dedupe", dedupe)):
            if type(flag) is not bool:
                raise ConfigError(f"{name} is true or false, not {flag!r:.40}", field=name)
        self.path: Path = Path(text)
        self.resume: bool = resume
        self.retry_failed: bool = retry_failed
        self.dedupe: bool = dedupe
        try:
            # As they will be read: a tuple is a list.
            self.settings: Mapping[str, Any] = json.loads(json.dumps(dict(settings or {}), allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise ConfigError("settings are JSON values by name", field="settings") from None

    def __repr__(self) -> str:
        return f"Journal({os.fspath(self.path)!r})"
