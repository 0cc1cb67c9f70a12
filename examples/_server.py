"""Where the examples find a server: ``BASE_URL MODEL`` on the command line, or an embedded one."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def server(profile: str = "gpu", **options: Any) -> Iterator[tuple[str, str]]:
    """Yield a base URL and a model's name.

    The embedded server needs ``pip install 'batchclient[cli]'``.
    """
    if len(sys.argv) == 3:
        yield sys.argv[1], sys.argv[2]
        return
    if len(sys.argv) != 1:
        sys.exit(f"usage: python {sys.argv[0]} [BASE_URL MODEL]")
    from batchclient.simulator import EmbeddedServer

    with EmbeddedServer(profile, **options) as embedded:
        yield embedded.base_url, embedded.model
