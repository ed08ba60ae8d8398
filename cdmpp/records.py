"""Tasks, measured programs and program ids."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Source = Literal["tenset", "autotvm", "metaschedule"]

#: Meaning of each code of `MeasureRecord.error_code`.
ERROR_CODE_NAMES = (
    "ok", "instantiation error", "compile error (host)", "compile error (device)",
    "runtime error (device)", "wrong answer", "build timeout", "run timeout", "unknown error",
)  # fmt: skip
UNKNOWN_ERROR_CODE = 8
#: Target kinds whose programs are GPU kernels.
GPU_TARGET_KINDS = frozenset({"cuda", "rocm", "opencl", "vulkan", "metal"})


@dataclass(frozen=True)
class TensetTask:
    """A task: a computation to compile for a kind of target.

    Attributes:
        workload_key: normalised key (see `normalise_workload_key`).
        target: the compiler target as text, e.g. `llvm -keys=cpu -link-params=0`.
        target_kind: first word of the target (`llvm`, `cuda`, `rocm`).
        dag_json: the computation as TVM's JSON node graph; the root is the array of tensors.
        hardware_params: num_cores, vector_unit_bytes, cache_line_bytes,
            max_shared_memory_per_block, max_local_memory_per_block, max_threads_per_block,
            max_vthread_extent, warp_size.
        layout_rewrite_option: 0 none, 1 insert a transform stage, 2 rewrite for pre-transformed
            weights.
        task_input_names: names of special inputs for measuring the task; usually empty.
    """

    workload_key: str
    target: str
    target_kind: str
    dag_json: str
    hardware_params: tuple[int, ...]
    layout_rewrite_option: int = 0
    task_input_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasureRecord:
    """One measurement of a program on a device, successful or failed.

    Attributes:
        workload_key: normalised key of the task.
        target: the compiler target as text.
        target_kind: first word of the target.
        device: device label.
        hardware_params: see `TensetTask`; empty if the record's version has no such field.
        steps: transform steps as parsed JSON, each `[code, argument, ...]`.
        costs_s: measured seconds, one per repeat; empty if the program was not measured.
        error_code: index into `ERROR_CODE_NAMES`; 0 = ok.
        all_cost_s: seconds spent on building and measuring.
        measured_at: Unix time in seconds.
        version: version of the record format, e.g. `v0.6`.
        line: line number in the source file, from 1; 0 = unknown.
        steps_text: canonical JSON of `steps` if the reader has it, see `schedule`; else None.
    """

    workload_key: str
    target: str
    target_kind: str
    device: str
    hardware_params: tuple[int, ...]
    steps: tuple[list[Any], ...]
    costs_s: tuple[float, ...]
    error_code: int
    all_cost_s: float
    measured_at: int
    version: str
    line: int = 0
    steps_text: str | None = field(default=None, compare=False, repr=False)

    @property
    def schedule(self) -> str:
        """Canonical JSON of the steps (see `canonical_json`)."""
        return canonical_json(list(self.steps)) if self.steps_text is None else self.steps_text

    @property
    def is_ok(self) -> bool:
        """Whether the program ran and `costs_s` are its latencies."""
        return self.error_code == 0 and len(self.costs_s) > 0

    @property
    def latency_s(self) -> float | None:
        """Mean of the repeats in seconds; None unless `is_ok`."""
        return sum(self.costs_s) / len(self.costs_s) if self.is_ok else None


def normalise_workload_key(key: str) -> str:
    """Returns the key with the white space of `json.dumps`; strips a key that is not JSON."""
    try:
        return json.dumps(json.loads(key))
    except (ValueError, RecursionError):
        return key.strip()


def program_id(source: Source, workload_key: str, steps_or_trace: Any, target_kind: str) -> str:
    """Returns the id of a program, the same on every device.

    The hashed bytes are the ASCII text of the JSON array
    `[source, normalised workload key, steps or trace, target kind]`, without white space between
    tokens, object keys sorted, other characters as `\\u` escapes.

    Args:
        source: format of the program.
        workload_key: key of its task, which need not be normalised.
        steps_or_trace: Ansor's steps, an AutoTVM entity or a MetaSchedule trace, as JSON values.
        target_kind: `cuda`, `llvm`, `rocm`; other attributes of the target do not count.

    Returns:
        64 hexadecimal digits (sha256).

    Raises:
        ValueError: NaN or infinity, which JSON cannot represent.
    """
    return program_id_of_text(source, workload_key, canonical_json(steps_or_trace), target_kind)


def program_id_of_text(source: Source, workload_key: str, text: str, target_kind: str) -> str:
    """Returns the `program_id` of steps or a trace in canonical JSON."""
    head, tail = _id_frame(source, workload_key, target_kind)
    return hashlib.sha256(f"{head},{text},{tail}".encode("ascii")).hexdigest()


@lru_cache(maxsize=4096)
def _id_frame(source: Source, workload_key: str, target_kind: str) -> tuple[str, str]:
    """Returns the canonical JSON before and after the steps, without the commas between."""
    head = canonical_json([source, normalise_workload_key(workload_key)])
    return head[:-1], canonical_json(target_kind) + "]"


def canonical_json(value: Any) -> str:
    """Returns a JSON value as the ASCII text that `program_id` hashes.

    Raises:
        ValueError: NaN or infinity, which JSON cannot represent.
    """
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
