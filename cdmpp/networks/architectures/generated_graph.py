"""Operator graph of a generated architecture, without running it."""

from __future__ import annotations

import torch

from cdmpp.networks.architectures.build import build_module, input_shapes
from cdmpp.networks.architectures.spec import ArchitectureSpec
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.torch_graph import torch_graph


def generated_graph(spec: ArchitectureSpec, *, batch: int) -> NetworkGraph:
    """Returns the graph of a batch in training mode, in which normalisation is an operator."""
    with torch.device("meta"):
        module = build_module(spec)
    name = f"{spec.family}-{spec.architecture_id}"
    return torch_graph(module, input_shapes(spec), batch=batch, name=name)
