"""Batching under other libraries.

``integrations.httpx`` and ``integrations.httpx2`` have transports for any library that takes an
HTTP client. Each module imports the HTTP library of its name, and nothing else that is heavy.
"""
