"""The fitted models that come with the package, and the device label they were fitted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.places import package_folder

if TYPE_CHECKING:
    from cdmpp.analytic.conv.layers.closed_form_model import LatentModel


def packaged_conv_model_path() -> Path:
    """Returns the folder of the convolution model that `auto` uses."""
    return package_folder("cdmpp.pretrained") / "conv"


def _as_fitted(closed: LatentModel, spec: DeviceSpec) -> DeviceSpec:
    """Returns the GPU under the label of the same chip that the model was fitted on, if there is
    one.
    """
    from cdmpp.devices.registry import load_registry

    known = load_registry()
    for label in closed.forms:
        other = known.get(label)
        if other is not None and _chip(other) == _chip(spec):
            return replace(spec, name=label)
    return spec


def _chip(spec: DeviceSpec) -> tuple[object, ...]:
    return (
        spec.architecture,
        spec.core_count,
        spec.clock_hz,
        spec.peak_fp32_flop_per_s,
        spec.mem_bandwidth_bytes_per_s,
        spec.l2_bytes,
    )
