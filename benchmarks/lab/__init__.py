"""The laboratory: the client's limit on servers and work drawn at random, in virtual time.

    python -m benchmarks.lab --help

The real ``Scheduler`` and the simulator's ``Engine`` are driven without an event loop, HTTP or the
wire format.
"""
