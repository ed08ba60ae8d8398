"""Work of a collective: bytes over the links, and sequential rounds."""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import (
    ChipRows,
    Columns,
    KernelWork,
    flags,
    is_word,
    logs,
    number,
)
from cdmpp.analytic.gpu_kernels.calls import COLLECTIVES

#: Seconds of a round of messages.
_ROUND_S = 1.0e-6
_PRIOR = {"ring": 1.3, "rounds": 1.5}
_LAUNCH_S = 6.0e-6
_FADE = 0.5


def collective_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of collectives (`Collective`).

    The lower bound of an all-reduce is one transfer of the tensor: a switch may reduce in transit.
    """
    size, gpus = number(columns, "message_bytes"), number(columns, "gpus")
    is_reduce = is_word(columns, "kind", "all_reduce")
    sent = size * (gpus - 1.0) / gpus
    rounds = (gpus - 1.0) * np.where(is_reduce, 2.0, 1.0)
    ring = sent * np.where(is_reduce, 2.0, 1.0) / chip["link_bytes_per_s"]
    limits = {
        "link": np.where(is_reduce, size, sent) / chip["link_bytes_per_s"],
        "launch": chip["least_s"],
    }
    return KernelWork(
        limits,
        terms={"ring": ring, "rounds": rounds * _ROUND_S},
        prior=_PRIOR,
        launch_s=_LAUNCH_S,
        fade=_FADE,
        times={"memory": size / chip["dram_bytes_per_s"]},
        inputs={
            **logs(gpus=gpus, size=size, chunk=size / gpus, link=chip["link_bytes_per_s"]),
            **flags(columns["kind"], COLLECTIVES),
        },
        size=size,
    )
