"""Compares the native replay of Tenset records with the old TVM's own Ansor."""

from __future__ import annotations

import hashlib
import json
import operator
import random
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import compact_asts, is_gpu_kind
from cdmpp.programs.gpu_limits import gpu_limits
from cdmpp.programs.loops.expr import Expr
from cdmpp.programs.loops.loop_tree import Condition, Loop, LoopTree, Node, Store, stores_with_path
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from cdmpp.records import MeasureRecord, TensetTask
from tests.programs.reference.lower import lower_record
from tvm_helper.legacy.ansor import replay_trees
from tvm_helper.legacy.client import LegacyTvm

_RELATIVE = 1e-6
_MAX_EXAMPLES = 5
_INDEX_ARITHMETIC = ("int_", "bool_op", "select_op")
_SAMPLES = 32
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = types.MappingProxyType({
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "floormod": operator.mod, "min": min, "max": max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
    "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
})  # fmt: skip


@dataclass
class CrossCheck:
    """What a comparison counted.

    Attributes:
        records: records compared.
        same_structure: records with the same tree and leaf positions.
        same: those of them with the same validity and the same 164 values a leaf, to 1e-6.
        same_but_index_arithmetic: further records of the same structure and validity that differ
            only in the columns which count integer operations (every float count, access and loop
            column is equal), while their programs do the same at every sampled point: another
            version of the simplifier writes the same index in another way.
        same_with_extra: those of `same` whose additional columns (`leaf_extra`) are equal as well.
        differences: what differs first, with how often; additional columns not counted.
        extra_differences: additional columns that differ in a record counted in `same`.
        examples: the first records that differ in more than index arithmetic: task, difference.
    """

    records: int = 0
    same_structure: int = 0
    same: int = 0
    same_but_index_arithmetic: int = 0
    same_with_extra: int = 0
    differences: Counter[str] = field(default_factory=Counter)
    extra_differences: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str]] = field(default_factory=list)


def crosscheck(
    files: Iterable[Path], network_info_dirs: Sequence[Path], *, count: int
) -> CrossCheck:
    """Compares a fixed sample of the records of some files, drawn by a hash of their content.

    Raises:
        DataError: a file cannot be read, or a record's task is in no `network_info`.
        UsageError: there is no side environment.
    """
    tasks = [load_tasks(folder) for folder in network_info_dirs]
    groups: dict[tuple[str, str], list[MeasureRecord]] = {}
    for record in _sample(files, count):
        groups.setdefault((record.workload_key, record.target_kind), []).append(record)
    result = CrossCheck()
    with LegacyTvm() as tvm:
        for (key, kind), records in groups.items():
            task = _find(tasks, key, kind)
            dag = parse_dag(task.dag_json)
            for record, theirs in zip(records, replay_trees(tvm, task, records), strict=True):
                _compare(result, record, _native(dag, record), theirs)
    return result


def _native(dag: Dag, record: MeasureRecord) -> LoopTree | ReplayError:
    try:
        return lower_record(dag, record.steps, is_gpu=is_gpu_kind(record.target_kind))
    except ReplayError as error:
        return error


def _compare(
    result: CrossCheck,
    record: MeasureRecord,
    ours: LoopTree | ReplayError,
    theirs: LoopTree | ReplayError,
) -> None:
    result.records += 1
    if isinstance(ours, ReplayError) or isinstance(theirs, ReplayError):
        text = _failure_difference(ours, theirs)
        if text is None:
            result.same += 1
            result.same_with_extra += 1
        else:
            _note(result, record, text)
        return
    asts = [_compact_ast(tree, record) for tree in (ours, theirs)]
    result.same_structure += _has_same_structure(*asts)
    text = difference(*asts)
    if text is None:
        result.same += 1
        columns = _different_extra_columns(*asts)
        result.same_with_extra += not columns
        if columns:
            result.extra_differences[", ".join(columns)] += 1
    elif _differ_in_index_arithmetic_only(*asts) and program_difference(ours, theirs) is None:
        result.differences[text] += 1
        result.same_but_index_arithmetic += 1
    else:
        _note(result, record, text)


def _note(result: CrossCheck, record: MeasureRecord, text: str) -> None:
    result.differences[text] += 1
    if len(result.examples) < _MAX_EXAMPLES:
        result.examples.append((record.workload_key, text))


def _compact_ast(tree: LoopTree, record: MeasureRecord) -> CompactAst:
    (ast,) = compact_asts([tree], [gpu_limits(record.hardware_params)])
    if isinstance(ast, ReplayError):
        raise ast
    return ast


def _failure_difference(ours: object, theirs: object) -> str | None:
    """Returns which side fails, None when both do."""
    if isinstance(ours, ReplayError):
        return None if isinstance(theirs, ReplayError) else f"only native fails: {ours}"
    return f"only Ansor fails: {theirs}"


def difference(ours: CompactAst, theirs: CompactAst) -> str | None:
    """Returns what two compact ASTs differ in first, None when they are the same."""
    if not _has_same_structure(ours, theirs):
        return f"structure: {len(ours.leaf_position)} and {len(theirs.leaf_position)} leaves"
    if ours.valid != theirs.valid:
        return f"validity: {ours.reject_reason} and {theirs.reject_reason}"
    columns = _different_columns(ours, theirs)
    if not columns:
        return None
    names = [LEAF_FEATURE_NAMES[column] for column in columns]
    return "columns " + ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")


