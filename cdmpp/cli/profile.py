"""`cdmpp profile`: what profilers of other tools recorded, explained; and watching a command."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_output_options

if TYPE_CHECKING:
    from cdmpp.devices.spec import DeviceSpec
    from cdmpp.profiling.schema import Profile

_FORMATS = (
    "Reads nvprof (summary as text or --csv, --print-gpu-trace, --metrics, the -o file), nsys "
    "(stats --format csv, export --type sqlite), ncu --csv --page raw, traces of torch.profiler "
    "and TensorBoard (also .gz), the CUTLASS profiler's CSV and HL-100 operator traces. Several "
    "files become one profile."
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `profile` command."""
    parser = subparsers.add_parser(
        "profile", help="where the time goes: read profiles of other tools", description=_FORMATS
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="profiles")
    parser.add_argument(
        "--device", metavar="LABEL",
        help="device of the profile, for peaks, occupancy and predictions (default: what the file "
        "says)",
    )  # fmt: skip
    parser.add_argument(
        "--by-shape", action="store_true", help="a line for every shape and launch configuration"
    )
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="lines a table (20); 0 = all"
    )
    parser.add_argument("--timeline", type=Path, metavar="HTML", help="write a page that zooms")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="a later profile to compare with FILE..."
    )
    parser.add_argument(
        "--watch", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="run a command (all words behind --watch) and sample how busy CPU and GPU are",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=float, default=0.2, metavar="S", help="seconds between samples (0.2)"
    )
    add_output_options(parser)
    parser.set_defaults(run=run_profile)


def run_profile(args: argparse.Namespace) -> int:
    """Runs `cdmpp profile`; returns the exit code, with --watch the command's."""
    from cdmpp.errors import UsageError

    if args.top < 0:
        raise UsageError(f"--top {args.top}: expected a number of lines, or 0 for all")
    _check_together(args)
    if args.watch is not None:
        return _run_watch(args)
    if not args.files:
        raise UsageError(
            "no profile given; expected cdmpp profile FILE..., or cdmpp profile --watch COMMAND"
        )
    from cdmpp.profiling.merge import merge_profiles
    from cdmpp.profiling.read import read_profile

    profile = merge_profiles([read_profile(path) for path in args.files])
    if args.compare is not None:
        return _run_compare(args, profile, read_profile(args.compare))
    device, notes = _device(args.device, profile)
    page = None
    if args.timeline is not None:
        from cdmpp.profiling.timeline import write_timeline

        page = {"path": str(args.timeline), **write_timeline(profile, args.timeline)}
    if args.json:
        print(json.dumps(_as_json(profile, device, notes, page, by_shape=args.by_shape)))
    else:
        _print(args, profile, device, [*notes, *profile.notes], page)
    return 0


def _check_together(args: argparse.Namespace) -> None:
    """Raises:
    UsageError: options that do not go together.
    """
    from cdmpp.errors import UsageError

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
    elif args.compare is not None and given:
        raise UsageError(
            f"--compare goes without {', '.join(given)}: it compares times only; expected cdmpp "
            "profile FILE --compare FILE; explain each profile apart"
        )


def _print(
    args: argparse.Namespace,
    profile: Profile,
    device: DeviceSpec | None,
    notes: list[str],
    page: dict[str, Any] | None,
) -> None:
    from cdmpp.profiling.explain import explain
    from cdmpp.profiling.text import legend, table_text, utilisation_text
    from cdmpp.profiling.utilisation import utilisation

    print(f"{profile.source}: {profile.format}{'' if device is None else f', on {device.name}'}")
    busy = utilisation(profile)
    if busy is not None:
        print(utilisation_text(busy))
    print()
    print(table_text(explain(profile, device, by_shape=args.by_shape), top=args.top))
    if not getattr(args, "quiet", False):
        print(f"\n{legend()}")
    if page is not None:
        print(f"time line: {page['path']} ({page['events']} events)")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _as_json(
    profile: Profile,
    device: DeviceSpec | None,
    notes: list[str],
    page: dict[str, Any] | None,
    *,
    by_shape: bool,
) -> dict[str, Any]:
    from dataclasses import asdict

    from cdmpp.profiling.explain import explain
    from cdmpp.profiling.utilisation import utilisation

    busy = utilisation(profile)
    lines = explain(profile, device, by_shape=by_shape)
    return {
        "source": profile.source,
        "format": profile.format,
        "device": None if device is None else device.name,
        "notes": [*notes, *profile.notes],
        "utilisation": None
        if busy is None
        else {**asdict(busy), "device_share": busy.device_share},
        "rows": [line.as_json() for line in lines],
        "timeline": page,
    }


def _run_compare(args: argparse.Namespace, before: Profile, after: Profile) -> int:
    from cdmpp.profiling.compare import compare
    from cdmpp.profiling.text import compare_text

    changes = compare(before, after)
    if args.json:
        print(
            json.dumps(
                {
                    "before": before.source,
                    "after": after.source,
                    "changes": [change.as_json() for change in changes],
                }
            )
        )
        return 0
    print(f"before: {before.source}\nafter:  {after.source}\n")
    print(compare_text(changes, top=args.top))
    print(
        "\nratio: time of a call after over before. p: Mann-Whitney over the calls, corrected for "
        "the number of names; `not tested` = sums only, or fewer than 4 calls."
    )
    return 0


def _run_watch(args: argparse.Namespace) -> int:
    from cdmpp.profiling.text import watch_text
    from cdmpp.profiling.watch import watch

    watched = watch(args.watch, interval_s=args.interval, quiet=args.json)
    if args.json:
        print(json.dumps(watched.as_json()))
    else:
        print(watch_text(watched), file=sys.stderr)
    # A shell says 128 + the signal for a command that a signal ended.
    return watched.exit_code if watched.exit_code >= 0 else 128 - watched.exit_code


def _device(label: str | None, profile: Profile) -> tuple[DeviceSpec | None, list[str]]:
    """Returns (the device of --device or of the profile, notes).

    Raises:
        DeviceError: --device names none that is known.
    """
    from cdmpp.devices.registry import find_device, get_device

    if label is not None:
        return get_device(label), []
    if profile.device_name is None:
        return None, ["the profile names no device: --device LABEL adds shares of its peaks"]
    found = find_device(profile.device_name)
    if found is None:
        return None, [
            f"the profile's device {profile.device_name!r} is not in the registry: --device LABEL "
            "names one that is (cdmpp device list)"
        ]
    return found, []
