"""A MetaSchedule database becomes an extracted dataset: traces are replayed, the TIR is walked."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.extract import ExtractProgress, ExtractReport
from cdmpp.datasets.metaschedule.extract import (
    SHARD_RECORDS,
    WorkloadFeatures,
    extract_database,
)
from cdmpp.datasets.metaschedule.older import module_format
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.gpu_limits import gpu_limits
from cdmpp.records import MeasureRecord
from tvm_helper.compat import s_tir, tvm
from tvm_helper.tasks.operator_name import operator_of
from tvm_helper.tasks.schedule_of_trace import schedule_of
from tvm_helper.tir.features import featurise_modules


def import_database(
    database_dir: Path,
    out_dir: Path,
    *,
    device: str,
    target: str | None = None,
    jobs: int | None = None,
    on_progress: Callable[[ExtractProgress], None] | None = None,
    shard_records: int = SHARD_RECORDS,
) -> ExtractReport:
    """Extracts a database that this TVM wrote: `extract_database`, which says what is raised."""
    return extract_database(
        database_dir, out_dir, featurise_traces, device=device, target=target, jobs=jobs,
        on_progress=on_progress, shard_records=shard_records,
    )  # fmt: skip


def featurise_traces(module_json: str, records: list[MeasureRecord]) -> WorkloadFeatures:
    """Replays programs of one workload.

    Args:
        module_json: the workload's module, as the database has it.
        records: their `steps` are traces (instructions, decisions).

    Raises:
        DataError: TVM cannot load the module.
    """
    module, operator, flop_count = _module(module_json)
    return WorkloadFeatures(operator, flop_count, [_program(module, record) for record in records])


def _program(module: Any, record: MeasureRecord) -> CompactAst | ReplayError:
    try:
        return featurise_trace(module, record)
    except ReplayError as error:
        return error


@lru_cache(maxsize=16)
def _module(text: str) -> tuple[Any, str, float | None]:
    """Returns (module, operator name, flop count) of a workload."""
    try:
        module = tvm.ir.load_json(text)
        operator = operator_of(module)
    except Exception as error:  # TVM raises whatever its reflection does
        raise DataError(
            f"TVM cannot load this module of TVM {module_format(text).version} "
            f"({type(error).__name__}: {str(error).strip()[:120]}); expected a module of TVM 0.27, "
            "or of TVM 0.16 or before"
        ) from None
    try:
        flops: float | None = float(s_tir.analysis.estimate_tir_flops(module))
    except Exception:  # not every expression can be counted
        flops = None
    return module, operator, flops


def featurise_trace(module: Any, record: MeasureRecord) -> CompactAst:
    """Replays a trace on its workload's module and returns the compact AST.

    Args:
        module: the workload, not changed.
        record: `steps` is the trace (instructions, decisions).

    Raises:
        ReplayError: the trace does not fit the module, or its result has no loop tree.
    """
    limits = gpu_limits(record.hardware_params)
    scheduled = schedule_of(module, record.steps).mod
    (result,) = featurise_modules([scheduled], None, limits=limits)
    if isinstance(result, ReplayError):
        raise result
    return result
