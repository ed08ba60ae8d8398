"""Ten common operators on four GPUs beside their lower bounds, for a check by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from cdmpp.devices.registry import get_device
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.least_time import least_seconds
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.text import interval_text, markdown_table, seconds_text
from lab.pages import write_page
from lab.stamp import stamp

DEVICES = ("h100", "a100", "t4", "mi300x")


class _Call(nn.Module):
    """Calls one function or module on its inputs."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, first: Tensor, second: Tensor | None = None) -> Any:
        return self.call(first) if second is None else self.call(first, second)


def _operators() -> list[tuple[str, Callable[..., Any], int, Sequence[tuple[int, ...]]]]:
    """Returns (name, callable, batch, shapes of the inputs without the batch)."""
    image, token = (64, 56, 56), (1024, 1024)
    attend = nn.functional.scaled_dot_product_attention
    return [
        ("mm, 4096 x 4096 x 4096", lambda a, b: a @ b, 4096, [(4096,), (4096,)]),
        ("bmm, 64 of 512 x 512 x 512", lambda a, b: a.bmm(b), 64, [(512, 512)] * 2),
        ("Linear, 1024 to 4096, 8 x 1024 tokens", nn.Linear(1024, 4096), 8, [token]),
        ("convolution 3x3, 64 to 64, 32 x 56x56", nn.Conv2d(64, 64, 3, padding=1), 32, [image]),
        ("depthwise convolution 3x3, 64, 32 x 56x56",
         nn.Conv2d(64, 64, 3, padding=1, groups=64), 32, [image]),
        ("transposed convolution 2x2, 64 to 32, 32 x 56x56",
         nn.ConvTranspose2d(64, 32, 2, stride=2), 32, [image]),
        ("attention, 8 x 16 heads of 64, 1024 tokens", lambda a, b: attend(a, b, b), 8,
         [(16, 1024, 64)] * 2),
        ("layer norm, 8 x 1024 x 1024", nn.LayerNorm(1024), 8, [token]),
        ("softmax, 8 x 1024 x 1024", nn.Softmax(-1), 8, [token]),
        ("LSTM 512 to 512, 16 x 128 steps", nn.LSTM(512, 512, batch_first=True), 16, [(128, 512)]),
    ]  # fmt: skip


def experiment() -> None:
    """Predicts the operators in float32 as eager torch runs them; writes the page."""
    predictor, rows, values = NetworkPredictor.load(), [], []
    for name, call, batch, shapes in _operators():
        graph = torch_graph(_Call(call), shapes, batch=batch, name=name)
        for one in predictor.predict([graph], DEVICES):
            if one.mode == "infer":
                time_s, bound_s = one.time_s, least_seconds(graph, get_device(one.device))
                assert time_s.value is not None
                cells = (time_s.value, time_s.low, time_s.high)
                share = bound_s / time_s.value
                rows.append([
                    name, one.device, interval_text(*cells), seconds_text(bound_s), f"{share:.2f}",
                    one.method,
                ])  # fmt: skip
                values.append(
                    {"operator": name, "device": one.device, "s": cells, "bound_s": bound_s}
                )
    titles = ["operator", "device", "time [interval]", "bound", "bound / time", "answered by"]
    text = (
        "# Ten operators on four GPUs\n\nFloat32, as eager torch runs them, beside the least time "
        "that each can take (`docs/explanation/lower-bounds.md`). Nothing is run: no number is a "
        "measurement.\n\n" + markdown_table(titles, rows)
    )
    found = stamp("python -m lab run hand-check")
    print(write_page("hand-check", text, {"rows": values}, found))
