"""Front of `python -m lab golden`."""

import sys

from cdmpp.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("golden"))
