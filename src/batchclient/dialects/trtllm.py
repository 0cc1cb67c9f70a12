"""trtllm-serve (TensorRT-LLM): OpenAI's ``/v1/completions``; every unknown field is refused.

Facts (``tensorrt_llm/serve/openai_server.py``, ``postprocess_handlers.py``):
- Lists of texts or ids have no cap.
- A stream ends with one usage event per prompt that does not name its prompt. The usages of a
  streamed list are therefore estimated (``_shares``).
- Every fault is a 400, the server's own as well. A message with an engine's words is taken for the
  server's fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._server import Form
from batchclient.dialects.openai import OpenaiDialect
from batchclient.errors import ServerFault

__all__ = ["TrtllmDialect"]

_ENGINE = re.compile(r"executor|cuda|out of memory|internal error|nccl|\bMPI\b|engine", re.IGNORECASE)


class TrtllmDialect(OpenaiDialect):
    """The dialect described at the top of the file."""

    name = "trtllm"
    forms: Mapping[Kind, Form] = {kind: OpenaiDialect.forms[kind] for kind in (Kind.COMPLETION, Kind.CHAT)}

    def _judged(self, failure: Failure, words: str, batch: Batch) -> Failure:
        if failure.kind is FailureKind.BAD_CALL and failure.status == 400 and _ENGINE.search(words):
            # If the call is at fault after all, the second attempt shows it.
            return replace(failure, kind=FailureKind.MAYBE_PROCESSED, error=ServerFault, once=True)
        return failure
