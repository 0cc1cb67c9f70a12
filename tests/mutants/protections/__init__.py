"""Protections, each with the test that must fail without it. ``python -m tests.mutants`` tries them.

There is a table for each layer. In a table those of one module stand together.
"""

from tests.mutants.protections.adapters import ADAPTERS
from tests.mutants.protections.core import CORE
from tests.mutants.protections.doctor import DOCTOR
from tests.mutants.protections.jobs import JOBS
from tests.mutants.protections.limits import LIMITS
from tests.mutants.protections.measuring import MEASURING
from tests.mutants.protections.night import NIGHT
from tests.mutants.protections.outputs import OUTPUTS
from tests.mutants.protections.redis import REDIS
from tests.mutants.protections.shell import SHELL
from tests.mutants.protections.threads import THREADS
from tests.mutants.protections.tracing import TRACING
from tests.mutants.protections.watching import WATCHING
from tests.mutants.protections.wire import WIRE
from tests.mutants.protections.workers import WORKERS

__all__ = ["PROTECTIONS"]

PROTECTIONS = (
    *CORE,
    *LIMITS,
    *SHELL,
    *THREADS,
    *WIRE,
    *ADAPTERS,
    *JOBS,
    *OUTPUTS,
    *MEASURING,
    *NIGHT,
    *WATCHING,
    *DOCTOR,
    *TRACING,
    *WORKERS,
    *REDIS,
)
