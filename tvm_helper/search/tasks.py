"""Tasks of a search, from names, Python files or a network, with their predictions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError, DataError, last_line
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.estimates import TrainedModel
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.sources import MeasuredTask, campaign_tasks, module_task

_LONGEST_SYMBOL = 60


@dataclass(frozen=True)
class SearchTask:
    """A task of a search.

    Attributes:
        task: name, key, operator and content.
        symbol: name of its function in the saved module.
        shapes: shapes of the arguments, e.g. `1x64x56x56`, the result last.
        weight: number of calls in the network.
        module: the unscheduled computation, an `IRModule` with `main`.
        predicted_s: predicted seconds of the first valid sample; None without a prediction.
    """

    task: MeasuredTask
    symbol: str
    shapes: tuple[str, ...]
    weight: int
    module: Any = field(repr=False)
    predicted_s: float | None = None

    @property
    def key(self) -> str:
        """Short name of the task in the search's files."""
        return self.task.key

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON values for the search's file."""
        return {
            "key": self.key, "name": self.task.name, "symbol": self.symbol,
            "operator": self.task.operator, "shapes": list(self.shapes), "weight": self.weight,
            "predicted_s": self.predicted_s,
        }  # fmt: skip


def named_tasks(names: Sequence[str]) -> list[SearchTask]:
    """Returns the tasks of names and Python files, each once.

    Raises:
        UsageError: an unknown task name.
        DataError: a file cannot be run or defines no program.
    """
    tasks = campaign_tasks(MeasureOptions(sample=tuple(names)), None)
    from tvm_helper.compat import tvm
    from tvm_helper.tasks.network_tasks import argument_shapes
    from tvm_helper.tir.packing import LAYOUT_FREE

    found: list[SearchTask] = []
    for task in tasks:
        function = tvm.ir.load_json(task.content["module"])["main"]
        # A schedule must not change the layout of arguments, to keep the saved module's signature.
        module = tvm.IRModule({"main": function.without_attr(LAYOUT_FREE)})
        shapes = argument_shapes(module)
        if shapes is None:
            raise DataError(
                f"task {task.name}: has arguments whose shape is not constant; expected a program "
                "of constant shapes"
            )
        plain = module_task(task.name, module, operator=task.operator)
        found.append(SearchTask(plain, "", shapes, 1, module))
    return _with_symbols(found)


def tasks_of_network(
    path: Path, sizes: InputSizes | None, target: Any
) -> tuple[list[SearchTask], dict[str, int]]:
    """Returns the tasks of a network, and name -> number of calls that are not tensor programs.

    Args:
        path: an ONNX or torch.export file.
        sizes: sizes of the inputs of an ONNX file; None = those of the file.
        target: compile target.

    Raises:
        DataError: the file cannot be read or imported, or has no task.
    """
    from tvm_helper.tasks.network_tasks import load_network, network_tasks

    found = network_tasks(load_network(path, sizes), target)
    if not found.tasks:
        raise DataError(
            f"{path}: has no searchable task ({', '.join(sorted(found.unknown))}); expected "
            "operators that TVM lowers to tensor programs of constant shape. Set dynamic sizes "
            "of an ONNX file with --batch or --input"
        )
    tasks = [
        SearchTask(
            module_task(one.name, one.module, networks=((path.stem, one.weight),)), "",
            one.shapes, one.weight, one.module,
        )
        for one in found.tasks
    ]  # fmt: skip
    return _with_symbols(tasks), found.unknown


def by_expected_share(
    tasks: Sequence[SearchTask], target: Any, device: str, model: TrainedModel | None
) -> tuple[list[SearchTask], dict[str, str]]:
    """Returns the tasks that have a schedule, largest share of the predicted time first.

    Tasks without a prediction come last, by number of operations.

    Returns:
        The tasks, and name -> reason of the other tasks.

    Raises:
        DataError: no task has a schedule.
    """
    from tvm_helper.tasks.sampling import first_valid_schedule

    kept: list[SearchTask] = []
    left_out: dict[str, str] = {}
    for task in tasks:
        try:
            schedule = first_valid_schedule(task.module["main"], target)
        except DataError as error:
            left_out[task.task.name] = str(error)
            continue
        except Exception as error:  # TVM's postprocessors raise many types
            left_out[task.task.name] = last_line(error)
            continue
        if schedule is None:
            left_out[task.task.name] = "no valid schedule in MetaSchedule's design space"
            continue
        kept.append(replace(task, predicted_s=_predicted_s(task, schedule.mod, device, model)))
    if not kept:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise DataError(f"no searchable task ({reasons}); expected unscheduled programs")
    return sorted(kept, key=_order), left_out


def _order(task: SearchTask) -> tuple[float, float, str]:
    seconds = math.nan if task.predicted_s is None else task.weight * task.predicted_s
    work = task.weight * (task.task.flop_count or 0.0)
    return (0.0 if math.isnan(seconds) else -seconds, -work, task.task.name)


def _predicted_s(
    task: SearchTask, scheduled: Any, device: str, model: TrainedModel | None
) -> float | None:
    if model is None:
        return None
    from tvm_helper.predict.predictor import Predictor
    from tvm_helper.tasks.program_file import NamedProgram

    try:
        (found,) = Predictor(model, [device]).programs([NamedProgram(task.task.name, scheduled)])
    except CdmppError:  # a program without features, shown as ? in the table
        return None
    return found.latency_s


def _with_symbols(tasks: Sequence[SearchTask]) -> list[SearchTask]:
    """Returns the tasks with unique symbols that are C identifiers."""
    taken: set[str] = set()
    named = []
    for task in tasks:
        stem = re.sub(r"\W+", "_", task.task.name).strip("_")[:_LONGEST_SYMBOL] or "task"
        stem = f"task_{stem}" if stem[0].isdigit() else stem
        symbol, number = stem, 1
        while symbol in taken:
            number += 1
            symbol = f"{stem}_{number}"
        taken.add(symbol)
        named.append(replace(task, symbol=symbol))
    return named
