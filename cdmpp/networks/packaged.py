"""The packaged model of whole networks: where it is, and making it from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, replaced_folder, write_json
from cdmpp.files.places import package_folder
from cdmpp.files.run_folder import MODEL_FILE
from cdmpp.networks.run import load_run, save_trained
from cdmpp.pretrained import PRETRAINED

CARD = "card.json"
#: The model lies one folder below its card, apart from the models of tensor programs.
_MODEL = "model"
#: All files of the packaged model.
MOST_BYTES = 2 * 1000 * 1000


def model_folder(model: str | Path, *, parent: Path | None = None) -> Path:
    """Returns the folder that `--model` means: `pretrained` or a run folder.

    Args:
        parent: folder of the packaged model; None = in this package.

    Raises:
        DataError: no model is packaged.
    """
    if str(model) != PRETRAINED:
        return Path(model)
    folder = (parent or packaged_folder()) / _MODEL
    if not (folder / MODEL_FILE).is_file():
        raise DataError(
            "no model of whole networks is packaged; expected --model RUN, a run folder that "
            "`cdmpp networks train` wrote"
        )
    return folder


def packaged_folder() -> Path:
    """Returns where the packaged model is, in this package."""
    return package_folder("cdmpp.pretrained") / "networks"


def package_run(run_dir: Path, *, command: str, licence: str, out: Path | None = None) -> Path:
    """Writes the model of a finished run and its card.

    Args:
        command: the command line that makes it again.
        licence: of the measurements that it was trained on.
        out: replaced in one step; None = the folder in this package.

    Raises:
        DataError: the run is not finished, or its model is too large.
    """
    trained = load_run(run_dir)
    out = out or packaged_folder()
    metrics = read_json(
        run_dir / "metrics.json",
        what="metrics of the run",
        hint="let the training finish: give its command again",
    )
    with replaced_folder(out, what="packaged model") as temporary:
        (temporary / _MODEL).mkdir()
        save_trained(trained, temporary / _MODEL)
        write_json(temporary / CARD, _card(metrics, command, licence))
        size = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            raise DataError(
                f"the packaged model would take {size / 1e6:.1f} MB, at most "
                f"{MOST_BYTES / 1e6:.0f} MB are allowed; train a smaller one "
                "(residual.hidden, residual.members)"
            )
    return out


def _card(metrics: dict[str, Any], command: str, licence: str) -> dict[str, Any]:
    kept = ("model", "data_hash", "devices", "architectures", "split", "seed", "test", "versions")
    return {
        "name": "networks",
        "predicts": "time, peak memory and utilisation of whole torch networks, float32",
        **{name: metrics[name] for name in kept},
        "weights": "float32",
        "licences": [{"licence": licence, "devices": metrics["devices"]}],
        "results": "docs/results/networks.md",
        "limits": "one process on the devices above with their number of threads; other devices "
        "follow the rooflines of the registry, from a quarter of them to those at a twentieth of "
        "the rates. Memory is what the network needs; a process whose allocator keeps freed "
        "blocks, as it does by default, was measured to hold up to twice as much",
        "command": command,
    }
