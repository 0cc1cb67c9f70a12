"""Why calls fail: one sentence for each reason, with the way out.

Rules:
- A server's words are shown without prompts and keys.
- A page that is not there is a fault only where nothing else tells which server answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from batchclient._core.failures import Failure, FailureKind
from batchclient._doctor.facts import Facts, Fault
from batchclient._shell.faults import name_models
from batchclient._shell.pages import FetchedPage
from batchclient.dialects._fingerprints import ServerFacts
from batchclient.dialects._redaction import redact
from batchclient.dialects._replies import error_in
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    CertificateRefused,
    ConnectFailed,
    NotFound,
    ReadTimedOut,
)

__all__ = [
    "fault_of_call",
    "fault_of_connection",
    "fault_of_health",
    "fault_of_key",
    "fault_of_pages",
    "fault_of_readiness",
    "unheeded_proxy",
]

_CALL = "a small call"
_NAMES = "--model, model=… or BATCHCLIENT_MODEL"
_LOG = "the server's log"


def fault_of_readiness(path: str, page: FetchedPage, secrets: tuple[str, ...]) -> Fault:
    """Return the fault of a server that is loading its model, or is missing behind its proxy."""
    return Fault("not-ready", f"The server is not ready: {_said(page, secrets)}.", "wait, then ask again", path)


def fault_of_health(page: FetchedPage, secrets: tuple[str, ...]) -> Fault:
    """Return the fault of a server whose health page says so."""
    return Fault("not-healthy", f"The server is not healthy: {_said(page, secrets)}.", f"{_LOG}; a restart", "/health")


def fault_of_key(status: int, body: bytes, secrets: tuple[str, ...], *, has_key: bool) -> Fault:
    """Return the fault of a key that is refused or missing."""
    said, seen = _said((status, {}, body), secrets), f"a reply with {status}"
    if has_key:
        return Fault("key-refused", f"The server refuses the key: {said}.", "--api-key or BATCHCLIENT_API_KEY", seen)
    sentence = f"The server wants a key, and none was given: {said}."
    return Fault("key-missing", sentence, "--api-key or BATCHCLIENT_API_KEY (OPENAI_API_KEY is not read)", seen)


def fault_of_pages(facts: Facts, status: int, *, is_html: bool) -> Fault | None:
    """Return the fault of a place that names no server, or of a server that names no model.

    ``status`` is that of the page of models; 0: there was none.
    """
    if facts.kind is None:
        reply = "an HTML page" if is_html else f"{status} for /models"
        sentence = f"No LLM server answers at this URL: the reply is {reply}."
        return Fault("no-llm-server", sentence, "base_url: an LLM server's address with its /v1", "/models and /info")
    if facts.model is None and not facts.models:
        sentence = f"The server does not say which model it serves ({status} for /models)."
        return Fault("no-model", sentence, _NAMES, "/models")
    return None


def fault_of_connection(error: BatchClientError, secrets: tuple[str, ...], proxy: str | None) -> Fault:
    """Return the fault of a way that ends before a reply.

    ``proxy`` is the variable of a proxy that is not heeded.
    """
    said = redact(error.message, (), secrets).rstrip(".")
    if isinstance(error, CertificateRefused):
        setting = "SSL_CERT_FILE with Http(trust_env=True), or a certificate that this machine trusts"
        return Fault("certificate", f"The server's certificate is refused: {said}.", setting, "the TLS handshake")
    if isinstance(error, ConnectFailed):
        setting = "the host and the port of base_url; whether the server runs"
        if proxy is not None:
            setting = f"Http(trust_env=True), since {proxy} is set and a client does not heed it; else {setting}"
        return Fault("unreachable", f"The server cannot be reached: {said}.", setting, "the connecting")
    if isinstance(error, ReadTimedOut):
        sentence = f"The server takes connections and does not answer: {said}."
        return Fault("silent", sentence, f"{_LOG}; a restart", "the first pages")
    sentence = f"The reply cannot be read: {said}."
    return Fault("no-http", sentence, "the scheme, the host and the port of base_url", "the first pages")


def fault_of_call(
    failure: Failure | None, model: str, told: ServerFacts, secrets: tuple[str, ...], *, has_key: bool
) -> Fault:
    """Return the fault of a small call; ``None`` as the failure: a success without an answer."""
    if failure is None:
        return Fault("calls-fail", "A small call was answered without an answer.", _LOG, _CALL)
    named = name_models(failure, model, told, secrets)
    said = redact(named.message, (), secrets).rstrip(".")
    if failure.error is AuthenticationFailed:
        status = failure.status or 401
        return fault_of_key(status, said.removeprefix(f"{status}: ").encode(), secrets, has_key=has_key)
    if failure.error is NotFound and named is not failure:
        return Fault("model-unknown", f"The server has no such model: {said}.", f"{_NAMES}: one of the names", _CALL)
    if failure.kind is FailureKind.REJECTED:
        setting = "a larger bound of the queue, or fewer calls of others"
        return Fault("busy", f"The server refuses work for now: {said}.", setting, _CALL)
    if failure.error is ReadTimedOut:
        return Fault("silent", f"A small call has no answer: {said}.", f"{_LOG}; its load", _CALL)
    setting = "base_url; the gateway before the server" if "html" in said.lower() else _LOG
    return Fault("calls-fail", f"A small call fails: {said}.", setting, _CALL)


def _said(page: FetchedPage, secrets: tuple[str, ...]) -> str:
    """Return a page's status and message."""
    status, _, body = page
    return f"{status}, {redact(error_in(body)[0], (), secrets).rstrip('.')}" if body else str(status)


def unheeded_proxy(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable of a proxy for a URL, which a client does not heed by default.

    A host that ``NO_PROXY`` names has none.
    """
    if _is_without_proxy(url, environment.get("no_proxy") or environment.get("NO_PROXY") or ""):
        return None
    scheme = url.partition(":")[0].upper()
    names = [f"{scheme}_PROXY", "ALL_PROXY"]
    return next((name for name in names if environment.get(name) or environment.get(name.lower())), None)


def _is_without_proxy(url: str, names: str) -> bool:
    """Whether the host of a URL, or a domain above the host, is among the names of ``NO_PROXY``."""
    parts = urlsplit(url)
    hosts = [(parts.hostname or "").lower(), parts.netloc.lower()]
    known = [name.strip().lower().lstrip(".") for name in names.split(",")]
    return any(name in ("*", host) or host.endswith(f".{name}") for name in known if name for host in hosts)
