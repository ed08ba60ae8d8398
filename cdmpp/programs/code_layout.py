"""Column layouts of compiled programs: one for CPU code and one for GPU code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from cdmpp.programs.gpu_code.columns import GPU_CODE_NAMES, GPU_CODE_SCHEMA_VERSION
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES, MACHINE_CODE_SCHEMA_VERSION

CodeKind: TypeAlias = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class CodeLayout:
    """Columns of the code of one kind of device.

    Attributes:
        version: version of the columns' meaning, as stored in files.
        names: names of the columns, in order.
    """

    version: int | str
    names: tuple[str, ...]


#: Kind of device -> layout; the versions of different kinds differ.
CODE_LAYOUTS: Mapping[CodeKind, CodeLayout] = MappingProxyType(
    {
        "cpu": CodeLayout(MACHINE_CODE_SCHEMA_VERSION, MACHINE_CODE_NAMES),
        "gpu": CodeLayout(f"gpu {GPU_CODE_SCHEMA_VERSION}", GPU_CODE_NAMES),
    }
)
