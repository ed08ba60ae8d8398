"""Files that hold a network: which kind one is, and reading what torch.export.save wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cdmpp.errors import DataError, last_line
from cdmpp.extras import require
from cdmpp.files.exported_archive import check_archive
from cdmpp.networks.onnx_files.sizes import InputSizes, inputs_of, set_sizes
from cdmpp.processes.native_stderr import hidden_python_output

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

#: What can be read, in words.
EXPECTED = "an ONNX file (.onnx) or a program that torch.export.save wrote (.pt2)"
_FORMATS: dict[str, Literal["onnx", "exported"]] = {".onnx": "onnx", ".pt2": "exported"}


def network_format(path: Path) -> Literal["onnx", "exported"]:
    """Returns what a network's file is, from its name.

    Raises:
        DataError: there is no such file, or it is neither.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {EXPECTED}")
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise DataError(f"{path}: unknown kind of network; expected {EXPECTED}")
    return found


def read_exported(path: Path) -> ExportedProgram:
    """Returns the program that torch.export.save wrote.

    Raises:
        DataError: it is none, or opening it would run what it holds.
    """
    import torch

    check_archive(path)
    try:
        with hidden_python_output():
            return torch.export.load(path)
    except Exception as error:  # torch raises its own kinds
        raise DataError(
            f"{path} is not an exported program ({last_line(error)}); expected a file written by "
            "torch.export.save"
        ) from None


@dataclass(frozen=True)
class ExportedNetwork:
    """A saved program as a module with the inputs it was exported for.

    Attributes:
        module: runs it.
        batch: first axis of its inputs.
        shapes, dtypes: of the inputs, without the batch.
    """

    module: Any
    batch: int
    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[torch.dtype]


def exported_network(path: Path) -> ExportedNetwork:
    """Returns what torch.export.save wrote.

    Raises:
        DataError: it is no such file, its shapes are dynamic, or its inputs do not share their
            first axis.
    """
    program = read_exported(path)
    inputs = _inputs(program)
    dynamic = [str(size) for one in inputs for size in one.shape if not isinstance(size, int)]
    if dynamic:
        raise DataError(
            f"{path}: its inputs have dynamic shapes ({', '.join(dict.fromkeys(dynamic))}); export "
            "it with fixed ones (without dynamic_shapes)"
        )
    sizes = {tuple(one.shape[:1]) for one in inputs}
    if len(sizes) != 1 or sizes == {()}:
        raise DataError(f"{path}: its inputs do not share a first axis, so its batch is unknown")
    ((batch,),) = sizes
    return ExportedNetwork(
        program.module(), batch, [tuple(one.shape[1:]) for one in inputs],
        [one.dtype for one in inputs],
    )  # fmt: skip


def exported_types(program: ExportedProgram) -> list[torch.dtype]:
    """Returns the types of a saved program's weights and inputs."""
    return [one.dtype for one in (*program.parameters(), *_inputs(program))]


def _inputs(program: ExportedProgram) -> list[Any]:
    """Returns the tensors that stand for a saved program's inputs."""
    wanted = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [node.meta["val"] for node in nodes if node.name in wanted]


def onnx_batch(path: Path, sizes: InputSizes) -> int:
    """Returns the first axis of an ONNX file's inputs, where those have these sizes.

    Raises:
        UsageError: the package onnx is missing, or sizes do not fit.
        DataError: it is no ONNX file, a size is not known, or its inputs do not share their
            first axis.
    """
    onnx = require("onnx", extra="onnx", purpose=f"reading {path.name}")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises its own kinds
        raise DataError(f"{path} is not an ONNX file ({last_line(error)})") from None
    set_sizes(model, sizes, str(path))
    inputs = inputs_of(model)
    batches = {_axes(one)[0].dim_value for one in inputs if _axes(one)}
    if len(batches) != 1:
        raise DataError(f"{path}: its inputs do not share a first axis, so its batch is unknown")
    return int(batches.pop())


def _axes(one: Any) -> Any:
    """Returns the axes of an input of an ONNX graph."""
    return one.type.tensor_type.shape.dim
