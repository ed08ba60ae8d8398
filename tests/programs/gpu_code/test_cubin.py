"""Kernels read from CUBINs: what the source says, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.programs.gpu_code.cubin import KIND, KINDS, read_cubin

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("architecture", ["sm_70", "sm_80"])
def test_a_kernel_is_read_as_its_source_says(architecture: str) -> None:
    (kernel,) = read_cubin((FOLDER / f"tiled_{architecture}.cubin").read_bytes())
    assert (kernel.name, kernel.registers, kernel.shared_bytes) == ("tiled", 16, 1024)
    outer, inner = kernel.loops
    assert (outer.trips, inner.trips) == (12, 40)
    assert outer.first < inner.first < inner.last < outer.last < len(kernel.kind)
    counts = {kind: int((kernel.kind == KIND[kind]).sum()) for kind in KINDS}
    wanted = {
        "multiply_add": 1, "load_global": 1, "store_global": 1, "load_shared": 2,
        "store_shared": 1, "barrier": 2, "load_local": 0, "shuffle": 0, "other": 0,
    }  # fmt: skip
    assert {kind: counts[kind] for kind in wanted} == wanted
    # a float4 from global to shared memory, two floats read back, one written
    assert kernel.width[kernel.width > 0].tolist() == [16, 16, 4, 4, 4]
    assert kernel.is_conditional[outer.last] or kernel.is_conditional[outer.last - 1]
    assert not kernel.is_conditional[inner.first]


def test_what_is_no_cubin_is_refused() -> None:
    content = (FOLDER / "tiled_sm_70.cubin").read_bytes()
    for damaged in (b"", b"PK", content[:40], content[:64], content[:200], b"\x7fELF\x02" * 30):
        with pytest.raises(DataError, match="CUBIN"):
            read_cubin(damaged)
    with pytest.raises(DataError, match="no kernel"):
        read_cubin(content.replace(b".text.", b".data."))
