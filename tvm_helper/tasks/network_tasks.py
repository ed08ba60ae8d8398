"""Networks to tasks: ONNX or torch.export -> relax -> fused tensor programs with their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, last_line
from cdmpp.extras import require
from cdmpp.networks.graph.network_file import EXPECTED, network_format, read_exported
from cdmpp.processes.native_stderr import hidden_native_stderr, hidden_python_output
from tvm_helper.compat import Target, meta_schedule, relax, tvm
from tvm_helper.tasks.operator_name import operator_of

#: Relax operators that compute nothing at run time.
_FREE_OPERATORS = frozenset({
    "relax.call_tir", "relax.shape_of", "relax.memory.alloc_tensor", "relax.builtin.alloc_tensor",
    "relax.tensor_to_shape", "relax.null_value", "relax.assert_op",
})  # fmt: skip


@dataclass(frozen=True)
class NetworkTask:
    """A task of a network.

    Attributes:
        name: TVM's name for the fused function.
        operator: such as `conv2d+add+relu`.
        shapes: of the arguments, e.g. `1x64x56x56`; inputs first, the result last.
        weight: how often the network calls it.
        module: the unscheduled computation, an `IRModule` with `main`.
        workload_key: its structural hash.
    """

    name: str
    operator: str
    shapes: tuple[str, ...]
    weight: int
    module: Any
    workload_key: str


@dataclass(frozen=True)
class NetworkTasks:
    """A network as its tasks.

    Attributes:
        tasks: those that TVM can schedule, most calls first.
        unknown: name -> calls of what is left: operators that did not become a tensor program, and
            programs whose shapes are not known before run time.
    """

    tasks: tuple[NetworkTask, ...]
    unknown: dict[str, int]


@hidden_native_stderr()
def load_network(path: Path) -> Any:
    """Returns the relax module of an ONNX file or of a saved `torch.export` program.

    Raises:
        DataError: the file cannot be read, or has operators that TVM cannot import (they are
            named).
        UsageError: the package that reads such files is not installed.
    """
    if network_format(path) == "onnx":
        return network_of_onnx(read_onnx(path), str(path))
    return network_of_program(read_exported(path), str(path))


def fused_network(module: Any, target: Target) -> Any:
    """Returns a relax module whose calls are fused tensor programs, as tuning wants it."""
    passes = relax.transform
    pipeline = tvm.transform.Sequential(
        [
            passes.FoldBatchnormToConv2D(),
            passes.DecomposeOpsForInference(),
            passes.CanonicalizeBindings(),
            passes.FoldConstant(),
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
        ]
    )
    with target:
        return pipeline(module)


@hidden_native_stderr()
def network_tasks(module: Any, target: Target) -> NetworkTasks:
    """Returns the tasks of a network.

    Args:
        module: as `load_network` returns it.
        target: what it is compiled for.

    Raises:
        DataError: TVM cannot turn the network into tensor programs, or there is nothing in it.
    """
    try:
        fused = fused_network(module, target)
        extracted = meta_schedule.relax_integration.extract_tasks(fused, target=target)
    except Exception as error:  # TVM raises whatever its passes do
        raise DataError(
            f"TVM cannot turn the network into tensor programs ({last_line(error)}); expected "
            "static shapes and operators that relax can legalise"
        ) from None
    unknown = Counter(_unknown_operators(fused))
    tasks: list[NetworkTask] = []
    for found in extracted:
        module = _main_module(found.dispatched[0])
        shapes = argument_shapes(module)
        name, weight = str(found.task_name), int(found.weight)
        if shapes is None:
            unknown[f"{name} (shape not known before run time)"] += weight
            continue
        key = str(meta_schedule.utils.shash2hex(module))
        tasks.append(NetworkTask(name, operator_of(module), shapes, weight, module, key))
    if not tasks and not unknown:
        raise DataError("the network calls no tensor program; expected at least one operator")
    tasks.sort(key=lambda task: (-task.weight, task.name))
    return NetworkTasks(tuple(tasks), dict(unknown))


def read_onnx(path: Path, *, has_files: bool = True) -> Any:
    """Returns the model of an ONNX file.

    Args:
        has_files: whether files beside it that it names are read too.

    Raises:
        DataError: it is none.
        UsageError: the package onnx is not installed.
    """
    onnx = require("onnx", extra="onnx", purpose=f"reading {path.name}")
    try:
        return onnx.load(str(path), load_external_data=has_files)
    except Exception as error:  # protobuf and onnx raise their own kinds
        raise DataError(
            f"{path} is no ONNX file ({last_line(error)}); expected {EXPECTED}"
        ) from None


@hidden_native_stderr()
def network_of_onnx(model: Any, name: str) -> Any:
    """Returns the relax module of an ONNX model.

    Raises:
        DataError: TVM cannot import it.
    """
    from tvm.relax.frontend.onnx import from_onnx

    try:
        with hidden_python_output():
            return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # TVM raises whatever its importer does
        operators = sorted({str(node.op_type) for node in model.graph.node})
        raise DataError(
            f"{name}: TVM cannot import the network ({last_line(error)}); its operators are "
            f"{', '.join(operators)}"
        ) from None


@hidden_native_stderr()
def network_of_module(module: Any, inputs: Sequence[Any], name: str) -> Any:
    """Returns the relax module of a torch module; it is followed, not run.

    Args:
        inputs: tensors, batch first.

    Raises:
        DataError: torch.export cannot follow it, or TVM cannot import it.
    """
    import torch

    try:
        with hidden_python_output(), torch.no_grad():
            program = torch.export.export(module.eval(), tuple(inputs))
    except Exception as error:  # whatever the module's own code raises
        raise DataError(
            f"{name}: cannot follow the module with torch.export ({last_line(error)}); check the "
            "input shapes (without the batch)"
        ) from None
    return network_of_program(program, name)


def network_of_program(program: Any, name: str) -> Any:
    """Returns the relax module of an exported program.

    Raises:
        DataError: TVM cannot import it.
    """
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with hidden_python_output():
            return from_exported_program(program, keep_params_as_input=False)
    except Exception as error:  # TVM raises whatever its importer does, and names the operator
        raise DataError(
            f"{name}: TVM cannot import the program ({last_line(error)}); export it with "
            "operators that relax knows"
        ) from None


def _unknown_operators(module: Any) -> Sequence[str]:
    """Returns the operators of a fused module that are no tensor programs, one entry a call."""
    found: list[str] = []

    def visit(node: Any) -> None:
        if not isinstance(node, relax.Call):
            return
        if isinstance(node.op, tvm.ir.Op):
            name = str(node.op.name)
            if name.startswith("relax.call_") and name != "relax.call_tir":
                callee = node.args[0]
                found.append(str(getattr(callee, "global_symbol", name)))
            elif name not in _FREE_OPERATORS:
                found.append(name)
        elif isinstance(node.op, relax.ExternFunc):
            found.append(str(node.op.global_symbol))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return found


def _main_module(module: Any) -> Any:
    """Returns an `IRModule` whose only function is called `main`."""
    (function,) = module.functions.values()
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def argument_shapes(module: Any) -> tuple[str, ...] | None:
    """Returns the shapes of the arguments, None where one is not constant."""
    try:
        arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
        return tuple(
            "x".join(str(int(extent)) for extent in argument.shape) or "scalar"
            for argument in arguments
        )
    except Exception:  # TVM's own checks of what a symbolic shape is
        return None
