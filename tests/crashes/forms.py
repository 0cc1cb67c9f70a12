"""The short form of these tests is for each change; ``SLOW=1`` runs the long one."""

import os
import time

import pytest

__all__ = ["IS_LONG", "long_form", "wait_until"]

IS_LONG = bool(os.environ.get("SLOW"))
long_form = pytest.mark.skipif(not IS_LONG, reason="SLOW=1")


def wait_until(condition):
    """Look again and again; the test itself has an end."""
    while not condition():
        time.sleep(0.005)
