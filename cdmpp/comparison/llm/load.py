"""A decoder on devices under load: times, throughput and cost with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from cdmpp.comparison.llm.decoder import Decoder, Parallel
from cdmpp.comparison.llm.kernels import ServingStep
from cdmpp.comparison.llm.memory import (
    activation_bytes,
    cache_bytes,
    least_step_s,
    weight_bytes,
)
from cdmpp.comparison.llm.schedule import Load, Rules, Served, serve
from cdmpp.comparison.llm.server_options import RULES, Backend
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.prices import Price
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.files.atomic import read_json
from cdmpp.files.places import package_folder
from cdmpp.files.stored import from_json
from cdmpp.text import counted, interval_text

#: Backends whose requests wait for every layer of experts, see `HostFit`.
_SLOW_EXPERTS: frozenset[Backend] = frozenset({"sglang", "trtllm"})
#: Default share of a device's memory that servers use.
_USED = 0.9
#: Number of measured loads after which intervals no longer change.
MOST_POINTS = 3
_NO_DRAFTS = (
    "multi-token prediction is off, as in servers by default: its layers take no memory and no time"
)
_HOUR_S, _MILLION, _GIB = 3600.0, 1e6, 1024.0**3
Ends = tuple[float, float, float]


@dataclass(frozen=True)
class Shrinkage:
    """Weights of the packaged fit relative to measured loads, which have weight 1 each.

    Attributes:
        host: weight of the squared log of seconds per request over the packaged value.
        ttft, tpot: weights of the squared logs of the factors of the two times.
    """

    host: float = 0.003
    ttft: float = 0.03
    tpot: float = 0.3


@dataclass(frozen=True)
class HostFit:
    """Times that servers add to the kernels of their steps, with errors on held-out data.

    Attributes:
        request_s: seconds of every request before its prompt can be processed.
        experts_s: further seconds per layer of experts, on SGLang and TensorRT-LLM. Other
            requests do not wait for them.
        devices: devices with measured servers.
        models_out: `ttft` and `tpot` -> factors of the lower and upper end that cover 90 % of the
            errors on held-out models, on `devices`. Those of `tpot` are in addition to the range of
            frameworks' kernels (`StepTable.of_frameworks`).
        systems_out: the same for other devices, from errors on held-out systems.
        shrinkage: for calibration with measured loads.
        calibrated: `ServerCalibration.kind` -> factors of the ends after calibration, from errors
            on held-out models.
    """

    request_s: float
    experts_s: float
    devices: tuple[str, ...]
    models_out: Mapping[str, tuple[float, float]]
    systems_out: Mapping[str, tuple[float, float]]
    shrinkage: Shrinkage = Shrinkage()
    calibrated: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerCalibration:
    """Corrections of a server's predictions by measured loads.

    Attributes:
        host_s: seconds of every request before its prompt can be processed.
        ttft, tpot: factors of the simulated times.
        points: number of measured loads.
        lengths: (input tokens, output tokens) of the loads.
    """

    host_s: float
    ttft: float = 1.0
    tpot: float = 1.0
    points: int = 0
    lengths: frozenset[tuple[int, int]] = frozenset()

    def __str__(self) -> str:
        return (
            f"calibrated with {counted(self.points, 'measured load')} of this server: "
            f"{1e3 * self.host_s:.3g} ms of every request before its prompt is read, "
            f"TTFT x {self.ttft:.3g}, TPOT x {self.tpot:.3g}"
        )

    def kind(self, load: Load) -> str:
        """Returns the key of `HostFit.calibrated`: the number of points, and whether the load's
        lengths are measured.
        """
        is_same = (load.input_tokens, load.output_tokens) in self.lengths
        return f"{min(self.points, MOST_POINTS)} {'same' if is_same else 'other'} lengths"

    def corrected(self, found: Served, load: Load) -> Served:
        """Returns the result of a simulation with `host_s`, corrected by the factors."""
        more = (1 + load.least_share) / 2 * load.output_tokens - 1
        ttft_s, tpot_s = found.ttft_s * self.ttft, found.tpot_s * self.tpot
        longer = (ttft_s + more * tpot_s) / (found.ttft_s + more * found.tpot_s)
        return replace(
            found, ttft_s=ttft_s, tpot_s=tpot_s, tokens_per_s=found.tokens_per_s / longer,
            queued_s=found.queued_s * longer,
        )  # fmt: skip


@lru_cache(maxsize=1)
def packaged_hosts() -> HostFit:
    """Returns the packaged fit."""
    file = package_folder("cdmpp.comparison.llm") / "hosts.json"
    content = read_json(file, what="host times", hint="reinstall the package")
    return from_json(HostFit, content)


@dataclass(frozen=True)
class LoadCell:
    """A decoder on devices under a load.

    Attributes:
        network: display name, with its format.
        device: label of each device; `parallel` has their number.
        load: the load.
        backend: serving framework.
        ttft_s: seconds to the first token, with its ends; None = unknown, or queueing dominates.
        tpot_s: seconds per further token, with its ends; None = unknown.
        tokens_per_s: output tokens per second of all devices.
        waited: share of requests that wait for room in the cache.
        memory_bytes, cache_bytes: need of one device without the cache, and its room for the cache.
        price: of one device; None = unknown.
        is_hypothetical: whether the device was scaled, or is described by the user.
        measured_points: number of measured loads that calibrate the prediction.
        server_options: launch options of the server, `NAME=VALUE,...`; empty = defaults.
        reasons: why the prediction has low confidence or is missing.
    """

    network: str
    device: str
    parallel: Parallel
    load: Load
    backend: str
    ttft_s: Ends | None = None
    tpot_s: Ends | None = None
    tokens_per_s: Ends | None = None
    waited: float | None = None
    memory_bytes: float | None = None
    cache_bytes: float | None = None
    price: Price | None = None
    is_hypothetical: bool = False
    measured_points: int = 0
    server_options: str = ""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        users = counted(self.load.concurrency, "user")
        each = f"{self.parallel.gpus} x {self.device}, {users}"
        return f"{self.network} on {each}: {interval_text(*(self.tpot_s or (None,)))} a token"

    @property
    def tokens_per_s_gpu(self) -> Ends | None:
        """Output tokens per second and device."""
        if self.tokens_per_s is None:
            return None
        value, low, high = self.tokens_per_s
        gpus = self.parallel.gpus
        return value / gpus, low / gpus, high / gpus

    @property
    def cost_per_million(self) -> Ends | None:
        """US dollars per million output tokens on rented devices without idle time."""
        rate = self.tokens_per_s_gpu
        if rate is None or self.price is None:
            return None
        paid = _MILLION * self.price.per_hour / _HOUR_S
        return paid / rate[0], paid / rate[2], paid / rate[1]

    def to_json(self) -> dict[str, Any]:
        """Returns a flat JSON object; seconds, dollars, tokens per second."""
        found: dict[str, Any] = {
            "network": self.network, "device": self.device, "gpus": self.parallel.gpus,
            "tensor_parallel": self.parallel.tensor, "data_parallel": self.parallel.data,
            "expert_parallel": self.parallel.expert, "pipeline_parallel": self.parallel.pipeline,
            "backend": self.backend, "concurrency": self.load.concurrency,
            "input_tokens": self.load.input_tokens, "output_tokens": self.load.output_tokens,
            "waited": self.waited, "memory_bytes": self.memory_bytes,
            "cache_limit_bytes": self.cache_bytes,
            "price": None if self.price is None else self.price.text,
            "is_hypothetical": self.is_hypothetical, "measured_points": self.measured_points,
            "server_options": self.server_options or None, "reasons": list(self.reasons),
        }  # fmt: skip
        ends = {
            "ttft_s": self.ttft_s, "tpot_s": self.tpot_s,
            "tokens_per_s_gpu": self.tokens_per_s_gpu,
            "cost_usd_per_million": self.cost_per_million,
        }  # fmt: skip
        for name, one in ends.items():
            for key, value in zip(("", "_low", "_high"), one or (None,) * 3, strict=True):
                found[name + key] = value
        return found


@dataclass(frozen=True)
class LoadedServer:
    """A decoder on devices that share it, for any load.

    Attributes:
        model, parallel, device: the decoder, its parallelism and the device.
        backend: serving framework.
        table: times of its steps; None = it cannot run, see `refusal`.
        refusal: why it cannot run.
        hosts: fitted times of the host.
        rules: scheduling rules; None = the backend's defaults.
        calibration: by measured loads of this server.
    """

    model: Decoder
    parallel: Parallel
    device: DeviceSpec
    backend: Backend
    table: StepTable | None
    refusal: str = ""
    hosts: HostFit = field(default_factory=packaged_hosts)
    rules: Rules | None = None
    calibration: ServerCalibration | None = None

    @property
    def _fills(self) -> Rules:
        return self.rules or RULES[self.backend]

    @property
    def _activation_bytes(self) -> float:
        step = ServingStep(prompts=1, chunk=self._fills.step_tokens)
        return activation_bytes(self.model, self.parallel, step)

    @property
    def _held_bytes(self) -> float:
        """Bytes of weights and activations on one device."""
        return weight_bytes(self.model, self.parallel) + self._activation_bytes

    @property
    def free_bytes(self) -> float:
        """Bytes of one device left for the cache; infinite if its memory is unknown.

        A share of the memory given by an option includes weights and activations for vLLM, weights
        only for SGLang, and neither for TensorRT-LLM.
        """
        whole, held, share = self.device.mem_bytes, self._held_bytes, self._fills.memory_share
        if whole is None:
            return math.inf
        if share is None:
            return _USED * whole - held
        if self.backend == "trtllm":
            return share * (whole - held)
        outside = self._activation_bytes if self.backend == "sglang" else 0.0
        return min(share * whole + outside, whole) - held

    @property
    def slow_layers(self) -> int:
        """Number of expert layers that its requests wait for, see `HostFit`."""
        return self.model.expert_layers if self.backend in _SLOW_EXPERTS else 0

    @property
    def host_s(self) -> float:
        """Seconds of every request before its prompt can be processed."""
        if self.calibration is not None:
            return self.calibration.host_s
        return self.hosts.request_s + self.hosts.experts_s * self.slow_layers

    def served(self, load: Load) -> Served:
        """Simulates one attention replica and one stage's share of the users."""
        assert self.table is not None
        whole = load.input_tokens + load.output_tokens
        groups = self.parallel.data * self.parallel.pipeline
        room = self.free_bytes / cache_bytes(self.model, self.parallel, whole) * whole
        rules = replace(self._fills, cache_tokens=room / self.parallel.pipeline)
        own = replace(load, concurrency=-(-load.concurrency // groups))
        prompt = round(load.input_tokens * (1 + load.least_share) / 2)
        of_kernels = partial(self.table.seconds, prompt=prompt)
        found = serve(own, rules, of_kernels, self.host_s)
        replicas = groups if found.queued_s else load.concurrency / own.concurrency
        return replace(found, tokens_per_s=found.tokens_per_s * replicas)

    def cell(self, load: Load, price: Price | None = None) -> LoadCell:
        """Returns the prediction for a load."""
        cell = LoadCell(
            f"{self.model.name} {self.model.main_format}", self.device.name, self.parallel, load,
            self.backend, price=price,
        )  # fmt: skip
        if self.table is None:
            return replace(cell, reasons=(self.refusal,))
        groups = self.parallel.data * self.parallel.pipeline
        if groups > load.concurrency:
            raise UsageError(
                f"--concurrency {load.concurrency} is less than the {groups} replicas and stages "
                "that share it"
            )
        free = self.free_bytes
        limit = self.device.mem_bytes
        cell = replace(
            cell, cache_bytes=None if limit is None else max(0.0, free),
            memory_bytes=None if limit is None else self._held_bytes,
        )  # fmt: skip
        one = cache_bytes(self.model, self.parallel, load.input_tokens + load.output_tokens)
        if free < one:
            return replace(cell, reasons=(self._no_room(one),))
        found = self.served(load)
        running = min(load.concurrency, self._fills.sequences * groups)
        frameworks = self.table.of_frameworks(-(-running // groups))
        is_known = self.device.name in self.hosts.devices
        spread = self.hosts.models_out if is_known else self.hosts.systems_out
        kernels = (1.0, 1.0) if is_known or self.table.is_seen else self.table.spread
        said: tuple[str, ...] = ()
        if self.calibration is not None:
            found = self.calibration.corrected(found, load)
            spread, kernels = self.hosts.calibrated[self.calibration.kind(load)], (1.0, 1.0)
            frameworks = (1.0, 1.0)
            cell = replace(cell, measured_points=self.calibration.points)
            said = (str(self.calibration),)
        low, high = (a * b for a, b in zip(spread["tpot"], frameworks, strict=True))
        least_ttft_s, least_tpot_s = self.least_s(load)
        tpot = _around(found.tpot_s, (low, high), kernels)
        tpot = _not_below(_wider(tpot) if found.waited else tpot, least_tpot_s)
        ttft = _not_below(_around(found.ttft_s, spread["ttft"], kernels), least_ttft_s)
        ttft = _queued(ttft, found.queued_s, tpot)
        value = found.tokens_per_s
        rate = value, value * tpot[0] / tpot[2], value * tpot[0] / tpot[1]
        each = load.input_tokens + load.output_tokens
        reasons = said + self.table.reasons(running * each, load.input_tokens)
        reasons += self.model.beyond_context(each) + (_NO_DRAFTS,) * self.model.has_drafts
        if found.queued_s:
            reasons = (f"at most {running:,} requests run at once: others wait for them", *reasons)
        if found.waited:
            reasons = (self._queues(found.waited, free / one), *reasons)
        return replace(
            cell, ttft_s=None if found.waited else ttft, tpot_s=tpot, tokens_per_s=rate,
            waited=found.waited, reasons=reasons,
        )  # fmt: skip

    def least_s(self, load: Load) -> tuple[float, float]:
        """Returns lower bounds of the time to the first token and per further token: those of its
        shortest prompt alone, and of one sequence of that length alone.
        """
        length = max(1, int(load.least_share * load.input_tokens))
        first, further = (
            least_step_s(self.model, self.parallel, step, self.device)
            for step in (
                ServingStep(prompts=1, chunk=length), ServingStep(sequences=1, context=length)
            )
        )  # fmt: skip
        return first, further

    def _no_room(self, one: float) -> str:
        whole, share = self.device.mem_bytes or 0, self._fills.memory_share
        if share is None or self.backend == "vllm":
            share = _USED if share is None else share
            limit = f"{share:.0%} of {self.device.name} are {share * whole / _GIB:.3g} GiB"
        else:
            limit = (
                f"of the {whole / _GIB:.3g} GiB of {self.device.name}, {share:g} as launched leave "
                f"{max(0.0, self.free_bytes) / _GIB:.3g} GiB for the cache"
            )
        return (
            f"does not fit: weights and activations need {self._held_bytes / _GIB:.3g} GiB on each "
            f"of {self.parallel.gpus} and one request {one / _GIB:.3g} GiB, {limit}"
        )

    def _queues(self, waited: float, fitting: float) -> str:
        groups = self.parallel.data
        return (
            f"the cache holds {int(fitting) * groups:,} requests: {waited:.0%} wait for space, "
            "so queueing dominates the time to first token"
        )


def _around(value: float, spread: tuple[float, float], kernels: tuple[float, float]) -> Ends:
    """Returns a value with the wider of two intervals: of servers' errors, and of the kernels'."""
    return value, value * min(spread[0], kernels[0]), value * max(spread[1], kernels[1])


def _queued(first: Ends, waiting_s: float, tpot: Ends) -> Ends:
    """Returns the time to the first token after others' answers, which err like times per token."""
    value, low, high = (
        one + waiting_s * token_s / tpot[0] for one, token_s in zip(first, tpot, strict=True)
    )
    return value, low, high


def _not_below(ends: Ends, least_s: float) -> Ends:
    """Returns the interval with its lower end raised to the bound, or to the value if calibration
    puts the value below the bound, e.g. with speculative decoding.
    """
    value, low, high = ends
    return value, max(low, min(value, least_s)), high


def _wider(ends: Ends) -> Ends:
    value, low, high = ends
    return value, low * low / value, high * high / value
