"""Machine code of measured programs in the tables of a dataset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import Samples
from cdmpp.programs.code_layout import CODE_LAYOUTS


def has_code(samples: Samples, table: MachineCode) -> NDArray[np.bool_]:
    """Returns bool [N], True if the program was compiled for the device that it was measured on."""
    is_of = np.array([one.name in table.targets for one in samples.devices], bool)
    names = samples.programs.program_id[samples.program]
    is_compiled = np.array([str(name) in table.columns for name in names], bool)
    return np.asarray(is_compiled & is_of[samples.device], bool)


def code_columns(samples: Samples, table: MachineCode) -> NDArray[np.float32]:
    """Returns float32 [N, columns], the machine code of each program; NaN if it has none."""
    found = np.full((len(samples), len(CODE_LAYOUTS[table.kind].names)), np.nan, np.float32)
    names = samples.programs.program_id[samples.program]
    for place in np.flatnonzero(has_code(samples, table)).tolist():
        found[place] = table.columns[str(names[place])]
    return found
