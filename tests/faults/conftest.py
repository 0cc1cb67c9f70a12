"""Real sockets, as in ``tests/transport``: each test is a coroutine of its own loop and has a few seconds."""

from tests.transport.conftest import backend, bounded, pytest_pyfunc_call  # noqa: F401
