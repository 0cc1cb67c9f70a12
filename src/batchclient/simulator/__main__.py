"""``python -m batchclient.simulator OPTIONS``: the child process behind ``EmbeddedServer(process=True)``."""

import sys

from batchclient.simulator.app import run_child

if __name__ == "__main__":
    run_child(sys.argv[1])
