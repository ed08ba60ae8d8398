"""Writes the gallery of the page of `cdmpp serve`: kernels scheduled by MetaSchedule for a CPU, and
by DLight for a GPU.

The gallery shows the schedule that the shipped model predicts to be the fastest of 32 draws.

    python scripts/page/gallery.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import cdmpp
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_text
from tvm_helper.compat import te, tirx, topi, tvm
from tvm_helper.tasks.default_schedule import default_schedule
from tvm_helper.tasks.sampling import valid_schedules
from tvm_helper.tasks.target import device_target

FOLDER = Path(__file__).parents[2] / "cdmpp/serve/page/gallery"
CPU, GPU = "epyc-avx2-2c", "a100"
_DRAWS = 32
_INFERRED = re.compile(r"# from|\s*(# with|T\.(reads|writes|sblock_attr)\()")


def matmul() -> Any:
    """Returns a matrix product with a ReLU."""
    a, b = te.placeholder((512, 512), name="A"), te.placeholder((512, 512), name="B")
    k = te.reduce_axis((0, 512), name="k")
    c = te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    zero = tirx.const(0.0, "float32")
    return te.create_prim_func(
        [a, b, te.compute((512, 512), lambda i, j: te.max(c[i, j], zero), name="relu")]
    )


def softmax() -> Any:
    """Returns a softmax over the last of two axes."""
    x = te.placeholder((1024, 1024), name="x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def convolution() -> Any:
    """Returns a 3 x 3 convolution of 64 channels with a ReLU, from ResNet's second stage."""
    x, w = te.placeholder((1, 64, 56, 56), name="x"), te.placeholder((64, 64, 3, 3), name="w")
    return te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))])


def attention() -> Any:
    """Returns attention of 12 heads over 128 tokens."""
    q, k, v = (te.placeholder((12, 128, 64), name=name) for name in "qkv")
    scores = topi.nn.batch_matmul(q, k, transpose_b=True)
    weights = topi.nn.softmax(topi.multiply(scores, tirx.const(0.125, "float32")))
    return te.create_prim_func([q, k, v, topi.nn.batch_matmul(weights, v, transpose_b=False)])


def layer_norm() -> Any:
    """Returns a layer norm of 512 tokens with 768 elements."""
    x = te.placeholder((512, 768), name="x")
    scale, shift = (te.placeholder((768,), name=name) for name in ("scale", "shift"))
    return te.create_prim_func([x, scale, shift, topi.nn.layer_norm(x, scale, shift, axis=[1])])


EXAMPLES: dict[str, tuple[str, Callable[[], Any]]] = {
    "matmul": ("Matmul", matmul), "softmax": ("Softmax", softmax),
    "conv2d": ("Convolution", convolution), "attention": ("Attention", attention),
    "layer_norm": ("Layer norm", layer_norm),
}  # fmt: skip


def main() -> None:
    """Writes the gallery."""
    model = cdmpp.load("pretrained")
    found = []
    for name, (title, make) in EXAMPLES.items():
        forms = [(CPU, drawn(model, name, make(), CPU)), (GPU, by_dlight(name, make()))]
        found.append(entry(name, title, forms))
    tiled = drawn(model, "matmul_tiled", matmul(), GPU)
    found.append(entry("gpu_matmul", "GPU kernel", [(GPU, tiled)]))
    write_text(FOLDER / "gallery.json", json.dumps(found, indent=1) + "\n")


def entry(name: str, title: str, forms: list[tuple[str, str]]) -> dict[str, Any]:
    """Writes the texts of an example and returns its entry for the page."""
    known = []
    for device, text in forms:
        kind = get_device(device).kind
        file = f"{name}.{kind}.txt"
        write_text(FOLDER / file, text)
        known.append({"kind": kind, "file": file, "devices": [device]})
    return {"name": name, "title": title, "forms": known}


def drawn(model: Any, name: str, function: Any, device: str) -> str:
    """Returns the drawn schedule with the lowest predicted latency."""
    schedules = islice(valid_schedules(function, device_target(get_device(device))), _DRAWS)
    texts = [script(name, one.mod) for one in schedules]
    rows = [(row, text) for text in texts for row in model.predict(text, device=[device])]
    known = [(row.latency_s, row, text) for row, text in rows if row.latency_s is not None]
    if not known:
        raise DataError(f"{name} on {device}: no schedule has a latency ({rows[0][0].reason})")
    _, row, text = min(known, key=lambda one: one[0])
    print(name, device, row.latency_s, row.low_s, row.high_s, row.out_of_distribution)
    return text


def by_dlight(name: str, function: Any) -> str:
    """Returns the function as TVM's default rules schedule it for the GPU."""
    schedule = default_schedule(tvm.IRModule({"main": function}), device_target(get_device(GPU)))
    return script(name, schedule.mod)


def script(name: str, module: Any) -> str:
    """Returns a module's function as text, under a name, without lines that TVM infers."""
    lines = module["main"].with_attr("global_symbol", name).script().splitlines()
    return "".join(f"{line}\n" for line in lines if line and not _INFERRED.match(line))


if __name__ == "__main__":
    main()
