"""The short form of these tests is for each change; ``SLOW=1`` runs the long one."""

import os
import time

import pytest

__all__ = ["IS_LONG", "long_form", "wait_until"]

IS_LONG = bool(os.environ.get("SLOW"))
long_form = pytest.mark.skipif(not IS_LONG, reason="SLOW=1")


def wait_until(condition, command):
    """Look again and again, while the command is under way; the test itself has an end."""
    while not condition():
        assert command.is_under_way, command.said
        time.sleep(0.005)
