"""Whether the shares of `cdmpp explain` are those of the time: `python -m
lab.experiments.explain_faithful CAMPAIGN... --device LABEL --out FILE` measures, `--page FILE`
writes the page of what was measured.

A leaf is switched off: its store stands below a condition on an argument that the compiler cannot
know, so that nothing else becomes dead code. What the program is faster by is what the leaf takes.
The versions of a program take turns, each time is the median over turns of the time on the
processor: a machine with other tenants drifts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np

from cdmpp.devices.registry import get_device
from cdmpp.errors import CdmppError
from cdmpp.files.atomic import write_json
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.pretrained import PRETRAINED
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.report.stamp import PROGRAMS, stamp
from tvm_helper.compat import Target, import_tensor_intrinsics, tvm
from tvm_helper.predict.explain import explain_programs
from tvm_helper.predict.explanation import explain
from tvm_helper.predict.painted import painted_script
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.build import arguments_of, random_tensors
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.schedule_of_trace import schedule_of
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.features import featurise_modules
from tvm_helper.tir.packing import runnable

#: Seconds of the programs that are measured: their versions take long enough to time, and all of
#: them a few minutes.
_FROM_S, _TO_S = 2e-5, 1e-2
_MOST_LEAVES = 9
_TURNS, _TURN_S = 7, 3e-3
_DRAWS = 2000
_FLAG = "is_on"


def main() -> int:
    """Measures, or writes the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("campaigns", nargs="*", type=Path, help="unpacked folders of campaigns")
    parser.add_argument("--device", help="label of this machine's CPU with one thread")
    parser.add_argument("--programs", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="what was measured, JSON")
    args = parser.parse_args()
    import_tensor_intrinsics("llvm")
    device = get_device(args.device)
    target = device_target(device)
    predictor = Predictor("pretrained", [device])
    rows: list[dict[str, Any]] = []
    started = time.process_time()
    for name, module in _drawn(args.campaigns, np.random.default_rng(args.seed)):
        try:
            row = _measured(name, module, target, predictor)
        except CdmppError as error:
            print(f"{name}: {error}", flush=True)
            continue
        if row is not None:
            rows.append(row)
            print(f"{len(rows)} {name}: {len(row['model'])} leaves", flush=True)
        if len(rows) == args.programs:
            break
    origin = stamp("", schemas=PROGRAMS, models=[PRETRAINED])
    cpu_s = time.process_time() - started
    is_known = device.name in {one.name for one in predictor.trained.card.devices}
    write_json(
        args.out,
        {"cpu_s": cpu_s, "device": device.name, "architecture": device.architecture,
         "is_known": is_known, "programs": rows, "stamp": origin},
    )  # fmt: skip
    return 0


def _drawn(campaigns: Sequence[Path], rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Yields (name, scheduled module) of one random program of every task, in random order."""
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
    """Returns shares and savings of a program's leaves; None where its leaves are not taken."""
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
    (explained,) = explain_programs(predictor, [NamedProgram("", module)])
    # The fastest and the slowest of the changes, where there are two.
    instead = [explained.instead[place] for place in (0, -1)[: len(explained.instead)]]
    modules = [*guarded, *(one.change.module for one in instead)]
    whole, off, on, changed = _times(module, modules, leaves, target)
    device = predictor.devices[0]
    asked = AskedProgram(program_id="", task="|llvm", ast=ast, device=device)
    samples = assemble_samples([asked])
    shares = predictor.trained.model.leaf_shares(samples)
    assert shares is not None
    predicted = _predicted(predictor, [module, *without])
    roofline = explain(module, ast, device, None)
    if predicted is None:
        return None
    return {
        "name": name, "latency_s": whole, "off_s": off, "on_s": on,
        "instead": [
            {
                "name": one.change.name, "seconds": seconds,
                "ratio": (one.prediction.latency_s or 0.0) / predicted[0],
            }
            for one, seconds in zip(instead, changed, strict=True)
        ],
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
    """Returns a program with another line in the place of a leaf's store; None where it has no text
    that can be read back.

    Args:
        change: (indent, the store) -> lines.
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
        elif not text.startswith(("T.reads(", "T.writes(")):  # are found again
            lines.append(line.text)
    try:
        function = tvm.script.from_source("\n".join(lines))
    except Exception:  # the printer leaves out what the parser wants for some programs
        return None
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _off(indent: str, _: str) -> list[str]:
    return [f"{indent}T.evaluate(0)"]


def _guard(indent: str, store: str) -> list[str]:
    return [f"{indent}if {_FLAG}[0] != 0:", f"{indent}    {store}"]


def _predicted(predictor: Predictor, modules: Sequence[Any]) -> list[float] | None:
    """Returns predicted seconds of each; None where one of them has none."""
    found = predictor.programs([NamedProgram("", module) for module in modules])
    seconds = [one.latency_s for one in found if one.latency_s is not None]
    return seconds if len(seconds) == len(modules) else None


def _times(
    module: Any, others: Sequence[Any], leaves: int, target: Target
) -> tuple[float, list[float], list[float], list[float]]:
    """Returns median seconds on the processor of a program, of the same with each leaf switched off
    and on, and of its changes; all take turns, on one thread.

    Args:
        others: one a leaf, then the changes.
    """
    arguments = random_tensors(arguments_of(module), tvm.cpu(0))
    flags = [tvm.runtime.tensor(np.array([on], np.int32), tvm.cpu(0)) for on in (0, 1)]
    asked = [(module, arguments)]
    asked += [(one, [*arguments, flag]) for flag in flags for one in others[:leaves]]
    asked += [(one, arguments) for one in others[leaves:]]
    timers = [_timer(one, own, target) for one, own in asked]
    turns = []
    for turn in range(_TURNS):
        seconds = np.zeros(len(timers))
        for place in np.roll(np.arange(len(timers)), turn):
            seconds[place] = timers[place]()
        turns.append(seconds)
    whole, *found = np.median(turns, axis=0).tolist()
    return whole, found[:leaves], found[leaves : 2 * leaves], found[2 * leaves :]


def _timer(module: Any, arguments: Sequence[Any], target: Target) -> Callable[[], float]:
    """Returns what times a program for some milliseconds: seconds of a call."""
    built = tvm.compile(module, target=target).jit()
    first = built.time_evaluator("main", tvm.cpu(0), number=1, repeat=3)(*arguments)
    number = max(1, int(_TURN_S / max(min(first.results), 1e-8)))
    timer = built.time_evaluator("main", tvm.cpu(0), number=number)

    def timed() -> float:
        before = time.thread_time()
        timer(*arguments)
        return (time.thread_time() - before) / (number + 1)  # one call warms up

    return timed


if __name__ == "__main__":
    sys.exit(main())
