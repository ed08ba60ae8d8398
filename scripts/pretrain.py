"""Front of `python -m lab pretrain`."""

import sys

from cdmpp.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("pretrain"))
