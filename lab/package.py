"""Packages a finished run as a shipped model, with a licence check and a model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import read_json, replaced_folder, write_json
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.saved_model import save_model

CARD = "card.json"
#: Maximum size of all packaged models together.
MOST_BYTES = 25 * 1000 * 1000

_OWN = "own measurements, shipped with this package under its licence (Apache-2.0)"
_MIT = "artifact of Roller (OSDI 2022), MIT licence"
_BENNU = "MetaSchedule database of lac-dcc/bennu, MIT licence"
#: Device label -> licence of its measurements; weights trained on other devices may not be shipped.
LICENCES = {
    **{
        f"{cpu}-{isa}-{threads}": _OWN
        for cpu in ("epyc", "xeon")
        for isa in ("avx2", "avx512")
        for threads in ("1c", "2c")
    },
    **dict.fromkeys(("v100", "k80", "mi50"), _MIT),
    "zen3-avx2-1c": _OWN,
    "icelake-avx512-1c": _OWN,
    "h200": _OWN,
    "a100": _BENNU,
}


def shippable(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the labels of devices whose measurements a shipped model may be trained on, and the
    other labels.

    Raises:
        DataError: no device may be used.
    """
    allowed = [label for label in labels if label in LICENCES]
    if not allowed:
        raise DataError(
            f"none of the devices {', '.join(labels)} may train a shipped model; expected some of "
            f"{', '.join(LICENCES)}"
        )
    return allowed, [label for label in labels if label not in LICENCES]


def shippable_samples(
    folder: Path, programs_per_device: int, *, seed: int
) -> tuple[Samples, list[str]]:
    """Returns the samples of an extracted dataset on which a shipped model may be trained, and the
    labels of the excluded devices.

    Args:
        programs_per_device: maximum per device; 0 for all.
        seed: for drawing them.

    Raises:
        DataError: no device may be used.
    """
    samples = load_samples(folder)
    present = [samples.devices[index].name for index in np.unique(samples.device)]
    allowed, others = shippable(present)
    chosen = load_samples(folder, allowed)
    return cap_programs(chosen, programs_per_device, seed=seed), others


def package_run(run_dir: Path, out: Path, samples: Samples, *, name: str, command: str) -> Path:
    """Writes the model of a finished run and its card, without files that only a run needs.

    Checks that the copy predicts exactly what the run's model predicts.

    Args:
        samples: training and test data of the run.
        out: folder of all packaged models; the model's folder is `out/name`, replaced atomically.
        command: command line that reproduces the model.

    Returns:
        The model's folder.

    Raises:
        UsageError: the run was trained on a device whose licence does not allow it.
        DataError: the run is not finished, or the packaged models would be too large.
    """
    trained = load_trained(run_dir)
    _check_devices(trained.card.devices)
    if trained.tasks is None:
        raise DataError(f"{run_dir} does not know its training tasks; train again")
    metrics = read_json(
        run_dir / "metrics.json",
        what="metrics of the run",
        hint="let the training finish: give the same command again",
    )
    with replaced_folder(out / name, what="packaged models") as temporary:
        trained.tasks.save(temporary)
        save_model(trained.model, temporary, trained.card)
        write_json(temporary / CARD, _card(trained.card.devices, metrics, name, command))
        _check_equal(run_dir, temporary, samples)
        _check_size(out, name, temporary)
    return out / name


def bytes_of(folder: Path) -> int:
    """Returns the total bytes of the files of a packaged model."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def read_card(folder: Path) -> dict[str, Any]:
    """Returns the card of a packaged model.

    Raises:
        DataError: there is none.
    """
    card: dict[str, Any] = read_json(
        folder / CARD, what="model card", hint="make the model again with `make pretrained`"
    )
    return card


def _card(
    devices: Sequence[DeviceSpec], metrics: dict[str, Any], name: str, command: str
) -> dict[str, Any]:
    labels = [spec.name for spec in devices]
    licences: dict[str, list[str]] = {}
    for label in labels:
        licences.setdefault(LICENCES[label], []).append(label)
    return {
        "name": name,
        "model": metrics["model"],
        "weights": "float32",
        "data_hash": metrics["data_hash"],
        "devices": labels,
        "licences": [{"licence": licence, "devices": own} for licence, own in licences.items()],
        "split": metrics["split"],
        "parts": metrics["parts"],
        "seed": metrics["seed"],
        "test": metrics["test"][metrics["model"]],
        "calibration": metrics["calibration"],
        "command": command,
        "versions": metrics["versions"],
    }


def _check_devices(devices: Sequence[DeviceSpec]) -> None:
    others = [spec.name for spec in devices if spec.name not in LICENCES]
    if others:
        raise UsageError(
            f"the run was trained on {', '.join(others)}, whose measurements may not be in shipped "
            f"weights; train on some of {', '.join(LICENCES)} only"
        )


def _check_equal(run_dir: Path, copy: Path, samples: Samples) -> None:
    some = samples.take(np.arange(0, len(samples), max(1, len(samples) // 1000), dtype=np.int64))
    first, second = (load_trained(folder).estimate(some) for folder in (run_dir, copy))
    pairs = ((first.latency_s, second.latency_s), (first.high_s, second.high_s))
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise DataError(
            f"the packaged copy of {run_dir} predicts something else than the run; this is a bug"
        )


def _check_size(out: Path, name: str, folder: Path) -> None:
    others = [path for path in out.iterdir() if path not in (folder, out / name)]
    total = sum(map(bytes_of, (folder, *others)))
    if total > MOST_BYTES:
        raise DataError(
            f"the packaged models would take {total / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f} "
            "MB are allowed; train a smaller model (transformer.network.hidden, members)"
        )
