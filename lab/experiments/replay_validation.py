"""Predicted against measured networks, replayed: `make bench-replay`.

Each network is compiled with named schedules and timed here, and so is each of its kernels alone.
A chain of very short operators calibrates the gap between operators; it is then fixed. Three
columns are judged against the measured time: the replay of measured kernels (error of the replayer
alone), the replay of predicted kernels (error of both), and the plain sum of predicted kernels.
Writes replay.md, replay.csv and replay.json to --out; a network that is in replay.json already is
not measured again, and predicted again only with --predict-again (for another model).

With `--trials N` every network is searched first (`cdmpp search`), and the database's best programs
are a second schedule. `--drawn DIR` judges the networks of a folder instead, as
`lab.experiments.varied_networks` draws them: replay-drawn.*.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.atomic import make_folder, write_atomic, write_text
from cdmpp.machine import machine
from cdmpp.metrics import mean_and_interval
from cdmpp.replay.calibration import fitted_gap_s
from cdmpp.replay.costs import gather_costs
from cdmpp.replay.engine import ReplayOptions, replay
from cdmpp.replay.summary import replay_costs
from cdmpp.report.stamp import COMPILED, stamp, write_page
from cdmpp.text import tidy_csv
from lab.experiments.example_networks import REPLAYED, Network, short_operators
from tvm_helper.predict.predictor import Predictor
from tvm_helper.replay.costs import ProgramCosts, ScheduleChoice, choose_schedules
from tvm_helper.replay.graph import DEVICE, read_network_graph
from tvm_helper.replay.measure import MeasuredNetwork, measure_network
from tvm_helper.replay.outcome import measured_times, measured_values
from tvm_helper.tasks.target import device_target

#: Candidates that TVM evolves for a round of a search: its 512 take most of the time on one core.
_POPULATION = 128
_CALIBRATING = "short-operators"


def exported(stem: str, make: Callable[[], Network], folder: Path) -> Path:
    """Returns the file of a network, made when it is missing."""
    path = folder / f"{stem}.pt2"
    if not path.is_file():
        torch.manual_seed(0)
        network, inputs = make()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(network, inputs)
            write_atomic(path, lambda temporary: _save(program, temporary))
    return path


def searched(path: Path, device: DeviceSpec, args: argparse.Namespace) -> Path:
    """Returns the database of a network after --trials trials a task; continues where it was."""
    done = _done(path, args)
    folder = done.parent
    if not done.is_file():
        predictor_tasks = len(read_network_graph(path, device_target(device)).tasks.tasks)
        added = Path(args.model) / "devices"
        subprocess.run(
            [sys.executable, "-m", "cdmpp.cli.main", "search", "--network", str(path),
             "--device", args.device, "--model", args.model, "--seed", "0",
             "--set", f"population={_POPULATION}", "--set", "final_repeats=3",
             "--trials", str(args.trials * predictor_tasks), "--out", str(folder), "-q",
             *(("--devices", str(added)) if added.is_dir() else ())],
            check=True,
        )  # fmt: skip
        done.touch()
    return folder


def _done(path: Path, args: argparse.Namespace) -> Path:
    """Returns the file that says that a network's search is finished."""
    found: Path = args.work / f"search-{path.stem}" / "done"
    return found


