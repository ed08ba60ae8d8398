"""The page of `explain_faithful`: `python -m lab.experiments.explain_page MEASURED.json` writes
`docs/results/explain.md` and `.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.metrics import spearman
from cdmpp.pretrained import PRETRAINED
from cdmpp.report.page import Page, Section
from cdmpp.report.stamp import PROGRAMS, stamp, write_page
from cdmpp.report.tables import plain_table
from lab.experiments.shipped_labels import met_before
from tests.paths import ROOT

FloatArray = NDArray[np.float64]
Programs = Sequence[dict[str, Any]]
_DRAWS, _SEED = 2000, 0
#: Programs whose condition on a leaf alone costs more than this are told apart.
_GUARD_COST = 0.1
_WAYS = {
    "model": "share that the model adds (`cdmpp explain`)",
    "removal": "change of the prediction where the leaf is removed",
    "roofline": "roofline share",
    "random": "random shares",
}
_COMMAND = "make bench-explain"


def main() -> int:
    """Writes the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    measured = json.loads(args.measured.read_text("utf-8"))
    programs = measured["programs"]
    rng = np.random.default_rng(_SEED)
    for one in programs:
        one["saved"] = [1 - off / one["latency_s"] for off in one["off_s"]]
        one["random"] = rng.dirichlet(np.ones(len(one["saved"]))).tolist()
    facts = {
        "ways": {way: _judged(programs, way) for way in _WAYS},
        "cheap_guards": {way: _judged(_cheap(programs), way) for way in _WAYS},
        "changes": _changes(programs),
        "programs": len(programs), "leaves": sum(len(one["saved"]) for one in programs),
        "programs_with_cheap_guards": len(_cheap(programs)),
        "cpu_s": measured["cpu_s"], "seed": _SEED,
        **{name: measured[name] for name in ("device", "architecture", "is_known")},
    }  # fmt: skip
    parts = [measured.get("stamp")]
    found = stamp(_COMMAND, schemas=PROGRAMS, models=[PRETRAINED], parts=parts)
    write_page(args.out, "explain", _page(facts), {**facts, "measured": programs}, found)
    return 0


def _unknown(facts: Mapping[str, Any]) -> str:
    """Returns what to say of a label that the model has not learned from."""
    if facts["is_known"]:
        return ""
    return (
        ", a label that the shipped model has not learned from, told by its description alone; "
        + met_before(facts["architecture"])
    )


def _cheap(programs: Programs) -> Programs:
    """Returns the programs that take no longer with the conditions true."""
    return [
        one for one in programs
        if max(on / one["latency_s"] - 1 for on in one["on_s"]) < _GUARD_COST
    ]  # fmt: skip


def _judged(programs: Programs, way: str) -> dict[str, list[float]]:
    """Returns measures of one way of sharing out, each with its 95 % interval over programs."""
    pairs = [(np.array(one[way]), np.array(one["saved"])) for one in programs]
    within = np.array([spearman(share, saved) for share, saved in pairs])
    dearest = np.array([share.argmax() == saved.argmax() for share, saved in pairs], float)
    apart = np.array([_apart(share, saved) for share, saved in pairs])

    def pooled(chosen: NDArray[np.int64]) -> float:
        both = [np.concatenate(side) for side in zip(*(pairs[n] for n in chosen), strict=True)]
        return spearman(both[0], both[1])

    return {
        "spearman_within": _with_interval(len(pairs), lambda chosen: float(within[chosen].mean())),
        "spearman_pooled": _with_interval(len(pairs), pooled),
        "dearest": _with_interval(len(pairs), lambda chosen: float(dearest[chosen].mean())),
        "apart": _with_interval(len(pairs), lambda chosen: float(apart[chosen].mean())),
    }


def _apart(share: FloatArray, saved: FloatArray) -> float:
    """Returns the part of the time that is at other leaves than measured, in [0, 1]."""
    first, second = (np.clip(values, 0.0, None) for values in (share, saved))
    parts = [values / max(values.sum(), 1e-12) for values in (first, second)]
    return float(np.abs(parts[0] - parts[1]).sum() / 2)


