"""Explanations of predictions: the program's text with times, a summary of its machine code, near
training tasks, and counterfactual programs.

from tvm_helper.predict.explain import explain_programs
from tvm_helper.predict.predictor import Predictor, program_samples

for one in explain_programs(Predictor("pretrained", ["epyc-avx512-1c"]), "my_kernel.py"):
    print(one.row())
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdmpp.calibration.ood import ColumnDifference, NearTask
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, ReplayError
from cdmpp.predict.explanation import LIMITS, LeafExplanation
from cdmpp.predict.prediction import Prediction
from cdmpp.programs.machine_code.columns import machine_code_columns
from cdmpp.programs.machine_code.summary import CodeSummary, summary_of
from tvm_helper.predict.counterfactuals import Counterfactual, counterfactuals
from tvm_helper.predict.painted import PaintedScript, painted_script
from tvm_helper.predict.predictor import Predictor, program_samples
from tvm_helper.tasks.machine_code import code_of
from tvm_helper.tasks.program_file import NamedProgram, read_programs
from tvm_helper.tasks.target import device_target

#: Minimum share of the time for counterfactuals of a store.
_WORTH_CHANGING = 0.1


@dataclass(frozen=True)
class Instead:
    """A counterfactual of the explained program, with its prediction.

    Attributes:
        leaf: leaf whose block was changed.
    """

    change: Counterfactual
    leaf: int
    prediction: Prediction


@dataclass(frozen=True)
class ExplainedProgram:
    """Explanation of a program's prediction on a device. Without a latency, `prediction.reason` has
    the reason, and the other fields are empty.

    Attributes:
        script: the program's text; None if its leaves cannot be found in the text.
        code: summary of the machine code; None if the program was not compiled.
        no_code: reason why a requested `code` is missing.
        near: nearest training tasks, each with the differences.
        instead: counterfactual programs, fastest first.
        no_instead: reason why `instead` is empty.
    """

    prediction: Prediction
    script: PaintedScript | None = None
    code: CodeSummary | None = None
    no_code: str = ""
    near: tuple[tuple[NearTask, tuple[ColumnDifference, ...]], ...] = ()
    instead: tuple[Instead, ...] = ()
    no_instead: str = ""

    def row(self) -> dict[str, Any]:
        """Returns the explanation as JSON values."""
        one, found = self.prediction, self.prediction.explanation
        leaves = () if found is None else found.leaves
        shares = {leaf.leaf: leaf.share for leaf in leaves}
        return {
            **{name: getattr(one, name) for name in _PREDICTED},
            "text": None
            if found is None or one.latency_s is None
            else found.text(one.latency_s),
            "shares_by": None if found is None else found.shares_by,
            "unknown_rates": [] if found is None else list(found.assumed),
            "leaves": [_leaf_row(leaf, one.latency_s or 0.0) for leaf in leaves],
            "is_lowered": self.script is not None and self.script.is_lowered,
            "lines": []
            if self.script is None
            else [
                {
                    "text": line.text, "leaf": line.leaf,
                    "share": None if line.leaf is None else shares.get(line.leaf),
                }
                for line in self.script.lines
            ],
            "machine_code": None
            if self.code is None
            else {**asdict(self.code), "text": self.code.text},
            "no_machine_code": self.no_code or None,
            "nearest": [
                {**asdict(task), "differs": [asdict(part) for part in parts]}
                for task, parts in self.near
            ],
            "counterfactuals": [_instead_row(other, one) for other in self.instead],
            "no_counterfactual": self.no_instead or None,
        }  # fmt: skip


_PREDICTED = (
    "name", "operator", "device", "program_id", "latency_s", "low_s", "high_s",
    "out_of_distribution", "is_floor", "is_compiled", "is_scheduled", "reason",
)  # fmt: skip


def explain_programs(
    predictor: Predictor,
    source: Path | str | Sequence[NamedProgram],
    *,
    compiles: bool = False,
) -> list[ExplainedProgram]:
    """Returns the explanations of all programs on all devices, program by program.

    Args:
        source: a Python file, which is run, or programs.
        compiles: whether to compile all programs and summarise their machine code; otherwise only
            those that were predicted with it.

    Raises:
        DataError: the file cannot be run or defines no program.
        DeviceError: TVM has no target for a device.
    """
    named = read_programs(Path(source)) if isinstance(source, Path | str) else source
    return [
        _explained(predictor, program, device, prediction, compiles=compiles)
        for program in named
        for device, prediction in zip(predictor.devices, predictor.programs([program]), strict=True)
    ]


def _explained(
    predictor: Predictor,
    program: NamedProgram,
    device: DeviceSpec,
    prediction: Prediction,
    *,
    compiles: bool,
) -> ExplainedProgram:
    found = prediction.explanation
    if prediction.latency_s is None or found is None:
        return ExplainedProgram(prediction)
    script = painted_script(program.module, len(found.leaves))
    is_described = compiles or prediction.is_compiled
    code, no_code = _code(program.module, device, prediction) if is_described else (None, "")
    instead, no_instead = _instead(predictor, program, device, found.leaves, script)
    return ExplainedProgram(
        prediction, script, code, no_code, _near(predictor, program, device, prediction),
        tuple(instead), no_instead,
    )  # fmt: skip


def _code(
    module: Any, device: DeviceSpec, prediction: Prediction
) -> tuple[CodeSummary | None, str]:
    """Returns a summary of a program's machine code, or the reason why there is none."""
    if device.kind != "cpu":
        return None, f"machine code is only explained on CPUs, {device.name} is not a CPU"
    if prediction.code is not None:
        return summary_of(prediction.code), ""
    try:
        columns = machine_code_columns(code_of(module, device_target(device)))
    except (ReplayError, DataError) as error:
        return None, str(error)
    return (None, "it only calls a library") if columns is None else (summary_of(columns), "")


