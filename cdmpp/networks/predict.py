"""Predicts time, memory and utilisation of a torch network without running it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from cdmpp.analytic.roofline.floor import LEAST_SHARE
from cdmpp.devices.registry import get_devices
from cdmpp.devices.spec import SURE_SHARE, DeviceSpec, fits_into
from cdmpp.errors import UsageError
from cdmpp.networks.dataset.samples import TARGETS, unmeasured
from cdmpp.networks.gpu_operators import MEASURED, WHOLE_ROOFLINE
from cdmpp.networks.graph.execution import MODES, Running
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.live_memory import least_memory
from cdmpp.networks.graph.torch_graph import made_module, torch_graph
from cdmpp.networks.least_time import Uncovered, least_seconds, uncovered
from cdmpp.networks.on_gpu import on_gpu
from cdmpp.networks.packaged import model_folder
from cdmpp.networks.prediction import UNKNOWN, Estimate, TorchPrediction
from cdmpp.networks.run import TrainedNetworks, load_run
from cdmpp.pretrained import PRETRAINED

#: Maximum factor by which a network may be faster than its roofline: the fastest convolution
#: algorithm saves three of four products. The fastest of 2,040 measured networks: 2.9.
_MOST_SHARE = 4.0
#: Half width in log time that covers 90 % of 44 single torch operators on a Zen 4 core
#: (docs/lab/experiments.md). Errors of networks with more operators are smaller.
_ALONE_WIDTH = 1.5

_NOT_COMPILED = "torch.compile is ignored: this is the time of eager torch on a CPU"


class NetworkPredictor:
    """A loaded model with fallbacks for devices outside its training data.

    The model predicts devices of its training data. Float32 inference on another NVIDIA GPU is
    predicted by the operator models, on another GPU by its operators' rooflines, and other
    executions on GPUs by the step-time model (`on_gpu`). On any other device the model's prediction
    follows the device's roofline.

    Attributes:
        trained: the model.
        extraction_s: seconds that the last call of `graphs` took.
        prediction_s: seconds that the last call of `predict` took.
    """

    def __init__(self, trained: TrainedNetworks) -> None:
        self.trained = trained
        self._measured = {spec.name: spec.kind for spec in trained.devices}
        self.extraction_s = self.prediction_s = 0.0

    @classmethod
    def load(cls, model: str | Path = PRETRAINED) -> NetworkPredictor:
        """Returns the predictor of a run folder or of the packaged model.

        Raises:
            DataError: the model does not exist or cannot be read.
        """
        return cls(load_run(model_folder(model)))

    def graphs(
        self,
        module_or_factory: nn.Module | Callable[[], nn.Module],
        input_shapes: Sequence[tuple[int, ...]],
        batches: Sequence[int],
        *,
        name: str,
        method: Literal["fx", "export"] = "fx",
        dtypes: Sequence[torch.dtype] | None = None,
    ) -> list[NetworkGraph]:
        """Returns the operator graph of every batch; creates the module once.

        Raises:
            UsageError: no batch, a batch below 1, or no shape.
            DataError: the module cannot be created or traced, or its weights have an unsupported
                type.
        """
        start = time.perf_counter()
        if not batches:
            raise UsageError(f"{name}: no batch; pass at least one, e.g. 1")
        module, is_compiled = made_module(module_or_factory, name)
        found = [
            torch_graph(
                module,
                input_shapes,
                batch=batch,
                name=name,
                method=method,
                dtypes=dtypes,
                in_both_layouts=True,
            )
            for batch in batches
        ]
        self.extraction_s = time.perf_counter() - start
        return [replace(graph, is_compiled=is_compiled) for graph in found]

    def predict(
        self,
        graphs: Sequence[NetworkGraph],
        devices: Sequence[str | DeviceSpec] = (),
        *,
        running: Running | None = None,
        memory_limit_bytes: float | None = None,
    ) -> list[TorchPrediction]:
        """Returns the predictions of every graph, device and mode, in this order.

        Args:
            devices: labels or specs; empty = the devices of the training data.
            running: how the networks are run; None = eagerly, in the dtype of their weights.
            memory_limit_bytes: available memory; None = the memory of each device.

        Raises:
            DeviceError: an unknown device.
            UsageError: the memory limit is not positive, or the dtype does not fit the weights.
        """
        running = running or Running()
        if memory_limit_bytes is not None and not memory_limit_bytes > 0:
            raise UsageError(f"memory limit {memory_limit_bytes}, expected above 0 bytes")
        start = time.perf_counter()
        specs = self._specs(devices)
        samples = unmeasured(graphs, specs)
        ends = self.trained.predict(samples)
        rooflines_s = samples.roofline_s()
        result = []
        for row, (place, device) in enumerate(
            zip(samples.graph.tolist(), samples.device.tolist(), strict=True)
        ):
            whole = {
                target: Estimate(*(_known(part[row, column]) for part in ends))
                for column, target in enumerate(TARGETS)
            }
            domain, encoded = self.trained.domain, samples.graphs[place]
            result += self._modes(
                graphs[place], specs[device], whole, rooflines_s[row].tolist(),
                domain.reasons(encoded, specs[device].name),
                sum(domain.unseen(encoded).values()), domain.few_operators(encoded), running,
                memory_limit_bytes,
            )  # fmt: skip
        self.prediction_s = time.perf_counter() - start
        return result

    def _modes(
        self,
        graph: NetworkGraph,
        spec: DeviceSpec,
        whole: Mapping[str, Estimate],
        rooflines_s: Sequence[float],
        doubts: tuple[str, ...],
        unseen: float,
        few: int,
        running: Running,
        memory_limit_bytes: float | None,
    ) -> list[TorchPrediction]:
        """Returns the predictions of a network on a device, one per requested mode.

        Args:
            whole: target -> prediction of the model.
            rooflines_s: sum of the operators' rooflines in each mode.
            doubts: reasons why the model's prediction is out of distribution.
            unseen: share of the bytes moved by operators outside the training data.
            few: number of operators if it is below the training range, else 0.
            memory_limit_bytes: available memory; None = the device's memory.
        """
        is_measured = spec.name in self._measured
        limit = memory_limit_bytes or spec.mem_bytes
        share = SURE_SHARE if memory_limit_bytes is None else 1.0
        floor_s = least_seconds(graph, spec)
        found = {}
        for mode, roofline_s in zip(MODES, rooflines_s, strict=True):
            memory, busy = whole[f"{mode}_memory_bytes"], whole[f"{mode}_utilisation"]
            found[mode] = TorchPrediction(
                name=graph.name, batch=graph.batch, device=spec.name, mode=mode,
                execution=running.execution(
                    graph.name, graph.weights, is_compiled=graph.is_compiled, mode=mode
                ),
                time_s=_along_roofline(whole[f"{mode}_time_s"], roofline_s, floor_s),
                memory_bytes=memory,
                # Utilisation does not transfer between CPUs and GPUs.
                utilisation=busy if spec.kind in self._measured.values() else UNKNOWN,
                memory_limit_bytes=None if limit is None else float(limit),
                fits=None, reasons=doubts,
                method=MEASURED if is_measured else WHOLE_ROOFLINE,
            )  # fmt: skip
        unknown = uncovered(graph)
        if spec.kind == "gpu" and not is_measured:
            found = on_gpu(graph, spec, found, floor_s)
        else:
            found = {mode: _on_others(one, running) for mode, one in found.items()}
            most = 1.0 + unseen * (1.0 / LEAST_SHARE - 1.0)
            found = {
                mode: _in_passes(_of_few(one, few), unknown.times, most, floor_s)
                for mode, one in found.items()
            }
        if unknown.most_times > 1.0:
            found = {mode: _with_unknown(one, unknown) for mode, one in found.items()}
        least = found["infer"].time_s  # a training step includes the forward pass
        found["train"] = replace(found["train"], time_s=found["train"].time_s.not_below(least))
        found = {mode: _with_its_weights(one, graph) for mode, one in found.items()}
        found = {mode: _memory_marked(one, list(self._measured)) for mode, one in found.items()}
        modes = MODES if running.mode is None else (running.mode,)
        return [
            replace(found[mode], fits=_fits(found[mode].memory_bytes, limit, share))
            for mode in modes
        ]

    def _specs(self, devices: Sequence[str | DeviceSpec]) -> list[DeviceSpec]:
        trained = {spec.name: spec for spec in self.trained.devices}
        if not devices:
            return list(trained.values())
        found = get_devices(
            trained.get(one, one) if isinstance(one, str) else one for one in devices
        )
        return list({spec.name: trained.get(spec.name, spec) for spec in found}.values())


def _along_roofline(time_s: Estimate, roofline_s: float, floor_s: float) -> Estimate:
    """Returns a time with an interval: its own, or for an unmeasured device one from the roofline,
    wide enough for slow kernels.
    """
    time_s = time_s.at_least(floor_s)
    if time_s.low is not None or time_s.value is None:
        return time_s
    low_s = min(time_s.value, max(floor_s, roofline_s / _MOST_SHARE))
    return Estimate(time_s.value, low_s, time_s.value + roofline_s / LEAST_SHARE)


def _with_its_weights(found: TorchPrediction, graph: NetworkGraph) -> TorchPrediction:
    """Returns a prediction whose memory is at least the network's minimum (`least_memory`)."""
    least = least_memory(graph, found.execution)
    return replace(found, memory_bytes=found.memory_bytes.at_least(least))


