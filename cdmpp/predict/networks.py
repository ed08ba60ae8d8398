"""Predictions of whole networks: one row per execution mode, device and batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cdmpp.datasets.metaschedule.databases import check_database
from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.registry import get_devices
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.networks.graph.execution import Mode, Running
from cdmpp.networks.graph.network_file import (
    EXPORTED_WITH_SIZES,
    exported_network,
    network_format,
)
from cdmpp.networks.graph.torch_graph import Method
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.prediction import Prediction
from cdmpp.predict.requested_device import asked_devices, check_kinds
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.replay.summary import ReplayOutcome
from cdmpp.text import nearest

if TYPE_CHECKING:  # torch is imported only if an execution mode needs it
    import torch

    from cdmpp.networks.predict import NetworkPredictor
    from cdmpp.networks.prediction import TorchPrediction

Way = Literal["tvm-untuned", "tvm-tuned", "torch-eager"]
#: Execution mode -> its description.
WAYS: dict[Way, str] = {
    "tvm-untuned": "compiled by TVM, untuned",
    "tvm-tuned": "compiled by TVM, tuned",
    "torch-eager": "run by torch (eager)",
}
_EAGER: Way = "torch-eager"
#: Further keys of a row of eager torch.
_MEMORY_KEYS = (
    "memory_bytes", "memory_low_bytes", "memory_high_bytes", "utilisation", "utilisation_low",
    "utilisation_high", "memory_limit_bytes", "fits",
)  # fmt: skip


class NoTvmError(UsageError):
    """Raised if TVM is not installed or has another version."""


@dataclass(frozen=True)
class NetworkQuestion:
    """A network to predict, with its execution modes, devices and inputs.

    Attributes:
        source: ONNX file, saved `torch.export` program, or a function that returns a torch module.
        name: name of the network.
        ways: execution modes; empty = all that the source and the other fields allow.
        labels, descriptions: device labels or specs, and files that describe unmeasured devices.
            If both are empty, the devices that the model was trained on.
        model: run folder of a cost model or of a network model; `pretrained` = both packaged ones.
        loaded: returns the loaded cost model; None = it is loaded from `model`.
        database: folder of a MetaSchedule database with the programs of `tvm-tuned`.
        compiles: whether kernels are compiled if the model can read their machine code.
        must_compile: whether it is an error if the model cannot read machine code.
        batches: batch sizes; None = that of the file, else 1.
        input_shapes: full shapes of an ONNX file's inputs by name; required for dynamic shapes.
        shapes, dtypes: shapes of a torch module's inputs without the batch, and their types; None =
            as inferred by `torch_graph`.
        method: how a torch module is traced for eager execution.
        memory_limit_bytes: available memory; None = that of the device.
        running: options of the execution by torch.
    """

    source: Path | Callable[[], Any]
    name: str = ""
    ways: Sequence[Way] = ()
    labels: Sequence[str | DeviceSpec] = ()
    descriptions: Sequence[Path] = ()
    model: str | Path = PRETRAINED
    loaded: Callable[[], TrainedModel] | None = None
    database: Path | None = None
    compiles: bool = True
    must_compile: bool = False
    batches: Sequence[int | None] = (None,)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shapes: Sequence[tuple[int, ...]] = ()
    dtypes: Sequence[torch.dtype] | None = None
    method: Method = "fx"
    memory_limit_bytes: float | None = None
    running: Running = field(default_factory=Running)

    def cost_model(self) -> TrainedModel:
        """Returns the cost model of kernels.

        Raises:
            DataError: there is no complete model.
        """
        if self.loaded is not None:
            return self.loaded()
        return load_trained(_models(self.model)[1], with_code=self.compiles)


@dataclass(frozen=True)
class NetworkKernel:
    """A kernel of a compiled network.

    Attributes:
        calls: number of calls.
        shapes: shapes of its arguments.
        in_network_s: seconds of one call within the network.
        prediction: prediction of the isolated kernel; None if no model covers it.
        reason: why no model covers it; empty if one does.
        module: its program; None if it has none.
        key: task of the operators that call it, or their name if they have no task.
    """

    name: str
    calls: int
    shapes: tuple[str, ...]
    in_network_s: float
    prediction: Prediction | None
    reason: str = ""
    module: Any = None
    key: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns a kernel as in `predict --json` and the server."""
        alone = {} if self.prediction is None else self.prediction.to_json()
        return alone | {
            "name": self.name, "calls": self.calls, "shapes": list(self.shapes),
            "in_network_s": self.in_network_s, "reason": self.reason or None,
        }  # fmt: skip


