"""Time of a torch network on a GPU as the sum of its operators, each from the model of its kind."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from cdmpp.analytic.conv.errors import LAYER, ConvErrors
from cdmpp.analytic.conv.layers.model import LayerModel
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.kernels.predictor import OPERATOR_MODEL, ROOFLINE, KernelPredictor
from cdmpp.analytic.kernels.sums import Ends, KindSums
from cdmpp.analytic.kernels.times import NOMINAL_KERNEL_S, KernelTimes
from cdmpp.analytic.kernels.work import Work, WorkKind
from cdmpp.analytic.operators.intervals import JudgedOperators, packaged_operators
from cdmpp.analytic.roofline.floor import LEAST_SHARE, least_kernel_s
from cdmpp.devices.registry import find_device, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError
from cdmpp.networks.account import Account, Product
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.least_time import accounts_of, operator_floor_s

#: Methods that predict the time of a network.
MEASURED = "whole-network model"
OPERATORS = "operator models"
OPERATOR_ROOFLINES = "operator rooflines"
WHOLE_ROOFLINE = "whole-network roofline"
#: Device values that the operators' rooflines need.
RATES = ("peak_fp32_flop_per_s", "mem_bandwidth_bytes_per_s")
_FLOAT_BYTES = 4
#: Maximum factor by which an operator may be faster than its roofline.
_MOST_SHARE = 4.0
_FUSED = {"attention": "attention", "recurrent": "recurrent layers"}
#: Kernels per step of a recurrent layer: a product and an element-wise kernel.
_KERNELS_A_STEP = 2
#: Side of a product that is large enough to reach the roofline.
_LARGE = 4096
#: A product on a GPU of another maker takes at least its time with NVIDIA's losses, divided by
#: this: on MI100 and MI210 the roofline of large products is 4 % off (docs/results/compare.md).
_LOST_BEFORE = 2.0
#: Limits of the measured batched products (NeuSight's tables): reductions of up to 1,025 for
#: outputs narrower than 64, else of up to 4,096. Unbatched products have splits instead.
_NARROW, _LONGEST, _LONGEST_NARROW = 64, 4096, 1025
_FORMS = {**_FUSED, "convolution": "convolutions"}
#: Kind as which operators without their own model are timed and evaluated.
_ELEMENT_WISE = "relu"
_WORDS = {
    "conv": "convolutions", "linear": "products", "bmm": "batched products", "softmax": "softmax",
    "ln": "layer norm", _ELEMENT_WISE: "element-wise",
}  # fmt: skip
_NEEDED = ("core_count", "clock_hz", "l2_bytes", *RATES)


def is_modelled(device: DeviceSpec) -> bool:
    """Returns whether the operator models cover a device: an NVIDIA GPU with the needed values."""
    is_known = all(getattr(device, name) is not None for name in _NEEDED)
    return device.kind == "gpu" and device.vendor == "NVIDIA" and is_known


def without_measurements(graph: NetworkGraph, device: DeviceSpec) -> str:
    """Returns a clause that names the network's operators without measurements on a device or in
    their sizes; empty if all were measured.
    """
    operators, tasks = packaged_operators(), _tasks(graph)
    label = _label(device, operators)
    is_measured = {
        _WORDS[work.name]: label in _convolution_errors().by_device
        if work.kind == "conv"
        else operators.model.is_fitted(work.name, label)
        for task in tasks
        for work, _ in task.works
    }
    without = sorted(words for words, is_known in is_measured.items() if not is_known)
    if len(without) == len(is_measured):
        return f"no operator was measured on {device.name}"
    if any(_is_beyond(work) for task in tasks if not task.is_fused for work, _ in task.works):
        without.append("batched products with vectors or very long sums")
    if any(
        task.words == _FORMS["convolution"] and task.works[0][0].kind == "gemm" for task in tasks
    ):
        without.append("convolutions predicted as matrix products")
    return f"not measured on {device.name}: {', '.join(without)}" if without else ""


def _label(device: DeviceSpec, operators: JudgedOperators) -> str:
    """Returns a device's label in the operators' measurements, which may be an alias."""
    known = find_device(device.name)
    label = device.name if known is None else known.name
    return operators.measured_as(replace(device, name=label))


def network_sums(
    graph: NetworkGraph, device: DeviceSpec, operators: JudgedOperators | None = None
) -> KindSums:
    """Returns the seconds of a network's inference in float32 (without TF32) by kind of operator.

    - Small operators take the measured time of a call, about 20 us: eager torch calls operators
      one by one.
    - Products, convolutions, softmax and layer norm have models on NVIDIA GPUs. Any other operator
      is timed as an element-wise operator that moves the same bytes (a Fourier transform as one
      per axis), but not below its operations at peak.
    - Attention is two products and a softmax, scaled to the part that a causal mask shows.
    - A step of a recurrent layer is two kernels, a product at the roofline and an element-wise one
      (Appleyard et al. 2016, on cuDNN). The interval reaches from one kernel for all steps to
      separate products.
    - An operator without a model for its shape or GPU takes its roofline, but not less than the
      smallest call on other GPUs. Its interval reaches from a quarter of the roofline (other units
      and algorithms may be faster) to a twentieth of the rates.
    - A product on a GPU of another maker takes at least half of the time that it would take with
      the losses of NVIDIA's GPUs against the roofline, relative to a large product.
    - No time is below the operator's lower bound (`operator_floor_s`). An operator with unknown
      work has an upper end at a twentieth of the rates.

    Args:
        operators: model of the operators; None = the packaged model.
    """
    pricer, sums = _Pricer(device, operators), KindSums()
    floors = operator_floor_s(graph, device).tolist()
    for (task, floor_s), count in Counter(zip(_tasks(graph), floors, strict=True)).items():
        if task.works:
            sums.add(task.words, pricer.ends(task, floor_s), count)
    return sums


@dataclass(frozen=True)
class _Task:
    """Kernels of one operator.

    Attributes:
        words: readable name of its kind.
        works: (kernel, number of runs).
        steps: number of dependent steps; kernels that run several times belong to them.
        shown_share: share of the work that no mask hides.
        other_flop: operations that the models of its kernels do not include.
        least_share: see `Account`; so are `is_covered` and `passes`.
    """

    words: str
    works: tuple[tuple[Work, int], ...]
    steps: int = 1
    shown_share: float = 1.0
    other_flop: float = 0.0
    least_share: float = 1.0
    is_covered: bool = True
    passes: float = 1.0

    @property
    def is_fused(self) -> bool:
        """Whether one kernel may do all work."""
        return self.words in _FUSED.values()


class _Pricer:
    """Seconds of operators on one GPU, with intervals."""

    def __init__(self, device: DeviceSpec, operators: JudgedOperators | None) -> None:
        self._device, self._operators = device, operators or packaged_operators()
        self._predictor = KernelPredictor(device, operators)
        self._times = KernelTimes(device, operators)
        self._label = _label(device, self._operators)

    def ends(self, task: _Task, floor_s: float) -> Ends:
        """Returns an operator's seconds, lower end and upper end, none below `floor_s`."""
        seconds = low_s = high_s = 0.0
        for work, times in task.works:
            one_s, one_low_s, one_high_s = self._kernel_ends(work)
            if times > 1:
                launch_s = self._device.launch_s or NOMINAL_KERNEL_S
                one_s = _KERNELS_A_STEP * launch_s + self._roofline_s(work)
                one_high_s = max(one_high_s + launch_s, one_s)
            seconds, low_s = seconds + times * one_s, low_s + times * one_low_s
            high_s += times * one_high_s
        seconds = max(task.shown_share * seconds, min(seconds, _smallest_call_s()))
        operations_s = task.other_flop / (self._device.peak_fp32_flop_per_s or math.inf)
        if operations_s > seconds:
            seconds, high_s = operations_s, max(high_s, operations_s / LEAST_SHARE)
        seconds *= task.passes
        if not task.is_covered or task.passes > 1.0:
            high_s = max(high_s, seconds / LEAST_SHARE)
        if task.is_fused:  # one kernel may do all work without intermediate tensors
            low_s = floor_s
        low_s = max(task.least_share * low_s, floor_s)
        seconds = max(seconds, low_s)
        return seconds, low_s, max(high_s, seconds)

    def _kernel_ends(self, work: Work) -> Ends:
        found = self._predictor.predict(work)
        if found is None:
            return 0.0, 0.0, 0.0
        errors = _errors(work, self._label, self._operators)
        if found.model == OPERATOR_MODEL:
            errors = self._times.swept_errors(work.name, dict(work.sizes)) or errors
        if found.model == ROOFLINE:
            low_s = max(found.seconds / _MOST_SHARE, least_kernel_s(self._device))
            seconds, high_s = max(found.seconds, _smallest_call_s()), found.seconds / LEAST_SHARE
            if work.kind == "gemm":
                as_on_nvidia_s = self._as_on_nvidia_s(work)
                seconds = max(seconds, as_on_nvidia_s / _LOST_BEFORE)
                high_s = max(high_s, errors.ends(as_on_nvidia_s)[1])
            return seconds, low_s, max(seconds, high_s)
        low_s, high_s = errors.ends(found.seconds)
        seconds = found.seconds
        if _is_beyond(work):
            seconds, low_s = min(seconds, self._product_s(work)), 0.0
        return seconds, max(low_s, least_kernel_s(self._device)), high_s

    def _product_s(self, work: Work) -> float:
        """Returns the seconds of a product from the models of NVIDIA's GPUs. A product outside the
        measured sizes takes its fastest decomposition: a long reduction as parallel parts, or a
        matrix times a vector as a read of the matrix.
        """
        sizes = dict(work.sizes)
        ways = [(work.name, sizes)]
        if _is_beyond(work):
            longest = _longest(sizes)
            parts = {**sizes, "batch": sizes["batch"] * -(-sizes["k"] // longest)}
            ways.append((work.name, {**parts, "k": min(sizes["k"], longest)}))
            if min(sizes["m"], sizes["n"]) == 1:
                rows = max(1, round(work.moved_bytes / (2 * _FLOAT_BYTES * sizes["k"])))
                ways.append((_ELEMENT_WISE, {"rows": rows, "cols": sizes["k"]}))
        return min(self._times.operator_s(*way) for way in ways)

    def _as_on_nvidia_s(self, work: Work) -> float:
        """Returns the seconds of a product with the losses against the roofline of NVIDIA's GPUs,
        relative to a large product; 0 if too few values of this GPU are known.
        """
        try:
            return self._product_s(work) * self._reached
        except CdmppError:
            return 0.0

    @cached_property
    def _reached(self) -> float:
        """Share of the roofline that a large product reaches in the models of NVIDIA's GPUs."""
        large = _product(Product(1, _LARGE, _LARGE, _LARGE))
        return self._roofline_s(large) / self._product_s(large)

    def _roofline_s(self, work: Work) -> float:
        """Returns the roofline seconds of a work."""
        peak, bandwidth = (getattr(self._device, name) or math.inf for name in RATES)
        return max(work.flop / peak, work.moved_bytes / bandwidth)


def _tasks(graph: NetworkGraph) -> list[_Task]:
    """Returns the kernels of every operator; no works for a view."""
    return [
        _task(_Row(graph, node), kind, account)
        for node, (kind, account) in enumerate(zip(graph.kinds, accounts_of(graph), strict=True))
    ]


def _task(row: _Row, kind: str, account: Account) -> _Task:
    if account.form == "view":
        return _Task("", ())
    make = _MAKERS.get(kind)
    own = make(row) if make else None
    is_product = kind == "Conv" and account.products and not _is_for_convolutions(row)
    if own is not None and not is_product:
        return _Task(_WORDS[own.name], ((own, 1),))
    products = [(_product(one), one.times) for one in account.products]
    others = account.other_flop
    if not products:
        moved = _moving(row)
        others = others or row.flop
        return _Task(
            _WORDS[moved.name], ((moved, 1),) * max(1, account.transforms), account.steps,
            other_flop=others,
            is_covered=account.is_covered, passes=account.passes,
        )  # fmt: skip
    words = _FORMS.get(account.form, _WORDS[products[0][0].name])
    if account.form == "attention":
        scores = account.products[0]
        sizes = {"rows": scores.batch * scores.m, "cols": scores.n}
        moved_bytes = 2.0 * _FLOAT_BYTES * math.prod(sizes.values())
        softmax = Work(
            "softmax", "softmax", 4.0 * math.prod(sizes.values()), moved_bytes, "float",
            tuple(sizes.items()),
        )  # fmt: skip
        products.append((softmax, 1))
    shown = account.least_share if account.form == "attention" else 1.0
    return _Task(
        words, tuple(products), account.steps, shown, others, account.least_share,
        account.is_covered, account.passes,
    )  # fmt: skip


class _Row:
    """One operator of a graph: integer columns by name."""

    def __init__(self, graph: NetworkGraph, node: int) -> None:
        self._graph, self._node = graph, node
        self.flop = float(graph.flops[node])

    def __getitem__(self, name: str) -> int:
        return int(self._graph.column(name)[self._node])

    def work(self, kind: WorkKind, name: str, **sizes: int) -> Work:
        """Returns the operator's work with these sizes."""
        return Work(kind, name, self.flop, float(self["bytes"]), "float", tuple(sizes.items()))


def _moving(row: _Row) -> Work:
    """Returns an element-wise operator that moves the same bytes."""
    elements = max(1, row["bytes"] // (2 * _FLOAT_BYTES))
    columns = min(elements, _last_side(row))
    return row.work("elementwise", _ELEMENT_WISE, rows=-(-elements // columns), cols=columns)


def _last_side(row: _Row) -> int:
    """Returns the last side of the output, which is in `output_channels` below four axes."""
    return max(1, row["output_w"] if row["output_w"] > 1 else row["output_channels"])


def _convolution(row: _Row) -> Work | None:
    kernel, stride = row["conv_kernel_size"], row["conv_stride"]
    return row.work(
        "conv", "conv", batch=row["batch_size"], in_channels=row["input_channels"],
        in_height=row["input_h"], in_width=row["input_w"], out_channels=row["output_channels"],
        kernel_height=kernel, kernel=kernel, stride=stride, stride_width=stride,
        padding=row["conv_padding"], padding_width=row["conv_padding"],
        dilation=row["conv_dilation"], groups=row["conv_groups"],
    )  # fmt: skip


def _is_for_convolutions(row: _Row) -> bool:
    """Returns whether a convolution has square images and windows, which have a model, or groups,
    which take their roofline. Any other convolution is timed as its equivalent product.
    """
    window = row["conv_kernel_size"] ** 2 * row["input_channels"]
    outputs = row["output_size"] // _FLOAT_BYTES
    is_of_two_axes = row.flop in (2 * outputs * window, outputs * (2 * window + 1))
    return row["conv_groups"] > 1 or (is_of_two_axes and row["input_w"] == row["input_h"])


def _product(product: Product) -> Work:
    """Returns the work of a product that moves each tensor once."""
    batch, m, n, k = product.batch, product.m, product.n, product.k
    moved = float(_FLOAT_BYTES * batch * (m * k + k * n + m * n))
    name = "linear" if batch == 1 else "bmm"
    sizes = (("batch", batch), ("m", m), ("n", n), ("k", k))
    return Work("gemm", name, product.flop / product.times, moved, "float", sizes)


def _is_beyond(work: Work) -> bool:
    """Returns whether a batched product is a matrix times a vector or has a longer reduction than
    the measured products.
    """
    sizes = dict(work.sizes)
    if work.kind != "gemm" or work.name == "linear":
        return False
    return min(sizes["m"], sizes["n"]) == 1 or sizes["k"] > _longest(sizes)


def _longest(sizes: Mapping[str, int]) -> int:
    return _LONGEST_NARROW if min(sizes["m"], sizes["n"]) < _NARROW else _LONGEST


def _softmax(row: _Row) -> Work | None:
    outputs, columns = row["output_size"] // _FLOAT_BYTES, _last_side(row)
    return row.work("softmax", "softmax", rows=outputs // columns, cols=columns)


def _layer_norm(row: _Row) -> Work | None:
    columns, outputs = row["weight_size"] // (2 * _FLOAT_BYTES), row["output_size"] // _FLOAT_BYTES
    if not columns or outputs % columns:
        return None
    return row.work("layer_norm", "ln", rows=outputs // columns, cols=columns)


_MAKERS: Mapping[str, Callable[[_Row], Work | None]] = {
    "Conv": _convolution, "Softmax": _softmax, "LayerNorm": _layer_norm,
}  # fmt: skip


@lru_cache
def _smallest_call_s() -> float:
    """Returns the seconds of the smallest element-wise call, the median over the fitted GPUs."""
    nothing = {"rows": 1, "cols": 1}
    return statistics.median(
        KernelTimes(get_device(label)).operator_s(_ELEMENT_WISE, nothing)
        for label in packaged_operators().model.known
        if packaged_operators().model.is_fitted(_ELEMENT_WISE, label)
    )


@lru_cache
def _convolution_errors() -> ConvErrors:
    errors = LayerModel.load(LayerModel.packaged_path()).errors
    assert errors is not None
    return errors


def _errors(work: Work, device: str, operators: JudgedOperators) -> LogErrors:
    """Returns the log errors of a kind's model on a device, which may be outside its fit."""
    if work.kind == "conv":
        return _convolution_errors().of(device)[LAYER]
    return operators.errors_of(work.name, device, "queued_log_errors")
