"""Featurisation of MetaSchedule databases: replays traces and walks the TIR."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cdmpp.datasets.extraction.source import Featurised
from cdmpp.datasets.metaschedule.older import module_format
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, CompactAst
from cdmpp.programs.gpu_limits import gpu_limits
from cdmpp.records import MeasureRecord
from tvm_helper.compat import s_tir, tvm
from tvm_helper.tasks.operator_name import operator_of
from tvm_helper.tasks.schedule_of_trace import schedule_of
from tvm_helper.tir.features import featurise_modules


def featurise_traces(
    module_json: str, records: list[MeasureRecord], *, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> Featurised:
    """Replays programs of one workload.

    Args:
        module_json: the workload's module in the database's format.
        records: records whose `steps` are traces (instructions, decisions).
        version: see `featurise_modules`.

    Raises:
        DataError: TVM cannot load the module.
    """
    module, operator, flop_count = _module(module_json)
    programs = [_program(module, record, version) for record in records]
    return Featurised("metaschedule", operator, flop_count, programs)


def _program(module: Any, record: MeasureRecord, version: int) -> CompactAst | ReplayError:
    try:
        return featurise_trace(module, record, version)
    except ReplayError as error:
        return error


@lru_cache(maxsize=16)
def _module(text: str) -> tuple[Any, str, float | None]:
    """Returns (module, operator name, flop count) of a workload."""
    try:
        module = tvm.ir.load_json(text)
        operator = operator_of(module)
    except Exception as error:  # TVM's reflection raises many types
        raise DataError(
            f"TVM cannot load this module of TVM {module_format(text).version} "
            f"({type(error).__name__}: {str(error).strip()[:120]}); expected a module of TVM 0.27, "
            "or of TVM 0.16 or before"
        ) from None
    try:
        flops: float | None = float(s_tir.analysis.estimate_tir_flops(module))
    except Exception:  # TVM cannot count every expression
        flops = None
    return module, operator, flops


def featurise_trace(
    module: Any, record: MeasureRecord, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> CompactAst:
    """Replays a trace on its workload's module and returns the compact AST.

    Args:
        module: the workload's module, not changed.
        record: record whose `steps` are a trace (instructions, decisions).
        version: see `featurise_modules`.

    Raises:
        ReplayError: the trace does not apply to the module, or the result has no loop tree.
    """
    limits = gpu_limits(record.hardware_params)
    scheduled = schedule_of(module, record.steps).mod
    (result,) = featurise_modules([scheduled], None, limits=limits, version=version)
    if isinstance(result, ReplayError):
        raise result
    return result
