"""Sets the dynamic input sizes of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdmpp.errors import DataError, UsageError


@dataclass(frozen=True)
class InputSizes:
    """Requested sizes of a network's inputs.

    Attributes:
        shapes: input -> full shape with the batch; `""` = the only input.
        batch: size of every dynamic first axis; None = not given.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: int | None = None


def inputs_of(model: Any) -> list[Any]:
    """Returns the inputs of a model without its weights."""
    weights = {one.name for one in model.graph.initializer}
    return [one for one in model.graph.input if one.name not in weights]


def has_open_sizes(model: Any) -> bool:
    """Returns whether an input has a dynamic size."""
    return any(None in _shape(one, {}) for one in inputs_of(model))


def set_sizes(model: Any, sizes: InputSizes, name: str) -> None:
    """Sets the sizes of a model's inputs, in place; a symbol has the same size everywhere.

    Args:
        name: name of the file in error messages.

    Raises:
        UsageError: a shape does not fit its input, or no input has a dynamic first axis for the
            batch.
        DataError: a size is still unknown; the message has the option that sets it.
    """
    inputs = {one.name: one for one in inputs_of(model)}
    known: dict[str, int] = {}
    for given, shape in sizes.shapes.items():
        one = _named(given, inputs, name)
        _set_shape(one, shape, known, name)
    if sizes.batch is not None:
        firsts = [one for one in inputs.values() if _shape(one, known)[:1] == [None]]
        fixed = {size for one in inputs.values() for size in _shape(one, known)[:1]}
        if not firsts and sizes.batch not in fixed:
            shown = ", ".join(f"{key}: {_text(one, known)}" for key, one in inputs.items())
            raise UsageError(
                f"--batch {sizes.batch}: the first axis of its inputs is fixed in the file "
                f"({shown}); expected a dynamic one. Leave --batch out, or export the network "
                "with a dynamic batch"
            )
        for one in firsts:
            _set_axis(one.type.tensor_type.shape.dim[0], sizes.batch, known, one.name, name)
    for one in inputs.values():
        for axis in one.type.tensor_type.shape.dim:
            if axis.dim_param in known:
                axis.dim_value = known[axis.dim_param]
    _check_all_known(inputs.values(), name)
    del model.graph.value_info[:]  # outdated shapes with symbols, which are inferred again
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")


def _named(given: str, inputs: Mapping[str, Any], name: str) -> Any:
    if not given and len(inputs) == 1:
        return next(iter(inputs.values()))
    if given not in inputs:
        shown = ", ".join(f"{key}={_text(one, {})}" for key, one in inputs.items())
        raise UsageError(
            f"--input {given or 'SHAPE'}: {name} has no input of that name; expected NAME=SHAPE of "
            f"{shown or 'its inputs, of which it has none'}"
        )
    return inputs[given]


def _set_shape(one: Any, shape: Sequence[int], known: dict[str, int], name: str) -> None:
    tensor = one.type.tensor_type
    if not tensor.HasField("shape"):
        for size in shape:
            tensor.shape.dim.add().dim_value = size
        return
    if len(tensor.shape.dim) != len(shape):
        raise UsageError(
            f"--input {one.name}={_joined(shape)}: {len(shape)} sizes; expected "
            f"{len(tensor.shape.dim)}, as {name} has {_text(one, {})} (the batch too)"
        )
    for axis, size in zip(tensor.shape.dim, shape, strict=True):
        _set_axis(axis, size, known, one.name, name)


def _set_axis(axis: Any, size: int, known: dict[str, int], input_name: str, name: str) -> None:
    fixed = axis.dim_value or None if axis.HasField("dim_value") else known.get(axis.dim_param)
    if fixed is not None and fixed != size:
        what = axis.dim_param or "a size that is fixed in the file"
        raise UsageError(
            f"input {input_name!r} of {name}: got {size} for {what}, which is {fixed}; expected "
            f"{fixed}"
        )
    if axis.dim_param:
        known[axis.dim_param] = size
    axis.dim_value = size


def _check_all_known(inputs: Any, name: str) -> None:
    open_inputs = [one for one in inputs if None in _shape(one, {})]
    if not open_inputs:
        return
    places = {
        place for one in open_inputs for place, size in enumerate(_shape(one, {})) if size is None
    }
    has_shapes = all(one.type.tensor_type.HasField("shape") for one in open_inputs)
    options = " ".join(f"--input {one.name}={_example(one)}" for one in open_inputs)
    advice = "--batch 1" if places == {0} and has_shapes else options
    listed = ", ".join(f"{one.name!r} ({_text(one, {})})" for one in open_inputs)
    raise DataError(
        f"{name}: the sizes of {listed} are dynamic; give a size for each symbol, e.g. {advice}"
    )


def _shape(one: Any, known: Mapping[str, int]) -> list[int | None]:
    """Returns the sizes of an input, None for a dynamic one; `[None]` if its rank is unknown."""
    tensor = one.type.tensor_type
    if not tensor.HasField("shape"):
        return [None]
    return [
        int(axis.dim_value)
        if axis.HasField("dim_value") and axis.dim_value > 0
        else known.get(axis.dim_param)
        for axis in tensor.shape.dim
    ]


def _text(one: Any, known: Mapping[str, int]) -> str:
    """Returns e.g. `Nx3x224x224`, with `?` for a size without a name."""
    tensor = one.type.tensor_type
    if not tensor.HasField("shape"):
        return "of unknown rank"
    sizes = zip(_shape(one, known), tensor.shape.dim, strict=True)
    return "x".join(str(size or axis.dim_param or "?") for size, axis in sizes) or "scalar"


def _example(one: Any) -> str:
    """Returns an example shape: 1 for a dynamic first axis, 224 or 128 for others."""
    sizes = _shape(one, {})
    if not one.type.tensor_type.HasField("shape"):
        return "1x3x224x224"
    large = 224 if len(sizes) == 4 else 128
    return _joined([size or (1 if not place else large) for place, size in enumerate(sizes)])


def _joined(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
