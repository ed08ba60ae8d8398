"""The version check and the start-up fixes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.tvm


def test_package_import_loads_no_tvm() -> None:
    code = (
        "import sys, tvm_helper, cdmpp.programs.ansor.dag; "
        "sys.exit(any(name.split('.')[0] in ('tvm', 'tvm_ffi') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_installed_versions_are_the_required_ones() -> None:
    from tvm_helper.compat import REQUIRED_VERSIONS, check_versions, installed_versions

    assert installed_versions() == dict(REQUIRED_VERSIONS)
    check_versions(REQUIRED_VERSIONS)


@pytest.mark.parametrize("found", ["0.1.15.post2", None])
def test_other_version_names_got_expected_and_command(found: str | None) -> None:
    from cdmpp.errors import UsageError
    from tvm_helper.compat import REQUIRED_VERSIONS, check_versions

    with pytest.raises(UsageError) as error:
        check_versions({**REQUIRED_VERSIONS, "apache-tvm-ffi": found})
    text = str(error.value)
    assert (found or "not installed") in text
    assert "pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1" in text


def test_stub_spares_workers_the_tensor_intrinsics() -> None:
    code = (
        "import sys;"
        "from tvm_helper.compat import stub_tensor_intrinsics, import_tensor_intrinsics;"
        "stub_tensor_intrinsics(); import_tensor_intrinsics(); import tvm.s_tir.tensor_intrin as m;"
        "sys.exit(hasattr(m, '__file__'))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_module_imports_tvm_past_the_quick_import() -> None:
    of_the_old_tvm = {"legacy", "ansor"}
    imports = re.compile(r"^(from|import) tvm\b", re.MULTILINE)
    found = [
        path.name
        for path in (ROOT / "tvm_helper").rglob("*.py")
        if not of_the_old_tvm & set(path.parts) and imports.search(path.read_text("utf-8"))
    ]
    assert found == ["compat.py"]


#: What there is of TVM once it is imported: functions, operators, their printed names, modules. Of
#: disco, which TVM does without, the slow import leaves two modules and a function.
FACTS = (
    "import hashlib; from tvm_ffi.registry import list_global_func_names as functions;"
    "operators = sorted(map(str, tvm.ir.Op.list_op_names()));"
    "printed = [str(tvm.ir.Op.get(o).get_attr('TScriptPrinterName')) for o in operators];"
    "modules = [m for m in sys.modules if m.startswith('tvm') and m[:10] != 'tvm_helper'];"
    "found = [[one for one in sorted(many) if 'disco' not in one]"
    " for many in (functions(), operators, modules)] + [printed]; assert tvm.runtime.disco is None;"
    "print([len(one) for one in found], hashlib.sha256(repr(found).encode()).hexdigest());"
)


#: Those of CPUs come alone, and the others later.
INTRINSICS = (
    "import inspect; before = inspect.stack;"
    "from tvm_helper.compat import import_tensor_intrinsics as load;"
    "from tvm.s_tir import TensorIntrin; load('llvm'); TensorIntrin.get('dot_16x4_vnni');"
    "import tvm.s_tir.tensor_intrin as found; assert not hasattr(found, 'cuda'); load();"
    "TensorIntrin.get('wmma_sync_16x16x16_f16f16f32'); assert found.cuda;"
    "assert inspect.stack is before;"
)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_quick_import_leaves_tvm_as_the_slow_one_does_and_the_rest_for_later() -> None:
    slow = "import sys; sys.modules['torch'] = None; import tvm;" + FACTS
    quick = (
        "import sys; from tvm_helper.compat import tvm; assert 'torch' not in sys.modules;"
        + FACTS
        + INTRINSICS
        + "import gc; assert gc.isenabled(); assert 'tvm.runtime.disco' not in sys.modules;"
        "assert 'get_operator' not in repr(tvm.ir._ffi_api.GetOp);"
        "import torch, numpy; t = tvm.runtime.tensor(torch.ones(3).numpy());"
        "assert t.numpy().sum() == 3"
    )
    said = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
        for code in (slow, quick)
    ]
    assert said[0] == said[1]
