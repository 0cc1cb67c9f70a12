"""Hypothesis profiles: ``ci`` is the same in every run; ``HYPOTHESIS_PROFILE=explore`` looks for longer, at random. And Ctrl-C."""

import os
import signal

from hypothesis import settings

# No deadline: the machines are shared and noisy, and a slow example says nothing about the code.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("explore", max_examples=3000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the suite in the background has it ignored. Processes inherit that, and the tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
