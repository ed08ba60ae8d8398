"""`cdmpp search`: finds fast schedules of tasks or of a network, with TVM's MetaSchedule."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cdmpp.cli.search.text import plan_text, progress_note, summary_text
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_config_options,
    add_output_options,
    add_target_options,
    device_folders,
)
from cdmpp.cli.shared.progress import progress
from cdmpp.config import given_fields, load_config
from cdmpp.errors import UsageError
from cdmpp.replay.file_kind import file_kind
from cdmpp.text import percent_text, seconds_text
from tvm_helper.measure.health import findings_now
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.progress import SearchProgress
from tvm_helper.search.summary import search_summary

_ROWS = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Searches schedules with TVM's MetaSchedule, measures those that the cost model ranks "
        "best, saves the best as DIR/module.so and times it beside the untuned module. Rerun "
        "the same command to continue. `search show DIR` prints the results of a search, also "
        "while it runs."
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="FILE | show DIR",
        help="Python files with TVMScript, or a network (.onnx, .pt2); or `show` and a search's "
        "folder",
    )
    add_table(parser, """
        --out DIR: Path  output folder: database, journal and module
        what to search:
        --task TASK+ = []       KIND:SIZE=N,... (see `cdmpp measure --list-tasks`) or a Python file
            with TVMScript
        --program FILE.py... = []  as --task FILE.py
        --network FILE          a network (.onnx, .pt2) instead of tasks
        --batch N: int as network_batch        ONNX: size of the first axes that are dynamic in the
            file
        --input NAME=SHAPE... as network_input = []  ONNX: full shape of an input with dynamic sizes
        how:
        --cost-model cdmpp|xgb|random  cost model that ranks candidates (default: cdmpp)
        --model RUN                    run folder of `cdmpp train` (default: pretrained)
        --finetune-every N: int        fine-tune the model after every N measured programs (default:
            0 = never)
        --trials N: int                total number of trials (default: 64)
        --trials-per-round N: int      trials of a task in each round (default: two rounds per task,
            at most 16)
        --seed N: int                  seed (default: 0)
        --minutes M: float             wall-time limit of this run
        --stop-early = None            stop as soon as stopping is advised
        --stop-gain PERCENT: float     expected gain below which stopping is advised (default: 2)
    """)  # fmt: skip
    place = parser.add_argument_group("on what")
    add_target_options(place)
    add_config_options(
        parser, config="file with all settings", setting="run_timeout_s=30 or timing.spread=0.01"
    )
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp search`; returns the exit code."""
    if args.what[:1] == ["show"]:
        return _show(args.what[1:], as_json=args.json)
    programs, networks = _files(args.what)
    args.task = [*args.task, *args.program, *programs]
    networks += [] if args.network is None else [args.network]
    if len(networks) > 1:
        raise UsageError(f"got {len(networks)} networks ({', '.join(networks)}); expected one")
    args.network = next(iter(networks), None)
    if args.out is None:
        raise UsageError("no output folder: give --out DIR")
    options = search_options(vars(args))
    options.check()
    from tvm_helper.search.run import plan_search, run_search  # TVM takes a second

    is_quiet = args.json or args.quiet
    plan = plan_search(options, device_folders=device_folders(args.devices))
    if not is_quiet:
        print(plan_text(plan), flush=True)
        for finding in findings_now(plan.target.threads):
            print(f"doubtful: {finding}", file=sys.stderr)
    with _progress(is_quiet=is_quiet) as show:
        summary = run_search(plan, args.out, on_progress=show)
    print(json.dumps(summary, allow_nan=False) if args.json else "\n" + summary_text(summary))
    return 0


def _show(folders: Sequence[str], *, as_json: bool) -> int:
    if len(folders) != 1:
        raise UsageError(
            f"search show: got {len(folders)} folders; expected one, the --out of a search"
        )
    summary = search_summary(Path(folders[0]))
    print(json.dumps(summary, allow_nan=False) if as_json else summary_text(summary))
    return 0


def _files(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits positional files into files with programs and networks."""
    kinds = [file_kind(Path(text), ("program", "network")) for text in texts]
    programs = [text for text, kind in zip(texts, kinds, strict=True) if kind == "program"]
    networks = [text for text, kind in zip(texts, kinds, strict=True) if kind == "network"]
    return programs, networks


def search_options(values: Mapping[str, Any]) -> SearchOptions:
    """Returns the settings: defaults, overridden by --config, by --set, and by other options.

    Raises:
        UsageError: an unknown setting or a value of the wrong type.
    """
    own = given_fields(SearchOptions, values)
    if "stop_gain" in own:
        own["stop_gain"] /= 100
    return load_config(SearchOptions, values["config"], overrides=values["set"], given=own)


@contextlib.contextmanager
def _progress(*, is_quiet: bool) -> Iterator[Callable[[SearchProgress], None] | None]:
    if is_quiet:
        yield None
    elif sys.stderr.isatty():
        with Live(console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda now: live.update(_picture(now))
    else:
        with progress(is_quiet=False) as show_line:
            last_advice: str | None = None

            def show(now: SearchProgress) -> None:
                nonlocal last_advice
                if now.advice and last_advice is None:
                    print(now.advice, file=sys.stderr)
                last_advice = now.advice
                show_line(now.stage, now.trials, now.total, progress_note(now))

            yield show


def _picture(now: SearchProgress) -> RenderableType:
    """Returns a line about the whole search, and a row per task."""
    table = Table("calls", "task", "trials", "best", "expected gain", box=None)
    for task in now.tasks[:_ROWS]:
        failed = f" ({task.failed} failed)" if task.failed else ""
        table.add_row(
            str(task.weight), Text(task.name, overflow="ellipsis", no_wrap=True),
            f"{task.trials}{failed}", seconds_text(task.best_s, none="?"),
            percent_text(task.gain, none="?"),
        )  # fmt: skip
    whole = f"{now.stage}: {now.trials} of {now.total} trials, {progress_note(now)}"
    lines: list[RenderableType] = [Text(whole.rstrip(", "))]
    if now.advice:
        lines.append(Text(now.advice))
    return Group(*lines, table) if now.tasks else Group(*lines)
