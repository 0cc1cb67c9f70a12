"""The laboratory: every limit algorithm on every server profile, in virtual time.

    python -m benchmarks.lab --help

The real ``Scheduler`` and the simulator's ``Engine`` are driven without an event loop, without HTTP and without the wire format.
"""