@dataclass(frozen=True)
class NetworkPrediction(Prediction):
    """Prediction of a network on a device in one execution mode.

    Attributes:
        way: the execution mode.
        schedule: description of the schedules of a compiled network's kernels.
        kernels: kernels of a compiled network, most expensive first.
        replayed: the replay of a compiled network.
        eager: memory and utilisation of eager torch.
    """

    way: Way = "tvm-untuned"
    mode: Mode = "infer"
    schedule: str = ""
    kernels: tuple[NetworkKernel, ...] = ()
    replayed: ReplayOutcome | None = None
    eager: TorchPrediction | None = None

    @property
    def out_of_distribution(self) -> bool:
        """Whether the prediction has low confidence."""
        return bool(self.reasons)

    def to_json(self) -> dict[str, Any]:
        """Returns a network as in `predict --json` and the server."""
        eager = {} if self.eager is None else self.eager.to_json()
        return {
            "network": self.name, "batch": self.batch, "way": self.way, "mode": self.mode,
            "device": self.device, "program_id": None, "latency_s": self.latency_s,
            "low_s": self.low_s, "high_s": self.high_s, "measured_s": None,
            "out_of_distribution": self.out_of_distribution, "reasons": list(self.reasons),
            "schedule": self.schedule or None, **self._execution(),
            "kernels": [kernel.to_json() for kernel in self.kernels],
            **{key: value for key, value in eager.items() if key in _MEMORY_KEYS},
        }  # fmt: skip

    def _execution(self) -> dict[str, Any]:
        """Returns torch's execution options; None values for compiled networks."""
        eager = {} if self.eager is None else self.eager.to_json()
        return {name: eager.get(name) for name in ("dtype", "layout", "compiled")}


#: Predicts a network compiled by TVM: takes mode, model, devices and a callback for each step.
CompiledWay = Callable[
    [Way, TrainedModel, Sequence[DeviceSpec], Callable[[str], None]], list[NetworkPrediction]
]


