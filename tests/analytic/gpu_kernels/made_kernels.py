"""Tables of kernels in the files' layout, with times that a rule made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import KernelWork
from cdmpp.analytic.gpu_kernels.calls import FAMILIES
from cdmpp.analytic.gpu_kernels.families import work_of_rows
from cdmpp.analytic.gpu_kernels.table import FILES, read_kernels
from cdmpp.devices.registry import get_device
from cdmpp.files.atomic import write_columns

SYSTEMS = ("a100_sxm", "b200_sxm", "h100_sxm")
_ROWS = 390


def write_kernels(folder: Path, *, slower: float = 1.3, systems: Sequence[str] = SYSTEMS) -> Path:
    """Writes the four files; every call takes `slower` times its time by the prior."""
    rng = np.random.default_rng(0)
    system = np.array(systems)[np.arange(_ROWS) % len(systems)]
    facts = {
        "system": system, "framework": np.full(_ROWS, "TRTLLM"), "version": np.full(_ROWS, "1.0"),
    }  # fmt: skip

    def powers(low: int, high: int) -> np.ndarray:
        return 2 ** rng.integers(low, high, _ROWS)

    attention = {
        "num_heads": np.full(_ROWS, 32), "num_key_value_heads": np.full(_ROWS, 8),
        "head_dim": np.full(_ROWS, 128), "window_size": np.zeros(_ROWS, np.int64),
        "attn_dtype": np.full(_ROWS, "bfloat16"), "kv_cache_dtype": np.full(_ROWS, "bfloat16"),
    }  # fmt: skip
    columns = {
        "gemm": {
            "m": powers(0, 13), "n": powers(8, 14), "k": powers(8, 14),
            "gemm_dtype": np.full(_ROWS, "bfloat16"),
        },
        "prefill": {
            "batch_size": powers(0, 5), "isl": powers(5, 13), "step": np.zeros(_ROWS, np.int64),
            **attention,
        },
        "decode": {"batch_size": powers(0, 9), "step": powers(4, 14) - 1, **attention},
        "collective": {
            "op_name": np.array(["all_reduce", "all_gather"])[rng.integers(0, 2, _ROWS)],
            "message_size": powers(9, 28), "num_gpus": powers(1, 4),
            "nccl_dtype": np.array(["half", "int8"])[rng.integers(0, 2, _ROWS)],
        },
    }  # fmt: skip
    known = {get_device(name).name: get_device(name) for name in systems}
    for family in FAMILIES:
        content = {**columns[family], **facts, "latency_s": np.ones(_ROWS)}
        write_columns(folder / FILES[family], content)
        table = read_kernels(folder, family)
        work = work_of_rows(family, table.columns, table.device, known)
        write_columns(folder / FILES[family], {**content, "latency_s": slower * prior_s(work)})
    return folder


def prior_s(work: KernelWork) -> np.ndarray:
    """Returns the seconds of a launch and the terms, weighted as nobody who measured would."""
    return work.launch_s + sum(work.prior[name] * term for name, term in work.terms.items())
