"""How fast would it be on an unseen board? Its data sheet is enough for a wide prediction.

The file has the form of those in `cdmpp/devices`; `cdmpp device add` measures a machine instead.
"""

from pathlib import Path

import cdmpp

BOARD = """
common:
  kind: cpu
devices:
  my-board:
    vendor: {value: Example, source: data sheet}
    core_count: {value: 4, source: data sheet}
    threads: {value: 1, source: how it is used}
    clock_hz: {value: 2.0e9, source: data sheet}
    simd_bits: {value: 128, source: data sheet}
    peak_fp32_flop_per_s: {value: 1.6e10, source: 2 x 4 lanes x clock}
    mem_bandwidth_bytes_per_s: {value: 1.2e10, source: data sheet}
"""
KERNEL = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def scale(A: T.Buffer((65536,), "float32"), B: T.Buffer((65536,), "float32")):
    for i in T.vectorized(65536):
        with T.sblock("scale"):
            vi = T.axis.spatial(65536, i)
            B[vi] = A[vi] * T.float32(2)
"""

Path("board.yaml").write_text(BOARD)
board = cdmpp.devices.read(Path("board.yaml"))
model = cdmpp.load("pretrained")
for one in model.predict(KERNEL, device=[board, "epyc-avx2-1c"]):
    print(one, "(out of distribution)" if one.out_of_distribution else "")
