"""``python -m batchclient.simulator OPTIONS``: the child process of
``EmbeddedServer(process=True)``.
"""

import json
import sys

from batchclient.simulator.app import run_child


def _options(arguments: list[str]) -> str:
    """Check that the only argument is the JSON object written by ``EmbeddedServer``."""
    try:
        [text] = arguments
        if "port" in json.loads(text):
            return text
    except (TypeError, ValueError):
        pass
    sys.stderr.write("Error: this is for EmbeddedServer alone; to start a server run: batchclient simulate\n")
    sys.exit(2)


if __name__ == "__main__":
    run_child(_options(sys.argv[1:]))
