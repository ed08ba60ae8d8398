"""What autocast makes of operators, beside torch's own lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from cdmpp.errors import UsageError
from cdmpp.networks.graph.execution import Execution, Running
from cdmpp.networks.graph.operator import kind_name
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.graph.torch_names import function_name
from cdmpp.networks.kernels.element_types import FLOAT32, LOWER_PRECISION, element_types

#: Kinds of ours, and what torch calls them in its lists.
_OWN = {
    "Conv": "conv2d", "ConvTranspose": "conv_transpose2d", "Gemm": "linear", "MatMul": "matmul",
    "Lstm": "lstm_cell", "Gru": "gru_cell", "Rnn": "rnn_tanh_cell", "Interpolate":
    "upsample_bilinear2d", "Upsample": "upsample_nearest2d", "MultiHeadAttention":
    "scaled_dot_product_attention", "CrossEntropy": "nll_loss",
}  # fmt: skip
#: Functions of torch.nn.functional that call one of the lists' operators.
_CALLS = {"Normalize": "linalg_vector_norm"}


def _torch_list(name: str) -> set[str]:
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text()
    start = text.index(f"#define {name}(_)")
    body = text[start : text.index("\n\n", start)]
    return set(re.findall(r"_\((?:ADD_NS\()?(\w+)", body)) - {"_"}


@pytest.mark.parametrize(
    ("kinds", "lists"),
    [
        (LOWER_PRECISION, ["AT_FORALL_LOWER_PRECISION_FP"]),
        (
            FLOAT32,
            [
                "AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE",
                "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
            ],
        ),
    ],
)  # fmt: skip
def test_every_kind_is_in_torchs_list(kinds, lists) -> None:
    listed = set().union(*map(_torch_list, lists))
    for kind in kinds:
        names = {_OWN.get(kind), _CALLS.get(kind)} | {
            name for name in listed if kind_name(function_name(name)) == kind
        }
        assert names & listed, f"{kind} is in none of torch's lists"


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.norm(x)
        return x + torch.relu(self.linear(x))


def test_autocast_types_of_a_block() -> None:
    graph = torch_graph(_Block, [(4, 8)], batch=2, name="block")
    types = element_types(graph, Execution("amp-fp16"))
    by_kind = dict(zip(graph.kinds, types.makes.tolist(), strict=True))
    assert by_kind == {"LayerNorm": 4, "Gemm": 2, "Relu": 2, "Add": 4}
    for dtype, width in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        assert set(element_types(graph, Execution(dtype)).makes.tolist()) == {width}


def test_a_request_and_the_weights_have_to_agree() -> None:
    running = Running("amp-fp16", "nhwc", compiled=True)
    found = running.execution("net", "float32", is_compiled=False, mode="train")
    assert found == Execution("amp-fp16", "nhwc", compiled=True, mode="train")
    assert found.text == "amp-fp16, channels_last, compiled"
    assert Running().execution("net", "float16", is_compiled=True, mode="infer") == Execution(
        "float16", compiled=True
    )
    with pytest.raises(UsageError, match="weights are float16, and amp-fp16 was requested"):
        running.execution("net", "float16", is_compiled=False, mode="infer")
    with pytest.raises(UsageError, match="dtype is 'int8', expected one of float32"):
        Execution("int8")  # type: ignore[arg-type]
