"""Requested devices: labels of the model or the registry, specs, or files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.registry import (
    THIS_CPU,
    find_device,
    get_device,
    load_registry,
    unknown_text,
)
from cdmpp.devices.spec import DeviceSpec, same_architecture
from cdmpp.errors import DeviceError, UsageError
from cdmpp.predict.saved_model import ModelCard


def asked_devices(
    devices: Iterable[str | DeviceSpec],
    descriptions: Iterable[Path],
    card: ModelCard,
    *,
    of_any_kind: bool = False,
) -> list[DeviceSpec]:
    """Returns the requested devices.

    Without a request, they are the described devices that the model was trained for, or its only
    device.

    Args:
        devices: labels or specs.
        descriptions: device files.
        of_any_kind: whether to accept kinds of devices that the model was not trained on.

    Raises:
        DeviceError: as `asked_device`, `check_kinds` and `described_devices`.
        UsageError: two devices have the same label; or no device is given and the model has
            several.
    """
    found = labelled_devices(list(devices), card, of_any_kind=of_any_kind)
    specs = [one for place, one in enumerate(found) if one not in found[:place]]
    for path in descriptions:
        specs += described_devices(path, card)
    if not of_any_kind:
        check_kinds(specs, card)
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise UsageError(
            f"a device is given twice: got {', '.join(names)}, expected different labels"
        )
    if not specs and card.described:
        return list(card.described)
    if not specs and len(card.devices) != 1:
        raise UsageError(
            f"choose devices with --device LABEL or --device-spec FILE{_this_machine(card)}; the "
            f"model was trained on {', '.join(spec.name for spec in card.devices)}"
        )
    return specs or list(card.devices)


def _this_machine(card: ModelCard) -> str:
    """Returns the labels of the CPU of this machine, as a part of a sentence; "" if the model knows
    no CPU.
    """
    if all(one.kind != "cpu" for one in card.devices):
        return ""
    try:
        spec = get_device(THIS_CPU)
    except DeviceError:
        return ""
    akin = " or ".join(same_architecture(spec, card.devices)) or THIS_CPU
    return f" (this machine's CPU: {akin})"


def asked_device(name: str, card: ModelCard) -> DeviceSpec:
    """Returns the device of a label or alias, with its label in the registry as its name.

    Values that the model was trained with override those of the registry.

    Raises:
        DeviceError: as `labelled_devices`.
    """
    return labelled_devices([name], card)[0]


def labelled_devices(
    devices: Sequence[str | DeviceSpec], card: ModelCard, *, of_any_kind: bool = False
) -> list[DeviceSpec]:
    """Returns devices of labels or specs, in order (see `asked_device`).

    Raises:
        DeviceError: labels are unknown to the model and the registry; or as `check_kinds`.
    """
    trained = {spec.name: spec for spec in (*card.described, *card.devices)}
    labels = [one for one in devices if isinstance(one, str)]
    found = {label: trained.get(label) or find_device(label) for label in labels}
    unknown = [label for label, spec in found.items() if spec is None]
    if unknown:
        raise DeviceError(
            f"{unknown_text(unknown, {*trained, *load_registry()})} (all: cdmpp device list); "
            "hardware may also be described in a YAML file: --device-spec FILE"
        )
    known = {label: trained.get(spec.name, spec) for label, spec in found.items() if spec}
    if not of_any_kind:
        check_kinds(known.values(), card)
    return [known[one] if isinstance(one, str) else _asked_spec(one, card) for one in devices]


def check_kinds(devices: Iterable[DeviceSpec], card: ModelCard) -> None:
    """Checks that a model was trained on the kinds (CPU, GPU) of devices.

    Raises:
        DeviceError: the model was not trained on the kind of a device.
    """
    trained = (*card.devices, *card.described)
    kinds = {one.kind for one in trained}
    for spec in devices:
        if kinds and spec.kind not in kinds:
            names = [one.name for one in trained]
            listed = ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")
            article = "an" if spec.kind == "accelerator" else "a"
            other = ", or another model (--model pretrained was trained on both kinds)"
            raise DeviceError(
                f"{spec.name} is {article} {spec.kind}, and the model was trained on no "
                f"{spec.kind}, only on {listed}. Choose a {' or '.join(sorted(kinds))}"
                f"{'' if spec.kind == 'accelerator' else other}"
            )


def _asked_spec(spec: DeviceSpec, card: ModelCard) -> DeviceSpec:
    """Returns a spec; that of a trained device in the registry becomes the one in the card."""
    trained = {one.name: one for one in card.devices}
    if spec.name not in trained:
        return spec
    if spec not in (trained[spec.name], find_device(spec.name)):
        raise _taken(spec.name)
    return trained[spec.name]


def _taken(name: str, where: str = "") -> DeviceError:
    return DeviceError(
        f"{where}{name!r} is a device that the model was trained on; expected a new label for "
        f"unseen hardware, or --device {name}"
    )


def described_devices(path: Path, card: ModelCard) -> list[DeviceSpec]:
    """Returns the devices of a user's file, which describes unseen hardware.

    Raises:
        DeviceError: the file is invalid, or uses the label of a trained device.
    """
    specs = list(read_device_file(path).devices.values())
    if not specs:
        raise DeviceError(f"{path}: no device found; expected `devices`, label -> fields")
    trained = {spec.name for spec in card.devices}
    for spec in specs:
        if spec.name in trained:
            raise _taken(spec.name, f"{path}: ")
    return specs
