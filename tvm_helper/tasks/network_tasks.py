"""Tasks of networks: ONNX or torch.export -> relax -> fused tensor programs with call counts."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError, last_line
from cdmpp.extras import require
from cdmpp.networks.graph.network_file import (
    EXPECTED,
    EXPORTED_WITH_SIZES,
    network_format,
    read_exported,
)
from cdmpp.networks.onnx_files.cut import (
    CONTROL_FLOW,
    CutOperator,
    cut_out,
    from_text,
    to_text,
)
from cdmpp.networks.onnx_files.fold import contradicts_itself, fold
from cdmpp.networks.onnx_files.sizes import InputSizes, has_open_sizes, set_sizes
from cdmpp.processes.native_stderr import hidden_native_stderr, hidden_python_output
from tvm_helper.compat import Target, meta_schedule, relax, tvm
from tvm_helper.tasks.operator_name import operator_of

#: Attribute of a relax module with the operators that were cut out.
_CUT = "cdmpp_cut_operators"
#: Maximum number of attempts of cutting out operators.
_MOST_CUTS = 16
#: Relax operators that compute nothing at run time.
_FREE_OPERATORS = frozenset({
    "relax.call_tir", "relax.shape_of", "relax.memory.alloc_tensor", "relax.builtin.alloc_tensor",
    "relax.tensor_to_shape", "relax.null_value", "relax.assert_op",
})  # fmt: skip


@dataclass(frozen=True)
class NetworkTask:
    """A task of a network.

    Attributes:
        name: TVM's name of the fused function.
        operator: operator name, such as `conv2d+add+relu`.
        shapes: shapes of the arguments, e.g. `1x64x56x56`; inputs first, the result last.
        weight: number of calls in the network.
        module: the unscheduled computation, an `IRModule` with `main`.
        workload_key: structural hash of the module.
    """

    name: str
    operator: str
    shapes: tuple[str, ...]
    weight: int
    module: Any
    workload_key: str


@dataclass(frozen=True)
class NetworkTasks:
    """Tasks of a network.

    Attributes:
        tasks: tasks that TVM can schedule, most calls first.
        unknown: name -> number of calls of the rest: operators without a tensor program, and
            programs with dynamic shapes.
    """

    tasks: tuple[NetworkTask, ...]
    unknown: dict[str, int]


@hidden_native_stderr()
def load_network(path: Path, sizes: InputSizes | None = None) -> Any:
    """Returns the relax module of an ONNX file or of a saved `torch.export` program.

    ONNX operators that TVM cannot import are cut out; `cut_operators` returns them.

    Args:
        sizes: sizes of the inputs of an ONNX file, which must determine all open sizes; None =
            those of the file.

    Raises:
        DataError: the file cannot be read, a size is unknown, or TVM can import no operator.
        UsageError: the package that reads such files is not installed, or the sizes do not match.
    """
    if network_format(path) == "onnx":
        return _network_of_onnx_file(read_onnx(path), str(path), sizes)
    if sizes is not None and (sizes.shapes or sizes.batch is not None):
        raise UsageError(f"{path} {EXPORTED_WITH_SIZES}")
    return network_of_program(read_exported(path), str(path))


def cut_operators(module: Any) -> list[CutOperator]:
    """Returns the operators that were cut out of a network because TVM cannot import them."""
    text = (module.attrs or {}).get(_CUT)
    return [] if text is None else from_text(str(text))


def fused_network(module: Any, target: Target) -> Any:
    """Returns the relax module with fused tensor programs, ready for tuning."""
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
        module: relax module of `load_network`.
        target: compile target.

    Raises:
        DataError: TVM cannot convert the network to tensor programs, or the network is empty.
    """
    whole = module
    try:
        fused = fused_network(module, target)
        extracted = meta_schedule.relax_integration.extract_tasks(fused, target=target)
    except Exception as error:  # TVM's passes raise many types
        raise DataError(
            f"TVM cannot turn the network into tensor programs ({last_line(error)}); expected "
            "static shapes and operators that relax can legalize"
        ) from None
    unknown = Counter(_unknown_operators(fused))
    unknown.update(one.kind for one in cut_operators(whole))
    tasks: list[NetworkTask] = []
    for found in extracted:
        module = _main_module(found.dispatched[0])
        shapes = argument_shapes(module)
        name, weight = str(found.task_name), int(found.weight)
        if shapes is None:
            unknown[f"{name} (dynamic shape)"] += weight
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
        has_files: whether to read its external data files too.

    Raises:
        DataError: the file is not an ONNX file.
        UsageError: the package onnx is not installed.
    """
    onnx = require("onnx", extra="onnx", purpose=f"reading {path.name}")
    try:
        return onnx.load(str(path), load_external_data=has_files)
    except Exception as error:  # protobuf and onnx raise many types
        raise DataError(
            f"{path} is not an ONNX file ({last_line(error)}); expected {EXPECTED}"
        ) from None


def _network_of_onnx_file(model: Any, name: str, sizes: InputSizes | None) -> Any:
    """Returns the relax module of an ONNX model: imported unchanged if TVM supports it, otherwise
    with folded shape arithmetic and without unsupported operators.
    """
    given = sizes or InputSizes()
    if sizes is not None and (has_open_sizes(model) or given.shapes or given.batch is not None):
        set_sizes(model, given, name)
        fold(model)
    has_branches = any(node.op_type in CONTROL_FLOW for node in model.graph.node)
    if not has_branches:
        try:
            return network_of_onnx(model, name)
        except DataError:
            if has_open_sizes(model):
                raise
    elif has_open_sizes(model):
        raise DataError(f"{name}: control flow ({', '.join(_branches(model))}) cannot be traced")
    fold(model)
    return _without_lacking(model, name)


def _without_lacking(model: Any, name: str) -> Any:
    """Returns the relax module of an ONNX model without operators that TVM cannot import."""
    lacking = set(CONTROL_FLOW)
    cut: list[CutOperator] = []
    for _ in range(_MOST_CUTS):
        cut += cut_out(model, lambda node: _is_lacking(node) or node.op_type in lacking, name)
        if not model.graph.node and all(one.flop is None for one in cut):
            break
        failing: list[str] = []
        try:
            module = network_of_onnx(model, name, failing)
        except DataError:
            if not failing or contradicts_itself(model):
                raise
            lacking.add(failing[-1])
        else:
            return module.with_attr(_CUT, to_text(cut)) if cut else module
    kinds = list(dict.fromkeys(one.kind for one in cut))
    branches = [kind for kind in kinds if kind in CONTROL_FLOW]
    if not kinds:
        raise DataError(f"{name}: the ONNX model has no operator; expected at least one")
    if branches:
        raise DataError(
            f"{name}: control flow ({', '.join(branches)}) cannot be traced, and the network has "
            "no other operators; export the network without it, e.g. for one branch"
        )
    raise DataError(
        f"{name}: TVM cannot import {', '.join(kinds)}; export the network with other operators"
    )


def _branches(model: Any) -> list[str]:
    found = (node.op_type for node in model.graph.node if node.op_type in CONTROL_FLOW)
    return list(dict.fromkeys(found))


def _is_lacking(node: Any) -> bool:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return node.op_type != "Constant" and node.op_type not in _get_convert_map()


@hidden_native_stderr()
def network_of_onnx(model: Any, name: str, failing: list[str] | None = None) -> Any:
    """Returns the relax module of an ONNX model.

    Args:
        failing: list to which the type of the failing operator is appended, if TVM reports it.

    Raises:
        DataError: TVM cannot import the model.
    """
    from tvm.relax.frontend.onnx import from_onnx

    printed = io.StringIO()
    try:
        with hidden_python_output(printed):
            return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # TVM's importer raises many types
        if failing is not None:
            failing += re.findall(r"Error converting operator (\w+)", printed.getvalue())
        operators = sorted({str(node.op_type) for node in model.graph.node})
        raise DataError(
            f"{name}: TVM cannot import the network ({last_line(error)}); its operators are "
            f"{', '.join(operators)}"
        ) from None


@hidden_native_stderr()
def network_of_module(module: Any, inputs: Sequence[Any], name: str) -> Any:
    """Returns the relax module of a torch module, which is traced but not run.

    Args:
        inputs: tensors, batch first.

    Raises:
        DataError: torch.export cannot trace the module, or TVM cannot import it.
    """
    import torch

    try:
        with hidden_python_output(), torch.no_grad():
            program = torch.export.export(module.eval(), tuple(inputs))
    except Exception as error:  # the module's own code may raise anything
        raise DataError(
            f"{name}: torch.export cannot trace the module ({last_line(error)}); check the input "
            "shapes (without the batch)"
        ) from None
    return network_of_program(program, name)


def network_of_program(program: Any, name: str) -> Any:
    """Returns the relax module of an exported program.

    Raises:
        DataError: TVM cannot import the program, or it branches.
    """
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with hidden_python_output():
            module = from_exported_program(program, keep_params_as_input=False)
    except Exception as error:  # TVM's importer raises many types, with the operator's name
        raise DataError(
            f"{name}: TVM cannot import the program ({last_line(error)}); export it with "
            "operators that relax supports"
        ) from None
    branches: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.If):
            branches.append(node)

    relax.analysis.post_order_visit(module["main"].body, visit)
    if branches:
        raise DataError(
            f"{name}: control flow (torch.cond) cannot be traced; export a network of the branch "
            "that runs"
        )
    return module


def _unknown_operators(module: Any) -> Sequence[str]:
    """Returns the operators of a fused module that are not tensor programs, one entry per call."""
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
    """Returns an `IRModule` with the module's only function, named `main`."""
    (function,) = module.functions.values()
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def argument_shapes(module: Any) -> tuple[str, ...] | None:
    """Returns the shapes of the arguments; None if one is not constant."""
    try:
        arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
        return tuple(
            "x".join(str(int(extent)) for extent in argument.shape) or "scalar"
            for argument in arguments
        )
    except Exception:  # TVM raises many types for symbolic shapes
        return None
