"""``python -m batchclient.simulator OPTIONS``: the child process of
``EmbeddedServer(process=True)``.
"""

import sys

from batchclient.simulator.app import run_child

if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        sys.stderr.write("Error: this is for EmbeddedServer alone; to start a server run: batchclient simulate\n")
        sys.exit(2)
    run_child(sys.argv[1])
