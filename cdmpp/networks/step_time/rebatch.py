"""A network at any batch size, from two traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.errors import DataError
from cdmpp.networks.graph.graph import NetworkGraph


def at_batch(first: NetworkGraph, second: NetworkGraph, batch: int) -> NetworkGraph:
    """Returns the network at a batch size: every number of an operator is a constant and a part
    that grows with the batch, and two traces tell both. Accounts are left out.

    Raises:
        DataError: traces of one batch size, or of different operators.
    """
    if first.batch == second.batch or first.kinds != second.kinds:
        raise DataError(
            f"{first.name}: two traces of batch {first.batch} and {second.batch} with "
            f"{len(first.kinds)} and {len(second.kinds)} operators, expected two batch sizes and "
            "the same operators"
        )
    if not np.array_equal(first.edges, second.edges):
        raise DataError(f"{first.name}: its operators are connected differently at another batch")
    share = (batch - first.batch) / (second.batch - first.batch)
    memory = first.memory + share * (second.memory - first.memory)
    flops = first.flops + share * (second.flops - first.flops)
    copies = first.copies + share * (second.copies - first.copies)
    return replace(first, batch=batch, memory=memory, flops=flops, copies=copies, accounts=())
