"""Run folders: the check that a folder belongs to a run, and model.json, which is written last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import check_folder, write_json, write_text

MODEL_FILE = "model.json"
#: Files that a run overwrites, if config.yaml shows that the folder belongs to a run.
_WRITTEN = (
    MODEL_FILE, "model.safetensors", "metrics.json", "predictions.parquet", "report.html",
)  # fmt: skip


def check_run_folder(run_dir: Path, config: str) -> None:
    """Checks that a run folder can be created or has a run with the same options; writes nothing.

    Raises:
        UsageError: the folder has another run, or files of these names without a config.yaml.
        DataError: the folder cannot be written.
    """
    check_folder(run_dir, what="run folder")
    _check_claim(run_dir, config)


def claim_run_folder(run_dir: Path, config: str) -> None:
    """Writes config.yaml.

    Raises:
        UsageError: as `check_run_folder`.
        DataError: the file cannot be written.
    """
    _check_claim(run_dir, config)
    write_text(run_dir / "config.yaml", config)


def _check_claim(run_dir: Path, config: str) -> None:
    path = run_dir / "config.yaml"
    if path.exists() and path.read_text("utf-8", errors="replace") != config:
        raise UsageError(
            f"{run_dir} has a run with other options (see {path}); choose another folder with "
            f"--out, or remove {run_dir}"
        )
    foreign = [] if path.exists() else [name for name in _WRITTEN if (run_dir / name).exists()]
    if foreign:
        raise UsageError(
            f"{run_dir} has files {', '.join(foreign)} that do not belong to a run (no "
            "config.yaml) and would be overwritten; choose another folder with --out, or move "
            "them"
        )


def write_model(
    directory: Path, facts: Mapping[str, Any], save: Callable[[Path], dict[str, Any]]
) -> None:
    """Writes the weights of a model, then model.json: its presence marks a complete model.

    Args:
        facts: entries of model.json.
        save: writes the weights into a folder and returns their entry `state` in model.json.
    """
    (directory / MODEL_FILE).unlink(missing_ok=True)
    state = save(directory)
    write_json(directory / MODEL_FILE, {**facts, "state": state})


@contextmanager
def damage_named(directory: Path, hint: str) -> Iterator[None]:
    """Converts errors of a block that uses model.json to a DataError that names the file."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        path = Path(directory) / MODEL_FILE
        raise DataError(f"{path} is damaged ({error!r}); {hint}") from error
