"""Predicted against measured networks, replayed.

Each network is compiled with named schedules and timed here, and so is each of its kernels alone.
A chain of very short operators calibrates the gap between operators; it is then fixed. Three
columns are judged against the measured time: the replay of measured kernels (error of the replayer
alone), the replay of predicted kernels (error of both), and the plain sum of predicted kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.machine import machine
from cdmpp.metrics import mean_and_interval
from cdmpp.pretrained import PRETRAINED
from cdmpp.replay.calibration import fitted_gap_s
from cdmpp.replay.costs import gather_costs
from cdmpp.replay.engine import ReplayOptions, replay
from cdmpp.replay.summary import replay_costs
from cdmpp.text import markdown_table
from lab.experiments import varied_networks
from lab.experiments.example_networks import REPLAYED, Network, short_operators
from lab.pages import sections, write_page
from lab.paths import RESULTS, ROOT
from lab.shell import cdmpp
from lab.stamp import COMPILED, stamp
from tvm_helper.predict.predictor import Predictor
from tvm_helper.replay.costs import ProgramCosts, ScheduleChoice, choose_schedules
from tvm_helper.replay.graph import DEVICE, network_graph
from tvm_helper.replay.measure import MeasuredNetwork, measure_network
from tvm_helper.replay.outcome import measured_times, measured_values
from tvm_helper.tasks.network_tasks import load_network, network_tasks
from tvm_helper.tasks.target import device_target

#: Candidates that TVM evolves for a round of a search: its 512 take most of the time on one core.
_POPULATION = 128
_CALIBRATING = "short-operators"
#: Drew the networks of the pages, after the shipped model was fixed.
_SEED = 2051
#: Number of generated networks among them.
_COUNT = 36

#: (network, schedule) -> its row.
Rows = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Replays:
    """What is replayed.

    Attributes:
        name: of the page.
        device: label of this machine's CPU.
        model: as `--model` names it.
        work: folder of exported networks and searches.
        folder: where the page is written; a network whose row is there is not measured again.
        is_predicted_again: whether the model is asked about these networks too.
        trials: of a search (`cdmpp search`) a task, whose best programs are a second schedule of
            `searched`.
        seed: drew the networks; rows of another one are not reused. None = they were not drawn.
    """

    name: str
    device: str
    model: str
    work: Path
    folder: Path = RESULTS
    is_predicted_again: bool = False
    trials: int = 0
    seed: int | None = None


def exported(stem: str, make: Callable[[], Network], folder: Path) -> Path:
    """Returns the file of a network, made when it is missing."""
    path = folder / f"{stem}.pt2"
    if not path.is_file():
        torch.manual_seed(0)
        varied_networks.export(*make(), path)
    return path


def searched(path: Path, device: DeviceSpec, asked: Replays) -> Path:
    """Returns the database of a network's search; continues it where it was."""
    done = _done(path, asked)
    if not done.is_file():
        tasks = len(network_tasks(load_network(path), device_target(device)).tasks)
        added = Path(asked.model) / "devices"
        cdmpp(
            "search", "-q", network=path, device=asked.device, model=asked.model, seed=0,
            set=[f"population={_POPULATION}", "final_repeats=3"], trials=asked.trials * tasks,
            out=done.parent, devices=added if added.is_dir() else None,
        )  # fmt: skip
        done.touch()
    return done.parent


def _done(path: Path, asked: Replays) -> Path:
    return asked.work / f"search-{path.stem}" / "done"


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
    network = network_graph(
        load_network(path), target, name=path.stem, source=str(path), device=device.name
    )
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


def experiment(
    device: str = "measured-here",
    model: str = "runs/device-measured-here",
    networks: tuple[str, ...] = tuple(REPLAYED),
    searched_networks: tuple[str, ...] = ("dlrm", "resnet-18", "bert-encoder", "dcgan"),
    batches: tuple[int, ...] = (1,),
    trials: int = 16,
    is_predicted_again: bool = False,
) -> None:
    """Replays known networks, and writes the page.

    Args:
        device: label of this machine's CPU.
        model: that knows it; what `cdmpp device add` left is made where it is missing.
        searched_networks: those that are searched first, with so many trials a task.
        is_predicted_again: whether the model is asked about measured networks too.
    """
    _added(device, model)
    asked = Replays(
        "replay", device, model, ROOT / "runs" / "replay", is_predicted_again=is_predicted_again
    )
    rows: Rows = {}
    for part, names in ((asked, networks), (replace(asked, trials=trials), searched_networks)):
        files = {
            f"{name}-b{batch}": partial(
                exported, f"{name}-b{batch}", partial(REPLAYED[name], batch), asked.work
            )
            for name in names
            for batch in batches
        }
        rows = replayed(part, files)
    write(asked, rows)


