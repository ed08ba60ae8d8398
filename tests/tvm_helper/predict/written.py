"""What a user writes: a kernel, and a device that nobody has measured."""

SCRIPT = """
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def plain(A: T.Buffer((64, 48), "float32"), B: T.Buffer((48, 32), "float32"),
          C: T.Buffer((64, 32), "float32")):
    for i, j, k in T.grid(64, 32, 48):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
BOARD = """
common:
  kind: cpu
devices:
  my-board:
    threads: {value: 4, source: the data sheet}
    peak_fp32_flop_per_s: {value: 1.0e11, source: the data sheet}
    mem_bandwidth_bytes_per_s: {value: 2.0e10, source: the data sheet}
"""
