"""Times and algorithms of layers, from a model of kernels or one of layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdmpp.analytic.conv.layers.model import (
    LayerModel,
    LayerPrediction,
    load_layers_model,
    packaged_layers_path,
)
from cdmpp.analytic.conv.layers.table import NO_ALGORITHM, LayerTable
from cdmpp.analytic.conv.seer.model import SeerModel, load_seer, type_name
from cdmpp.analytic.conv.shapes import ConvShapes, IntArray
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.pretrained import PRETRAINED


def load_model(path: Path | str) -> SeerModel | LayerModel:
    """Returns the model of a file (kernels) or a folder (layers); `pretrained` is the packaged one.

    Raises:
        DataError: there is none, or of another version.
    """
    path = packaged_layers_path() if str(path) == PRETRAINED else Path(path)
    return load_layers_model(path) if path.is_dir() else load_seer(path)


def predict_layers(
    model: SeerModel | LayerModel, shapes: ConvShapes, device: str | None
) -> LayerPrediction:
    """Returns what a model says of layers.

    Args:
        device: label; None = the one that a model of kernels was fitted on.

    Raises:
        UsageError: a model of layers needs a device, one of kernels has its own.
        DeviceError: the device is not known.
    """
    if isinstance(model, SeerModel):
        if device is not None and get_device(device).name != model.device:
            raise UsageError(f"the model was fitted on {model.device!r}; got --device {device}")
        found = model.predict(shapes)
        return LayerPrediction(found.layer_ms, found.pick, found.time_ms, found.pick_type)
    if device is None:
        raise UsageError("no device: give --device NAME; list them: cdmpp device list --kind gpu")
    size = len(shapes)
    unknown = np.full(size, NO_ALGORITHM, np.int64)
    table = LayerTable(
        shapes, (get_device(device),), np.zeros(size, np.int64), np.ones(size), unknown,
        np.zeros(size),
    )  # fmt: skip
    return model.predict(table)


def limit_shares(found: LayerPrediction, count: IntArray) -> dict[str, dict[str, float]]:
    """Returns what limits the kernels -> its share of the layers and of their time.

    Args:
        count: int64 [R], how often each layer occurs.
    """
    kind, time_ms = found.kernel_type, found.time_ms * count
    return {
        type_name(int(value)): {
            "layer_share": float(count[kind == value].sum() / count.sum()),
            "time_share": float(time_ms[kind == value].sum() / time_ms.sum()),
        }
        for value in np.unique(kind)
    }
