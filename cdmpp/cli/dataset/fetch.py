"""`cdmpp dataset fetch`: fetches public measurement records by name."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.cli.shared.progress import fetch_progress
from cdmpp.datasets.fetch.fetch import FetchResult, fetch
from cdmpp.datasets.fetch.registry import (
    PublicSource,
    known_sources,
    sources_of,
    wanted_sources,
)
from cdmpp.datasets.fetch.words import listed, next_command, sources_text
from cdmpp.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset fetch`."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a source of --list, or a device label, which fetches its default sources",
    )
    add_table(parser, """
        --list                     print the known sources; does not use the network
        --from DIR|URL as origin   where to fetch from instead of the original host: a folder (a
            mirror, a clone or manually unpacked files), a downloaded file, or the URL of a mirror
        --cache DIR: Path = cache  store the files in DIR/fetched/NAME (default: ./cache)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset fetch`; returns the exit code."""
    if args.list or args.name is None:
        if args.origin is not None:
            raise UsageError("--from needs the source to fetch: name it too")
        _print_list(args.cache, is_json=args.json, is_asked=args.list)
        return 0
    sources = wanted_sources(args.name)
    with fetch_progress(is_quiet=args.json or args.quiet) as show:
        results = [
            fetch(source, args.cache, origin=args.origin, on_progress=show) for source in sources
        ]
    if args.json:
        print(json.dumps([_to_json(result) for result in results]))
        return 0
    for source, result in zip(sources, results, strict=True):
        _print_result(source, result, args.cache, args.name)
    others = [source.name for source in sources_of(args.name) if source not in sources]
    if others:
        print(f"more of {args.name}: cdmpp dataset fetch {' or '.join(others)}")
    return 0


def _print_list(cache: Path, *, is_json: bool, is_asked: bool) -> None:
    rows = listed(known_sources(), cache)
    if is_json:
        print(json.dumps([row.to_json() for row in rows]))
        return
    print(sources_text(rows))
    if not is_asked:
        print("\nNothing was fetched; name one of them, or a device: cdmpp dataset fetch NAME")


def _to_json(result: FetchResult) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "is_new": result.is_new,
        **result.fetched.to_json(),
    }


def _print_result(source: PublicSource, result: FetchResult, cache: Path, name: str) -> None:
    done = "fetched" if result.is_new else "already fetched"
    size = result.fetched.bytes / 1e6
    print(f"{source.name}: {done}: {size:.1f} MB in {result.folder}")
    print(f"licence: {source.licence}")
    print(f"please cite: {source.citation}")
    if source.note:
        print(source.note)
    missing = [label for label in source.devices if label not in result.fetched.devices]
    if missing:
        print(f"contains no records of {', '.join(missing)}")
    print(next_command(source, result.fetched, cache, name))
