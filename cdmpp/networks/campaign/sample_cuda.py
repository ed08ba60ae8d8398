"""Measures one sample on an NVIDIA GPU: time by CUDA events, memory by torch's allocator,
utilisation by NVML.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from cdmpp.errors import DeviceError
from cdmpp.networks.architectures.build import build_module, make_inputs
from cdmpp.networks.campaign.labels import time_repeats
from cdmpp.profiling.nvml import Nvml

if TYPE_CHECKING:
    from cdmpp.networks.campaign.sample_step import SampleRequest

_SAMPLE_SECONDS = 0.1
_MS_PER_S = 1e3


def run_on_gpu(request: SampleRequest) -> dict[str, Any]:
    """Returns the measured values; memory is the peak that torch reserves on the GPU.

    Raises:
        RuntimeError: there is no GPU or it failed; `torch.OutOfMemoryError` if its memory is too
            small.
    """
    from cdmpp.networks.campaign.sample_step import grad_mode, make_step, timed_values, warm_up

    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    if request.most_memory_bytes is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, request.most_memory_bytes / total))
    with device:
        assert request.spec is not None
        module = build_module(request.spec)
    inputs = make_inputs(request.spec, request.batch, device=str(device))
    step = make_step(module, inputs, request.mode)

    def run(count: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(count):
            step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / _MS_PER_S

    with grad_mode(request.mode):
        first = warm_up(run, request.timing)
        torch.cuda.reset_peak_memory_stats()
        with _busy_shares(device.index) as shares:
            timed = time_repeats(run, request.timing, first_s=first)
    return {
        **timed_values(timed.times_s, timed.iterations),
        "memory_bytes": torch.cuda.max_memory_reserved(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "utilisation": sum(shares) / len(shares) if shares else None,
        "load_1min": os.getloadavg()[0],
    }


@contextlib.contextmanager
def _busy_shares(index: int) -> Iterator[list[float]]:
    """Yields a list that fills with the GPU's utilisation, 0 to 1; it stays empty without NVML."""
    shares: list[float] = []
    # The UUID, because CUDA_VISIBLE_DEVICES changes the index.
    identity = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
    try:
        nvml = Nvml(identity)
    except DeviceError:
        yield shares
        return
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            found = [gpu.busy_share for gpu in nvml.sample()]
            shares.extend(share for share in found if share is not None)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield shares
    finally:
        stop.set()
        thread.join()
        nvml.close()
