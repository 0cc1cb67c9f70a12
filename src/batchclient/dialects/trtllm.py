"""trtllm-serve (TensorRT-LLM): OpenAI's ``/v1/completions``, and a refusal of every field that it does not know.

What it rests on (``tensorrt_llm/serve/openai_server.py``, ``postprocess_handlers.py``):
- Lists of texts or ids, without a cap. A stream ends with one usage event per prompt that does not say whose: a list's usage is left out.
- Every fault is a 400, the server's own as well. One whose words are those of an engine is taken for a fault of the server's.
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
    """See the top of this file."""

    name = "trtllm"
    forms: Mapping[Kind, Form] = {kind: OpenaiDialect.forms[kind] for kind in (Kind.COMPLETION, Kind.CHAT)}

    def failure(self, batch: Batch, status: int, headers: Mapping[str, str], body: bytes, wall_time: float) -> Failure:
        """Say what an error reply means."""
        failure = super().failure(batch, status, headers, body, wall_time)
        if failure.kind is FailureKind.BAD_CALL and status == 400 and _ENGINE.search(failure.message):
            # Should it be the call's after all, it is found out at the second time.
            return replace(failure, kind=FailureKind.MAYBE_PROCESSED, error=ServerFault, once=True)
        return failure
