"""Batching under libraries of others: ``integrations.httpx`` and ``integrations.httpx2`` have transports for whatever takes an HTTP client.

Each module imports the HTTP library that it is named after, and nothing else that is heavy.
"""
