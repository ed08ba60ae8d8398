"""Reads AutoTVM logs: one JSON object per line, usually one file per device."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.datasets.fetched import FETCHED_FILE
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.record_line import (
    RecordLineError,
    is_finite,
    is_text,
    parse_object,
    parse_result,
)
from cdmpp.errors import DataError
from cdmpp.records import UNKNOWN_ERROR_CODE, MeasureRecord, program_id

#: Template name in older logs -> current name.
TEMPLATE_RENAMES: Mapping[str, str] = types.MappingProxyType({
    "dense_small_batch.cuda": "dense_small_batch.gpu",
    "dense_large_batch.cuda": "dense_large_batch.gpu",
})  # fmt: skip
#: Templates of AutoTVM 0.1 (before TVM 0.6): (old name, template kind) -> target family -> current
#: name. The knobs are the same.
_VERSION_1_TEMPLATES: Mapping[tuple[str, str], Mapping[str, str]] = types.MappingProxyType({
    ("topi_nn_conv2d", "direct"): {
        "gpu": "conv2d_nchw.cuda", "arm_cpu": "conv2d_nchw_spatial_pack.arm_cpu",
        "mali": "conv2d_nchw_spatial_pack.mali",
    },
    ("topi_nn_conv2d", "winograd"): {
        "gpu": "conv2d_nchw_winograd.cuda", "arm_cpu": "conv2d_nchw_winograd.arm_cpu",
        "mali": "conv2d_nchw_winograd.mali",
    },
    ("topi_nn_conv2d", "int8"): {"gpu": "conv2d_NCHWc_int8.cuda"},
    ("topi_nn_depthwise_conv2d_nchw", "direct"): {
        "gpu": "depthwise_conv2d_nchw.cuda", "arm_cpu": "depthwise_conv2d_nchw.arm_cpu",
        "mali": "depthwise_conv2d_nchw.mali",
    },
    ("topi_nn_group_conv2d_nchw", "direct"): {"gpu": "group_conv2d_nchw.cuda"},
    ("topi_nn_conv2d_transpose_nchw", "direct"): {"gpu": "conv2d_transpose_nchw.cuda"},
    ("topi_nn_dense", "direct"): {
        "gpu": "dense_large_batch.gpu", "mali": "dense.mali", "x86": "dense_pack.x86",
    },
    ("topi_nn_dense", "direct_nopack"): {"x86": "dense_nopack.x86"},
    ("topi_x86_conv2d_NCHWc", "direct"): {"x86": "conv2d_NCHWc.x86"},
    ("topi_x86_depthwise_conv2d_NCHWc_from_nchw", "direct"): {"x86": "depthwise_conv2d_NCHWc.x86"},
})  # fmt: skip
#: The cost that AutoTVM writes for a failed program.
FAILED_COST_S = 1e9

_SUFFIX = re.compile(r"\.(?:json|log|txt)(?:\.(?:gz|xz|zst))?$")
#: Options of a target that name its hardware, by precedence; `-device=` may only name a kind.
_HARDWARE = tuple(re.compile(rf"(?:^|\s)-{name}=(\S+)") for name in ("model", "mcpu", "device"))
#: Lines of a file that are read to decide whether it is a log.
_FIRST_LINES = range(1, 1025)
_ENTITY_KINDS = ("sp", "re", "an", "ot")
#: Pattern of a template's name -> operator; first match.
_OPERATORS = (
    ("conv2d_transpose", "conv2d_transpose"), ("conv3d_transpose", "conv3d_transpose"),
    ("depthwise_conv2d", "depthwise_conv2d"), ("group_conv2d", "group_conv2d"),
    ("conv2d.*winograd", "winograd_conv2d"), ("conv3d", "conv3d"), ("conv2d", "conv2d"),
    ("conv1d", "conv1d"), ("batch_matmul", "batch_matmul"), ("dense|matmul", "dense"),
)  # fmt: skip


@dataclass(frozen=True)
class AutotvmTask:
    """A task of AutoTVM: a template with arguments.

    Attributes:
        workload_key: canonical JSON of [template, arguments].
        template: current name of the template, e.g. `conv2d_nchw.cuda`.
        arguments: arguments as JSON values; a tensor is `["TENSOR", shape, dtype]`.
        target: target string.
        target_kind: first word of the target.
    """

    workload_key: str
    template: str
    arguments: list[Any]
    target: str
    target_kind: str

    @property
    def operator(self) -> str:
        """Name of the operator, e.g. `depthwise_conv2d`."""
        return template_operator(self.template)


def parse_autotvm_line(text: str, *, device: str = "unknown", line: int = 0) -> MeasureRecord:
    """Returns the record of a line of an AutoTVM log.

    Its `steps` are the configuration's entity: `[name, kind, value]` for every knob.

    Args:
        text: one line.
        device: label of the device, which the record does not contain.
        line: line number to store in the record.

    Raises:
        RecordLineError: the line is not a valid record.
    """
    value = parse_object(text, ())
    if _is_of_version_1(value):
        text = json.dumps(_as_today(value))
    value = parse_object(text, ("input", "config", "result"))
    target, template, arguments = _parse_input(value["input"])
    costs_s, error_code, all_cost_s, measured_at = parse_result(value["result"])
    if error_code == 0 and costs_s and max(costs_s) >= FAILED_COST_S:
        error_code = UNKNOWN_ERROR_CODE
    return MeasureRecord(
        workload_key=json.dumps([TEMPLATE_RENAMES.get(template, template), arguments]),
        target=target,
        target_kind=target.split()[0],
        device=device,
        hardware_params=(),
        steps=_parse_entity(value["config"]),
        costs_s=costs_s,
        error_code=error_code,
        all_cost_s=all_cost_s,
        measured_at=measured_at,
        version=str(value.get("version", "")),
        line=line,
    )


def _is_of_version_1(value: dict[str, Any]) -> bool:
    """Whether a record is of AutoTVM 0.1: `i` is [target, template, arguments, ...]."""
    given = value.get("i")
    return isinstance(given, list) and len(given) > 2 and isinstance(given[0], str)


def _as_today(value: dict[str, Any]) -> dict[str, Any]:
    """Converts a record of AutoTVM 0.1 to the current format.

    Raises:
        RecordLineError: the template or layout has no current counterpart.
    """
    given = value["i"]
    if len(given) < 6 or not isinstance(given[2], list) or not isinstance(given[5], dict):
        raise RecordLineError("malformed input", "AutoTVM 0.1: expected i with 6 items")
    target, old, arguments, keywords, _, config = given[:6]
    entity, kind = config.get("e"), config.get("t")
    family = _template_family(target)
    template = _VERSION_1_TEMPLATES.get((str(old), str(kind)), {}).get(family)
    if template is None:
        what = f"{str(old)[:40]}, {str(kind)[:20]}, on {family}"
        raise RecordLineError("a template of AutoTVM 0.1 without a counterpart today", what)
    if template == "dense_large_batch.gpu" and isinstance(entity, list) and len(entity) == 1:
        template = "dense_small_batch.gpu"  # its only knob is tile_k
    if old == "topi_nn_conv2d" or old == "topi_nn_depthwise_conv2d_nchw":
        arguments = _convolution_arguments(arguments)
    return {
        "input": [target, template, arguments, keywords],
        "config": {"entity": entity}, "result": value.get("r"), "version": value.get("v"),
    }  # fmt: skip


def _template_family(target: str) -> str:
    """Returns the target family of AutoTVM 0.1's templates: `gpu`, `arm_cpu`, `mali`, ..."""
    device = re.search(r"-device=(\S+)", target)
    if device:
        return device.group(1)
    return {"cuda": "gpu", "rocm": "gpu", "llvm": "x86"}.get(target.split(" ")[0], target)