def _different_extra_columns(ours: CompactAst, theirs: CompactAst) -> list[str]:
    close = np.isclose(ours.leaf_extra, theirs.leaf_extra, rtol=_RELATIVE, atol=_RELATIVE)
    return [LEAF_EXTRA_NAMES[n] for n in sorted({int(n) for n in np.argwhere(~close)[:, 1]})]


def _different_columns(ours: CompactAst, theirs: CompactAst) -> list[int]:
    close = np.isclose(ours.leaf_features, theirs.leaf_features, rtol=_RELATIVE, atol=_RELATIVE)
    return sorted({int(column) for column in np.argwhere(~close)[:, 1]})


def _differ_in_index_arithmetic_only(ours: CompactAst, theirs: CompactAst) -> bool:
    return (
        _has_same_structure(ours, theirs)
        and ours.valid == theirs.valid
        and all(
            LEAF_FEATURE_NAMES[column].startswith(_INDEX_ARITHMETIC)
            for column in _different_columns(ours, theirs)
        )
    )


def _has_same_structure(ours: CompactAst, theirs: CompactAst) -> bool:
    return np.array_equal(ours.tree, theirs.tree) and np.array_equal(
        ours.leaf_position, theirs.leaf_position
    )


def _find(tasks: Sequence[TaskIndex], key: str, kind: str) -> TensetTask:
    for index in tasks:
        task = index.find(key, kind)
        if task is not None:
            return task
    raise DataError(f"task {key} ({kind}) is in none of the network_info folders")


def _sample(files: Iterable[Path], count: int) -> list[MeasureRecord]:
    """Returns the `count` records with the lowest digests, whatever the order of the files."""
    drawn: list[tuple[bytes, MeasureRecord]] = []
    for path in files:
        for record in read_records(path, ReadReport(), keep_unmeasured=True):
            text = json.dumps([record.workload_key, record.target_kind, list(record.steps)])
            drawn.append((hashlib.sha256(text.encode()).digest(), record))
        drawn = sorted(drawn, key=lambda pair: pair[0])[:count]
    return [record for _, record in drawn]


def program_difference(ours: LoopTree, theirs: LoopTree, *, seed: int = 0) -> str | None:
    """Returns what two programs differ in first, None when they do the same.

    Compared are the stores in order: enclosing loops (extent and kind, unit loops left out), the
    condition under which they run, indices, and the value with the indices of its reads, all
    evaluated at random points. Names are not compared.
    """
    pairs = list(stores_with_path(ours)), list(stores_with_path(theirs))
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0])} and {len(pairs[1])} stores"
    rng = random.Random(seed)
    for number, (a, b) in enumerate(zip(*pairs, strict=True)):
        loops = [_loops(path) for _, path in (a, b)]
        kinds = [[(loop.extent, loop.kind) for loop in some if loop.extent != 1] for some in loops]
        if kinds[0] != kinds[1]:
            return f"loops of store {number}"
        for _ in range(_SAMPLES):
            values = _random_values(loops[0], loops[1], rng)
            if _signature(*a, values[0]) != _signature(*b, values[1]):
                return f"indices or value of store {number}"
    return None


def _loops(path: tuple[Node, ...]) -> list[Loop]:
    return [node for node in path if isinstance(node, Loop)]


def _random_values(
    ours: list[Loop], theirs: list[Loop], rng: random.Random
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns values of the loop variables, the same for loops that correspond."""
    values: tuple[dict[str, int], dict[str, int]] = ({}, {})
    offsets = [rng.randrange(loop.extent) for loop in ours
               if isinstance(loop.extent, int) and loop.extent != 1]  # fmt: skip
    for loops, of_tree in zip((ours, theirs), values, strict=True):
        remaining = iter(offsets)
        for loop in loops:
            is_unit = loop.extent == 1 or not isinstance(loop.extent, int)
            start = loop.minimum if isinstance(loop.minimum, int) else _value(loop.minimum, of_tree)
            of_tree[loop.var] = start + (0 if is_unit else next(remaining))
    return values


def _signature(store: Store, path: tuple[Node, ...], values: dict[str, int]) -> Any:
    """Returns what the store does at one point: nothing, or where it writes what."""
    for node in path:
        if isinstance(node, Condition) and not _value(node.condition, values):
            return None
    indices = tuple(_value(index, values) for index in store.indices)
    return indices, _value(store.value, values)


def _value(expr: Expr, values: dict[str, int]) -> Any:
    """Returns an integer or truth value as number, everything else as nested tuples of those."""
    if expr.op == "const":
        return expr.value
    if expr.op == "var":
        return values.get(expr.value, "register")
    if expr.op == "call" and expr.value == "tir.likely":
        return _value(expr.args[0], values)
    if expr.op == "select" or (expr.op == "call" and expr.value == "tir.if_then_else"):
        chosen = 1 if _value(expr.args[0], values) else 2
        return _value(expr.args[chosen], values)
    args = [_value(argument, values) for argument in expr.args]
    if expr.op == "not" and not isinstance(args[0], tuple | str):
        return not args[0]
    if expr.op in _OPERATIONS and all(isinstance(arg, int) for arg in args):
        return _OPERATIONS[expr.op](*args)
    if expr.op == "cast" and isinstance(args[0], int):
        return args[0]
    if expr.op == "mul" and 1.0 in args:  # a factor of one is dropped by every simplifier
        return args[1 - args.index(1.0)]
    name = expr.value if expr.op == "call" else None
    return (expr.op, name, *args)