def judged(
    path: Path,
    choice: ScheduleChoice,
    predictor: Predictor,
    gap_s: float | None,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a network's row.

    Args:
        gap_s: None = this network calibrates it.
        known: an earlier row of the network, whose timings are taken.
    """
    (device,) = predictor.devices
    target = device_target(device)
    network = read_network_graph(path, target, device=device.name)
    chosen = choose_schedules(network, target, choice)
    programs = ProgramCosts(predictor, network, chosen, device)
    costs = gather_costs(network.graph, [programs], {DEVICE: device})
    if known is None:
        timed = measure_network(network, chosen, target)
    else:
        timed = MeasuredNetwork(
            tuple(known["costs_s"]), known["kernel_s"], known["kernels_unmeasured"]
        )
    if timed.unmeasured:
        print(f"{path.stem}: not timed: {timed.unmeasured}", file=sys.stderr)
    is_calibrating = gap_s is None
    if gap_s is None:
        gap_s = fitted_gap_s(replay(network.graph, measured_times(costs, timed)), timed.latency_s)
    outcome = replay_costs(costs, ReplayOptions(gap_s=gap_s), device=device.name)
    return {
        "network": path.stem, "schedule": choice.kind, "is_calibrating": is_calibrating,
        "timed_on": known["timed_on"] if known else machine(),
        "operators": len(network.graph.operators), "gap_s": gap_s, "low_s": outcome.low_s,
        "high_s": outcome.high_s, "uncovered": len(costs.uncovered),
        "untuned": sum(bool(one.remark) for one in chosen.values()),
        "kernel_s": timed.kernel_s, "kernels_unmeasured": timed.unmeasured,
        **measured_values(outcome, timed),
    }  # fmt: skip


def main() -> int:
    """Writes the files; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pretrained")
    parser.add_argument("--device", required=True, help="label of this machine's CPU")
    parser.add_argument("--networks", nargs="+", choices=REPLAYED, default=list(REPLAYED))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--drawn", type=Path, help="folder of .pt2 files that are judged instead")
    parser.add_argument("--trials", type=int, default=0, help="of the search, a task; 0 = none")
    parser.add_argument(
        "--predict-again", action="store_true", help="ask the model about kept networks too"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/replay"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    make_folder(args.work, what="networks and searches")
    make_folder(args.out, what="results")
    kept = args.out / f"{_name(args)}.json"
    found = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.is_file() else []
    rows = {(row["network"], row["schedule"]): row for row in found}
    predictor = Predictor(args.model, [args.device], compiles=True)
    wanted = {_CALIBRATING: partial(exported, _CALIBRATING, short_operators, args.work)}
    if args.drawn is None:
        for stem, make in ((f"{name}-b{batch}", partial(REPLAYED[name], batch))
                           for name in args.networks for batch in args.batches):  # fmt: skip
            wanted[stem] = partial(exported, stem, make, args.work)
    else:
        wanted |= {path.stem: partial(Path, path) for path in sorted(args.drawn.glob("*.pt2"))}
    for stem, path_of in wanted.items():
        is_searched = args.trials > 0 and stem != _CALIBRATING
        for kind in ("default", "database") if is_searched else ("default",):
            key = (stem, kind)
            if key in rows and not args.predict_again:
                continue
            path, known, choice = path_of(), rows.get(key), ScheduleChoice()
            if kind == "database":
                if not _done(path, args).is_file():
                    known = None  # the programs that were timed are gone with their database
                choice = ScheduleChoice(
                    "database", database=searched(path, predictor.devices[0], args)
                )
            calibrated = rows.get((_CALIBRATING, "default"))
            gap_s = None if stem == _CALIBRATING or calibrated is None else calibrated["gap_s"]
            origin = stamp("", schemas=COMPILED, models=[args.model])
            row = judged(path, choice, predictor, gap_s, known) | {"stamp": origin}
            rows[key] = row
            _write_all(_in_order(rows), args)
            print(f"{' '.join(key)}: replay {row['replay_error']:+.1%}, predicted "
                  f"{row['error']:+.1%}", file=sys.stderr, flush=True)  # fmt: skip
    _write_all(_in_order(rows), args)
    return 0


def page(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Returns the Markdown page."""
    calibrating = next(row for row in rows if row["is_calibrating"])
    gap_us = 1e6 * calibrating["gap_s"]
    lines = [
        "# Replayed networks, predicted against measured", "",
        f"`{_command(args)}` on `{args.device}`, model `{args.model}`, random weights. *Measured* "
        "is the compiled network; *replay, measured kernels* the replay of kernels that were timed "
        "alone (error of the replayer); *replay, predicted kernels* what `cdmpp replay` says; "
        f"*plain sum* the same without gaps. The gap between operators, {gap_us:.2f} µs, was "
        f"calibrated on {calibrating['network']}, which therefore does not count in the means, and "
        "then fixed. Whole networks and kernels are timed in turns, the kernels in the network's "
        "order, both in new memory again and again and on two places of the stack. Timings stay "
        "where the model is asked again. ± is a 95 % interval over networks.", "",
    ]  # fmt: skip
    if args.drawn is not None:
        lines += [
            "The networks were drawn at random (`lab.experiments.varied_networks --wide`, seed "
            "2029) after the model of that day was fixed. Nothing learns from them and nothing is "
            "chosen by them; of a later model they are asked again.", "",
        ]  # fmt: skip
    for schedule in dict.fromkeys(row["schedule"] for row in rows):
        own = [row for row in rows if row["schedule"] == schedule]
        commits = sorted({_commit(row)[:7] for row in own})
        lines += [
            f"## Schedules: {schedule}", "",
            f"Predicted at commit {', '.join(commits)}, timed on "
            f"{', '.join(sorted({row['timed_on']['processor'] for row in own}))}.", "",
            "| network | operators | measured ms | replay, measured kernels | replay, predicted "
            "kernels | plain sum | interval ms | in it | kernels: median error | in their interval "
            "|", "|:--|--:|--:|--:|--:|--:|:-:|:-:|--:|--:|",
        ]  # fmt: skip
        for row in own:
            kernels, within = judged_kernels([row])
            lines.append(
                f"| {row['network']}{' (calibrates)' if row['is_calibrating'] else ''} "
                f"| {row['operators']} | {1e3 * row['total_s']:.2f} | {row['replay_error']:+.1%} "
                f"| {row['error']:+.1%} | {row['predicted_sum_error']:+.1%} "
                f"| {1e3 * row['low_s']:.2f}-{1e3 * row['high_s']:.2f} "
                f"| {'yes' if row['is_in_interval'] else 'no'} "
                f"| {np.median([abs(one['error']) for one in kernels]):.0%} "
                f"| {within} of {len(kernels)} |"
            )
        counted = [row for row in own if not row["is_calibrating"]]
        batches = dict.fromkeys(row["network"].rsplit("-b", 1)[-1] for row in counted)
        if len(batches) > 1 and args.drawn is None:
            for batch in batches:
                part = [row for row in counted if row["network"].endswith(f"-b{batch}")]
                lines.append(_means(part, f"batch {batch}, "))
        if counted:
            lines.append(_means(counted, ""))
        lines.append("")
    return "\n".join(lines)


def _commit(row: dict[str, Any]) -> str:
    """Returns the commit that a network was predicted at; earlier rows have no stamp."""
    return str(row["stamp"]["commit"] if "stamp" in row else row["predicted_at"])


def judged_kernels(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Returns the kernels of networks that were timed alone, and how many are in their interval."""
    kernels = [one for row in rows for one in row["breakdown"] if one["error"] is not None]
    return kernels, sum(one["low_s"] <= one["measured_s"] <= one["high_s"] for one in kernels)


def _means(rows: list[dict[str, Any]], which: str) -> str:
    means = [
        f"{mean:.1%}" + (f" ± {half:.1%}" if half is not None else "")
        for key in ("replay_error", "error", "predicted_sum_error")
        for mean, half in [mean_and_interval([abs(row[key]) for row in rows])]
    ]
    inside = sum(row["is_in_interval"] for row in rows)
    kernels, within = judged_kernels(rows)
    return (
        f"| {which}mean of {len(rows)}, absolute | | | {' | '.join(means)} "
        f"| | {inside} of {len(rows)} "
        f"| {np.median([abs(one['error']) for one in kernels]):.0%} "
        f"| {within} of {len(kernels)} ({within / len(kernels):.0%}) |"
    )


def table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Returns the tidy CSV."""
    metrics = ("total_s", "predicted_s", "low_s", "high_s", "error", "replay_error",
               "predicted_sum_error", "gap_s")  # fmt: skip
    lines = (
        ("replay", row["network"], row["schedule"], args.device, "network", args.model, 0, metric,
         row[metric], row["operators"])
        for row in rows
        for metric in metrics
    )  # fmt: skip
    return tidy_csv(lines)


def _in_order(rows: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    order = {name: place for place, name in enumerate([_CALIBRATING, *REPLAYED])}
    return sorted(
        rows.values(),
        key=lambda row: (order.get(row["network"].rsplit("-b", 1)[0], len(order)), row["network"]),
    )


def _name(args: argparse.Namespace) -> str:
    return "replay" if args.drawn is None else "replay-drawn"


def _command(args: argparse.Namespace) -> str:
    return "make bench-replay" if args.drawn is None else "make bench-replay-drawn"


def _write_all(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    parts = [row.get("stamp") for row in rows]
    found = stamp(_command(args), schemas=COMPILED, models=[args.model], parts=parts)
    values = {"device": args.device, "model": args.model, "rows": rows}
    write_page(args.out, _name(args), page(rows, args), values, found)
    write_text(args.out / f"{_name(args)}.csv", table(rows, args))


def _save(program: Any, path: Path) -> None:
    with path.open("wb") as stream:
        torch.export.save(program, stream)


if __name__ == "__main__":
    sys.exit(main())
