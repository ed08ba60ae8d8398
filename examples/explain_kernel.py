"""Why is my kernel slow? Every store's share of the time, what bounds it, and what would change it.

The kernel computes a row sum with its loops in a poor order.
"""

import cdmpp

KERNEL = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def row_sum(A: T.Buffer((1024, 512), "float32"), B: T.Buffer((1024,), "float32")):
    for k, i in T.grid(512, 1024):
        with T.sblock("sum"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
"""

why = cdmpp.load("pretrained").predict(KERNEL, device="epyc-avx512-1c").explain()
print(why)
for change in why.row["counterfactuals"][:3]:
    print(f"{change['ratio']:.2f} times the time if {change['what']}")
