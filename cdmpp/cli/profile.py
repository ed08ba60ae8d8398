"""`cdmpp profile`: explains profiles of other tools, and samples utilisation during a command."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.profiling.compare import compare
from cdmpp.profiling.explain import explain
from cdmpp.profiling.merge import merge_profiles
from cdmpp.profiling.read import profile_device, read_profile
from cdmpp.profiling.schema import Profile
from cdmpp.profiling.text import compare_text, legend, table_text, utilisation_text, watch_text
from cdmpp.profiling.timeline import write_timeline
from cdmpp.profiling.utilisation import utilisation
from cdmpp.profiling.watch import watch
from cdmpp.report.page import check_page_file


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp profile`."""
    parser.description = (
        "Reads nvprof (summary as text or --csv, --print-gpu-trace, --metrics, the -o file), nsys "
        "(stats as text or CSV, export --type sqlite), ncu --csv (also --page raw), traces of "
        "torch.profiler and TensorBoard (also .gz), the table that torch.profiler prints, the "
        "CUTLASS profiler's CSV and HL-100 operator traces. Several files become one profile."
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="profiles")
    add_table(parser, """
        --device LABEL         device of the profile, for peaks, occupancy and predictions (default:
            as stated in the file)
        --by-shape             one line for every shape and launch configuration
        --top N: int = 20      lines per table (default: 20); 0 = all
        --timeline HTML: Path  write a page with a zoomable timeline
        --compare FILE: Path   a later profile to compare with FILE...
    """)  # fmt: skip
    parser.add_argument(
        "--watch", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="run a command (all words after --watch) and sample the utilisation of CPU and GPU",
    )  # fmt: skip
    add_table(parser, """
        --interval S: float = 0.2  seconds between samples (0.2)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp profile`; returns the exit code; with --watch, that of the watched command."""
    if args.top < 0:
        raise UsageError(f"--top {args.top}: expected a number of lines, or 0 for all")
    explains = {
        "--device": args.device, "--timeline": args.timeline, "--by-shape": args.by_shape,
    }  # fmt: skip
    given = [name for name, value in explains.items() if value]
    if args.watch is not None:
        others = [*given, *(["--compare"] if args.compare else []), *map(str, args.files)]
        if others:
            raise UsageError(
                f"--watch runs a command and reads no profile; got also {', '.join(others)}; run "
                "the two one after the other"
            )
        return _watch(args.watch, args.interval, is_json=args.json)
    if args.compare is not None and given:
        raise UsageError(
            f"--compare cannot be combined with {', '.join(given)}: it compares times only. Run "
            "cdmpp profile FILE --compare FILE, and cdmpp profile on each file for the rest"
        )
    check_page_file(args.timeline, option="--timeline")
    if not args.files:
        raise UsageError(
            "no profile given; run cdmpp profile FILE..., or cdmpp profile --watch COMMAND"
        )
    profile = merge_profiles([read_profile(path) for path in args.files])
    if args.compare is not None:
        _print_comparison(profile, read_profile(args.compare), top=args.top, is_json=args.json)
        return 0
    device, notes = profile_device(profile, args.device)
    notes += profile.notes
    page = None
    if args.timeline is not None:
        page = {"path": str(args.timeline), **write_timeline(profile, args.timeline)}
    if args.json:
        print(json.dumps(_as_json(profile, device, notes, page, by_shape=args.by_shape)))
        return 0
    print(f"{profile.source}: {profile.format}{'' if device is None else f', on {device.name}'}")
    busy = utilisation(profile)
    if busy is not None:
        print(utilisation_text(busy))
    print(f"\n{table_text(explain(profile, device, by_shape=args.by_shape), top=args.top)}")
    if not args.quiet:
        print(f"\n{legend()}")
    if page is not None:
        print(f"time line: {page['path']} ({page['events']} events)")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _as_json(
    profile: Profile,
    device: DeviceSpec | None,
    notes: list[str],
    page: dict[str, Any] | None,
    *,
    by_shape: bool,
) -> dict[str, Any]:
    busy = utilisation(profile)
    lines = explain(profile, device, by_shape=by_shape)
    return {
        "source": profile.source,
        "format": profile.format,
        "device": None if device is None else device.name,
        "notes": notes,
        "utilisation": None
        if busy is None
        else {**asdict(busy), "device_share": busy.device_share},
        "rows": [line.as_json() for line in lines],
        "timeline": page,
    }


def _print_comparison(before: Profile, after: Profile, *, top: int, is_json: bool) -> None:
    changes = compare(before, after)
    if is_json:
        rows = [change.as_json() for change in changes]
        print(json.dumps({"before": before.source, "after": after.source, "changes": rows}))
        return
    print(f"before: {before.source}\nafter:  {after.source}\n")
    print(compare_text(changes, top=top))
    print(
        "\nratio: time of a call after over before. p: Mann-Whitney over the calls, corrected "
        "for the number of names; `not tested`: only sums, or fewer than 4 calls."
    )


def _watch(command: list[str], interval_s: float, *, is_json: bool) -> int:
    watched = watch(command, interval_s=interval_s, quiet=is_json)
    if is_json:
        print(json.dumps(watched.as_json()))
    else:
        print(watch_text(watched), file=sys.stderr)
    # As in shells: 128 + the signal for a command that a signal ended.
    return watched.exit_code if watched.exit_code >= 0 else 128 - watched.exit_code
