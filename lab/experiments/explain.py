"""Compares the shares of `cdmpp explain` with measured time.

To switch a leaf off, its store is put below a condition on an argument that the compiler cannot
know, so that nothing else becomes dead code. The time saved is the time of the leaf. The versions
of a program are timed in turn; each time is the median CPU time over turns, because a shared
machine drifts.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.extracted import PACKED_CAMPAIGN
from cdmpp.devices.registry import get_device
from cdmpp.errors import CdmppError
from cdmpp.metrics import spearman
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.explanation import explain
from cdmpp.pretrained import PRETRAINED
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from lab.pages import write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp
from tvm_helper.compat import Target, import_tensor_intrinsics, tvm
from tvm_helper.predict.painted import painted_script
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.build import arguments_of, random_tensors
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.schedule_of_trace import schedule_of
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.features import featurise_modules
from tvm_helper.tir.loop_tree import loop_tree_from_tir
from tvm_helper.tir.packing import runnable

#: Range of seconds of the measured programs: long enough to time each version, short enough to time
#: all in a few minutes.
_FROM_S, _TO_S = 2e-5, 1e-2
_MOST_LEAVES = 9
_TURNS, _TURN_S = 7, 3e-3
_FLAG = "is_on"

FloatArray = NDArray[np.float64]
Programs = Sequence[dict[str, Any]]
_DRAWS, _SEED = 2000, 0
_WAYS = {
    "model": "share that the model adds (`cdmpp explain`)",
    "removal": "change of the prediction where the leaf is removed",
    "roofline": "roofline share",
    "random": "random shares",
}


CAMPAIGNS = tuple(
    ROOT / "cache" / "data" / f"metaschedule-cpu{one}" for one in ("", "-broad", "-networks")
)


def experiment(
    device: str = "this-cpu",
    programs: int = 72,
    seed: int = 0,
    campaigns: tuple[Path, ...] = CAMPAIGNS,
) -> None:
    """Measures programs of campaigns (unpacked by `make tables`) and writes the page.

    Args:
        device: label of this machine's CPU with one thread.
    """
    if not campaigns[0].is_dir():  # data/ has the tables of this campaign beside its archive
        campaigns[0].mkdir(parents=True)
        with tarfile.open(ROOT / "data" / campaigns[0].name / PACKED_CAMPAIGN) as archive:
            archive.extractall(campaigns[0], filter="data")
    import_tensor_intrinsics("llvm")
    spec = get_device(device)
    target = device_target(spec)
    predictor = Predictor("pretrained", [spec])
    rows: list[dict[str, Any]] = []
    started = time.process_time()
    for name, module in _drawn(campaigns, np.random.default_rng(seed)):
        try:
            row = _measured(name, module, target, predictor)
        except CdmppError as error:
            print(f"{name}: {error}", flush=True)
            continue
        if row is not None:
            rows.append(row)
            print(f"{len(rows)} {name}: {len(row['model'])} leaves", flush=True)
        if len(rows) == programs:
            break
    cpu_s = time.process_time() - started
    write_report({"cpu_s": cpu_s, "device": spec.name, "programs": rows})


def write_report(measured: dict[str, Any]) -> None:
    """Writes the page from the measurements."""
    programs = measured["programs"]
    rng = np.random.default_rng(_SEED)
    for one in programs:
        one["saved"] = [1 - off / one["latency_s"] for off in one["off_s"]]
        one["random"] = rng.dirichlet(np.ones(len(one["saved"]))).tolist()
    facts = {
        "ways": {way: _judged(programs, way) for way in _WAYS},
        "programs": len(programs), "leaves": sum(len(one["saved"]) for one in programs),
        "cpu_s": measured["cpu_s"], "seed": _SEED,
        "device": measured["device"],
    }  # fmt: skip
    found = stamp("python -m lab run explain", schemas=PROGRAMS, models=[PRETRAINED])
    write_page("explain", _page(facts), {**facts, "measured": programs}, found)


def _drawn(campaigns: Sequence[Path], rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Yields (name, scheduled module): one random program per task, in random order."""
    found = []
    for folder in campaigns:
        events = [json.loads(line) for line in (folder / "journal.jsonl").open()]
        took = {
            event["program_id"]: float(np.median(event["costs_s"]))
            for event in events
            if event["kind"] == "measured" and event["error_code"] == 0
        }
        for event in events:
            if event["kind"] == "drawn":
                fit = [
                    one for one in event["programs"]
                    if _FROM_S < took.get(one["program_id"], 0.0) < _TO_S
                ]  # fmt: skip
                if fit:
                    found.append((folder, event["task"], fit))
    for place in rng.permutation(len(found)):
        folder, task, fit = found[place]
        content = json.loads((folder / "tasks" / f"{task}.json").read_text())
        chosen = fit[rng.integers(len(fit))]
        module = tvm.ir.load_json(content["module"])
        yield content["name"], schedule_of(module, chosen["schedule"]).mod


