"""Training iterations of recommendation models (DLRM) as host operators with kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cdmpp.analytic.embedding.shapes import EmbeddingPreset, EmbeddingShape
from cdmpp.analytic.kernels.times import KernelCall, KernelTimes
from cdmpp.config import from_dict, read_yaml
from cdmpp.errors import UsageError
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.traces.iteration_walk import WalkedOperator, walked_kernel

FORMAT = "cdmpp-dlrm"
_LAUNCH, _COPY = "cudaLaunchKernel", "cudaMemcpyAsync"
_FLOAT_BYTES, _INDEX_BYTES = 4, 8
#: Element-wise kernels of one parameter tensor's SGD step.
_STEP_KERNEL = "add"


@dataclass(frozen=True)
class DlrmPreset:
    """A recommendation model and its batch, as in configs/replay/*.yaml.

    Attributes:
        format: `cdmpp-dlrm`.
        name: name of the model.
        batch: samples per iteration.
        bottom: widths of the perceptron over the dense features, its input first.
        top: widths of the perceptron over the interactions, without its input; ends in 1.
        tables, lookups, width, rows, table_rows, rows_per_block: of the embedding tables, see
            `EmbeddingPreset`.
        loss: `mse` or `bce`.
    """

    format: str = FORMAT
    name: str = "dlrm"
    batch: int = 2048
    bottom: list[int] = field(default_factory=list)
    top: list[int] = field(default_factory=list)
    tables: int = 8
    lookups: int = 100
    width: int = 64
    rows: int | None = None
    table_rows: list[int] = field(default_factory=list)
    rows_per_block: int | None = None
    loss: str = "mse"

    def shape(self) -> EmbeddingShape:
        """Returns the shape of the embedding operator.

        Raises:
            UsageError: see `EmbeddingPreset.shape`.
        """
        names = {entry.name for entry in fields(EmbeddingPreset)}
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        return EmbeddingPreset(**values).shape()


@dataclass(frozen=True)
class TrainingOperator:
    """A top-level operator of an iteration.

    Attributes:
        name: key of its overheads.
        kernels: kernels that it launches, in order.
        is_copy: whether its launches are copies from the host.
    """

    name: str
    kernels: tuple[KernelCall, ...] = ()
    is_copy: bool = False

    @property
    def calls(self) -> tuple[str, ...]:
        """The launch call of each kernel."""
        return (_COPY if self.is_copy else _LAUNCH,) * len(self.kernels)


def load_dlrm(path: Path) -> DlrmPreset:
    """Returns the preset of a YAML file.

    Raises:
        UsageError: unreadable, an unknown name or an invalid value.
    """
    preset = from_dict(DlrmPreset, read_yaml(path))
    where = f"{path}: "
    if preset.format != FORMAT:
        raise UsageError(f"{where}format {preset.format!r}, expected {FORMAT}")
    if len(preset.bottom) < 2 or not preset.top or preset.top[-1] != 1:
        raise UsageError(
            f"{where}bottom {preset.bottom}, top {preset.top}; expected at least two widths, and a "
            "top that ends in 1"
        )
    if preset.bottom[-1] != preset.width:
        raise UsageError(
            f"{where}the bottom perceptron ends in {preset.bottom[-1]}, the tables' rows have "
            f"{preset.width} values; expected the same width"
        )
    if preset.loss not in ("mse", "bce"):
        raise UsageError(f"{where}loss {preset.loss!r}, expected mse or bce")
    if min([preset.batch, preset.tables, preset.lookups, *preset.bottom, *preset.top]) < 1:
        raise UsageError(f"{where}a size below 1; expected positive sizes")
    return preset


def dlrm_iteration(preset: DlrmPreset) -> list[TrainingOperator]:
    """Returns the forward pass, loss, backward pass and optimiser step of one iteration."""
    b, d, vectors = preset.batch, preset.width, preset.tables + 1
    pairs = vectors * (vectors - 1) // 2
    shape = preset.shape()
    lookup = {
        "batch": shape.batch, "rows": shape.rows, "tables": shape.tables,
        "lookups": shape.lookups, "width": shape.width, "rows_per_block": shape.rows_per_block,
    }  # fmt: skip
    square = {"batch": b, "m": vectors, "n": vectors}
    indices = b * preset.tables * preset.lookups
    top = [d + pairs, *preset.top]
    operators = [
        _copied(b * preset.bottom[0] * _FLOAT_BYTES),
        _copied(b * preset.tables * _INDEX_BYTES),
        _copied(indices * _INDEX_BYTES),
        _copied(b * _FLOAT_BYTES),
    ]
    operators += _perceptron(b, preset.bottom, last="relu")
    operators += [
        TrainingOperator("LookupFunction", (KernelCall("embedding", lookup),)),
        _concat(b * vectors * d),
        TrainingOperator("transpose"),
        TrainingOperator("bmm", (_gemm(b, vectors, vectors, d),)),
        TrainingOperator("index", (_tril(square),)),
        _concat(b * (d + pairs)),
    ]
    operators += _perceptron(b, top, last="sigmoid")
    operators += [
        _element_wise(f"{preset.loss}_loss", f"{preset.loss}-loss", b),
        TrainingOperator("Optimizer.zero_grad", _per_parameter(preset, top)),
        _element_wise(
            f"{preset.loss.capitalize()}LossBackward0", f"{preset.loss}-loss-backward", b
        ),
    ]
    operators += _perceptron_backward(b, top, last="sigmoid", needs_input=True)
    operators += [
        TrainingOperator("CatBackward0"),
        TrainingOperator("IndexBackward0", (_tril(square),)),
        TrainingOperator(
            "BmmBackward0", (_gemm(b, vectors, d, vectors), _gemm(b, d, vectors, vectors))
        ),
        TrainingOperator("CatBackward0"),
        TrainingOperator("LookupFunctionBackward", (KernelCall("embedding-backward-sgd", lookup),)),
    ]
    operators += _perceptron_backward(b, preset.bottom, last="relu", needs_input=False)
    operators.append(TrainingOperator("Optimizer.step", _per_parameter(preset, top)))
    return operators


def iteration_graph(
    operators: Sequence[TrainingOperator], times: KernelTimes, *, name: str, device: str
) -> OperatorGraph:
    """Returns the kernels of an iteration as a chain on the GPU."""
    found: list[Operator] = []
    for one in operators:
        for kernel in one.kernels:
            after = (found[-1].id,) if found else ()
            time_s, low_s, high_s = times.interval_s(kernel)
            found.append(
                Operator(
                    id=str(len(found) + 1), name=f"{one.name}: {kernel.kernel}", kind=kernel.kernel,
                    after=after, device="gpu0", time_s=time_s, low_s=low_s, high_s=high_s,
                )
            )  # fmt: skip
    return OperatorGraph(name=name, operators=tuple(found), devices={"gpu0": device}, source=name)


def walked_iteration(
    operators: Sequence[TrainingOperator], times: KernelTimes
) -> list[WalkedOperator]:
    """Returns an iteration as operators of a walk."""
    return [
        WalkedOperator(
            name=one.name,
            calls=one.calls,
            kernels=tuple(walked_kernel(*times.interval_s(kernel)) for kernel in one.kernels),
        )
        for one in operators
    ]


def _perceptron(batch: int, widths: Sequence[int], *, last: str) -> list[TrainingOperator]:
    operators = []
    for number, (k, n) in enumerate(itertools.pairwise(widths), start=1):
        # The weight is transposed to the product's layout first.
        transpose = KernelCall("transpose", {"batch": 1, "m": n, "n": k})
        operators.append(TrainingOperator("linear", (transpose, _gemm(1, batch, n, k))))
        activation = last if number == len(widths) - 1 else "relu"
        operators.append(_element_wise(activation, activation, batch * n))
    return operators


def _perceptron_backward(
    batch: int, widths: Sequence[int], *, last: str, needs_input: bool
) -> list[TrainingOperator]:
    operators = []
    for number in range(len(widths) - 1, 0, -1):
        k, n = widths[number - 1], widths[number]
        activation = last if number == len(widths) - 1 else "relu"
        operators.append(
            _element_wise(
                f"{activation.capitalize()}Backward0", f"{activation}-backward", batch * n
            )
        )
        kernels = [_gemm(1, n, k, batch)]
        if number > 1 or needs_input:
            kernels.insert(0, _gemm(1, batch, k, n))
        kernels.append(KernelCall("sum", {"elements": batch * n}))
        operators.append(TrainingOperator("AddmmBackward0", tuple(kernels)))
    return operators


def _per_parameter(preset: DlrmPreset, top: Sequence[int]) -> tuple[KernelCall, ...]:
    kernels = []
    for widths in (preset.bottom, top):
        for k, n in itertools.pairwise(widths):
            kernels += [KernelCall(_STEP_KERNEL, {"elements": k * n}),
                        KernelCall(_STEP_KERNEL, {"elements": n})]  # fmt: skip
    return tuple(kernels)


def _gemm(batch: int, m: int, n: int, k: int) -> KernelCall:
    return KernelCall("gemm", {"batch": batch, "m": m, "n": n, "k": k})


def _tril(square: dict[str, int]) -> KernelCall:
    return KernelCall("tril", {**square, "diagonal": 0})


def _concat(elements: int) -> TrainingOperator:
    return TrainingOperator("cat", (KernelCall("concat", {"bytes": _FLOAT_BYTES * elements}),))


def _copied(size_bytes: int) -> TrainingOperator:
    return TrainingOperator("to", (KernelCall("memcpy", {"bytes": size_bytes}),), is_copy=True)


def _element_wise(name: str, kernel: str, elements: int) -> TrainingOperator:
    return TrainingOperator(name, (KernelCall(kernel, {"elements": elements}),))