def _convolution_arguments(arguments: list[Any]) -> list[Any]:
    """Returns data, weights, strides, padding, dilation and output type.

    Removes the layout, which must be NCHW, and adds the dilation that the oldest records lack.
    """
    layouts = [at for at, item in enumerate(arguments) if isinstance(item, str) and "C" in item]
    if layouts:
        if arguments[layouts[0]] != "NCHW":
            raise RecordLineError("unsupported layout", str(arguments[layouts[0]])[:20])
        arguments = arguments[: layouts[0]] + arguments[layouts[0] + 1 :]
    if len(arguments) == 5:
        arguments = [*arguments[:4], [1, 1], arguments[4]]
    return arguments


def target_hardware(target: str) -> str:
    """Returns the hardware of a target (`-model=`, else `-mcpu=`, else `-device=`); empty if it has
    none.
    """
    for pattern in _HARDWARE:
        match = pattern.search(target)
        label = match.group(1).strip("\"'") if match else "unknown"
        if label != "unknown":
            return label
    return ""


def _parse_input(value: Any) -> tuple[str, str, list[Any]]:
    """Returns (target, template, arguments)."""
    if not (isinstance(value, list) and len(value) >= 3):
        raise RecordLineError("malformed input", "expected [target, template, arguments, ...]")
    target, template, arguments = value[:3]
    if not all(isinstance(item, str) and item.strip() for item in (target, template)):
        raise RecordLineError("malformed input", "target and template must be text")
    if not (is_text(target) and is_text(template)):
        raise RecordLineError(
            "malformed input", "an incomplete UTF-16 character in the target or template"
        )
    if not (isinstance(arguments, list) and is_finite(arguments)):
        raise RecordLineError("malformed input", "arguments must be a list of finite values")
    if len(value) > 3 and value[3]:
        raise RecordLineError("unsupported keyword arguments", str(value[3])[:60])
    return target, template, arguments


