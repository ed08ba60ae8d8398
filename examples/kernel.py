"""A kernel in TVMScript, as a search writes it: a matrix product in tiles of 4 by 16."""

from tvm.script import tirx as T  # noqa: N812


@T.prim_func(s_tir=True)
def dense(
    data: T.Buffer((64, 448), "float32"),
    weight: T.Buffer((448, 384), "float32"),
    out: T.Buffer((64, 384), "float32"),
):
    T.func_attr({"tirx.noalias": True})
    for tile in T.parallel(16, annotations={"pragma_auto_unroll_max_step": 64}):
        for column in range(24):
            for row in range(4):
                for lane in T.vectorized(16):
                    with T.sblock("init"):
                        i = T.axis.spatial(64, tile * 4 + row)
                        j = T.axis.spatial(384, column * 16 + lane)
                        out[i, j] = T.float32(0)
            for step, row in T.grid(448, 4):
                for lane in T.vectorized(16):
                    with T.sblock("update"):
                        i = T.axis.spatial(64, tile * 4 + row)
                        j = T.axis.spatial(384, column * 16 + lane)
                        k = T.axis.reduce(448, step)
                        out[i, j] = out[i, j] + data[i, k] * weight[k, j]
