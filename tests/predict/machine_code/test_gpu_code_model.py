"""Models of the machine code of GPU programs: their times by instructions, files and training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.predict.machine_code.gpu_time import NOMINAL_HZ, gpu_log_s
from cdmpp.predict.machine_code.model import FOLDERS, CodeModel
from cdmpp.programs.code_layout import CODE_LAYOUTS
from cdmpp.programs.gpu_code.columns import GPU_CODE_NAMES
from tests.predict.machine_code.test_code_model import _SCHEMA, rows

pytestmark = pytest.mark.training

_TARGETS = {"v100": '{"kind": "cuda", "arch": "sm_70"}'}


def test_cycles_take_as_long_as_the_clock_says() -> None:
    v100 = get_device("v100")
    assert v100.clock_hz is not None
    code = np.zeros((2, len(GPU_CODE_NAMES)), np.float32)
    code[:, GPU_CODE_NAMES.index("cycles.longest")] = 20.0
    code[:, GPU_CODE_NAMES.index("cycles.shared")] = 10.0
    devices = [v100, replace(v100, name="unknown", clock_hz=None)]
    seconds = np.exp(gpu_log_s(code, devices, np.array([0, 1])))
    assert seconds[:, 0] == pytest.approx([2.0**20 / v100.clock_hz, 2.0**20 / NOMINAL_HZ])
    assert seconds[0, 3] == pytest.approx(2.0**10 / v100.clock_hz)


def test_a_table_of_a_gpu_says_so(tmp_path: Path) -> None:
    columns = np.arange(len(GPU_CODE_NAMES), dtype=np.float32)
    MachineCode(_TARGETS, {"one": columns}, "gpu").save(tmp_path, name="v100")
    (found,) = read_machine_code(tmp_path)
    assert (found.kind, found.targets) == ("gpu", _TARGETS)
    assert np.array_equal(found.columns["one"], columns)


@pytest.mark.exhaustive
def test_a_model_has_both_kinds_of_code_beside_each_other(tmp_path: Path) -> None:
    assert len({layout.version for layout in CODE_LAYOUTS.values()}) == len(FOLDERS) == 2
    parts = rows(120, 0), rows(80, 1), rows(80, 2)
    found = CodeModel.fit(parts, targets=_TARGETS, feature_schema=_SCHEMA, seed=0, kind="gpu")
    found.save(tmp_path)
    assert CodeModel.load(tmp_path) is None
    again = CodeModel.load(tmp_path, kind="gpu")
    assert again is not None
    assert (again.kind, again.targets) == ("gpu", _TARGETS)
    assert np.array_equal(again.estimate(parts[2])[0], found.estimate(parts[2])[0])
    (tmp_path / FOLDERS["gpu"]).rename(tmp_path / FOLDERS["cpu"])
    with pytest.raises(DataError, match="gpu 1"):
        CodeModel.load(tmp_path)
