"""Profiles a training step of a ResNet-50 and one of a transformer on a GPU with torch.profiler.

Needs torch and torchvision. Writes `steps.pt.trace.json.gz` and `steps.txt` (the profiler's table)
for `cdmpp profile`. With `--loop S` it only runs steps for S seconds, for `cdmpp profile --watch`;
with `--kernels` it runs five operators once, for `ncu`.

    python -m lab.gpu_session.profiled_steps --out DIR
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


def main() -> None:
    """Runs the requested form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--loop", type=float, help="seconds")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.kernels:
        _kernels(device)
        return
    steps = [_resnet_step(device, args.batch), _transformer_step(device, args.batch)]
    for step in steps * 3:
        step()
    _wait(device)
    if args.loop is not None:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < args.loop:
            for step in steps:
                step()
            _wait(device)
            count += 1
        print(f"{count} rounds of both steps in {time.perf_counter() - began:.2f} s")
        return
    assert args.out is not None
    args.out.mkdir(parents=True, exist_ok=True)
    _profile(steps, device, args.out)


def _profile(steps: list[Callable[[], None]], device: torch.device, out: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        for step in steps:
            step()
        _wait(device)
    trace = out / "steps.pt.trace.json"
    profiler.export_chrome_trace(str(trace))
    with trace.open("rb") as source, gzip.open(f"{trace}.gz", "wb") as target:
        shutil.copyfileobj(source, target)
    trace.unlink()
    table = profiler.key_averages().table(row_limit=-1, max_name_column_width=200)
    (out / "steps.txt").write_text(table, encoding="utf-8")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _resnet_step(device: torch.device, batch: int) -> Callable[[], None]:
    module: nn.Module = importlib.import_module("torchvision.models").resnet50().to(device)
    images = torch.randn(batch, 3, 224, 224, device=device)
    return _step(module, images, torch.zeros(batch, dtype=torch.int64, device=device))


def _transformer_step(device: torch.device, batch: int) -> Callable[[], None]:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
    module = nn.Sequential(
        nn.Embedding(30_000, 768), nn.TransformerEncoder(layer, 6), nn.Linear(768, 1000)
    )
    tokens = torch.randint(30_000, (batch, 128), device=device)
    return _step(module.to(device), tokens, torch.zeros(batch, 128, dtype=torch.int64).to(device))


def _step(module: nn.Module, data: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        result = module(data)
        loss = functional.cross_entropy(result.flatten(0, -2), target.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()

    return step


def _kernels(device: torch.device) -> None:
    a = torch.randn(4096, 4096, device=device)
    half = a.half()
    torch.mm(a, a)
    torch.mm(half, half)
    torch.softmax(a, 1)
    torch.add(a, a)
    functional.conv2d(a.view(16, 64, 128, 128), torch.randn(64, 64, 3, 3, device=device))
    _wait(device)


if __name__ == "__main__":
    main()