def _with_interval(count: int, value: Callable[[NDArray[np.int64]], float]) -> list[float]:
    rng = np.random.default_rng(_SEED)
    drawn = [value(rng.integers(count, size=count)) for _ in range(_DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [value(np.arange(count)), float(low), float(high)]


def _changes(programs: Programs) -> dict[str, Any]:
    """Returns how the changes that were predicted to be faster or slower are, measured."""
    found = [
        (place, change["ratio"], change["seconds"] / one["latency_s"])
        for place, one in enumerate(programs)
        for change in one["instead"]
    ]
    owner, ratio, measured = (np.array(column) for column in zip(*found, strict=True))
    clear = np.abs(np.log(measured)) > np.log(1.05)
    agrees = (ratio < 1) == (measured < 1)

    def rank(chosen: NDArray[np.int64]) -> float:
        rows = np.concatenate([np.flatnonzero(owner == place) for place in chosen])
        return spearman(ratio[rows], measured[rows])

    def side(chosen: NDArray[np.int64]) -> float:
        rows = np.concatenate([np.flatnonzero((owner == place) & clear) for place in chosen])
        return float(agrees[rows].mean())

    return {
        "count": len(found), "clear": int(clear.sum()),
        "faster_predicted": float((ratio < 1).mean()),
        "faster_measured": float((measured < 1).mean()),
        "median_predicted": float(np.median(ratio)), "median_measured": float(np.median(measured)),
        "spearman": _with_interval(len(programs), rank),
        "side": _with_interval(len(programs), side),
    }  # fmt: skip


def _page(facts: dict[str, Any]) -> Page:
    tables = [_table(facts["ways"], ""), _table(facts["cheap_guards"], _cheap_title(facts))]
    found = facts["changes"]
    changes = (
        f"{found['count']} changes (of each program the fastest and the slowest by prediction) "
        "were timed beside it. Rank correlation of predicted with measured ratio "
        f"{_cell(found['spearman'])}. Only {found['clear']} of them change the time by more than "
        f"5 %; of these, {_cell(found['side'])} were predicted to be on the right side of 1. "
        f"Predicted to be faster: {100 * found['faster_predicted']:.0f} %, measured: "
        f"{100 * found['faster_measured']:.0f} %; median ratio {found['median_predicted']:.2f} "
        f"predicted, {found['median_measured']:.2f} measured. These programs are scheduled "
        "already, and most changes that are left unroll a loop, which the compiler does anyway: "
        "what is predicted of them is too hopeful."
    )
    return Page(
        title="Explanations beside measured ablations",
        lead=f"{facts['programs']} programs of three to nine leaves, {facts['leaves']} leaves, on "
        f"one thread of `{facts['device']}` ({facts['architecture']})"
        f"{_unknown(facts)}.",
        sections=[
            Section("Shares of the time", tables=tables), Section("Changed programs", note=changes)
        ],
        notes=[
            "A leaf is switched off: its store stands below a condition on an argument that the "
            "compiler cannot know. What the program is faster by is what the leaf takes. (Removing "
            "the store makes others dead code: tried first, and useless.)",
            "Within programs: mean of Spearman's correlation over the leaves of a program. Pooled: "
            "over all leaves. Dearest: the leaf with the largest share is the one that saves "
            "most. At other leaves: part of the time that is put elsewhere than measured.",
            "In brackets: 95 % interval over programs (bootstrap). The machine was shared and "
            "busy: times are medians of seven turns of the time on the processor, all versions of "
            "a program in turn.",
            "The programs are random schedules of measured campaigns. Most of their latencies "
            "(on one EPYC core) were training data of the shipped model; times of leaves never "
            "were. The way of sharing out was fixed beforehand; the measuring was tried on 40 "
            "programs of another campaign.",
        ],
        facts=[("CPU time of the measuring", f"{facts['cpu_s']:.0f} s"), ("seed", str(_SEED))],
    )  # fmt: skip


def _cheap_title(facts: dict[str, Any]) -> str:
    return (
        f"The {facts['programs_with_cheap_guards']} programs where no condition, being true, costs "
        f"{100 * _GUARD_COST:.0f} % or more"
    )


def _table(ways: dict[str, Any], title: str) -> Any:
    names = ("spearman_within", "spearman_pooled", "dearest", "apart")
    return plain_table(
        ["leaves ranked by", "within programs", "pooled", "dearest", "at other leaves"],
        [[_WAYS[way], *(_cell(found[name]) for name in names)] for way, found in ways.items()],
        title=title,
    )


def _cell(found: Sequence[float]) -> str:
    return f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
