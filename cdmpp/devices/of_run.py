"""DeviceSpecs of the training devices of a run folder."""

from __future__ import annotations

from pathlib import Path

from cdmpp.devices.device_file import normal_name
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError
from cdmpp.files.atomic import read_json
from cdmpp.pretrained import model_folder
from cdmpp.text import nearest


def run_specs(folder: Path) -> list[DeviceSpec]:
    """Returns the training devices of a run folder's model, or of `pretrained`.

    Raises:
        DataError: the folder has no complete model.
    """
    path = model_folder(folder) / "model.json"
    hint = "give a finished run folder, or pretrained"
    value = read_json(path, what="trained model", hint=hint)
    try:
        return [DeviceSpec(**spec) for spec in value["devices"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"the trained model {path} is damaged ({error}); {hint}") from None


def run_spec(folder: Path, name: str) -> DeviceSpec:
    """Returns one training device of a run folder's model, by label.

    Raises:
        DeviceError: the model was not trained on this device; the text names the nearest label.
    """
    specs = {spec.name: spec for spec in run_specs(folder)}
    for label, spec in specs.items():
        if normal_name(label) == normal_name(name):
            return spec
    raise DeviceError(
        f"{folder} was not trained on a device {name!r}{nearest(name, specs)}; trained on: "
        f"{', '.join(specs)}; see cdmpp device list --run {folder}"
    )
