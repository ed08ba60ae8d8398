"""`python -m cdmpp`: the command line."""

import sys

from cdmpp.cli.main import main

sys.exit(main())
