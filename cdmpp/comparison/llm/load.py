"""A decoder on devices under load: what users wait for, what it costs, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal

from cdmpp.comparison.llm.decoder import Decoder, Parallel
from cdmpp.comparison.llm.kernels import ServingStep
from cdmpp.comparison.llm.memory import (
    activation_bytes,
    cache_bytes,
    least_step_s,
    weight_bytes,
)
from cdmpp.comparison.llm.schedule import Load, Rules, Served, serve
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.prices import Price
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.files.atomic import read_json
from cdmpp.files.places import package_folder
from cdmpp.files.stored import from_json
from cdmpp.text import counted, interval_text

Backend = Literal["vllm", "sglang", "trtllm"]
BACKENDS: tuple[Backend, ...] = ("vllm", "sglang", "trtllm")
#: Backend -> how it fills its steps by default: SGLang reads prompts in steps of their own.
RULES: Mapping[Backend, Rules] = {
    "vllm": Rules(8192), "sglang": Rules(8192, is_mixed=False), "trtllm": Rules(8192),
}  # fmt: skip
#: Whose requests wait for every layer of experts, see `HostFit`.
_SLOW_EXPERTS: frozenset[Backend] = frozenset({"sglang", "trtllm"})
#: Share of a device's memory that servers use by default.
_USED = 0.9
#: Measured loads beyond which intervals stay as they are.
MOST_POINTS = 3
_NO_DRAFTS = (
    "multi-token prediction is off, as in servers by default: its layers take no memory and no time"
)
_HOUR_S, _MILLION, _GIB = 3600.0, 1e6, 1024.0**3
Ends = tuple[float, float, float]


@dataclass(frozen=True)
class Shrinkage:
    """How much the packaged fit counts beside measured loads, each of which counts 1.

    Attributes:
        host: squared log of the seconds of a request over the packaged ones.
        ttft, tpot: squared logs of the factors of the two times.
    """

    host: float = 0.003
    ttft: float = 0.03
    tpot: float = 0.3


@dataclass(frozen=True)
class HostFit:
    """What servers add to the kernels of their steps, and errors on what was left out of the fit.

    Attributes:
        request_s: seconds of every request before its prompt can be read.
        experts_s: more seconds of it for every layer of experts, on SGLang and TensorRT-LLM. No
            other request waits for them.
        devices: whose servers were measured.
        models_out: `ttft` and `tpot` -> factors of the lower and the upper end: they hold 90 % of
            the errors on models left out, on `devices`. Those of `tpot` are beyond what any
            framework's kernels take (`StepTable.of_frameworks`).
        systems_out: the same of other devices, by errors on systems left out.
        shrinkage: of a calibration by measured loads.
        calibrated: `ServerCalibration.kind` -> factors of the ends after it, by errors on models
            left out.
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
    """What measured loads of a server change in its answers.

    Attributes:
        host_s: seconds of every request before its prompt can be read.
        ttft, tpot: factors of the simulated times.
        points: measured loads.
        lengths: tokens in and out of them.
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
        """Returns what the errors of an answer depend on: points, and whether its lengths are
        measured.
        """
        is_same = (load.input_tokens, load.output_tokens) in self.lengths
        return f"{min(self.points, MOST_POINTS)} {'same' if is_same else 'other'} lengths"

    def corrected(self, found: Served, load: Load) -> Served:
        """Returns what was simulated with `host_s`, with the factors."""
        more = (1 + load.least_share) / 2 * load.output_tokens - 1
        ttft_s, tpot_s = found.ttft_s * self.ttft, found.tpot_s * self.tpot
        longer = (ttft_s + more * tpot_s) / (found.ttft_s + more * found.tpot_s)
        return replace(
            found, ttft_s=ttft_s, tpot_s=tpot_s, tokens_per_s=found.tokens_per_s / longer
        )


@lru_cache(maxsize=1)
def packaged_hosts() -> HostFit:
    """Returns the fit that comes with the package."""
    file = package_folder("cdmpp.comparison.llm") / "hosts.json"
    content = read_json(file, what="host times", hint="reinstall the package")
    return from_json(HostFit, content)


@dataclass(frozen=True)
class LoadCell:
    """A decoder on devices under a load.

    Attributes:
        network: what people call it, with its format.
        device: label of each device; `parallel` says how many share it.
        load: what users ask.
        backend: of the server.
        ttft_s: to the first token, with its ends; None = unknown or decided by queueing.
        tpot_s: of a token after the first, with its ends; None = unknown.
        tokens_per_s: output tokens of all devices.
        waited: share of requests that wait for room in the cache.
        memory_bytes, cache_bytes: that one device needs for all but the cache, and has for it.
        price: of one device; None = unknown.
        measured_points: loads of this server that calibrate the answer.
        reasons: why it is a guess, or why there is no answer.
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
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        users = counted(self.load.concurrency, "user")
        each = f"{self.parallel.gpus} x {self.device}, {users}"
        return f"{self.network} on {each}: {interval_text(*(self.tpot_s or (None,)))} a token"

    @property
    def tokens_per_s_gpu(self) -> Ends | None:
        """Output tokens a second and device."""
        if self.tokens_per_s is None:
            return None
        value, low, high = self.tokens_per_s
        gpus = self.parallel.gpus
        return value / gpus, low / gpus, high / gpus

    @property
    def cost_per_million(self) -> Ends | None:
        """US dollars for a million output tokens, on devices that are rented for nothing else."""
        rate = self.tokens_per_s_gpu
        if rate is None or self.price is None:
            return None
        paid = _MILLION * self.price.per_hour / _HOUR_S
        return paid / rate[0], paid / rate[2], paid / rate[1]

    def to_json(self) -> dict[str, Any]:
        """Returns one flat JSON object; seconds, dollars, tokens a second."""
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
            "reasons": list(self.reasons),
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
    """A decoder on devices that share it, ready for any load.

    Attributes:
        model, parallel, device: what it is.
        backend: whose rules and host it has.
        table: times of its steps; None = it cannot run, see `refusal`.
        refusal: why not.
        hosts: fitted times of the host.
        rules: how it fills its steps; None = as its backend does by default.
        calibration: by measured loads of it.
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
    def free_bytes(self) -> float:
        """Bytes of one device that are left for the cache; infinite where its memory is unknown."""
        if self.device.mem_bytes is None:
            return math.inf
        step = ServingStep(prompts=1, chunk=self._fills.step_tokens)
        held = weight_bytes(self.model, self.parallel)
        held += activation_bytes(self.model, self.parallel, step)
        return _USED * self.device.mem_bytes - held

    @property
    def slow_layers(self) -> int:
        """Layers of experts for which its requests wait, see `HostFit`."""
        return self.model.expert_layers if self.backend in _SLOW_EXPERTS else 0

    @property
    def host_s(self) -> float:
        """Seconds of every request before its prompt can be read."""
        if self.calibration is not None:
            return self.calibration.host_s
        return self.hosts.request_s + self.hosts.experts_s * self.slow_layers

    def served(self, load: Load) -> Served:
        """Returns what users see of one replica of attention and one stage's share of them."""
        assert self.table is not None
        whole = load.input_tokens + load.output_tokens
        groups = self.parallel.data * self.parallel.pipeline
        room = self.free_bytes / cache_bytes(self.model, self.parallel, whole) * whole
        rules = replace(self._fills, cache_tokens=room / self.parallel.pipeline)
        own = replace(load, concurrency=-(-load.concurrency // groups))
        prompt = round(load.input_tokens * (1 + load.least_share) / 2)
        of_kernels = partial(self.table.seconds, prompt=prompt)
        found = serve(own, rules, of_kernels, self.host_s)
        replicas = load.concurrency / own.concurrency  # as many as have that many users
        return replace(found, tokens_per_s=found.tokens_per_s * replicas)

    def cell(self, load: Load, price: Price | None = None) -> LoadCell:
        """Returns the answer to a load."""
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
            memory_bytes=None if limit is None else _USED * limit - free,
        )  # fmt: skip
        one = cache_bytes(self.model, self.parallel, load.input_tokens + load.output_tokens)
        if free < one:
            return replace(cell, reasons=(self._no_room(one),))
        found = self.served(load)
        frameworks = self.table.of_frameworks(-(-load.concurrency // groups))
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
        value = found.tokens_per_s
        rate = value, value * tpot[0] / tpot[2], value * tpot[0] / tpot[1]
        each = load.input_tokens + load.output_tokens
        reasons = said + self.table.reasons(load.concurrency * each, load.input_tokens)
        reasons += (_NO_DRAFTS,) * self.model.has_drafts
        if found.waited:
            reasons = (self._queues(found.waited, free / one), *reasons)
        return replace(
            cell, ttft_s=None if found.waited else ttft, tpot_s=tpot, tokens_per_s=rate,
            waited=found.waited, reasons=reasons,
        )  # fmt: skip

    def least_s(self, load: Load) -> tuple[float, float]:
        """Returns seconds that no time to the first token and no time of a further one goes below:
        those of its shortest prompt read alone, and of a sequence that long alone.
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
        held = (_USED * (self.device.mem_bytes or 0) - self.free_bytes) / _GIB
        return (
            f"does not fit: weights and activations need {held:.3g} GiB on each of "
            f"{self.parallel.gpus} and one request {one / _GIB:.3g} GiB, {_USED:.0%} of "
            f"{self.device.name} are {_USED * (self.device.mem_bytes or 0) / _GIB:.3g} GiB"
        )

    def _queues(self, waited: float, fitting: float) -> str:
        groups = self.parallel.data
        return (
            f"the cache holds {int(fitting) * groups:,} requests: {waited:.0%} wait for space, "
            "so queueing dominates the time to first token"
        )


def _around(value: float, spread: tuple[float, float], kernels: tuple[float, float]) -> Ends:
    """Returns a value with the wider of two intervals: errors of servers, kernels'."""
    return value, value * min(spread[0], kernels[0]), value * max(spread[1], kernels[1])


def _not_below(ends: Ends, least_s: float) -> Ends:
    """Returns an interval that begins no sooner than a bound, or than a value that measured loads
    put below it, as servers do that guess several tokens a step.
    """
    value, low, high = ends
    return value, max(low, min(value, least_s)), high


def _wider(ends: Ends) -> Ends:
    value, low, high = ends
    return value, low * low / value, high * high / value
