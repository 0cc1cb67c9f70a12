"""``python -m batchclient``: the command line, where no script is installed."""

from batchclient_script import main

if __name__ == "__main__":
    main()
