"""`cdmpp serve`: hot models that many clients ask over HTTP."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from cdmpp.cli.shared.options import add_output_options
from cdmpp.extras import require


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Answers predictions over HTTP with models that stay loaded; docs/serve.md has the "
        "requests. Programs are read, never run. SIGTERM ends it; what is under way is answered."
    )  # fmt: skip
    parser.add_argument(
        "--model", action="append", metavar="RUN",
        help="run folder; several side by side, the first answers by default (default: pretrained)",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on; another one than this machine's own needs --token-file",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=8080, metavar="N", help="0 = any free one (default: 8080)"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help="file whose first line requests have to show: `Authorization: Bearer LINE`",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, metavar="DIR",
        help="tables to browse, as `cdmpp benchmark` writes them (default: docs/results, if there)",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="run folders in it can be compared on the page"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that read programs"
    )
    parser.add_argument(
        "--explainers", type=int, default=1, metavar="N",
        help="processes that say why programs take their time, each started when needed",
    )  # fmt: skip
    parser.add_argument(
        "--queue", type=int, default=256, metavar="N",
        help="requests under way at a time; more are told to come back (default: 256)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS",
        help="how long an answer may take (default: 60)",
    )  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require(module, extra="serve", purpose="cdmpp serve")
    from cdmpp.serve.options import ServeOptions
    from cdmpp.serve.run import run_server
    from tvm_helper.serve.rows import prediction_row

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

    command = [sys.executable, "-m", "tvm_helper.serve.worker"]
    run_server(options, command, prediction_row, on_ready=ready)
    return 0
