"""Work of exchanges between ranks (tokens to their experts and back, one-shot all-reduces) and of
scaling a matrix to fp8.
"""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import (
    ChipRows,
    Columns,
    KernelWork,
    flags,
    is_word,
    logs,
    memory_limits,
    number,
)
from cdmpp.analytic.gpu_kernels.serving_calls import (
    DIRECT_LINK_BYTES_PER_S,
    EXCHANGE_MODES,
    NODE_RANKS,
)

#: Bytes per second from a rank to other nodes (400 Gb/s).
_NETWORK_BYTES_PER_S = 50e9
#: Bytes per second that one multiprocessor copies over the links.
_CORE_BYTES_PER_S = 15e9
#: Seconds that a GPU waits for each other GPU over PCIe.
_ROUND_S = 3e-6
#: Bytes per element of a conversion to fp8: read in 16 bits, written in 8.
_SCALED_BYTES = 3.0


def exchange_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of DeepEP's dispatch and combine (`MoeExchange`).

    In normal mode a token goes once to every rank with one of its experts, over the network once to
    every node; in low-latency mode once to every expert. The lower bound sends each token once in 8
    bits, half of the tokens to other ranks.
    """
    tokens, hidden, top_k, experts, nodes, cores = (
        number(columns, name)
        for name in ("tokens", "hidden", "top_k", "experts", "nodes", "multiprocessors")
    )
    is_back, is_ll = is_word(columns, "step", "combine"), is_word(columns, "mode", "low_latency")
    reached, reached_nodes = (
        np.where(is_ll, top_k, places * (1.0 - (1.0 - 1.0 / places) ** top_k))
        for places in (NODE_RANKS * nodes, nodes)
    )
    once = tokens * hidden * np.where(is_back, 2.0, 1.0)
    sent, far = once * reached, once * reached_nodes * (nodes - 1.0) / nodes
    limits = {
        "link": tokens * hidden * 0.5 / chip["link_bytes_per_s"],
        "launch": chip["least_s"],
    }
    used = np.where(cores > 0, cores, chip["core_count"])
    return KernelWork(
        limits,
        terms={
            "link": sent / chip["link_bytes_per_s"], "cores": sent / (used * _CORE_BYTES_PER_S),
            "network": far / _NETWORK_BYTES_PER_S,
        },
        prior={"link": 1.2, "cores": 0.8, "network": 1.0},
        launch_s=25.0e-6,
        fade=0.5,
        times={"floor": np.maximum.reduce(list(limits.values()))},
        inputs={
            **logs(
                tokens=tokens, hidden=hidden, top_k=top_k, experts=experts, nodes=nodes,
                reached=reached,
            ),
            "is_back": np.asarray(is_back, np.float64),
            "release": number(columns, "release"),
            **flags(columns["mode"], EXCHANGE_MODES),
        },
        size=sent,
    )  # fmt: skip


def one_shot_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of the frameworks' own all-reduces (`OneShotReduce`): each GPU reads the
    tensors of all others, or parts of them for large tensors.
    """
    size, gpus = number(columns, "message_bytes"), number(columns, "gpus")
    link = chip["link_bytes_per_s"]
    is_switched = np.asarray(link > DIRECT_LINK_BYTES_PER_S, np.float64)
    limits = {"link": size / link, "launch": chip["least_s"]}
    return KernelWork(
        limits,
        terms={
            "once": size * (gpus - 1.0) / link, "ring": 2.0 * size * (gpus - 1.0) / gpus / link,
            "rounds": (1.0 - is_switched) * (gpus - 1.0) * _ROUND_S,
        },
        prior={"once": 0.3, "ring": 1.0, "rounds": 1.0},
        launch_s=6.0e-6,
        fade=0.5,
        times={"memory": size * gpus / chip["dram_bytes_per_s"]},
        inputs={
            **logs(gpus=gpus, size=size, link=link, chunk=size / gpus),
            "is_switched": is_switched,
            "release": number(columns, "release"),
        },
        size=size,
    )  # fmt: skip


def quantize_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of converting a 16-bit matrix to fp8 (`QuantizeMatrix`)."""
    rows, cols = number(columns, "rows"), number(columns, "columns")
    moved = _SCALED_BYTES * rows * cols
    limits = {**memory_limits(moved, chip), "launch": chip["least_s"]}
    waves = np.ceil(rows / chip["core_count"])
    turns = waves * _SCALED_BYTES * cols / (chip["l2_bytes_per_s"] / chip["core_count"])
    return KernelWork(
        limits,
        terms={"memory": limits["memory"], "turns": turns},
        prior={"memory": 1.1, "turns": 0.5},
        launch_s=2.0e-6,
        fade=0.5,
        times={"cache": limits["cache"]},
        inputs={
            **logs(rows=rows, cols=cols, waves=waves, fits=moved / chip["l2_bytes"], moved=moved),
            "release": number(columns, "release"),
        },
        size=moved,
    )
