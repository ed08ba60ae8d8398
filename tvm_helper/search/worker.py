"""Process that compiles and times the result of a search; see `cdmpp.processes.serve`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.networks.shape_text import parse_input_shapes
from cdmpp.processes.serve import ProgramError, error_text, serve

_COMPILE_HOST, _RUNTIME = 2, 4
#: Time limit after which a slow module gets no more repeats, and the minimum number of repeats.
_REPEATS_S, _FEWEST_REPEATS = 60.0, 3
Begin = Callable[[], None]


def main() -> None:
    """Handles requests until the search ends."""
    serve({"tasks": _compile_tasks, "network": _compile_network, "compare": _compare}, _prepare)


def _prepare() -> None:
    from tvm_helper.compat import import_tensor_intrinsics

    import_tensor_intrinsics("llvm")  # a schedule may use one


def _compile_tasks(request: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Compiles the functions of all tasks into one module; returns their arguments by symbol."""
    from tvm_helper.compat import Target, tvm
    from tvm_helper.tasks.build import arguments_of
    from tvm_helper.tir.packing import runnable

    begin()
    functions = {}
    arguments = {}
    for task in request["tasks"]:
        module = runnable(_schedule(task, request, Target(request["target"])).mod)
        symbol = task["symbol"]
        arguments[symbol] = arguments_of(module)
        functions[symbol] = module["main"].with_attr("global_symbol", symbol)
    _export(lambda: tvm.compile(tvm.IRModule(functions), target=request["target"]), request)
    return {"arguments": arguments}


def _compile_network(request: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Compiles a network with the schedules of its tasks; returns the arguments of `main`."""
    from tvm_helper.compat import Target
    from tvm_helper.tasks.build import compiled_network, network_inputs

    begin()
    target = Target(request["target"])
    fused = _fused(
        request["network"], tuple(request["network_input"]), request["network_batch"],
        json.dumps(request["target"]),
    )  # fmt: skip
    scheduled = [
        (_module(task["file"]), _schedule(task, request, target)) for task in request["tasks"]
    ]
    _export(lambda: compiled_network(fused, scheduled, target), request)
    return {"arguments": {"main": network_inputs(fused)}}


def _compare(request: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Times a function of several modules alternately; returns one list of costs per module."""
    from tvm_helper.compat import relax, tvm
    from tvm_helper.tasks.build import random_tensors

    begin()
    try:
        kind = request["target_kind"]
        device = tvm.runtime.cpu(0) if kind == "llvm" else tvm.runtime.device(kind, 0)
        arguments = random_tensors(request["arguments"], device)
        evaluators = []
        for path in request["modules"]:
            module = tvm.runtime.load_module(path)
            callee = relax.VirtualMachine(module, device) if request["is_network"] else module
            evaluators.append(
                callee.time_evaluator(
                    request["function"], device, number=1, repeat=1,
                    min_repeat_ms=round(1e3 * request["min_repeat_s"]),
                )
            )  # fmt: skip
        costs_s: list[list[float]] = [[] for _ in evaluators]
        start = time.monotonic()
        for repeat in range(-1, request["repeats"]):  # the first one is a warm-up
            if repeat >= _FEWEST_REPEATS and time.monotonic() - start > _REPEATS_S:
                break
            for place, evaluator in enumerate(evaluators):
                (cost_s,) = evaluator(*arguments).results
                if repeat >= 0:
                    costs_s[place].append(float(cost_s))
    except Exception as error:  # TVM's runtime raises many types
        raise ProgramError(_RUNTIME, error_text(error)) from None
    return {"costs_s": costs_s}


def _export(compiled: Callable[[], Any], request: dict[str, Any]) -> None:
    try:
        compiled().export_library(request["artifact"])
    except Exception as error:  # TVM and the linker raise many types
        raise ProgramError(_COMPILE_HOST, error_text(error)) from None


@lru_cache(maxsize=1)
def _fused(path: str, inputs: tuple[str, ...], batch: int | None, target: str) -> Any:
    """Returns the fused network; cached because it is compiled twice, tuned and untuned."""
    from tvm_helper.compat import Target
    from tvm_helper.tasks.network_tasks import fused_network, load_network

    module = load_network(Path(path), InputSizes(parse_input_shapes(inputs), batch))
    return fused_network(module, Target(json.loads(target)))


def _schedule(task: dict[str, Any], request: dict[str, Any], target: Any) -> Any:
    """Returns the schedule of a task: TVM's default in an untuned module; otherwise that of its
    trace, or the first valid sample without a trace.
    """
    from tvm_helper.tasks.default_schedule import default_schedule
    from tvm_helper.tasks.sampling import first_valid_schedule
    from tvm_helper.tasks.schedule_of_trace import schedule_of

    module = _module(task["file"])
    if request["is_untuned"]:
        return default_schedule(module, target)
    if task["trace"] is None:
        return first_valid_schedule(module["main"], target)
    return schedule_of(module, task["trace"])


def _module(path: str) -> Any:
    from tvm_helper.compat import tvm

    text = json.loads(Path(path).read_text(encoding="utf-8"))["module"]
    return tvm.ir.load_json(text)


if __name__ == "__main__":
    main()
