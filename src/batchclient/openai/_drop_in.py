"""What the drop-in's two clients have in common: the counts, the copies, and a request's way.

Rules:
- The seam is ``_send_request``: openai's own code builds the request, and reads the response. So a
  tracer or a mock of any method of openai's sees each call and its answer.
- A request carries the options of its building (``_seams.mark``), and is shared by these options,
  once. A watcher may change a call, repeat the call or ask something else first.
- A request that openai's own loop sends again goes out as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from openai._models import FinalRequestOptions

from batchclient.errors import ConfigError
from batchclient.integrations.form import PATHS
from batchclient.openai._batching import Batching
from batchclient.openai._calls import RESPONSES, Planned, plan
from batchclient.openai._results import RETRIES, error_of
from batchclient.openai._seams import is_replaced, may_share
from batchclient.openai._sharing import Past, SharingStatistics

if TYPE_CHECKING:
    from typing import Self

__all__ = ["DropIn"]

_MARK = "batchclient.options"
"""Of the options among a request's extensions; no HTTP library reads the name."""


class DropIn:
    """The common part of ``AsyncOpenAI`` and ``OpenAI``."""

    _batching: Batching
    _openais: ClassVar[Any]
    """openai's own class, taken at import: later, programs put the drop-in in its place."""
    _ours: ClassVar[Any] = None
    _may_share: ClassVar[bool] = True
    """Whether another client may send the requests; a subclass may have a say in them."""
    _shares = True
    """Whether this client can share: with a blocking HTTP client of the user's own it cannot."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls._ours is None:
            cls._ours = cls
        else:
            cls._may_share = may_share(cls, cls._ours)

    def statistics(self) -> SharingStatistics:
        """Return counts of shared calls, and of others by reason; the copies' calls are included."""
        return self._batching.sharing.statistics()

    def _build_request(self, options: FinalRequestOptions, *, retries_taken: int = 0) -> Any:
        """Build a request, and mark one that may be shared. openai's ``_build_request``."""
        openais: Any = super()
        request = openais._build_request(options, retries_taken=retries_taken)
        if options.method.lower() == "post" and (options.url in PATHS or options.url == RESPONSES):
            self._direct(request, options)
            if not retries_taken:
                request.extensions[_MARK] = options
        return request

    def _direct(self, request: Any, options: FinalRequestOptions) -> None:
        """Let a request go to a server of its model, where servers have models of their own."""
        given: Any = options.json_data
        if not self._batching.own_models or not isinstance(given, Mapping):
            return
        model = {**given, **(options.extra_json or {})}.get("model")
        url, openais = self._batching.server_of(self, model), str(request.url)
        base: str = str(self.base_url)  # type: ignore[attr-defined]  # openai's own
        if url is not None and openais.startswith(base):
            request.url = type(request.url)(url.rstrip("/") + "/" + openais[len(base) :].lstrip("/"))
            request.headers["host"] = request.url.netloc.decode("ascii")

    def _planned(self, request: Any, *, stream: bool) -> Planned | Past | None:
        """Return what a request asks for that may be shared, else why not; ``None``: another request."""
        options = request.extensions.pop(_MARK, None)
        if options is None:
            return None
        if options.url == RESPONSES:
            return Past.RESPONSES
        if not self._shares:
            return Past.BLOCKING
        if not self._may_share:
            return Past.SUBCLASS
        return Past.REPLACED if is_replaced(self) else plan(self, options, request, stream=stream)

    def _check_untouched(self, request: Any, why: Past) -> None:
        """Refuse a request past us with a parameter that no server has by this name."""
        body = json.loads(request.content) if b'"thinking_tokens"' in request.content else {}
        if isinstance(body, Mapping) and body.get("thinking_tokens") is not None:
            message = f"thinking_tokens is batchclient's own, and this request goes past it: {why.value}"
            raise error_of(self, ConfigError(message, field="thinking_tokens"), request)

    def _shown(self, planned: Planned, retries_taken: int) -> Any:
        """The request that openai would have sent at last."""
        return (
            self._build_request(planned.options, retries_taken=retries_taken) if retries_taken > 0 else planned.request
        )

    def _process_response(self, *, response: Any, retries_taken: int = 0, **more: Any) -> Any:
        """Read a response, and count our retries as openai's. openai's ``_process_response``."""
        openais: Any = super()
        retries_taken += response.extensions.get(RETRIES, 0)
        return openais._process_response(response=response, retries_taken=retries_taken, **more)

    def copy(self, **arguments: Any) -> Self:
        """Return a client with other options and the same scheduler. openai's ``copy``."""
        openais: Any = super()
        copy: Self = openais.copy(**self._batching.for_copy(self, arguments))
        return copy

    with_options = copy
