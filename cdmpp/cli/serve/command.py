"""`cdmpp serve`: predictions over HTTP by models that stay loaded."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from importlib.util import find_spec

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.extras import require


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Serves predictions over HTTP with models that stay loaded; docs/reference/http-api.md "
        "describes the requests. Programs are parsed, never run. SIGTERM stops the server once the "
        "requests in progress are answered."
    )  # fmt: skip
    add_table(parser, """
        --model RUN...                   run folder; may be repeated, the first is the default of
            requests (default: pretrained)
        --host ADDRESS = 127.0.0.1       address to listen on; one that other machines can reach
            needs --token-file
        --port N: int = 8080             port; 0 = any free port (default: 8080)
        --token-file FILE: Path          file whose first line is the token that requests must send:
            `Authorization: Bearer LINE`
        --results DIR: Path              result tables to show on the page, as `python -m lab
            benchmark` writes them (default: runs/results, if it exists)
        --runs DIR: Path                 run folders to compare on the page
        --workers N: int = 1             processes that read programs
        --explainers N: int = 1          processes that explain predictions, started on demand
        --queue N: int = 256             maximum number of requests in progress; further ones are
            told to retry (default: 256)
        --timeout SECONDS: float = 60.0  time limit of an answer (default: 60)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require(module, extra="serve", purpose="cdmpp serve")
    from cdmpp.serve.options import ServeOptions
    from cdmpp.serve.run import run_server

    options = ServeOptions(
        models=tuple(args.model or ["pretrained"]), host=args.host, port=args.port,
        token_file=args.token_file, results=args.results, runs=args.runs, workers=args.workers,
        explainers=args.explainers, most_waiting=args.queue, answer_timeout_s=args.timeout,
    )  # fmt: skip
    if not args.quiet:
        logging.getLogger("cdmpp.serve").setLevel(logging.INFO)

    def ready(url: str) -> None:
        facts = {"url": url, "models": list(options.models)}
        print(json.dumps(facts) if args.json else f"cdmpp serves {', '.join(options.models)} at "
              f"{url}", flush=True)  # fmt: skip

    has_tvm = find_spec("tvm") is not None
    worker = "tvm_helper.serve.worker" if has_tvm else "cdmpp.serve.reader_process"
    run_server(options, [sys.executable, "-m", worker], has_tvm=has_tvm, on_ready=ready)
    return 0
