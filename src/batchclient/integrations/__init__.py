"""Batching under other libraries.

``integrations.httpx`` and ``integrations.httpx2`` have transports for any library that takes an
HTTP client. ``integrations.ray`` has a class for Ray Data, ``integrations.prometheus`` metrics.
Each module imports the library of its name, and nothing else that is heavy.
"""
