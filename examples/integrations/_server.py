"""Where the examples find a server: see ``server`` in ``examples/_server.py``."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("examples_server", Path(__file__).parents[1] / "_server.py")
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
server = _module.server
