"""Packaged models of whole networks: their folders, and packaging of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, replaced_folder, write_json
from cdmpp.files.places import package_folder
from cdmpp.files.run_folder import MODEL_FILE
from cdmpp.networks.run import load_run, save_trained
from cdmpp.networks.step_time.model import STEP_TIME, StepTimeModel
from cdmpp.pretrained import PRETRAINED

CARD = "card.json"
#: Folders of the models in the packaged folder.
_MODEL, _STEP_TIME = "model", "step_time"
#: Maximum size of all files of a packaged model.
MOST_BYTES = 2 * 1000 * 1000


def model_folder(model: str | Path, *, parent: Path | None = None) -> Path:
    """Returns the folder of a `--model` value: `pretrained` or a run folder.

    Args:
        parent: folder of the packaged models; None = in this package.

    Raises:
        DataError: no model is packaged.
    """
    if str(model) != PRETRAINED:
        return Path(model)
    folder = (parent or packaged_folder()) / _MODEL
    if not (folder / MODEL_FILE).is_file():
        raise DataError(
            "no packaged model of whole networks; give --model RUN, a run folder of `cdmpp "
            "networks train`"
        )
    return folder


def packaged_folder() -> Path:
    """Returns the folder of the packaged models in this package."""
    return package_folder("cdmpp.pretrained") / "networks"


def package_run(run_dir: Path, *, command: str, licence: str, out: Path | None = None) -> Path:
    """Writes the model of a finished run and its card into the folder of its kind.

    Args:
        command: command line that reproduces the model.
        licence: licence of its training measurements.
        out: folder of the packaged models; None = in this package.

    Returns:
        The folder of the model, replaced atomically.

    Raises:
        DataError: the run is not finished, or its model is too large.
    """
    metrics = read_json(
        run_dir / "metrics.json",
        what="metrics of the run",
        hint="let the training finish: rerun its command",
    )
    is_step_time = metrics["model"] == STEP_TIME
    model: Any = StepTimeModel.load(run_dir) if is_step_time else load_run(run_dir)
    folder = (out or packaged_folder()) / (_STEP_TIME if is_step_time else _MODEL)
    with replaced_folder(folder, what="packaged model") as temporary:
        if is_step_time:
            model.save(temporary)
            card = _step_time_card(metrics)
        else:
            save_trained(model, temporary)
            card = _card(metrics)
        licences = [{"licence": licence, "devices": metrics["devices"]}]
        write_json(temporary / CARD, card | {"licences": licences, "command": command})
        size = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            raise DataError(
                f"the packaged model would take {size / 1e6:.1f} MB, at most "
                f"{MOST_BYTES / 1e6:.0f} MB are allowed; train a smaller one "
                "(residual.hidden, residual.members)"
            )
    return folder


def _step_time_card(metrics: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "model", "devices", "runs", "families", "coverage", "options", "versions",
        "left_out_median_ape", "left_out_device_median_ape",
    )  # fmt: skip
    return {
        "name": "step-time",
        "predicts": "time and memory of one step of a torch network on a GPU",
        **{name: metrics[name] for name in kept},
        "architectures": len(metrics["architectures"]),
        "results": "docs/results/networks-gpu.md",
        "limits": "measured in float16 autocast: eager in both memory formats, compiled in NCHW, "
        "trained eagerly; all other ways of running are extrapolated, and so are GPUs of "
        "other vendors, types without measurements, and host-bound steps",
    }


def _card(metrics: dict[str, Any]) -> dict[str, Any]:
    kept = ("model", "data_hash", "devices", "architectures", "split", "seed", "test", "versions")
    return {
        "name": "networks",
        "predicts": "time, peak memory and utilisation of whole torch networks, float32",
        **{name: metrics[name] for name in kept},
        "weights": "float32",
        "results": "docs/results/networks.md",
        "limits": "one process on the devices above with their number of threads; other devices "
        "follow the rooflines of the registry, at a quarter to a twentieth of the rates. "
        "Memory is what the network needs; a process whose allocator keeps freed blocks "
        "(the default) was measured to use up to twice as much",
    }
