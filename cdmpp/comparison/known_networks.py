"""Torch networks shipped as recorded operator graphs.

`python scripts/page/samples.py` records them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace

from cdmpp.errors import UsageError
from cdmpp.files.places import package_folder
from cdmpp.files.stored import from_json
from cdmpp.networks.graph.graph import NetworkGraph

#: Name -> name of its graph files, without the batch.
KNOWN_NETWORKS: Mapping[str, str] = {
    "ResNet-50": "resnet50", "ViT-B/16": "vit_b", "BERT-large": "bert_large",
}  # fmt: skip
BATCHES = (1, 8, 32)


def known_graph(name: str, batch: int) -> NetworkGraph:
    """Returns the graph of a shipped network.

    Raises:
        UsageError: the network is not shipped, or not at this batch.
    """
    if name not in KNOWN_NETWORKS:
        raise UsageError(
            f"no shipped network {name[:100]!r}; expected one of {', '.join(KNOWN_NETWORKS)}"
        )
    if batch not in BATCHES:
        raise UsageError(f"{name} is shipped at batch {', '.join(map(str, BATCHES))}, not {batch}")
    folder = package_folder("cdmpp.comparison") / "networks"
    file = folder / f"{KNOWN_NETWORKS[name]}-{batch}.json.gz"
    graph = from_json(NetworkGraph, json.loads(gzip.decompress(file.read_bytes())))
    return replace(graph, name=name)