def _measured(
    name: str, module: Any, target: Target, predictor: Predictor
) -> dict[str, Any] | None:
    """Returns shares and savings of a program's leaves; None if the program is skipped."""
    module = runnable(module)
    ast = _features(module, target)
    leaves = 0 if ast is None else len(ast.leaf_features)
    if ast is None or not 3 <= leaves <= _MOST_LEAVES:
        return None
    numbers = range(1, leaves + 1)
    without = [_changed(module, leaf, leaves, _off) for leaf in numbers]
    guarded = [_changed(module, leaf, leaves, _guard) for leaf in numbers]
    if any(one is None for one in (*without, *guarded)):
        return None
    whole, off = _times(module, guarded, target)
    device = predictor.devices[0]
    asked = AskedProgram(program_id="", task="|llvm", ast=ast, device=device)
    samples = assemble_samples([asked])
    shares = predictor.trained.model.leaf_shares(samples)
    assert shares is not None
    predicted = _predicted(predictor, [module, *without])
    roofline = explain(loop_tree_from_tir(module), ast, device, None)
    if predicted is None:
        return None
    return {
        "name": name, "latency_s": whole, "off_s": off,
        "model": shares[0].tolist(),
        "removal": [1 - one / predicted[0] for one in predicted[1:]],
        "roofline": [] if roofline is None else [one.share for one in roofline.leaves],
    }  # fmt: skip


def _features(module: Any, target: Target) -> CompactAst | None:
    (ast,) = featurise_modules([module], target)
    return ast if isinstance(ast, CompactAst) and ast.valid else None


def _changed(
    module: Any, leaf: int, leaves: int, change: Callable[[str, str], list[str]]
) -> Any | None:
    """Returns a program with a leaf's store replaced; None if TVM cannot parse the program's text.

    Args:
        change: (indent, store) -> lines.
    """
    painted = painted_script(module, leaves)
    if painted is None or painted.is_lowered:
        return None
    lines: list[str] = []
    for line in painted.lines:
        text = line.text.lstrip()
        indent = line.text[: len(line.text) - len(text)]
        if line.leaf == leaf:
            lines += change(indent, text)
        elif text.startswith("def main(") and change is _guard:
            lines.append(f"{line.text.removesuffix('):')}, {_FLAG}: T.Buffer((1,), 'int32')):")
        elif not text.startswith(("T.reads(", "T.writes(")):  # inferred again by the parser
            lines.append(line.text)
    try:
        function = tvm.script.from_source("\n".join(lines))
    except Exception:  # for some programs the printer omits what the parser needs
        return None
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _off(indent: str, _: str) -> list[str]:
    return [f"{indent}T.evaluate(0)"]


def _guard(indent: str, store: str) -> list[str]:
    return [f"{indent}if {_FLAG}[0] != 0:", f"{indent}    {store}"]


def _predicted(predictor: Predictor, modules: Sequence[Any]) -> list[float] | None:
    found = predictor.programs([NamedProgram("", module) for module in modules])
    seconds = [one.latency_s for one in found if one.latency_s is not None]
    return seconds if len(seconds) == len(modules) else None


def _times(module: Any, others: Sequence[Any], target: Target) -> tuple[float, list[float]]:
    """Returns median CPU seconds of a program, and with each leaf switched off, taken in turn on
    one thread.

    Args:
        others: one version per leaf.
    """
    arguments = random_tensors(arguments_of(module), tvm.cpu(0))
    off = tvm.runtime.tensor(np.zeros(1, np.int32), tvm.cpu(0))
    timers = [_timer(module, arguments, target)]
    timers += [_timer(one, [*arguments, off], target) for one in others]
    turns = []
    for turn in range(_TURNS):
        seconds = np.zeros(len(timers))
        for place in np.roll(np.arange(len(timers)), turn):
            seconds[place] = timers[place]()
        turns.append(seconds)
    whole, *found = np.median(turns, axis=0).tolist()
    return whole, found


def _timer(module: Any, arguments: Sequence[Any], target: Target) -> Callable[[], float]:
    """Returns a function that runs a program for some milliseconds and returns seconds per call."""
    built = tvm.compile(module, target=target).jit()
    first = built.time_evaluator("main", tvm.cpu(0), number=1, repeat=3)(*arguments)
    number = max(1, int(_TURN_S / max(min(first.results), 1e-8)))
    timer = built.time_evaluator("main", tvm.cpu(0), number=number)

    def timed() -> float:
        before = time.thread_time()
        timer(*arguments)
        return (time.thread_time() - before) / (number + 1)  # one call warms up

    return timed


def _judged(programs: Programs, way: str) -> dict[str, list[float]]:
    """Returns metrics of one kind of shares, each with its 95 % interval over programs."""
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
    """Returns the fraction of the time attributed to other leaves than measured, in [0, 1]."""
    first, second = (np.clip(values, 0.0, None) for values in (share, saved))
    parts = [values / max(values.sum(), 1e-12) for values in (first, second)]
    return float(np.abs(parts[0] - parts[1]).sum() / 2)


def _with_interval(count: int, value: Callable[[NDArray[np.int64]], float]) -> list[float]:
    rng = np.random.default_rng(_SEED)
    drawn = [value(rng.integers(count, size=count)) for _ in range(_DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [value(np.arange(count)), float(low), float(high)]


def _page(facts: dict[str, Any]) -> Page:
    return Page(
        title="Explanations beside measured ablations",
        lead=f"{facts['programs']} programs of three to nine leaves, {facts['leaves']} leaves, on "
        f"one thread of `{facts['device']}`.",
        sections=[Section("Shares of the time", tables=[_table(facts["ways"])])],
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


def _table(ways: dict[str, Any]) -> Any:
    names = ("spearman_within", "spearman_pooled", "dearest", "apart")
    return plain_table(
        ["leaves ranked by", "within programs", "pooled", "dearest", "at other leaves"],
        [[_WAYS[way], *(_cell(found[name]) for name in names)] for way, found in ways.items()],
    )


def _cell(found: Sequence[float]) -> str:
    return f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"
