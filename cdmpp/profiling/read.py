"""Reads the profile of a file, whose tool is detected by the content."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from cdmpp.devices.registry import find_device, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches
from cdmpp.files.open_text import open_binary, read_text
from cdmpp.profiling.formats.chrome_trace import EVENTS, read_chrome_trace
from cdmpp.profiling.formats.cutlass_csv import is_cutlass_csv, read_cutlass_csv
from cdmpp.profiling.formats.hl100_trace import is_hl100_trace, read_hl100_trace
from cdmpp.profiling.formats.launch_table import (
    is_launch_csv,
    is_launch_text,
    read_launch_csv,
    read_launch_text,
)
from cdmpp.profiling.formats.ncu_raw import is_ncu_raw, read_ncu_raw
from cdmpp.profiling.formats.nsys_summary import is_nsys_summary, read_nsys_summary
from cdmpp.profiling.formats.nvprof_metrics import is_nvprof_metrics, read_nvprof_metrics
from cdmpp.profiling.formats.nvprof_summary import (
    is_nvprof_summary,
    is_nvprof_summary_csv,
    read_nvprof_summary,
    read_nvprof_summary_csv,
)
from cdmpp.profiling.formats.sqlite_file import is_sqlite, read_sqlite
from cdmpp.profiling.formats.torch_table import is_torch_table, read_torch_table
from cdmpp.profiling.schema import Profile

_HEAD_BYTES = 1 << 16
#: Start of an object or of a list of objects; lines of nvprof may start with a bracket too.
_JSON = re.compile(r"\{|\[\s*[{\]]")
#: (name, test of a text, reader), most specific first.
_TABLES: tuple[tuple[str, Callable[[str], bool], Callable[[Path, str], Profile]], ...] = (
    ("nvprof metrics", is_nvprof_metrics, read_nvprof_metrics),
    ("ncu raw CSV", is_ncu_raw, read_ncu_raw),
    ("torch.profiler table", is_torch_table, read_torch_table),
    ("CUTLASS CSV", is_cutlass_csv, read_cutlass_csv),
    ("nsys summary", is_nsys_summary, read_nsys_summary),
    ("GPU-trace CSV", is_launch_csv, read_launch_csv),
    ("nvprof CSV", is_nvprof_summary_csv, read_nvprof_summary_csv),
    ("nvprof GPU trace", is_launch_text, read_launch_text),
    ("nvprof text", is_nvprof_summary, read_nvprof_summary),
)
EXPECTED = (
    "nvprof (text, CSV, -o file), nsys (stats as text or CSV, or SQLite), ncu --csv, "
    "a trace or table of torch.profiler, a trace of TensorBoard, CUTLASS profiler CSV, or an "
    "HL-100 operator trace"
)


def read_profile(path: Path) -> Profile:
    """Returns the profile of a file of any known tool.

    Raises:
        DataError: missing, empty, damaged, of several formats, or of unknown format.
    """
    path = Path(path)
    with open_binary(path) as stream:
        head = stream.read(_HEAD_BYTES)
    if not head.strip():
        raise DataError(f"{path}: is empty; expected {EXPECTED}")
    if is_sqlite(head):
        return read_sqlite(path)
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    if _JSON.match(text):
        return _read_trace(path)
    if b"\x00" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path}: a binary file of an unknown kind; expected {EXPECTED}; turn a .nsys-rep "
            "into SQLite with: nsys export --type sqlite FILE"
        )
    return _read_table(path)


def _read_trace(path: Path) -> Profile:
    first = next(array_batches(path, EVENTS, on_note=lambda _: None), [])  # the reader notes it
    return read_hl100_trace(path) if is_hl100_trace(first) else read_chrome_trace(path)


def _read_table(path: Path) -> Profile:
    text = read_text(path)
    found = [(name, reader) for name, matches, reader in _TABLES if _is(matches, text)]
    if len(found) > 1:
        raise DataError(
            f"{path}: holds tables of several kinds ({', '.join(name for name, _ in found)}); "
            "expected one; save each table to its own file and give all files"
        )
    if not found:
        begin = next((line.strip() for line in text.splitlines() if line.strip()), "")
        raise DataError(
            f"{path}: unknown kind of profile (it begins with {begin[:60]!r}); expected {EXPECTED}"
        )
    return found[0][1](path, text)


def _is(matches: Callable[[str], bool], text: str) -> bool:
    try:
        return matches(text)
    except DataError:  # not CSV
        return False


def profile_device(
    profile: Profile, label: str | None = None
) -> tuple[DeviceSpec | None, list[str]]:
    """Returns the device of a profile, or None, and notes.

    Args:
        label: label of the device; None = the device in the profile.

    Raises:
        DeviceError: the label is unknown.
    """
    if label is not None:
        return get_device(label), []
    if profile.device_name is None:
        return None, ["the profile has no device name: --device LABEL adds shares of the peaks"]
    found = find_device(profile.device_name)
    if found is None:
        return None, [
            f"the profile's device {profile.device_name!r} is not in the registry: give one with "
            "--device LABEL (cdmpp device list)"
        ]
    return found, []