def drawn(
    device: str = "this-cpu",
    model: str = PRETRAINED,
    seed: int = _SEED,
    trials: int = 32,
    is_predicted_again: bool = False,
    count: int = _COUNT,
    page: str = "replay-drawn",
) -> None:
    """Replays networks that no choice has seen, and writes the page.

    Args:
        device: label of this machine's CPU.
        seed: draws the networks.
        count: of generated networks; recommenders and image generators are added.
    """
    asked = Replays(
        page, device, model, ROOT / "runs" / f"replay-drawn-{seed}", trials=trials,
        is_predicted_again=is_predicted_again, seed=seed,
    )  # fmt: skip
    write(asked, replayed(asked, drawn_files(seed, count)))


def elsewhere(
    seed: int = _SEED, model: str = PRETRAINED, added: str = "runs/device-measured-here"
) -> None:
    """Replays the drawn networks on this CPU, of which a model knows nothing: as `this-cpu`, and
    after `cdmpp device add`, with the same timings. Writes the page.

    Args:
        model: that does not know this CPU.
        added: what `device add` made of it; made of the shipped model where it is missing.
    """
    _added("measured-here", added)
    untold = Replays(
        "replay-drawn", "this-cpu", model, ROOT / "runs" / f"replay-drawn-{seed}",
        ROOT / "runs" / "replay-untold", is_predicted_again=True, seed=seed,
    )  # fmt: skip
    told = replace(
        untold, device="measured-here", model=added, folder=ROOT / "runs" / "replay-added"
    )
    before = replayed(untold, drawn_files(seed))
    after = replayed(told, drawn_files(seed), before)
    write_elsewhere(_in_order(before), _in_order(after), model)


def _added(device: str, model: str) -> None:
    if model != PRETRAINED and not (ROOT / model).is_dir():
        cdmpp("device add", device, threads=1)


def drawn_files(seed: int, count: int = _COUNT) -> dict[str, Callable[[], Path]]:
    """Returns the files of the drawn networks, made where they are missing."""
    folder = ROOT / "runs" / f"drawn-{seed}"
    if not folder.is_dir():
        varied_networks.experiment(folder, count, seed, (1, 2, 4), 4e9, wide=True)
    return {path.stem: partial(Path, path) for path in sorted(folder.glob("*.pt2"))}


def replayed(
    asked: Replays, files: Mapping[str, Callable[[], Path]], known: Rows | None = None
) -> Rows:
    """Returns a row a network and schedule; keeps each as soon as it is there.

    Args:
        known: rows whose timings are taken.
    """
    make_folder(asked.work, what="networks and searches")
    make_folder(asked.folder, what="rows")
    kept = asked.folder / f"{asked.name}.json"
    written = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    found = written["rows"] if written and written.get("seed") == asked.seed else []
    rows = {**(known or {}), **{(row["network"], row["schedule"]): row for row in found}}
    predictor = Predictor(asked.model, [asked.device], compiles=True)
    calibrating = partial(exported, _CALIBRATING, short_operators, asked.work)
    every: dict[str, Callable[[], Path]] = {_CALIBRATING: calibrating, **files}
    for stem, path_of in every.items():
        is_searched = asked.trials > 0 and stem != _CALIBRATING
        for kind in ("default", "database") if is_searched else ("default",):
            key = (stem, kind)
            if key in rows and not asked.is_predicted_again:
                continue
            path, timed, choice = path_of(), rows.get(key), ScheduleChoice()
            if kind == "database":
                if not _done(path, asked).is_file():
                    timed = None  # the programs that were timed are gone with their database
                choice = ScheduleChoice(
                    "database", database=searched(path, predictor.devices[0], asked)
                )
            calibrated = rows.get((_CALIBRATING, "default"))
            gap_s = None if stem == _CALIBRATING or calibrated is None else calibrated["gap_s"]
            origin = stamp("", schemas=COMPILED, models=[asked.model])
            row = judged(path, choice, predictor, gap_s, timed) | {"stamp": origin}
            rows[key] = row
            write_json(kept, {"seed": asked.seed, "rows": _in_order(rows)})
            print(f"{' '.join(key)}: replay {row['replay_error']:+.1%}, predicted "
                  f"{row['error']:+.1%}", file=sys.stderr, flush=True)  # fmt: skip
    return rows


def page(rows: list[dict[str, Any]], asked: Replays, command: str) -> str:
    """Returns the Markdown page."""
    calibrating = next(row for row in rows if row["is_calibrating"])
    lines = [
        "# Replayed networks, predicted against measured", "",
        f"`{command}` on `{asked.device}`, model `{asked.model}`, random weights. The gap between "
        f"operators, {1e6 * calibrating['gap_s']:.2f} µs, was calibrated on "
        f"{calibrating['network']}, which therefore does not count in the means.", "",
    ]  # fmt: skip
    heads = [
        "network", "measured ms", "replay, measured kernels", "replay, predicted kernels", "in it",
        "kernels: median error", "in their interval",
    ]  # fmt: skip
    for schedule in dict.fromkeys(row["schedule"] for row in rows):
        own = [row for row in rows if row["schedule"] == schedule]
        cells = []
        for row in own:
            kernels, within = judged_kernels([row])
            cells.append([
                f"{row['network']}{' (calibrates)' if row['is_calibrating'] else ''}",
                f"{1e3 * row['total_s']:.2f}", f"{row['replay_error']:+.1%}",
                f"{row['error']:+.1%}", "yes" if row["is_in_interval"] else "no",
                f"{np.median([abs(one['error']) for one in kernels]):.0%}",
                f"{within} of {len(kernels)}",
            ])  # fmt: skip
        if counted := [row for row in own if not row["is_calibrating"]]:
            cells.append(_means(counted))
        table = markdown_table(heads, cells, "lrrrcrr")
        lines += [f"## Schedules: {schedule}", "", table, ""]
    return "\n".join(lines)


