"""Whole blocks of latent attention: the sum of their kernels beside measured blocks.

Data: llm-kernels, `mla_context_module` and `mla_generation_module`: DeepSeek-V3's attention with
its projections, on one rank. The kernel models were fitted on single kernels, never on blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.comparison.llm.config_file import read_model
from cdmpp.comparison.llm.decoder import Decoder, Format, Formats, Parallel
from cdmpp.comparison.llm.kernels import ServingStep
from cdmpp.comparison.llm.times import step_times
from cdmpp.devices.registry import get_device
from cdmpp.text import markdown_table
from lab.pages import write_page
from lab.paths import shared
from lab.stamp import stamp

#: The newest measured versions; predictions are for their kernels.
_VERSIONS = {"trtllm": "1.3.0rc20", "vllm": "0.24.0"}
_PHASES = {"mla_context_module": "prefill", "mla_generation_module": "decode"}
_FORMATS: Mapping[str, Format] = {"fp8_block": "fp8_block", "bfloat16": "bf16", "nvfp4": "fp4"}
#: Operators of a layer that belong to a measured block.
_PARTS = (
    "latents", "queries", "keys and values", "into the latent and back", "rotation and cache",
    "attention", "attention's output",
)  # fmt: skip
_HEADS = 128
_ROWS = 200
#: Blocks of at least this many seconds are GPU-bound in every framework.
_LONG_S = 1e-3
_SAME = ("system", "framework", "gemm_type", "kv_cache_dtype", "num_heads")
Block = tuple[dict[str, Any], float]


def blocks() -> list[dict[str, Any]]:
    """Returns up to `_ROWS` measured blocks per framework, system and phase, drawn with seed 0."""
    import pyarrow.parquet as parquet

    rows = parquet.read_table(shared("llm-kernels/mla.parquet")).to_pylist()
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["table"] in _PHASES and row["version"] == _VERSIONS[row["framework"]]:
            key = row["framework"], row["system"], row["table"]
            groups.setdefault(key, []).append(row)
    rng = np.random.default_rng(0)
    return [
        group[place]
        for _, group in sorted(groups.items())
        for place in rng.permutation(len(group))[:_ROWS].tolist()
    ]


def predicted(rows: Sequence[dict[str, Any]]) -> Iterator[Block]:
    """Yields every block with the predicted seconds of its kernels."""
    model, kernels = read_model("deepseek-ai/DeepSeek-V3"), GpuKernels.packaged()
    layer = replace(model.layers[0], count=1)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _SAME), []).append(row)
    for (system, framework, products, cache, heads), group in groups.items():
        one = _decoder(replace(model, layers=(layer,)), products, cache)
        steps = [_step(row) for row in group]
        parallel = Parallel(_HEADS // heads)
        found = step_times(one, parallel, steps, get_device(system), kernels, framework)
        for row, time in zip(group, found, strict=True):
            yield row, sum(part.seconds for part in time.operators if part.what in _PARTS)


def _decoder(model: Decoder, products: str, cache: str) -> Decoder:
    format = _FORMATS[products]
    formats = Formats(format, format, format)
    return replace(model, formats=formats, kv_dtype="fp8" if cache == "fp8" else "bf16")


def _step(row: Mapping[str, Any]) -> ServingStep:
    if _PHASES[row["table"]] == "prefill":
        return ServingStep(prompts=row["batch_size"], chunk=row["isl"], past=row["step"])
    return ServingStep(sequences=row["batch_size"], context=row["step"] + 1)


def _line(name: Sequence[str], found: Sequence[Block]) -> list[str]:
    taken = np.array([row["latency_s"] for row, _ in found])
    ratio = np.array([seconds for _, seconds in found]) / taken
    error = 100 * np.abs(ratio - 1.0)
    shown = [
        f"{part.mean():.1f} / {np.median(part):.1f}" if len(part) else "-"
        for part in (error, error[taken >= _LONG_S])
    ]
    return [*name, str(len(found)), shown[0], f"{np.median(ratio):.2f}", shown[1]]


def experiment() -> None:
    """Predicts blocks and writes the page."""
    found = list(predicted(blocks()))
    titles = ["software", "phase", "GPU", "n", "error", "predicted / measured", "of 1 ms and more"]
    lines = []
    for software in _VERSIONS:
        for phase in _PHASES.values():
            part = [
                one for one in found
                if one[0]["framework"] == software and _PHASES[one[0]["table"]] == phase
            ]  # fmt: skip
            lines.append(_line((software, phase, "all"), part))
            for system in sorted({row["system"] for row, _ in part}):
                own = [one for one in part if one[0]["system"] == system]
                lines.append(_line((software, phase, system), own))
    text = "\n".join([
        "# Whole blocks of latent attention\n",
        "The sum of a block's kernels beside the measured block, mean / median error in percent. "
        f"At most {_ROWS} blocks of each line's GPU, drawn with seed 0.\n",
        markdown_table(titles, lines, "lllr"),
        "",
    ])  # fmt: skip
    stamped = stamp("python -m lab run mla-blocks", models=("pretrained:gpu_kernels",))
    print(write_page("mla-blocks", text, {}, stamped))
