"""How long does my kernel take? A TVMScript kernel is predicted on two CPUs; nothing is run.

The text could also be a file (`model.predict("kernel.py")`) or a PrimFunc that TVM holds.
"""

import cdmpp

KERNEL = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def matmul(A: T.Buffer((128, 256), "float32"), B: T.Buffer((256, 64), "float32"),
           C: T.Buffer((128, 64), "float32")):
    for i in T.parallel(128):
        for k, j in T.grid(256, 64):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""

model = cdmpp.load("pretrained")
for one in model.predict(KERNEL, device=["epyc-avx512-1c", "xeon-avx2-1c"]):
    interval = f"90 % interval {one.low_s:.3g} to {one.high_s:.3g} s"
    print(f"{one.name} on {one.device}: {one.latency_s:.3g} s, {interval}")
    if one.out_of_distribution:
        print("  out of distribution: the prediction has low confidence")
