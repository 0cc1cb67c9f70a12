"""The calls that generate nothing: vectors, scores, ranks, classes, likelihoods, tokens.

Rules:
- The calls go the way of every call (``calling``): same queue, permits, deadlines, priorities,
  retries. A text, or a pair, is one sequence.
- A ranking is its documents' scores: as many calls as documents. The calls travel in lists with
  each other, and with other callers' where the servers take pairs of any queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from batchclient._calls.fan_out import call_together
from batchclient._calls.tables import kind_of, refuse_frame
from batchclient._calls.unsendable import lone_surrogate
from batchclient._client.calling import Calling
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient.dialects._arguments import refuse_unknown
from batchclient.errors import BadRequest, ConfigError
from batchclient.templates import Prompt
from batchclient.types import NOT_GIVEN, Classification, Embedding, LogLikelihood, NotGiven, RankedDocument, Score

if TYPE_CHECKING:
    from batchclient.params import (
        ClassificationParams,
        EmbeddingParams,
        LikelihoodParams,
        ScoreParams,
        TokenizeParams,
    )

__all__ = ["ScoringMethods", "texts_of"]


def texts_of(query: object, documents: object, top_n: object, params: Mapping[str, Any]) -> list[str]:
    """Return the documents of a rerank, its arguments checked.

    Raises:
        ConfigError: an argument is wrong.
    """
    refuse_frame(documents, "documents")
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise ConfigError(f"documents is a list of texts, not a {type(documents).__name__}", field="documents")
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise ConfigError(f"top_n is a whole number of at least 1, not {top_n!r:.40}", field="top_n")
    texts = list(documents)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"document {place} is {kind_of(text)}, not a text", field="documents")
        why = lone_surrogate(text)
        if why is not None:
            raise ConfigError(f"document {place} {why}", field="documents")
    if not isinstance(query, str):
        raise ConfigError(f"query is a text, not {kind_of(query)}", field="query")
    refuse_unknown(Kind.RERANK, params)
    return texts


class ScoringMethods(Calling):
    """The methods of ``BatchClient`` that ask for no text."""

    _least_output_tokens = 0
    """The length that ``log_likelihood`` asks for: 1 once a server refused 0."""

    async def embed(
        self,
        text: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        **params: Unpack[EmbeddingParams],
    ) -> Embedding:
        """Return one text's vector.

        Vectors travel as base64 of 32-bit floats where the server writes that form;
        ``encoding_format`` chooses another.

        Args:
            text: a text, or a sequence of token ids.
            model, timeout_s, priority, tenant: as for ``complete``.
            params: the server's fields (``dimensions``, ``truncate_prompt_tokens``, …): see
                ``batchclient.params``. Any other field goes in ``extra_body``, as it is.

        Raises:
            ConfigError: the text or a parameter is wrong, or no server is known to have the
                parameter. Nothing was sent.
            BadRequest: the server refuses this call (a text too long, for instance); the other
                calls of the batch are not concerned.
            DialectError: the server sent no vector, or a vector with NaN or infinity.
            BatchClientError: see ``batchclient.errors``.
        """
        return await self._call(Kind.EMBEDDING, text, model, timeout_s, params, priority, tenant)  # type: ignore[no-any-return]

    async def classify(
        self,
        text: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        **params: Unpack[ClassificationParams],
    ) -> Classification:
        """Return one text's class and the probabilities of all.

        Args:
            text: a text, or a sequence of token ids.
            model, timeout_s, priority, tenant: as for ``complete``.
            params: the server's fields, as for ``embed``.

        Raises:
            ConfigError, BadRequest, DialectError, BatchClientError: as for ``embed``.
            NotFound: the server has no classifier.
        """
        return await self._call(Kind.CLASSIFICATION, text, model, timeout_s, params, priority, tenant)  # type: ignore[no-any-return]

    async def score(
        self,
        query: str,
        document: str,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        **params: Unpack[ScoreParams],
    ) -> Score:
        """Say how well a document fits a query.

        Where the server scores any pairs (vLLM), pairs with different queries share requests.

        Args:
            query, document: texts.
            model, timeout_s, priority, tenant: as for ``complete``.
            params: the server's fields (``truncate_prompt_tokens``, ``instruction``, …), as for
                ``embed``.

        Raises:
            ConfigError, BadRequest, DialectError, BatchClientError: as for ``embed``.
            NotFound: the server scores nothing.
        """
        return await self._call(Kind.SCORE, (query, document), model, timeout_s, params, priority, tenant)  # type: ignore[no-any-return]

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        **params: Unpack[ScoreParams],
    ) -> list[RankedDocument]:
        """Order documents by how well they fit a query, the best first.

        Documents with equal scores keep their order. Each document is scored as ``score`` would,
        and each counts as one sequence.

        Args:
            query: a text.
            documents: texts.
            top_n: the number of documents returned, the best; all by default.
            model, timeout_s, priority, tenant: as for ``complete``.
            params: as for ``score``.

        Raises:
            ConfigError: an argument is wrong. Nothing was sent.
            BatchClientError: a document's error; a note on the error says which. The other
                documents' scores are dropped.
        """
        texts = texts_of(query, documents, top_n, params)
        self._calls.check(model, timeout_s, params, priority, tenant, Kind.SCORE)
        if not texts:
            return []
        kind = Kind.SCORE if self._start().servers.mixes_queries else Kind.RERANK
        pairs = [(query, text) for text in texts]
        scores: list[Score] = await self._call_all(kind, pairs, model, timeout_s, params, priority, tenant)
        ranked = [
            RankedDocument(place, score.score, text)
            for place, (score, text) in enumerate(zip(scores, texts, strict=True))
        ]
        ranked.sort(key=lambda document: document.score, reverse=True)
        return ranked[:top_n]

    async def log_likelihood(
        self,
        continuation: str | Sequence[int],
        *,
        given: str | Sequence[int] = "",
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        **params: Unpack[LikelihoodParams],
    ) -> LogLikelihood:
        """Say how likely a continuation is, and whether greedy decoding would write the same.

        Evaluation harnesses ask such questions in lists. With nothing given, a model that puts no
        token of its own before a prompt cannot tell the first token's likelihood: the total leaves
        that token out. A token that lies across the boundary between the two texts counts whole;
        give token ids where the boundary matters.

        Args:
            continuation: a text, or token ids.
            given: the text or token ids before the continuation, of the same kind.
            model, timeout_s, priority, tenant: as for ``complete``. ``timeout_s`` is each request's
                where two are needed.
            params: the server's fields, as for ``embed``.

        Raises:
            ConfigError: an argument is wrong. Nothing was sent.
            DialectError: the server does not echo prompts with log-probabilities.
            BadRequest, BatchClientError: as for ``complete``.
        """
        # Few programs ask for likelihoods, and every one imports this module.
        from batchclient._calls.likelihood import make_split, read_likelihood

        split = make_split(continuation, given, params)
        least = self._least_output_tokens
        try:
            completion = await self._echo(split.prompt, least, model, timeout_s, params, priority, tenant)
        except BadRequest as error:
            if least or "max_tokens" not in error.message:
                raise
            least = self._least_output_tokens = 1
            completion = await self._echo(split.prompt, least, model, timeout_s, params, priority, tenant)
        return read_likelihood(completion, split, generated=least > 0)

    async def _echo(
        self,
        prompt: Prompt,
        max_tokens: int,
        model: str | None,
        timeout_s: float | NotGiven | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
    ) -> Any:
        from batchclient._calls.likelihood import ASKED

        fields = {**params, **ASKED, "max_tokens": max_tokens}
        return await self._call(Kind.COMPLETION, prompt, model, timeout_s, fields, priority, tenant)

    async def tokenize(
        self,
        text: str,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        **params: Unpack[TokenizeParams],
    ) -> list[int]:
        """Return a text's token ids, as the server's model reads the text.

        A tokenizer in the caller's process is faster.

        Args:
            text: a text.
            model, timeout_s, priority, tenant: as for ``complete``.
            params: the server's fields (``add_special_tokens``, …), as for ``embed``.

        Raises:
            ConfigError, BadRequest, BatchClientError: as for ``complete``.
        """
        answer = await self._call(Kind.TOKENS, text, model, timeout_s, params, priority, tenant)
        return answer.ids  # type: ignore[no-any-return]

    async def _call_all(
        self,
        kind: Kind,
        items: Sequence[Any],
        model: str | None,
        timeout_s: float | NotGiven | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
    ) -> list[Any]:
        """Make several calls for one purpose, and wait for all; the first error ends the others."""
        runner = self._start()
        now = runner.backend.now()
        if model is None and self._calls.asks_model:
            checks = [self._calls.check_call(item, timeout_s, params, now, priority, tenant, kind) for item in items]
            await self._find_model(runner, checks[0])

        def make(place: int, waiter: Any) -> Request:
            return self._calls.make(items[place], model, timeout_s, params, waiter, now, priority, tenant, kind)

        return await call_together(runner, len(items), make)
