"""Work of hyper-connections: copies of a token are mixed into one and spread again."""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import (
    ChipRows,
    Columns,
    KernelWork,
    is_word,
    logs,
    memory_limits,
    number,
)

#: Parts of a layer with hyper-connections: attention and feed-forward.
_PARTS = 2.0
_BYTES = 2.0
#: Kernels per part: `pre` has weights of the mixture with their norm, Sinkhorn's steps, and the
#: mixture; `post` has only the mixture.
_PRE_KERNELS, _POST_KERNELS = 3.0, 1.0
_KERNEL_S = 3.0e-6


def hyper_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of a layer's hyper-connections (`HyperConnections`)."""
    tokens, hidden, streams = (number(columns, name) for name in ("tokens", "hidden", "streams"))
    is_post = is_word(columns, "step", "post")
    elements = tokens * hidden
    moved = _PARTS * _BYTES * elements * np.where(is_post, 2.0 * streams + 1.0, streams + 1.0)
    mixed = np.where(is_post, streams, streams * (streams + 2.0))
    flops = _PARTS * 2.0 * elements * streams * mixed
    limits = {
        "compute": flops / chip["bf16_flop_per_s"], **memory_limits(moved, chip),
        "launch": chip["least_s"],
    }  # fmt: skip
    kernels = _PARTS * np.where(is_post, _POST_KERNELS, _PRE_KERNELS)
    waves = np.ceil(tokens / chip["core_count"])
    return KernelWork(
        limits,
        terms={
            "memory": moved / chip["dram_bytes_per_s"], "mixture": flops / chip["fp32_flop_per_s"],
            "kernels": kernels * _KERNEL_S,
        },
        prior={"memory": 1.2, "mixture": 0.5, "kernels": 1.0},
        launch_s=2.0e-6,
        fade=0.5,
        times={"cache": limits["cache"]},
        inputs={
            **logs(
                tokens=tokens, hidden=hidden, waves=waves, fits=moved / chip["l2_bytes"],
                moved=moved,
            ),
            "is_post": np.asarray(is_post, np.float64),
            "release": number(columns, "release"),
        },
        size=moved,
    )  # fmt: skip
