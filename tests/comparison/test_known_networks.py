"""Networks that come along are those that their code makes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")

import torch

from cdmpp.comparison.known_networks import BATCHES, KNOWN_NETWORKS, known_graph
from cdmpp.errors import UsageError
from cdmpp.networks.graph.torch_graph import torch_graph
from examples.networks import bert_large, resnet50

_FACTORIES = {
    "ResNet-50": (resnet50, (3, 224, 224), None),
    "BERT-large": (bert_large, (384,), [torch.int64]),
}


@pytest.mark.parametrize(
    "name", ["ResNet-50", pytest.param("BERT-large", marks=pytest.mark.exhaustive)]
)
def test_a_graph_is_what_its_code_makes(name: str) -> None:
    factory, shape, dtypes = _FACTORIES[name]
    made = torch_graph(
        factory(), [shape], batch=8, name=name, dtypes=dtypes, in_both_layouts=True, method="fx"
    )
    assert known_graph(name, 8).graph_id == made.graph_id


def test_all_of_them_are_there() -> None:
    for name in KNOWN_NETWORKS:
        graphs = [known_graph(name, batch) for batch in BATCHES]
        assert [(one.name, one.batch) for one in graphs] == [(name, batch) for batch in BATCHES]
        flop = [one.flops.sum() / one.batch for one in graphs]
        assert flop == pytest.approx([flop[0]] * 3, rel=1e-3)
    for name, batch, text in (("ResNet-51", 1, "expected one of"), ("ResNet-50", 2, "not 2")):
        with pytest.raises(UsageError, match=text):
            known_graph(name, batch)
