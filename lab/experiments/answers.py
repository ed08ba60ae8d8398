"""All predictions of `cdmpp predict` for the replayed networks on one page."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from cdmpp.files.atomic import make_folder
from cdmpp.predict.networks import WAYS, NetworkPrediction, NetworkQuestion
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import interval_text, markdown_table
from lab.experiments.example_networks import REPLAYED
from lab.experiments.replay import exported
from lab.journal import Journal
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp
from tvm_helper.replay.ways import network_answers

#: A CPU and two GPUs of the training data, and an unseen GPU.
DEVICES = ("epyc-avx512-1c", "v100", "a100", "h100")


def experiment(
    networks: tuple[str, ...] = tuple(REPLAYED),
    devices: tuple[str, ...] = DEVICES,
    work: Path = ROOT / "runs" / "replay",
) -> None:
    """Predicts every network on every device, and writes the page."""
    make_folder(work, what="networks")
    models = ["pretrained", *(f"pretrained:{one}" for one in ("networks", "operators", "conv"))]
    origin = stamp("python -m lab run answers", schemas=COMPILED, models=models)
    journal = Journal(work / f"answers-{origin['models']['pretrained']}.jsonl")
    rows = []
    for name in networks:
        for device in devices:
            rows += journal.cell(f"{name} on {device}", partial(_answers, name, device, work))
            print(f"{name} on {device}", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: devices.index(row["device"]))
    write_page("answers", page(rows), {"rows": rows}, origin)


def _answers(name: str, device: str, work: Path) -> list[dict[str, Any]]:
    path = exported(f"{name}-b1", partial(REPLAYED[name], 1), work)
    question = NetworkQuestion(path, name, labels=(device,), batches=(None,), model=PRETRAINED)
    return [_row(one) for one in network_answers(question)]


def _row(one: NetworkPrediction) -> dict[str, Any]:
    return {
        "network": one.name, "device": one.device, "way": one.way, "mode": one.mode,
        "latency_s": one.latency_s, "low_s": one.low_s, "high_s": one.high_s,
        "reasons": list(one.reasons),
    }  # fmt: skip


def page(rows: list[dict[str, Any]]) -> str:
    """Returns the Markdown page."""
    lines: list[str] = []
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        lines += [f"## {device}", ""]
        heads = ["network", "way of running", "mode", "answer"]
        lines.append(markdown_table(heads, [_cells(row) for row in own]))
        reasons = dict.fromkeys(
            f"{WAYS[row['way']]}, {row['network']}: {reason}"
            for row in own if row["mode"] == "infer" for reason in row["reasons"]
        )  # fmt: skip
        lines += ["", *(f"- {reason}" for reason in reasons), ""]
    return sections("answers", devices="\n".join(lines).rstrip())


def _cells(row: dict[str, Any]) -> list[str]:
    answer = interval_text(row["latency_s"], row["low_s"], row["high_s"])
    mark = " !" if row["reasons"] else ""
    return [row["network"], WAYS[row["way"]], row["mode"], answer + mark]
