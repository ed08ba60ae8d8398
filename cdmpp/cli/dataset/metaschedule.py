"""The part of `cdmpp dataset extract` that is for databases of MetaSchedule."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.datasets.extraction.extract import ExtractProgress, ExtractReport

#: Extracts, calling back after every part.
Run: TypeAlias = Callable[["Callable[[ExtractProgress], None] | None"], "ExtractReport"]


def metaschedule_run(
    place: Path,
    out_dir: Path,
    devices: list[str] | None,
    *,
    target: str | None,
    jobs: int | None,
    backend: str,
) -> Run:
    """Returns what extracts a database of MetaSchedule.

    Raises:
        UsageError: no device or several are named, or an option does not fit.
    """
    if devices is None or len(devices) != 1:
        raise UsageError(
            f"{place} is a MetaSchedule database, which does not say on what it was measured; "
            "name the one device: --device LABEL"
        )
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}; leave it out for one per CPU")
    if backend != "local":
        raise UsageError(f"databases are extracted on one machine; got --backend {backend}")

    def run(on_progress: Callable[[ExtractProgress], None] | None) -> ExtractReport:
        from cdmpp.datasets.extraction.machine_code import FILE_NAME as MACHINE_CODE
        from cdmpp.files.atomic import write_atomic
        from cdmpp.training.machine_code.cold_memory import FILE_NAME as IN_NETWORK
        from tvm_helper.programs.metaschedule import import_database

        report = import_database(
            place, out_dir, device=devices[0], target=target, jobs=jobs, on_progress=on_progress
        )
        for name in (MACHINE_CODE, IN_NETWORK):  # what else a search knows of its programs
            if (place / name).is_file():
                write_atomic(out_dir / name, partial(shutil.copyfile, place / name))
        return report

    return run