def judged_kernels(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Returns the kernels of networks that were timed alone, and how many are in their interval."""
    kernels = [one for row in rows for one in row["breakdown"] if one["error"] is not None]
    return kernels, sum(one["low_s"] <= one["measured_s"] <= one["high_s"] for one in kernels)


def _means(rows: list[dict[str, Any]]) -> list[str]:
    means = [
        f"{mean:.1%}" + (f" ± {half:.1%}" if half is not None else "")
        for key in ("replay_error", "error")
        for mean, half in [mean_and_interval([abs(row[key]) for row in rows])]
    ]
    inside = sum(row["is_in_interval"] for row in rows)
    kernels, within = judged_kernels(rows)
    return [
        f"mean of {len(rows)}, absolute", "", *means, f"{inside} of {len(rows)}",
        f"{np.median([abs(one['error']) for one in kernels]):.0%}",
        f"{within} of {len(kernels)} ({within / len(kernels):.0%})",
    ]  # fmt: skip


def _in_order(rows: Rows) -> list[dict[str, Any]]:
    order = {name: place for place, name in enumerate([_CALIBRATING, *REPLAYED])}
    return sorted(
        rows.values(),
        key=lambda row: (order.get(row["network"].rsplit("-b", 1)[0], len(order)), row["network"]),
    )


def write(asked: Replays, found: Rows) -> None:
    """Writes the page of all rows."""
    rows = _in_order(found)
    command = f"python -m lab run {asked.name}"
    parts = [row.get("stamp") for row in rows]
    origin = stamp(command, schemas=COMPILED, models=[asked.model], parts=parts)
    values = {"device": asked.device, "model": asked.model, "seed": asked.seed, "rows": rows}
    write_page(asked.name, page(rows, asked, command), values, origin, folder=asked.folder)


def write_elsewhere(
    before: list[dict[str, Any]], after: list[dict[str, Any]], model: str = PRETRAINED
) -> None:
    """Writes the page of the same networks before and after `device add`."""
    parts = [row["stamp"] for row in (*before, *after)]
    untold, added = ([row for row in rows if not row["is_calibrating"]] for rows in (before, after))
    architecture = get_device("this-cpu").architecture
    lines = {"untold": _summary(untold), "added": _summary(added)}
    text = sections("replay-elsewhere", summary=_lines(lines))
    values = {"architecture": architecture, "lines": lines, "untold": untold, "added": added}
    command = "python -m lab run replay-elsewhere"
    found = stamp(command, schemas=COMPILED, models=[model], parts=parts)
    write_page("replay-elsewhere", text, values, found)


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how far off the networks and their kernels are."""
    error = np.array([row["error"] for row in rows])
    log_error = np.abs(np.log1p(error))
    mean, half = mean_and_interval(np.abs(error).tolist())
    log_mean, log_half = mean_and_interval(log_error.tolist())
    kernels, within = judged_kernels(rows)
    ratio = np.log1p([one["error"] for one in kernels])
    width = [np.log(row["high_s"] / row["low_s"]) / 2 for row in rows]
    return {
        "networks": len(rows), "mape": mean, "mape_half": half, "log_error": log_mean,
        "log_error_half": log_half, "median_ratio": float(np.median(1 + error)),
        "inside": sum(row["is_in_interval"] for row in rows),
        "factor": float(np.exp(np.mean(width))), "kernels": len(kernels),
        "kernel_log_error": float(np.abs(ratio).mean()),
        "kernel_median_ratio": float(np.exp(np.median(ratio))), "kernels_inside": within,
    }  # fmt: skip


def _lines(lines: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, title in (
        ("untold", "zero-shot (`this-cpu`)"),
        ("added", "after `cdmpp device add`"),
    ):
        one = lines[name]
        rows.append([
            title, f"{one['mape']:.1%} ± {one['mape_half']:.1%}",
            f"{one['log_error']:.2f} ± {one['log_error_half']:.2f}", f"{one['median_ratio']:.2f}",
            f"{one['inside']} of {one['networks']}", f"{one['factor']:.1f}",
            f"{one['kernel_log_error']:.2f}", f"{one['kernel_median_ratio']:.2f}",
            f"{one['kernels_inside']} of {one['kernels']}",
        ])  # fmt: skip
    return markdown_table(
        ["model", "error of a network", "log error", "median ratio", "in its interval",
         "factor each way", "kernels: log error", "median ratio", "in their intervals"], rows,
    )  # fmt: skip