def _memory_marked(found: TorchPrediction, measured: Sequence[str]) -> TorchPrediction:
    """Returns a prediction that says where its memory is from, if that has no interval.

    Args:
        measured: labels of the devices on which networks were measured.
    """
    if found.memory_bytes.value is None or found.memory_bytes.low is not None:
        return found
    reason = f"memory is predicted as on {', '.join(measured)}, without an interval"
    return replace(found, reasons=(*found.reasons, reason))


def _with_unknown(found: TorchPrediction, unknown: Uncovered) -> TorchPrediction:
    """Returns a prediction with the reason and the wider interval of uncovered work."""
    time_s = found.time_s
    if time_s.value is not None and time_s.high is not None:
        most_s = time_s.value * unknown.most_times / unknown.times
        time_s = replace(time_s, high=max(time_s.high, most_s))
    reasons = (*found.reasons, unknown.text) if unknown.text else found.reasons
    return replace(found, time_s=time_s, reasons=reasons)


def _of_few(found: TorchPrediction, operators: int) -> TorchPrediction:
    """Returns a prediction with a wider interval for a network of few operators, whose errors do
    not average out; `operators` = 0 keeps the interval.
    """
    time_s = found.time_s
    if not operators or time_s.value is None or time_s.low is None or time_s.high is None:
        return found
    factor = math.exp(_ALONE_WIDTH / operators)
    low_s, high_s = min(time_s.low, time_s.value / factor), max(time_s.high, time_s.value * factor)
    return replace(found, time_s=replace(time_s, low=low_s, high=high_s))


