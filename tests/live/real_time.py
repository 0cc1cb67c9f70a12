"""Who may run before a vLLM that spins: the processes that wait for something, so that they are not kept from it.

On the CPU vLLM's engine and its worker wait for each other in loops of `sched_yield` and keep two cores busy. Under Linux 6.18 a process that
woke up beside them was seen to wait up to 2 s for its turn: a client with 256 callers and a fixed limit of 32 got 10 answers a second, and 49 once
it and the API server went first. A server with a core for each of its processes has no such trouble, so that what it does to a measurement
says nothing about the client.

`go_first` gives a process the lowest real-time priority. It needs root (CAP_SYS_NICE); without it everything works, and figures swing more.
"""

import contextlib
import os

LOWEST_PRIORITY = 1


def go_first(pid: int = 0, *, heirs: bool = False) -> bool:
    """Let every thread of a process (0: this one) run before the spinning ones; return whether that was allowed.

    With `heirs` the threads and processes it starts later do so as well. Never with a process that is going to start a server.
    """
    if not hasattr(os, "sched_setscheduler"):
        return False
    policy = os.SCHED_FIFO if heirs else os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    allowed = True
    for thread in os.listdir(f"/proc/{pid or 'self'}/task"):
        try:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setscheduler(int(thread), policy, os.sched_param(LOWEST_PRIORITY))
        except OSError:  # not allowed, or not known here
            allowed = False
    return allowed
