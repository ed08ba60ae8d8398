"""Every answer that `cdmpp predict` gives of the replayed networks: one page, no two answers to one
question.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from cdmpp.files.atomic import make_folder
from cdmpp.predict.networks import WAYS, NetworkPrediction, NetworkQuestion
from cdmpp.pretrained import PRETRAINED
from cdmpp.replay.engine import ReplayOptions
from cdmpp.text import interval_text, markdown_table, percent_text
from lab.experiments.example_networks import REPLAYED
from lab.experiments.replay import exported
from lab.journal import Journal
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp
from tvm_helper.predict.predictor import new_predictor
from tvm_helper.replay.costs import ScheduleChoice
from tvm_helper.replay.outcome import replay_network
from tvm_helper.replay.ways import network_answers

#: A CPU and two GPUs that were trained on, and a GPU that nobody measured.
DEVICES = ("epyc-avx512-1c", "v100", "a100", "h100")


def experiment(
    networks: tuple[str, ...] = tuple(REPLAYED),
    devices: tuple[str, ...] = DEVICES,
    here: Path | None = None,
    work: Path = ROOT / "runs" / "replay",
) -> None:
    """Predicts every network on every device, and writes the page.

    Args:
        here: run folder of this machine, which `cdmpp device add` left: on it the networks are run
            too, as TVM compiles them and as torch runs them.
    """
    make_folder(work, what="networks")
    models = ["pretrained", *(f"pretrained:{one}" for one in ("networks", "operators", "conv"))]
    origin = stamp("python -m lab run answers", schemas=COMPILED, models=models)
    journal = Journal(work / f"answers-{origin['models']['pretrained']}.jsonl")
    asked: list[tuple[str, Path | str]] = [(device, PRETRAINED) for device in devices]
    if here is not None:
        asked.append((here.name.removeprefix("device-"), here))
    rows = []
    for name in networks:
        for device, model in asked:
            rows += journal.cell(
                f"{name} on {device}", partial(_answers, name, device, model, work)
            )
            print(f"{name} on {device}", file=sys.stderr, flush=True)
    order = [*DEVICES, *(row["device"] for row in rows)]
    rows.sort(key=lambda row: order.index(row["device"]))
    write_page("answers", page(rows), {"rows": rows}, origin)


def _answers(name: str, device: str, model: Path | str, work: Path) -> list[dict[str, Any]]:
    path = exported(f"{name}-b1", partial(REPLAYED[name], 1), work)
    question = NetworkQuestion(path, name, labels=(device,), batches=(None,), model=model)
    rows = [_row(one) for one in network_answers(question)]
    if model != PRETRAINED:
        _measure(rows, path, device, model)
    return rows


def _row(one: NetworkPrediction) -> dict[str, Any]:
    return {
        "network": one.name, "device": one.device, "way": one.way, "mode": one.mode,
        "latency_s": one.latency_s, "low_s": one.low_s, "high_s": one.high_s,
        "measured_s": None, "reasons": list(one.reasons),
    }  # fmt: skip


def _measure(rows: list[dict[str, Any]], path: Path, device: str, model: Path | str) -> None:
    """Adds what an iteration that does not train takes on this machine."""
    predictor = new_predictor(model, (device,))
    (outcome,) = replay_network(
        path, predictor, ScheduleChoice(), ReplayOptions(), is_measured=True
    )
    program = torch.export.load(path)
    timer = Timer("run(*inputs)", globals={
        "run": program.module(), "inputs": program.example_inputs[0]
    })  # fmt: skip
    with torch.no_grad():
        eager_s = timer.blocked_autorange(min_run_time=5.0).median
    assert outcome.measured is not None
    for row in rows:
        if row["mode"] == "infer":
            is_eager = row["way"] == "torch-eager"
            row["measured_s"] = eager_s if is_eager else outcome.measured["total_s"]


def page(rows: list[dict[str, Any]]) -> str:
    """Returns the Markdown page."""
    lines: list[str] = []
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        lines += [f"## {device}", ""]
        if device not in DEVICES:
            lines += [
                f"The model is what `cdmpp device add {device}` left, run there.",
                "",
            ]
        lines.append(
            markdown_table(
                ["network", "way of running", "mode", "answer", "measured", "error"],
                [_cells(row) for row in own],
            )
        )
        reasons = dict.fromkeys(
            f"{WAYS[row['way']]}, {row['network']}: {reason}"
            for row in own if row["mode"] == "infer" for reason in row["reasons"]
        )  # fmt: skip
        lines += ["", *(f"- {reason}" for reason in reasons), ""]
    return sections("answers", devices="\n".join(lines).rstrip())


def _cells(row: dict[str, Any]) -> list[str]:
    measured = row["measured_s"]
    error = None if not measured else row["latency_s"] / measured - 1
    answer = interval_text(row["latency_s"], row["low_s"], row["high_s"])
    return [
        row["network"], WAYS[row["way"]], row["mode"], answer + (" !" if row["reasons"] else ""),
        interval_text(measured) if measured else "", "" if error is None else percent_text(error),
    ]  # fmt: skip
