"""Names of the 164 values of a leaf vector."""

from __future__ import annotations

#: Number of accessed buffers in a leaf vector; further ones are left out, missing ones are zeros.
ACCESS_SLOT_COUNT = 5
#: Number of samples of the arithmetic intensity curve.
INTENSITY_SAMPLE_COUNT = 10

#: Operation counters, in column order; `mad` (fused multiply-add) is a column but never counted.
OPERATION_KEYS: tuple[str, ...] = (
    *(
        f"{domain}_{operation}"
        for domain in ("float", "int")
        for operation in ("mad", "addsub", "mul", "divmod", "cmp", "math_func", "other_func")
    ),
    "bool_op",
    "select_op",
)

_POSITIONS = tuple(
    f"kPos{position}"
    for position in (
        "None", "InnerSpatial", "MiddleSpatial", "OuterSpatial",
        "InnerReduce", "MiddleReduce", "OuterReduce", "Mixed",
    )
)  # fmt: skip

_ACCESS_NAMES = (
    *(f"acc_type.{kind}" for kind in ("kRead", "kWrite", "kReadWrite")),
    "bytes",
    "unique_bytes",
    "lines",
    "unique_lines",
    *(f"reuse_type.{kind}" for kind in ("kLoopMultipleRead", "kSerialMultipleReadWrite")),
    "reuse_type.kNoReuse",
    "reuse_dis_iter",
    "reuse_dis_bytes",
    "reuse_ct",
    *(f"{name}_d_reuse_ct" for name in ("bytes", "unique_bytes", "lines", "unique_lines")),
    "stride",
)


def _annotation_names(annotation: str) -> tuple[str, ...]:
    counts = tuple(f"{annotation}_{count}" for count in ("num", "prod", "len"))
    return counts + tuple(f"{annotation}_type.{position}" for position in _POSITIONS)


_COMPUTE_NAMES = (
    *(key.replace("_func", "func") for key in OPERATION_KEYS),
    *_annotation_names("vec"),
    *_annotation_names("unroll"),
    *_annotation_names("parallel"),
    "is_gpu",
    *(f"{index}_{axis}_len" for index in ("blockIdx", "threadIdx") for axis in "xyz"),
    "vthread_len",
)

#: Column names of `CompactAst.leaf_features`, in order; the names of the original extractor.
LEAF_FEATURE_NAMES: tuple[str, ...] = (
    *_COMPUTE_NAMES,
    *(f"B{slot}.{name}" for slot in range(ACCESS_SLOT_COUNT) for name in _ACCESS_NAMES),
    *(f"arith_intensity_curve_{sample}" for sample in range(INTENSITY_SAMPLE_COUNT)),
    "alloc_size",
    "alloc_prod",
    "alloc_outer_prod",
    "alloc_inner_prod",
    "outer_prod",
    "num_loops",
    "auto_unroll_max_step",
)
