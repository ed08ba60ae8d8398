"""What all run folders have in common: whose a folder is, and a model.json that is written last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import check_folder, write_json, write_text

MODEL_FILE = "model.json"
#: Files that a run begins anew; config.yaml says that they are a run's.
_WRITTEN = (
    MODEL_FILE, "model.safetensors", "metrics.json", "predictions.parquet", "report.html",
)  # fmt: skip


def check_run_folder(run_dir: Path, config: str) -> None:
    """Checks that a run folder can be made, or holds a run of the same options; makes nothing.

    Raises:
        UsageError: it holds another run, or files of that name that are of none.
        DataError: it cannot be written.
    """
    check_folder(run_dir, what="run folder")
    _check_claim(run_dir, config)


def claim_run_folder(run_dir: Path, config: str) -> None:
    """Writes config.yaml, or checks that the one that is there says the same."""
    _check_claim(run_dir, config)
    write_text(run_dir / "config.yaml", config)


def _check_claim(run_dir: Path, config: str) -> None:
    path = run_dir / "config.yaml"
    if path.exists() and path.read_text("utf-8") != config:
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
    """Writes the weights of a model, then model.json, whose presence says that it is complete.

    Args:
        facts: what is known of the model.
        save: writes the weights into a folder and returns what model.json keeps of them.
    """
    (directory / MODEL_FILE).unlink(missing_ok=True)
    state = save(directory)
    write_json(directory / MODEL_FILE, {**facts, "state": state})


@contextmanager
def damage_named(directory: Path, hint: str) -> Iterator[None]:
    """Names model.json where what it holds cannot be used.

    Raises:
        DataError: something in the block failed over it.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        path = Path(directory) / MODEL_FILE
        raise DataError(f"{path} is damaged ({error!r}); {hint}") from error
