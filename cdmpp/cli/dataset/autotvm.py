"""The part of `cdmpp dataset extract` that is for AutoTVM logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.datasets.extraction.extract import ExtractProgress, ExtractReport

#: Extracts, calling back after every part.
Run: TypeAlias = Callable[["Callable[[ExtractProgress], None] | None"], "ExtractReport"]


def autotvm_run(
    place: Path,
    out_dir: Path,
    devices: list[str] | None,
    *,
    jobs: int | None,
    per_task: int | None,
    backend: str,
) -> Run:
    """Returns what extracts AutoTVM logs through the side environment with the old TVM.

    Raises:
        UsageError: there is no side environment, or an option does not fit.
    """
    from cdmpp.datasets.autotvm.extract import extract_autotvm
    from tvm_helper.legacy.environment import find_environment
    from tvm_helper.legacy.featurise import featurise_autotvm

    if per_task is not None and per_task < 1:
        raise UsageError(f"--per-task is {per_task}, expected at least 1; leave it out for all")
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}; leave it out for one per CPU")
    if backend != "local":
        raise UsageError(f"AutoTVM logs are extracted on one machine; got --backend {backend}")
    find_environment()  # one clear error now instead of one in every worker

    def run(on_progress: Callable[[ExtractProgress], None] | None) -> ExtractReport:
        return extract_autotvm(
            place,
            out_dir,
            devices,
            featurise_autotvm,
            per_task=per_task,
            jobs=jobs,
            on_progress=on_progress,
        )

    return run
