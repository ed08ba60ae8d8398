"""A sample on a GPU, with a stand-in for torch's CUDA functions: what needs a GPU is not run."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from cdmpp.networks.architectures.generator import SearchSpace, generate
from cdmpp.networks.campaign import sample_cuda
from cdmpp.networks.campaign.labels import NetworkTiming
from cdmpp.networks.campaign.sample import run_part
from cdmpp.networks.campaign.sample_step import SampleRequest
from cdmpp.profiling.nvml import GpuSample


class Event:
    """An event on a GPU that has always finished."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None
        self.is_synchronised = False

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        self.is_synchronised = True

    def elapsed_time(self, end: Event) -> float:
        assert end.is_synchronised
        assert self.at is not None
        assert end.at is not None
        return 1e3 * (end.at - self.at)


class FakeNvml:
    """A GPU that is busy three quarters of the time."""

    identities: ClassVar[list[str]] = []

    def __init__(self, identity: str) -> None:
        self.identities.append(identity)

    def sample(self) -> list[GpuSample]:
        return [GpuSample(0, 0.75, 1, None)]

    def close(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    shares: list[float] = []
    functions = SimpleNamespace(
        Event=Event,
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(uuid="1-2", total_memory=1 << 30),
        set_per_process_memory_fraction=shares.append,
        reset_peak_memory_stats=lambda: None,
        max_memory_reserved=lambda: 3000,
        max_memory_allocated=lambda: 2000,
        shares=shares,
    )
    fake = SimpleNamespace(
        cuda=functions,
        device=lambda kind, index: torch.device("cpu"),
        manual_seed=torch.manual_seed,
    )
    monkeypatch.setattr(sample_cuda, "torch", fake)
    monkeypatch.setattr(sample_cuda, "Nvml", FakeNvml)
    return functions


def request(mode: Any) -> SampleRequest:
    space = SearchSpace(
        resolutions=(32,),
        stages=(1, 2),
        width=(8, 16),
        batches=(2,),
        batches_per_architecture=(1, 1),
    )
    timing = NetworkTiming(warm_up_s=0.0, budget_s=0.3, least_repeat_s=0.001, most_repeats=400)
    network = next(iter(generate(space, 1, seed=0)))
    return SampleRequest(network.spec, 2, mode, "gpu", 1, timing, most_memory_bytes=1 << 29)


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_sample_of_a_gpu(cuda: SimpleNamespace, mode: str) -> None:
    found = run_part(request(mode), "gpu")
    assert found["outcome"] == "ok", found
    assert found["low_s"] <= found["time_s"] <= found["high_s"]
    assert (found["memory_bytes"], found["allocated_bytes"]) == (3000, 2000)
    assert found["utilisation"] == 0.75
    assert FakeNvml.identities[-1] == "GPU-1-2"
    assert cuda.shares == [0.5]