def _in_passes(
    found: TorchPrediction, times: float, most: float, floor_s: float
) -> TorchPrediction:
    """Returns the prediction of a model of single-pass operators, corrected for several passes and
    with a wider interval for unseen operators.

    Args:
        times: factor on the bytes moved due to several passes.
        most: maximum error factor, in both directions, due to unseen operators.
        floor_s: lower bound in seconds.
    """
    time_s = found.time_s
    if time_s.value is None or time_s.low is None or time_s.high is None:
        return found
    value_s = times * time_s.value
    high_s = max(times * time_s.high, most * value_s)
    low_s = max(floor_s, min(time_s.low, time_s.value / most))
    return replace(found, time_s=Estimate(value_s, low_s, high_s))


def _on_others(found: TorchPrediction, running: Running) -> TorchPrediction:
    """Returns the prediction on a CPU, or on a GPU in the training data: only eager float32 is
    supported there.
    """
    execution = found.execution
    if running.is_plain and execution.dtype == "float32":
        if execution.compiled:
            eager = replace(execution, compiled=False)
            return replace(found, execution=eager, reasons=(*found.reasons, _NOT_COMPILED))
        return found
    reason = (
        f"networks in {execution.text} can only be predicted on GPUs; expected float32, eager, "
        "nchw on CPUs"
    )
    return replace(
        found, time_s=UNKNOWN, memory_bytes=UNKNOWN, utilisation=UNKNOWN, method="",
        reasons=(reason,),
    )  # fmt: skip


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _fits(memory: Estimate, limit: float | None, share: float) -> bool | None:
    if memory.value is None:
        return None
    needed = memory.value if memory.high is None else memory.high
    return fits_into(needed, limit, least=memory.low, share=share)
