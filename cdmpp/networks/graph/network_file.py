"""Network files: detects their format and reads programs of torch.export.save."""

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

#: Description of the supported formats.
EXPECTED = "an ONNX file (.onnx) or a program that torch.export.save wrote (.pt2)"
_FORMATS: dict[str, Literal["onnx", "exported"]] = {".onnx": "onnx", ".pt2": "exported"}

#: End of the error for a `.pt2` file with sizes.
EXPORTED_WITH_SIZES = (
    "was exported with its sizes; --input and --batch are for modules and ONNX files"
)


def network_format(path: Path) -> Literal["onnx", "exported"]:
    """Returns the format of a network file from its name.

    Raises:
        DataError: the file does not exist or has another suffix.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {EXPECTED}")
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise DataError(f"{path}: unknown kind of network; expected {EXPECTED}")
    return found


def read_exported(path: Path) -> ExportedProgram:
    """Returns a program that torch.export.save wrote.

    Raises:
        DataError: the file is not an exported program, or loading it would run code.
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
    """A saved program as a module, with the inputs for which it was exported.

    Attributes:
        module: the module.
        batch: size of the first axis of its inputs.
        shapes: shapes of the inputs without the batch.
        dtypes: types of the inputs.
    """

    module: Any
    batch: int
    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[torch.dtype]


def exported_network(path: Path) -> ExportedNetwork:
    """Returns the network that torch.export.save wrote.

    Raises:
        DataError: the file is not an exported program, its shapes are dynamic, or its inputs
            differ in their first axis.
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
    """Returns the fake tensors of a saved program's inputs."""
    wanted = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [node.meta["val"] for node in nodes if node.name in wanted]


def onnx_batch(path: Path, sizes: InputSizes) -> int:
    """Returns the size of the first axis of an ONNX file's inputs, after setting `sizes`.

    Raises:
        UsageError: the package onnx is missing, or the sizes do not fit.
        DataError: the file is not ONNX, a size is unknown, or its inputs differ in their first
            axis.
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
