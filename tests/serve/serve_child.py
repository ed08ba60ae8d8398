"""A server with a reader that needs no TVM: `python -m tests.serve.serve_child OPTIONS`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from cdmpp.serve.options import ServeOptions
from cdmpp.serve.run import run_server


def main() -> None:
    facts = json.loads(sys.argv[1])
    for name in ("token_file", "results", "runs"):
        if name in facts:
            facts[name] = Path(facts[name])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    options = ServeOptions(**{**facts, "models": tuple(facts["models"])})
    command = [sys.executable, "-m", "tests.serve.fake_reader"]
    run_server(options, command, on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
