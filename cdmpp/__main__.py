"""`python -m cdmpp`: the command line."""

import sys

from cdmpp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
