"""Spans for OpenTelemetry: of calls and of requests (extra ``otel``).

``traced`` is a front of the core that sees events and commands, and says when a span begins and
ends. ``spans`` makes the spans by OpenTelemetry's API. ``conventions`` is the table of names;
``attributes`` fills it. ``sending`` makes a request's span the current one and propagates it.
Clients without telemetry load none of them.
"""
