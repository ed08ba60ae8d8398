"""The work of a program counted on its loop tree: what no compiler can save, and no less."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.analytic.roofline.bounds import program_bounds
from cdmpp.analytic.roofline.floor import program_floor
from cdmpp.devices.registry import get_device
from cdmpp.programs.loops.expr import dtype_bytes
from cdmpp.programs.work import ProgramWork, as_floats, program_work
from tvm_helper.compat import te, tirx, tvm
from tvm_helper.predict.predictor import Predictor, program_samples
from tvm_helper.predict.reading import ProgramReading, _at_least, features_of, read_program
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.script import read_script
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.loop_tree import loop_tree_from_tir

pytestmark = pytest.mark.tvm

ROW_SUM = """
    for i in T.thread_binding(512, thread="blockIdx.x"):
        for k in T.thread_binding(1024, thread="threadIdx.x"):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]
"""
PRODUCT = """
    for i, j, k in T.grid(64, 32, 48):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.{out}(0)
            C[vi, vj] = C[vi, vj] + T.Cast("{out}", A[vi, vk]) * T.Cast("{out}", B[vk, vj])
"""
#: Buffers of a program, its body, its operations and its bytes.
CASES = {
    "across threads": ({"A": (512, 1024), "B": (512,)}, ROW_SUM, 512 * 1024, 4 * 512 * 1025),
    "maximum across threads": ({"A": (64, 256), "B": (64,)}, """
    for i in T.thread_binding(64, thread="blockIdx.x"):
        for k in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("max"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.min_value("float32")
                B[vi] = T.max(B[vi], A[vi, vk])
""", 64 * 256, 4 * 64 * 257),
    "vector index": ({"A": (4096,), "B": (4096,)}, """
    for i in T.thread_binding(4, thread="blockIdx.x"):
        for j in T.thread_binding(256, thread="threadIdx.x"):
            B[T.Ramp(i * 1024 + j * 4, 1, 4)] = (
                A[T.Ramp(i * 1024 + j * 4, 1, 4)] * T.Broadcast(T.float32(2), 4)
            )
""", 4096, 8 * 4096),
    "view": ({"A": (64, 32), "B": (64, 32)}, """
    flat = T.decl_buffer((2048,), "float32", data=A.data)
    for i in range(2048):
        B[i // 32, i % 32] = flat[i] * T.float32(2)
""", 2048, 8 * 2048),
    "window that skips": ({"A": (64, 64), "B": (32, 32)}, """
    for i, j in T.grid(32, 32):
        B[i, j] = A[2 * i, 2 * j] + T.float32(1)
""", 1024, 8 * 1024),
    "padded window": ({"A": (30, 30), "B": (30, 30)}, """
    for i, j, r in T.grid(30, 30, 3):
        with T.sblock("B"):
            vi, vj, vr = T.axis.remap("SSR", [i, j, r])
            with T.init():
                B[vi, vj] = T.float32(0)
            B[vi, vj] = B[vi, vj] + T.if_then_else(
                1 <= vi + vr and vi + vr < 31, A[vi + vr - 1, vj], T.float32(0)
            )
""", 2700, 8 * 900),
    "part of the iterations": ({"A": (100,), "B": (100,)}, """
    for i in range(128):
        if i < 100:
            B[i] = A[i] * T.float32(3)
""", 100, 800),
    "gather": ({"A": (4096,), "J": (16, "int32"), "B": (16,)}, """
    for i in range(16):
        B[i] = A[J[i]]
""", 0, 4 + 64 + 64),
    "same value again": ({"A": (64,), "B": (64, 8)}, """
    for i, j in T.grid(64, 8):
        B[i, j] = T.exp(A[i])
""", 64, 4 * 64 * 9),
    "value nobody reads": ({"A": (64,), "B": (64,)}, """
    C = T.alloc_buffer((64,), "float32")
    for i in range(64):
        C[i] = A[i] * T.float32(2)
    for i in range(64):
        B[i] = T.float32(0)
""", 0, 4 * 64),
    "own element again": ({"A": (64,), "B": (64,)}, """
    for i, k in T.grid(64, 100):
        B[i] = B[i] * T.float32(0.5) + A[i]
""", 2 * 64 * 100, 3 * 4 * 64),
    "maximum again": ({"A": (64,), "B": (64,)}, """
    for i, k in T.grid(64, 100):
        B[i] = T.max(B[i], A[i])
""", 64, 3 * 4 * 64),
    "sum set in every round": ({"A": (64, 8), "B": (64,)}, """
    for r, i in T.grid(100, 64):
        B[i] = T.float32(0)
        for k in range(8):
            B[i] = B[i] + A[i, k]
""", 64 * 8, 4 * 64 * 9),
    "scan": ({"A": (64, 128), "B": (64, 128)}, """
    for i in range(64):
        for j in range(128):
            B[i, j] = T.if_then_else(j == 0, T.float32(0), B[i, j - 1]) + A[i, j]
""", 64 * 128,
        8 * 64 * 128),
}  # fmt: skip


def module_of(body: str, **buffers: tuple[int | str, ...]):
    """Returns the module of a function; a buffer is its shape, and its type where that is not
    float32.
    """
    arguments = []
    for name, sizes in buffers.items():
        dtype = next((one for one in sizes if isinstance(one, str)), "float32")
        shape = tuple(one for one in sizes if isinstance(one, int))
        arguments.append(f'{name}: T.Buffer({shape}, "{dtype}")')
    text = f"@T.prim_func(s_tir=True)\ndef f({', '.join(arguments)}):{body}"
    return read_script(text)[0].module


def product(dtype: str, out: str):
    return module_of(PRODUCT.format(out=out), A=(64, 48, dtype), B=(48, 32, dtype), C=(64, 32, out))


def work_of(module) -> ProgramWork:
    return program_work(loop_tree_from_tir(module))


@pytest.mark.parametrize("name", CASES)
def test_the_work_of(name: str) -> None:
    buffers, body, flop, moved = CASES[name]
    found = work_of(module_of(body, **buffers))
    assert (found.wide_flop, found.bytes) == (flop, moved)
    assert found.integer_op == 0
    assert found.kernels == 1


def test_doubles_take_as_long_as_their_own_units_do() -> None:
    found = work_of(product("float64", "float64"))
    assert found.double_flop == found.wide_flop == 2 * 64 * 32 * 48
    assert work_of(product("float32", "float32")).double_flop == 0
    programs = []
    for side in (1024, 2048, 4096):
        size = (side, side, "float64")
        wide = PRODUCT.format(out="float64").replace("64, 32, 48", f"{side}, {side}, {side}")
        programs.append(NamedProgram("product", module_of(wide, A=size, B=size, C=size)))
    devices = ["t4", "rtx4090", "a100"]
    found = Predictor("pretrained", devices).programs(programs)
    for one in found:
        assert one.low_s is not None
        assert one.latency_s is not None
        assert one.high_s is not None
        assert one.low_s <= one.latency_s < one.high_s  # also where all are the bound
    # 2 x 4096^3 operations at 1/32 of 8.14 TFLOP/s, 1/64 of 82.6, 1/2 of 19.5
    assert [one.low_s for one in found[-3:]] == pytest.approx([0.540, 0.107, 14.1e-3], rel=0.01)


def test_weights_of_four_bits_are_unpacked() -> None:
    body = """
    for i, k in T.grid(64, 256):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + X[vk] * T.Cast("float32", T.bitwise_and(
                T.shift_right(~Q[vi, vk // 8], T.Cast("uint32", vk % 8 * 4)) | T.uint32(16),
                T.shift_left(T.uint32(1), T.uint32(4)) ^ T.uint32(31)))
"""
    found = work_of(module_of(body, Q=(64, 32, "uint32"), X=(256,), B=(64,)))
    assert (found.wide_flop, found.bytes) == (2 * 64 * 256, 4 * (64 * 32 + 256 + 64))


@pytest.mark.parametrize(
    ("dtype", "size"), [("float8_e4m3fn", 1), ("bfloat16", 2), ("float64", 8), ("bool", 1)]
)
def test_the_bytes_of_a_type(dtype: str, size: int) -> None:
    assert dtype_bytes(dtype) == size


@pytest.mark.parametrize(
    ("dtype", "out", "column"),
    [
        ("float32", "float32", "wide_flop"), ("float16", "float16", "narrow_flop"),
        ("float16", "float32", "wide_flop"), ("int8", "int32", "int8_op"),
        ("int16", "int32", "int16_op"), ("int32", "int32", "int32_op"),
        ("float8_e4m3fn", "float8_e4m3fn", "fp8_flop"),
        ("float4_e2m1fn", "float4_e2m1fn", "fp4_flop"),
    ],
)  # fmt: skip
def test_operations_count_by_their_type(dtype: str, out: str, column: str) -> None:
    found = work_of(product(dtype, out))
    assert getattr(found, column) == 2 * 64 * 32 * 48 == found.flop + found.integer_op


def test_threads_beyond_the_end_leave_the_others_counted() -> None:
    """More iterations than are looked at one by one: all but the last block count."""
    body = """
    for i in T.thread_binding(2930, thread="blockIdx.x"):
        for j in T.thread_binding(1024, thread="threadIdx.x"):
            with T.sblock("B"):
                v0 = T.axis.spatial(3000, (i * 1024 + j) // 1000)
                v1 = T.axis.spatial(1000, (i * 1024 + j) % 1000)
                T.where(i * 1024 + j < 3000000)
                B[v0, v1] = A[v0, v1] * T.float32(2)
"""
    found = work_of(module_of(body, A=(3000, 1000), B=(3000, 1000)))
    assert (found.wide_flop, found.bytes) == (2929 * 1024, 8 * 2929 * 1024)
    behind = body.replace("i * 1024 + j < 3000000", "i * 1024 + j >= 2000000")
    found = work_of(module_of(behind, A=(3000, 1000), B=(3000, 1000)))
    assert found.wide_flop == (2930 - 1954) * 1024


def test_vectors_beyond_the_end_of_a_row_leave_the_others_counted() -> None:
    """All but the last vector of a row count where rows and vectors are one loop; all bytes do."""
    body = """
    for f in T.parallel(3000 * 126):
        for v in T.vectorized(8):
            with T.sblock("B"):
                v0 = T.axis.spatial(3000, f // 126)
                v1 = T.axis.spatial(1001, f % 126 * 8 + v)
                T.where(f % 126 * 8 + v < 1001)
                B[v0, v1] = A[v0, v1] * T.float32(2)
"""
    found = work_of(module_of(body, A=(3000, 1001), B=(3000, 1001)))
    assert found.wide_flop == 3000 * 125 * 8
    assert found.bytes == 2 * 4 * 3000 * 1001


def test_the_first_value_may_be_set_inside_or_before() -> None:
    """What is set where the innermost iteration begins is set once, not in every iteration."""
    before = """
    for i, j in T.grid(64, 32):
        C[i, j] = T.float32(0)
        for k in range(48):
            C[i, j] = C[i, j] + A[i, k] * B[k, j]
"""
    inside = work_of(product("float32", "float32"))
    assert work_of(module_of(before, A=(64, 48), B=(48, 32), C=(64, 32))) == inside


def test_a_program_of_a_library_call_only_names_the_call() -> None:
    """It had the reason `it stores nothing` alone."""
    text = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    T.evaluate(T.call_extern("int32", "cblas_sgemm", A.data, B.data))
"""
    module = tvm.IRModule({"main": tvm.script.from_source(text)})
    found = features_of(module, device_target(get_device("epyc-avx512-1c")))
    assert found == "it stores nothing: it calls cblas_sgemm, whose work is unknown"


@pytest.fixture(scope="module")
def gpu() -> Predictor:
    return Predictor("pretrained", ["a100"])


def test_a_function_of_another_library_is_named() -> None:
    data = te.placeholder((64,), name="data")
    result = te.compute((64,), lambda i: tirx.call_pure_extern("float32", "heavy", data[i]) + 1.0)
    module = tvm.IRModule({"main": te.create_prim_func([data, result])})
    found = work_of(module)
    assert found.uncounted == ("heavy",)
    assert found.bytes == 4 * 2 * 64
    (one,) = Predictor("pretrained", ["epyc-avx512-1c"]).programs([NamedProgram("f", module)])
    assert one.latency_s
    assert "it calls heavy, whose operations are not counted" in one.reasons


@pytest.mark.parametrize(
    ("dtype", "column"),
    [
        ("float16", "narrow_flop"),
        ("float8_e4m3fn", "fp8_flop"),
        ("float4_e2m1fn", "fp4_flop"),
    ],
)
def test_matrix_units_may_do_all_in_the_type_of_the_operands(dtype: str, column: str) -> None:
    """A program that calls them counts as its source does, whose sums are wide."""
    called = replace(work_of(product(dtype, "float32")), wide_flop=0.0, uncounted=("mma",))
    found = _at_least(called, product(dtype, "float32"))
    assert found.flop == getattr(found, column) == 2 * 64 * 32 * 48


def test_bounds_of_four_bits_do_not_count_bytes() -> None:
    """The features of a program have a byte for each value, half of which are half a byte."""
    device = replace(get_device("b200"), l2_bandwidth_bytes_per_s=1e3)
    cpu = device_target(get_device("epyc-avx512-1c"))
    seconds = []
    for dtype in ("float8_e4m3fn", "float4_e2m1fn"):
        module = product(dtype, dtype)
        ast = features_of(module, cpu)
        assert not isinstance(ast, str)
        floor = program_floor(device, ast.leaf_features, ast.leaf_extra, work_of(module))
        seconds.append(floor.seconds[0])  # of its bytes
    assert seconds == pytest.approx([6.656, 3.328], rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "is_known"), [("float32", True), ("bfloat16", True), ("float8_e4m3fn", False)]
)
def test_types_without_measured_programs_are_marked(dtype: str, is_known: bool) -> None:
    """Programs on fp8, of which nothing was measured on CPUs, were predicted without a mark."""
    named = [NamedProgram("f", product(dtype, dtype))]
    (one,) = Predictor("pretrained", ["epyc-avx512-1c"], compiles=True).programs(named)
    assert one.is_compiled
    assert one.out_of_distribution == (not is_known)
    said = f"it has data of {dtype}, not in the training data"
    assert one.reasons == (() if is_known else (said,))


def test_a_bound_without_a_rate_is_not_compared() -> None:
    predictor = Predictor("pretrained", ["cortex-a72", "a100"])
    body = """
    for b in T.thread_binding(4096, thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            B[b, t] = A[b, t]
"""
    copy = module_of(body.replace("T.thread_binding(4096, thread=\"blockIdx.x\")", "range(4096)")
        .replace("T.thread_binding(256, thread=\"threadIdx.x\")", "T.vectorized(256)"),
        A=(4096, 256), B=(4096, 256))  # fmt: skip
    cpu, _ = predictor.programs([NamedProgram("f", copy)])
    assert cpu.explanation is not None
    assert "times the lower bound" not in cpu.explanation.text(1.0)  # its bandwidth is unknown
    _, gpu = predictor.programs([NamedProgram("f", module_of(body, A=(4096, 256), B=(4096, 256)))])
    assert gpu.explanation is not None
    assert "predicted 444,444 times the lower bound, 2.25 µs" in gpu.explanation.text(1.0)


def test_a_condition_bounds_the_longer_loop() -> None:
    body = """
    for i in range(335544):
        for j in range(100):
            if j <= i:
                B[i, j] = A[i, j] * A[i, j]
"""
    found = work_of(module_of(body, A=(335544, 100), B=(335544, 100)))
    # Rows from the 100th on are whole.
    assert found.bytes == 2 * 4 * (335544 - 99) * 100


def test_eight_bit_floats_fill_a_byte_of_shared_memory(gpu: Predictor) -> None:
    body = """
    S = T.sblock_alloc_buffer((64, 256), "float8_e4m3fn", scope="shared")
    for i in T.thread_binding(1, thread="blockIdx.x"):
        for j in T.thread_binding(256, thread="threadIdx.x"):
            for k in range(64):
                S[k, j] = A[k, j]
            for k in range(64):
                B[k, j] = S[k, 255 - j]
"""
    size = (64, 256, "float8_e4m3fn")
    (found,) = gpu.programs([NamedProgram("copy", module_of(body, A=size, B=size))])
    assert found.reason is None
    assert found.latency_s


def test_what_threads_read_together_counts(gpu: Predictor) -> None:
    """268 MB take 146 us from the memory of an A100, beyond its cache of 40 MB."""
    module = module_of(ROW_SUM.replace("512", "65536"), A=(65536, 1024), B=(65536,))
    (found,) = gpu.programs([NamedProgram("sum", module)])
    least_s = (4 * 65536 * 1025 - 41943040) / 1.555e12
    assert found.explanation is not None
    assert found.explanation.least_s == pytest.approx(least_s)
    assert found.low_s >= 0.999 * least_s
    assert found.low_s <= found.latency_s < found.high_s
    assert "across threads" in found.reasons[0]
    assert found.out_of_distribution


@pytest.mark.exhaustive
def test_integers_are_predicted_as_they_were_measured() -> None:
    """Measured on one Zen 4 core: the product of 512 x 512 bytes takes 10.2 ms."""
    cpu = Predictor("pretrained", ["epyc-avx512-1c"])
    body = """
    for i in T.parallel(512):
        for k in range(512):
            for jo in range(32):
                for ji in T.vectorized(16):
                    with T.sblock("mm"):
                        vi = T.axis.spatial(512, i)
                        vj = T.axis.spatial(512, jo * 16 + ji)
                        vk = T.axis.reduce(512, k)
                        with T.init():
                            C[vi, vj] = T.int32(0)
                        C[vi, vj] = C[vi, vj] + T.Cast("int32", A[vi, vk]) * T.Cast("int32", B[vk, vj])
"""  # noqa: E501
    module = module_of(body, A=(512, 512, "int8"), B=(512, 512, "int8"), C=(512, 512, "int32"))
    (found,) = cpu.programs([NamedProgram("int8mm", module)])
    assert found.low_s < 10.2e-3 < found.high_s
    assert found.latency_s == pytest.approx(10.2e-3, rel=0.4)


def test_a_program_on_floats_is_the_same_program() -> None:
    found = as_floats(loop_tree_from_tir(product("int32", "int32")))
    same = loop_tree_from_tir(product("float32", "float32"))
    assert program_work(found) == program_work(same)


def test_what_a_model_can_see_is_asked_as_before() -> None:
    target = device_target(get_device("epyc-avx512-1c"))
    module = product("float32", "float32")
    read, ast = read_program(module, target), features_of(module, target)
    assert isinstance(read, ProgramReading)
    assert read.doubts == ()
    assert read.ast.leaf_features.tobytes() == ast.leaf_features.tobytes()
    assert read.ast.leaf_extra.tobytes() == ast.leaf_extra.tobytes()


@pytest.mark.parametrize("count", [524288, 524289])
def test_an_update_in_place_lacks_nothing(count: int) -> None:
    """Its work counts the buffer twice, its features once and rounded."""
    body = f"""
    for i in range({count}):
        A[i] = T.max(A[i], T.float32(0))
"""
    read = read_program(module_of(body, A=(count,)), device_target(get_device("epyc-avx512-1c")))
    assert isinstance(read, ProgramReading)
    assert read.doubts == ()


def test_a_gpu_program_stores_nothing_on_the_host() -> None:
    body = """
    for b in T.thread_binding(64, thread="blockIdx.x"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            B[b * 64 + t] = A[b * 64 + t] + T.float32(1)
    for i in range(4096):
        C[i] = B[i] * T.float32(2)
"""
    module = module_of(body, A=(4096,), B=(4096,), C=(4096,))
    answer = read_program(module, device_target(get_device("t4")))
    assert answer == (
        "the store to C is outside of the thread bindings, so the host would run it; bind its "
        "loops to threads too"
    )


def test_a_known_peak_of_integers_is_the_bound() -> None:
    h100 = get_device("h100")
    read = read_program(product("int8", "int32"), device_target(get_device("epyc-avx512-1c")))
    assert isinstance(read, ProgramReading)
    work = replace(read.work, int8_op=1e15)
    floor = program_floor(h100, read.ast.leaf_features, read.ast.leaf_extra, work)
    assert floor.seconds[0] == pytest.approx(1e15 / h100.peak_int8_op_per_s)
    unknown = replace(h100, peak_int8_op_per_s=None)
    floor = program_floor(unknown, read.ast.leaf_features, read.ast.leaf_extra, work)
    assert floor.seconds[0] == pytest.approx(1e15 / (4 * h100.peak_fp32_flop_per_s))


def test_one_thread_of_a_gpu_is_said_and_bounds() -> None:
    text = """
    for t in T.thread_binding({threads}, thread="threadIdx.x"):
        for i in range(1048576 // {threads}):
            with T.sblock("sum"):
                vi = T.axis.reduce(1048576, i)
                with T.init():
                    B[0] = T.float32(0)
                B[0] = B[0] + A[vi]
"""
    a100 = get_device("a100-40gb")
    module = module_of(text.format(threads=1), A=(1048576, "float32"), B=(1, "float32"))
    read = read_program(module, device_target(a100))
    assert isinstance(read, ProgramReading)
    assert "1 of the GPU's threads" in read.doubts[0]
    floor = program_floor(a100, read.ast.leaf_features, read.ast.leaf_extra, read.work)
    assert floor.seconds[0] == pytest.approx(1048576 / (4 * a100.clock_hz))
    assert floor.why(0) == "its operations on the threads in use"
    wide = module_of(text.format(threads=1024), A=(1048576, "float32"), B=(1, "float32"))
    read = read_program(wide, device_target(a100))
    assert isinstance(read, ProgramReading)
    assert read.doubts == ()


def test_the_roofline_of_a_reduction_across_threads_reads_its_input_once() -> None:
    body = ROW_SUM.replace("512", "65536")
    module = module_of(body, A=(65536, 1024, "float32"), B=(65536, "float32"))
    found = program_samples(NamedProgram("sums", module), get_device("a100-40gb"))
    (row,) = program_bounds(found, "")
    assert row["least_s"] == pytest.approx(146e-6, rel=0.01)
    assert row["least_s"] < row["seconds"] < 1.5 * row["least_s"]
