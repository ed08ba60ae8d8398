"""The version check and the start-up fixes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tvm


def test_package_import_loads_no_tvm() -> None:
    code = (
        "import sys, tvm_helper, tvm_helper.records.dag; "
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


@pytest.mark.slow
def test_tensor_intrinsics_load_with_the_cheap_stack() -> None:
    code = (
        "import inspect; before = inspect.stack;"
        "from tvm_helper.compat import import_tensor_intrinsics; import_tensor_intrinsics();"
        "from tvm.s_tir import TensorIntrin; TensorIntrin.get('wmma_sync_16x16x16_f16f16f32');"
        "assert inspect.stack is before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tvm_comes_without_torch_which_may_come_later() -> None:
    code = (
        "import sys; from tvm_helper.compat import tvm; assert 'torch' not in sys.modules;"
        "import torch, numpy; t = tvm.runtime.tensor(torch.ones(3).numpy());"
        "assert t.numpy().sum() == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_intrinsics_of_cpus_come_alone_and_the_others_later() -> None:
    code = (
        "import sys; from tvm_helper.compat import import_tensor_intrinsics as load;"
        "from tvm.s_tir import TensorIntrin; load('llvm'); TensorIntrin.get('dot_16x4_vnni');"
        "import tvm.s_tir.tensor_intrin as found; assert not hasattr(found, 'cuda'); load();"
        "TensorIntrin.get('wmma_sync_16x16x16_f16f16f32'); assert found.cuda"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
