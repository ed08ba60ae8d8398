"""Front of `python -m lab benchmark`."""

import sys

from cdmpp.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("benchmark"))