def _near(
    predictor: Predictor, program: NamedProgram, device: DeviceSpec, prediction: Prediction
) -> tuple[tuple[NearTask, tuple[ColumnDifference, ...]], ...]:
    tasks = predictor.trained.tasks
    if tasks is None:
        return ()
    version = predictor.trained.card.leaf_extra_version
    samples = program_samples(program, device, version)
    return tuple((one, tuple(tasks.differences(samples, one.task))) for one in prediction.nearest)


def _instead(
    predictor: Predictor,
    program: NamedProgram,
    device: DeviceSpec,
    leaves: Sequence[LeafExplanation],
    script: PaintedScript | None,
) -> tuple[list[Instead], str]:
    """Returns the counterfactuals of a program, fastest first, or the reason why there are none."""
    if script is None or all(block is None for block in script.blocks):
        return [], "it has no blocks that TVM can schedule"
    found = list(_changes(program.module, device, leaves, script.blocks))
    asked = [NamedProgram(change.name, change.module) for _, change in found]
    answers = predictor.on(device).programs(asked)
    instead = [
        Instead(change, leaf, answer)
        for (leaf, change), answer in zip(found, answers, strict=True)
        if answer.latency_s is not None
    ]
    instead.sort(key=lambda one: one.prediction.latency_s or 0.0)
    return instead, "" if instead else "no change of its loops is legal or left to try"


def _changes(
    module: Any,
    device: DeviceSpec,
    leaves: Sequence[LeafExplanation],
    blocks: Sequence[str | None],
) -> Iterator[tuple[int, Counterfactual]]:
    seen = set()
    for one in sorted(leaves, key=lambda leaf: -leaf.share):
        block = blocks[one.leaf - 1]
        if one.share < _WORTH_CHANGING or block is None or block in seen:
            continue
        seen.add(block)
        yield from ((one.leaf, change) for change in counterfactuals(module, block, device))


def _leaf_row(one: LeafExplanation, latency_s: float) -> dict[str, Any]:
    return {
        "leaf": one.leaf,
        "buffer": one.buffer,
        "share": one.share,
        "seconds": one.share * latency_s,
        "bound": one.bound,
        "bound_text": LIMITS[one.bound],
        "bound_s": one.limits_s[one.bound],
        "ahead": one.ahead,
        "limits_s": one.limits_s,
        "roofline_s": one.roofline_s,
        "data_bytes": one.data_bytes,
        "fits": one.fits,
        "loops": [asdict(loop) for loop in one.loops],
    }


def _instead_row(one: Instead, whole: Prediction) -> dict[str, Any]:
    found = one.prediction
    return {
        "name": one.change.name,
        "what": one.change.what,
        "leaf": one.leaf,
        "latency_s": found.latency_s,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "ratio": (found.latency_s or 0.0) / whole.latency_s if whole.latency_s else None,
        "out_of_distribution": found.out_of_distribution,
        "script": str(one.change.module.script()),
    }
