"""Predictions for untrusted networks, without executing code of their files.

A file of torch.export is opened only if `cdmpp.files.exported_archive` finds no code in it that
torch would run; an ONNX file is data. However, TVM folds constants in native code while it
compiles, without checking indices, so a file could make it write to any address. Therefore every
computation on constants must be on an allow-list of operators that stay within their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.graph.network_file import network_format, read_exported
from cdmpp.networks.onnx_files.sizes import InputSizes, has_open_sizes, set_sizes
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.networks import with_shares
from cdmpp.replay.summary import calls_of
from tvm_helper.compat import relax, tvm
from tvm_helper.tasks.network_tasks import network_of_onnx, network_of_program, read_onnx

_MOST_NODES = 20_000
#: Operators that TVM may apply to constants: none uses data as an index.
_SAFE_NAMES = (
    "abs acos acosh add arange argmax argmin asin asinh astype atan atanh bitwise_and bitwise_not "
    "bitwise_or bitwise_xor broadcast_to ceil clip concat cos cosh cumsum divide equal erf exp "
    "expand_dims eye flatten flip floor floor_divide floor_mod full full_like greater "
    "greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp logical_and "
    "logical_not logical_or logical_xor matmul max maximum mean min minimum mod multiply negative "
    "nn.relu nn.softmax not_equal ones ones_like permute_dims power prod repeat reshape "
    "right_shift round rsqrt shape_of shape_to_tensor sigmoid sign sin sinh split sqrt square "
    "squeeze stack std strided_slice subtract sum tan tanh tensor_to_shape tile tril triu trunc "
    "variance where zeros zeros_like"
)
_SAFE = frozenset(f"relax.{name}" for name in _SAFE_NAMES.split())
_TAKE = relax.dpl.is_op("relax.take")(relax.dpl.wildcard(), relax.dpl.wildcard())


def network_rows(
    path: str,
    name: str,
    devices: Sequence[DeviceSpec],
    trained: TrainedModel,
    sizes: InputSizes,
) -> list[dict[str, Any]]:
    """Returns the rows of `cdmpp predict --network --json` for a network, one per device. Each
    kernel also has its share of the time and its TVMScript, and each row a timeline of the kernels.

    Args:
        path: ONNX file or file of torch.export.save, named by its content.
        name: name of the network.
        sizes: sizes of the inputs of an ONNX file.

    Raises:
        DataError: the file cannot be read or is rejected, or the sizes do not match it.
    """
    from tvm_helper.predict.predictor import Predictor
    from tvm_helper.replay.costs import ScheduleChoice
    from tvm_helper.replay.ways import compiled_answer

    shapes = tuple((key, tuple(shape)) for key, shape in sizes.shapes.items())
    module = _module(path, name, shapes, sizes.batch)
    predictor = Predictor(trained, devices, compiles=False)
    rows = []
    for device in devices:
        one = compiled_answer(name, module, device, predictor, ScheduleChoice())
        row = one.to_json()
        for values, (kernel, share) in zip(row["kernels"], with_shares(one.kernels), strict=True):
            script = None if kernel.module is None else kernel.module.script()
            values |= {"share": share, "tvmscript": script}
        places = {kernel.key: place for place, kernel in enumerate(one.kernels)}
        run = None if one.replayed is None else one.replayed.expected
        row["timeline"] = [] if run is None else calls_of(run, places)
        rows.append(row)
    return rows


@lru_cache(maxsize=2)
def _module(
    path: str, name: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], batch: int | None
) -> Any:
    """Returns the relax module of a file; the file name identifies the content in the cache."""
    try:
        if network_format(Path(path)) == "exported":
            if shapes or batch is not None:
                raise DataError(f"{name} has fixed sizes: batch and inputs are for ONNX files")
            module = network_of_program(read_exported(Path(path)), name)
        else:
            model = read_onnx(Path(path), has_files=False)
            module = _of_onnx(model, name, InputSizes(dict(shapes), batch))
    except (DataError, UsageError) as error:
        text = str(error).replace(path, name)
        raise DataError(text.replace("--batch", "batch").replace("--input", "inputs")) from None
    return with_safe_constants(module, name)


def _of_onnx(model: Any, name: str, sizes: InputSizes) -> Any:
    if _is_elsewhere(model):
        raise DataError(
            f"{name} has its weights in other files; expected one file, as onnx.save writes"
        )
    count = len(model.graph.node)
    if count > _MOST_NODES:
        raise DataError(f"{name} has {count} nodes; expected at most {_MOST_NODES}")
    if sizes != InputSizes() or has_open_sizes(model):
        set_sizes(model, sizes, name)
    return network_of_onnx(model, name)


def with_safe_constants(module: Any, name: str) -> Any:
    """Returns the relax module with only safe operators on constants; `take` on constants clips its
    indices.

    Args:
        module: module imported by TVM, in which every call is bound to a variable; changed in
            place.
        name: name of the network.

    Raises:
        DataError: an unsafe operator is applied to constants.
    """
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            bounded = relax.dpl.rewrite_call(_TAKE, _bounded(_constant_calls(function)), function)
            for call in _constant_calls(bounded):
                what = str(call.op.name) if isinstance(call.op, tvm.ir.Op) else "a function"
                if what not in _SAFE and not _is_bounded(call):
                    raise DataError(
                        f"{name} computes {what.removeprefix('relax.')} of constants, which the "
                        "server does not evaluate; fold the constants before the export"
                    )
            module[variable] = bounded
    return module


def _bounded(calls: Sequence[Any]) -> Any:
    def rewritten(call: Any, _: Any) -> Any:
        if _is_bounded(call) or not any(call.same_as(one) for one in calls):
            return call
        return relax.op.take(*call.args, axis=call.attrs.axis, mode="clip")

    return rewritten


def _is_bounded(call: Any) -> bool:
    return call.op == tvm.ir.Op.get("relax.take") and str(call.attrs.mode) in ("clip", "wrap")


def _constant_calls(function: Any) -> list[Any]:
    """Returns the calls that depend only on constants, not on parameters of a function."""
    return list(_calls_without(function.body, set(function.params)))


def _calls_without(body: Any, live: set[Any]) -> Iterator[Any]:
    """Yields the calls that use no variable of `live`; adds the other bindings' variables to it."""
    if not isinstance(body, relax.SeqExpr):
        return
    for block in body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If):
                yield from _calls_without(value.true_branch, live)
                yield from _calls_without(value.false_branch, live)
            else:
                calls: list[Any] = []
                relax.analysis.post_order_visit(value, _collector(calls))
                yield from (one for one in calls if not _is_live(one, live))
            if isinstance(value, relax.If) or _is_live(value, live):
                live.add(binding.var)


def _collector(calls: list[Any]) -> Any:
    def visit(node: Any) -> None:
        if isinstance(node, relax.Call):
            calls.append(node)

    return visit


def _is_live(value: Any, live: set[Any]) -> bool:
    return any(one in live for one in relax.analysis.free_vars(value))


def _is_elsewhere(message: Any) -> bool:
    """Whether a tensor anywhere in a protobuf message is stored in another file."""
    if message.DESCRIPTOR.name == "TensorProto":
        return bool(message.data_location == message.EXTERNAL or message.external_data)
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            parts = value if field.is_repeated else [value]
            if any(_is_elsewhere(part) for part in parts):
                return True
    return False