def _parse_entity(config: Any) -> tuple[list[Any], ...]:
    entity = config.get("entity") if isinstance(config, dict) else None
    if not isinstance(entity, list):
        raise RecordLineError("malformed config", "expected an object with a list `entity`")
    for knob in entity:
        if not (
            isinstance(knob, list)
            and len(knob) == 3
            and isinstance(knob[0], str)
            and knob[1] in _ENTITY_KINDS
            and is_finite(knob)
        ):
            raise RecordLineError("malformed config", f"knob {str(knob)[:60]}")
    return tuple(entity)


def read_autotvm_log(
    path: Path,
    report: ReadReport,
    *,
    only: Container[int] | None = None,
    device: str | None = None,
) -> Iterator[MeasureRecord]:
    """Yields the records of a log; counts unusable lines in `report`, with line and reason.

    Args:
        path: `DEVICE.json`, plain or compressed.
        report: counters, updated while reading.
        only: numbers of the lines to read; None = all.
        device: label of the records; None = from the file's name.

    Raises:
        DataError: the file cannot be opened.
    """
    label = device or log_device(path)
    return read_records(path, report, device=label, parse=parse_autotvm_line, only=only)


def log_device(path: Path) -> str:
    """Returns the device label of a log: the file's name without suffix."""
    return _SUFFIX.sub("", path.name)


def find_logs(place: Path) -> list[Path]:
    """Returns the AutoTVM logs at a path: the file itself, or the `*.json` of a folder, plain or
    compressed.

    Raises:
        DataError: there is no log.
    """
    place = Path(place)
    if place.is_file():
        return [place]
    logs = sorted(
        path
        for path in place.glob("*.json*")
        if path.is_file() and _SUFFIX.search(path.name) and path.name != FETCHED_FILE
    )
    if not logs:
        raise DataError(
            f"{place}: no AutoTVM logs found; expected DEVICE.json or DEVICE.json.gz with one "
            "record per line: --dataset FILE"
        )
    return logs


def is_autotvm_log(place: Path) -> bool:
    """Whether a path is an AutoTVM log or a folder of logs."""
    place = Path(place)
    if (place / "measure_records").is_dir() or (place / "manifest.json").is_file():
        return False
    try:
        first = read_autotvm_log(find_logs(place)[0], ReadReport(), only=_FIRST_LINES)
        return next(first, None) is not None
    except DataError:
        return False


def task_of(record: MeasureRecord) -> AutotvmTask:
    """Returns the task of a record of `read_autotvm_log`."""
    template, arguments = json.loads(record.workload_key)
    return AutotvmTask(record.workload_key, template, arguments, record.target, record.target_kind)


def autotvm_program_id(record: MeasureRecord) -> str:
    """Returns the id of a record's program, equal for all devices of one target kind."""
    return program_id("autotvm", record.workload_key, list(record.steps), record.target_kind)


def template_operator(template: str) -> str:
    """Returns the operator of a template; the template's name if the operator is unknown."""
    name = template.split(".", 1)[0]
    for pattern, operator in _OPERATORS:
        if re.search(pattern, name):
            return operator
    return name


def operator_shape(workload_key: str) -> str | None:
    """Returns operator and tensor shapes of an AutoTVM workload key; None for other keys.

    Several templates may compute the same operator: their programs have the same operator shape.
    """
    try:
        value = json.loads(workload_key)
    except ValueError:
        return None
    if not (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and "." in value[0]
        and isinstance(value[1], list)
    ):
        return None
    tensors = [a[1] for a in value[1] if isinstance(a, list) and a[:1] == ["TENSOR"]]
    return json.dumps([template_operator(value[0]), tensors])
