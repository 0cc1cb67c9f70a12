"""Spans for OpenTelemetry: of calls and of requests (extra ``otel``).

``traced`` is a front of the core that sees events and commands, and says when a span begins and
ends; ``records`` are its notes. ``spans`` makes the spans by OpenTelemetry's API, ``ending`` ends
them in a thread. ``conventions`` is the table of names; ``attributes`` fills it. ``sending`` makes
a request's span the current one and propagates it. Clients without telemetry load none of them.
"""