def predict_network(
    question: NetworkQuestion,
    compiled: CompiledWay,
    *,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[NetworkPrediction]:
    """Returns predictions of a network by device, batch and execution mode.

    If the network or device does not support an execution mode, its prediction has no latency but a
    reason.

    Args:
        compiled: predicts the network compiled by TVM.
        on_step: called with a description of each step.

    Raises:
        CdmppError: a model, a device or a database is invalid, or no execution mode has a latency.
    """
    _check_inputs(question)
    ways = _ways(question)
    eager = _eager_predictor(_models(question.model)[0]) if "torch-eager" in ways else None
    trained = question.cost_model() if ways[0] != _EAGER else None
    devices = _devices(question, eager, trained)
    learned, unlearned = _by_kind(devices, trained)
    if trained is not None and not learned and eager is None:
        check_kinds(devices, trained.card)

    found: list[NetworkPrediction] = []
    for way in ways:
        is_plain = way != _EAGER or question.running.is_plain
        on_step(f"{question.name} {WAYS[way] if is_plain else 'as torch runs it'}")
        try:
            if way == _EAGER:
                assert eager is not None
                found += _eager_predictions(question, eager, devices)
            else:
                assert trained is not None
                found += [
                    NetworkPrediction(question.name, label, way=way, batch=batch, reasons=(why,))
                    for label, why in unlearned.items()
                    for batch in question.batches
                ]
                if learned:
                    found += compiled(way, trained, learned, on_step)
        except (DataError, NoTvmError) as error:
            if len(ways) == 1:
                raise
            found += [
                NetworkPrediction(
                    question.name, device.name, way=way, batch=batch, reasons=(str(error),)
                )
                for device in (devices if way == _EAGER else learned)
                for batch in question.batches
            ]
    if all(one.latency_s is None for one in found):
        reasons = {one.reasons[0] for one in found}
        if len(reasons) == 1:
            raise DataError(reasons.pop())
        why = "; ".join(dict.fromkeys(f"{WAYS[one.way]}: {one.reasons[0]}" for one in found))
        raise DataError(f"{question.name} cannot be predicted ({why})")
    names = [device.name for device in devices]
    return sorted(found, key=lambda one: (names.index(one.device), one.batch or 0))


def _check_inputs(question: NetworkQuestion) -> None:
    if isinstance(question.batches, str) or not all(
        batch is None or _is_size(batch) for batch in question.batches
    ):
        raise UsageError(
            f"batches is {question.batches!r}, expected whole numbers from 1 up, e.g. [1, 8]"
        )
    if not isinstance(question.shapes, Sequence) or not all(
        isinstance(shape, Sequence) and all(map(_is_size, shape)) for shape in question.shapes
    ):
        raise UsageError(
            f"shapes is {question.shapes!r}, expected one shape for each input, without the "
            "batch, e.g. [(3, 224, 224)]"
        )


def _is_size(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _ways(question: NetworkQuestion) -> tuple[Way, ...]:
    unknown = [str(way) for way in question.ways if way not in WAYS]
    if unknown:
        raise UsageError(
            f"unknown way {unknown[0]!r}{nearest(unknown[0], WAYS)}; expected one of "
            f"{', '.join(WAYS)}"
        )
    if "tvm-tuned" in question.ways and question.database is None:
        raise UsageError("tuned programs come from a database: give --database DIR")
    if question.database is not None:
        check_database(question.database)
    is_onnx = isinstance(question.source, Path) and network_format(question.source) == "onnx"
    if is_onnx and _EAGER in question.ways:
        raise UsageError(
            f"{question.source}: torch cannot run an ONNX file; expected .pt2 or --torch"
        )
    if not question.running.is_plain:
        if is_onnx or set(question.ways) - {_EAGER}:
            raise UsageError(
                "element types, memory format and torch.compile only apply to networks run by "
                f"torch ({_EAGER}); TVM compiles the network as given"
            )
        return (_EAGER,)
    if question.ways:
        return tuple(way for way in WAYS if way in question.ways)
    left_out = {_EAGER} if is_onnx else set()
    if question.database is None:
        left_out.add("tvm-tuned")
    return tuple(way for way in WAYS if way not in left_out)


def _models(model: Path | str) -> tuple[Path | str, Path]:
    """Returns the network model and the kernel model: the named one, and a packaged one."""
    from cdmpp.networks.run import is_networks_run  # it loads pyarrow

    if str(model) != PRETRAINED and is_networks_run(Path(model)):
        return model, model_folder(PRETRAINED)
    return PRETRAINED, model_folder(model)


def _eager_predictor(model: Path | str) -> NetworkPredictor:
    from cdmpp.networks.predict import NetworkPredictor

    return NetworkPredictor.load(model)


def _devices(
    question: NetworkQuestion, eager: NetworkPredictor | None, trained: TrainedModel | None
) -> list[DeviceSpec]:
    """Returns the requested devices; if none, those of the network model or of the kernel model."""
    labels, descriptions = question.labels, question.descriptions
    if eager is not None and not labels and not descriptions:
        return list(eager.trained.devices)
    if trained is not None:
        return asked_devices(labels, descriptions, trained.card, of_any_kind=True)
    described = [spec for path in descriptions for spec in read_device_file(path).devices.values()]
    named = get_devices(labels)
    return [one for place, one in enumerate(named) if one not in named[:place]] + described


def _by_kind(
    devices: Sequence[DeviceSpec], trained: TrainedModel | None
) -> tuple[list[DeviceSpec], dict[str, str]]:
    """Returns the devices that the kernel model supports, and label -> reason for the others."""
    learned, unlearned = [], {}
    for device in devices:
        try:
            if trained is not None:
                check_kinds([device], trained.card)
            learned.append(device)
        except DeviceError as error:
            unlearned[device.name] = str(error)
    return learned, unlearned


def _eager_predictions(
    question: NetworkQuestion, eager: NetworkPredictor, devices: Sequence[DeviceSpec]
) -> list[NetworkPrediction]:
    module, batches, shapes, dtypes = _torch_module(question)
    graphs = eager.graphs(
        module, shapes, batches, name=question.name, method=question.method, dtypes=dtypes
    )
    found = eager.predict(
        graphs, devices, running=question.running, memory_limit_bytes=question.memory_limit_bytes
    )
    is_file = isinstance(question.source, Path)
    return [
        NetworkPrediction(
            question.name, one.device, one.time_s.value, one.time_s.low, one.time_s.high,
            reasons=one.reasons, way=_EAGER, mode=one.mode, batch=None if is_file else one.batch,
            eager=one,
        )
        for one in found
    ]  # fmt: skip


def _torch_module(
    question: NetworkQuestion,
) -> tuple[Any, list[int], Sequence[tuple[int, ...]], Sequence[torch.dtype] | None]:
    """Returns module (or its factory), batches, shapes without the batch, and types.

    Raises:
        DataError: an exported program has dynamic shapes or inputs that do not share their first
            axis.
    """
    if not isinstance(question.source, Path):
        batches = [batch or 1 for batch in question.batches]
        return question.source, batches, question.shapes, question.dtypes
    saved = exported_network(question.source)
    if question.shapes or any(batch is not None for batch in question.batches):
        raise UsageError(f"{question.source} {EXPORTED_WITH_SIZES}")
    return saved.module, [saved.batch], saved.shapes, saved.dtypes


def with_shares(kernels: Sequence[NetworkKernel]) -> list[tuple[NetworkKernel, float]]:
    """Returns each kernel with the share of its calls in the time of all kernels, in [0, 1]."""
    whole_s = sum(one.calls * one.in_network_s for one in kernels) or 1.0
    return [(one, one.calls * one.in_network_s / whole_s) for one in kernels]
