"""Predictions of `cdmpp compare` for whole passes of transformers that NVIDIA published.

Source: docs/source/performance.md of NVIDIA/TensorRT-LLM at commit 138f96d (versions 0.5 and 0.6.1,
static batches): throughput of prompts with their continuations, and the time to the first token of
one prompt. No model here was fitted to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.comparison.llm.memory import least_step_s
from cdmpp.comparison.serving import serving_cell
from cdmpp.comparison.transformer import Pass, TransformerShape
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.text import markdown_table, percent_text
from lab.pages import write_page
from lab.stamp import stamp

#: Number of decode steps that are predicted; the steps between them are interpolated linearly.
_STEPS = 5
_SEVEN_B = TransformerShape(32, 4096, 32, 32, 11008, 32000, name="LLaMA 7B")
_SEVENTY_B = TransformerShape(80, 8192, 64, 8, 28672, 32000, name="LLaMA 70B")


@dataclass(frozen=True)
class Published:
    """One published figure.

    `output` 1: time to the first token, seconds; otherwise tokens per second and GPU. Rows are
    excluded if it is unclear whether they count the tokens of one GPU or of all.
    """

    model: TransformerShape
    device: str
    dtype: str
    batch: int
    degree: int
    prompt: int
    output: int
    value: float


def _rows(
    model: TransformerShape, device: str, dtype: str, rows: Sequence[tuple[float, ...]]
) -> list[Published]:
    return [
        Published(model, device, dtype, int(b), int(tp), int(i), int(o), value)
        for b, tp, i, o, value in rows
    ]


PUBLISHED = [
    *_rows(_SEVEN_B, "h100", "fp8", [
        (768, 1, 128, 128, 19694), (112, 1, 128, 2048, 6818), (80, 1, 2048, 128, 2244),
        (48, 1, 2048, 2048, 2740), (1, 1, 128, 1, 0.007), (1, 1, 2048, 1, 0.036),
    ]),
    *_rows(_SEVENTY_B, "h100", "fp8", [
        (1024, 2, 128, 128, 2657), (480, 4, 128, 2048, 1486), (96, 2, 2048, 128, 306),
        (64, 2, 2048, 2048, 547), (1, 4, 128, 1, 0.026), (1, 4, 2048, 1, 0.109),
    ]),
    *_rows(_SEVEN_B, "l40s", "fp8", [
        (64, 1, 128, 128, 3240), (64, 1, 128, 2048, 1622), (32, 1, 2048, 128, 581),
        (16, 1, 2048, 2048, 531), (1, 1, 128, 1, 0.014), (1, 1, 2048, 1, 0.073),
    ]),
    *_rows(_SEVEN_B, "a100-sxm", "fp16", [
        (384, 1, 128, 128, 5586), (60, 1, 128, 2048, 1928), (52, 1, 2048, 128, 591),
        (1, 1, 128, 1, 0.016), (1, 1, 2048, 1, 0.133),
    ]),
    *_rows(_SEVENTY_B, "a100-sxm", "fp16", [
        (1, 4, 128, 1, 0.047), (1, 4, 2048, 1, 0.377),
    ]),
]  # fmt: skip


@dataclass(frozen=True)
class JudgedPass:
    """A published figure with its prediction, interval, and the bound from weights and peak."""

    model: str
    device: str
    dtype: str
    batch: int
    degree: int
    prompt: int
    output: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    least_s: float


def judge(published: Sequence[Published] = PUBLISHED) -> list[JudgedPass]:
    """Returns every figure as seconds for all of its tokens, with its prediction."""
    kernels = GpuKernels.packaged()
    return [_judged(one, kernels) for one in published]


def _judged(one: Published, kernels: GpuKernels) -> JudgedPass:
    cache = "fp8" if one.dtype == "fp8" else "bf16"
    shape = TransformerShape(**{**asdict(one.model), "dtype": one.dtype, "kv_dtype": cache}).decoder
    device = get_device(one.device)

    def ends(step: Pass) -> tuple[float, ...]:
        cell = serving_cell(shape, step, device, kernels)
        if cell.latency_s is None or cell.low_s is None or cell.high_s is None:
            raise DataError(f"{one.model.name} on {one.device}: {'; '.join(cell.reasons)}")
        return (
            cell.latency_s,
            cell.low_s,
            cell.high_s,
            least_step_s(shape, step.parallel, step.step, device),
        )

    total = np.array(ends(Pass("prefill", one.prompt, one.batch, one.degree)))
    measured_s = one.value
    if one.output > 1:
        total = total + _continued(one, ends)
        measured_s = one.batch * one.output / (one.value * one.degree)
    return JudgedPass(
        one.model.name, one.device, one.dtype, one.batch, one.degree, one.prompt, one.output,
        measured_s, *(float(value) for value in total),
    )  # fmt: skip


def _continued(
    one: Published, ends: Callable[[Pass], tuple[float, ...]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the total seconds of all steps after the first token."""
    steps = np.arange(1, one.output)
    asked = np.unique(np.linspace(1, one.output - 1, _STEPS).astype(int))
    decode = partial(Pass, "decode", batch=one.batch, degree=one.degree)
    found = np.array([ends(decode(one.prompt + int(step))) for step in asked])
    return np.array([np.interp(steps, asked, column).sum() for column in found.T])


def page(rows: Sequence[JudgedPass]) -> str:
    """Returns the Markdown page."""
    groups = {
        "all": list(rows),
        "first token": [row for row in rows if row.output == 1],
        "throughput": [row for row in rows if row.output > 1],
    }
    for device in dict.fromkeys(row.device for row in rows):
        groups[device] = [row for row in rows if row.device == device]
    lines = []
    for name, part in groups.items():
        ratio = np.array([row.predicted_s / row.measured_s for row in part])
        bound = np.array([row.least_s / row.measured_s for row in part])
        held = float(np.mean([row.low_s <= row.measured_s <= row.high_s for row in part]))
        lines.append([
            name, str(len(part)), f"{100 * np.abs(ratio - 1).mean():.1f} / "
            f"{100 * np.median(np.abs(ratio - 1)):.1f}", f"{np.median(ratio):.2f}",
            percent_text(held, 0), f"{100 * np.abs(bound - 1).mean():.1f}",
        ])  # fmt: skip
    return "\n".join([
        "# Passes of transformers in `cdmpp compare`\n",
        "Written by `python -m lab run compare-serving`. Figures that NVIDIA published of "
        "TensorRT-LLM 0.5 and 0.6.1 (2023; docs/source/performance.md of the repository at commit "
        "138f96d), beside the method *serving kernels*, whose kernels were measured with versions "
        "of two years later: prompts of a static batch are read and continued (`output` tokens; "
        "the published throughput as seconds of all of them), or only read (`output` 1, published "
        "in whole milliseconds). Nothing was fitted to them or chosen on them. `bound`: error of "
        "what weights, cache and products take at the least.\n",
        markdown_table(
            ["rows", "n", "error, mean / median (%)", "median predicted / measured",
             "in the 90 % interval", "bound (%)"], lines, "lr",
        ),
        "",
    ])  # fmt: skip


def experiment() -> None:
    """Predicts the published passes and writes the page."""
    rows = judge()
    models = ("pretrained:gpu_kernels", "pretrained:operators")
    found = stamp("python -m lab run compare-serving", models=models)
    values = {"rows": [asdict(row) for row in rows]}
    print(write_page("compare-serving", page(rows), values, found))
