"""What a profile means: work, bounds, occupancy, predictions, comparison, utilisation."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.embedding.devices import kernel_device
from cdmpp.analytic.embedding.gpu import estimate
from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.kernels.call import Call
from cdmpp.analytic.kernels.predictor import KernelPredictor
from cdmpp.analytic.kernels.work import work_of
from cdmpp.analytic.operators.model import OperatorModel, known_hardware
from cdmpp.analytic.operators.operators import make_operators
from cdmpp.devices.occupancy import occupancy, occupancy_limits
from cdmpp.devices.registry import get_device
from cdmpp.profiling.compare import compare, holm
from cdmpp.profiling.explain import bound_of, explain
from cdmpp.profiling.merge import merge_profiles
from cdmpp.profiling.schema import Events, Launch, Profile, ProfileRow
from cdmpp.profiling.utilisation import union_s, utilisation

FLOAT2 = ("float", "float")


def row(name="k", *, kind="kernel", calls=1, total_s=1.0, **more):
    return ProfileRow(kind=kind, name=name, short_name=name, calls=calls, total_s=total_s, **more)


def profile(*rows, events=None, **more):
    return Profile("a", "test", tuple(rows), events, **more)


@pytest.mark.parametrize(
    ("call", "name", "flop", "elements"),
    [
        (Call("aten::mm", ((4, 8), (8, 2)), FLOAT2), "linear", 128, 32 + 16 + 8),
        (Call("aten::addmm", ((2,), (4, 8), (8, 2)), ("float",) * 3), "linear", 128, 56),
        (Call("aten::linear", ((3, 4, 8), (2, 8)), FLOAT2), "linear", 384, 96 + 16 + 24),
        (Call("aten::bmm", ((5, 4, 8), (5, 8, 2)), FLOAT2), "bmm", 640, 5 * 56),
        (Call("aten::relu_", ((6, 7),), ("float",)), "relu", 42, 84),
        (Call("aten::add", ((6, 7), (7,)), FLOAT2), "add", 42, 42 + 42 + 7),
        (Call("aten::sub", ((6, 1), (1, 7)), FLOAT2), "add", 42, 42 + 6 + 7),
        (Call("aten::native_layer_norm", ((6, 8), (), (8,)), ("float",)), "ln", 336, 96),
        (Call("aten::_softmax", ((6, 8),), ("float",), (("dim", (-1,)),)), "softmax", 192, 96),
    ],
)
def test_work(call, name, flop, elements):
    work = work_of(call)
    assert (work.name, work.flop, work.moved_bytes) == (name, flop, 4.0 * elements)


@pytest.mark.parametrize(
    "call",
    [
        Call("aten::add", ((0,), (0,)), FLOAT2),
        Call("aten::_softmax", ((4, 0),), ("float",), (("dim", (-1,)),)),
        Call("aten::native_layer_norm", ((4, 0), (), (0,)), ("float",)),
        Call("aten::mm", ((0, 8), (8, 2)), FLOAT2),
        Call("aten::conv2d", ((0, 3, 8, 8), (4, 3, 3, 3)), FLOAT2),
        Call("aten::mul", ((3, 2), (3, 7)), FLOAT2),
    ],
)
def test_empty_tensors_and_shapes_that_do_not_fit_are_no_work(call):
    """An empty tensor in a trace was a ZeroDivisionError."""
    assert work_of(call) is None


@pytest.mark.parametrize("has_kernels", [True, False])
def test_operators_of_the_host_reach_no_share_of_a_gpu(has_kernels):
    """A launch of 10 us was 564,088 % of an A100's peak."""
    call = Call("aten::mm", ((8192, 8192), (8192, 8192)), FLOAT2)
    rows = [row("aten::mm", kind="cpu_op", total_s=1e-5, call=call)]
    rows += [row("sgemm", total_s=0.1, call=call)] * has_kernels
    found = {one.kind: one for one in explain(profile(*rows), get_device("a100"))}
    host = found["cpu_op"]
    assert (host.bandwidth_share, host.peak_share, host.bound) == (None, None, None)
    assert (host.flop_per_s is None) is has_kernels
    assert host.predicted_s > 0.05
    if has_kernels:
        assert 0.5 < found["kernel"].peak_share < 1.0


def test_work_of_a_convolution():
    settings = (("stride", (2, 2)), ("padding", (1, 1)), ("groups", (1,)))
    work = work_of(Call("aten::conv2d", ((8, 3, 32, 32), (16, 3, 3, 3)), FLOAT2, settings))
    outputs = 8 * 16 * 16 * 16
    assert work.flop == 2.0 * outputs * 27
    assert work.moved_bytes == 4.0 * (8 * 3 * 32 * 32 + 16 * 27 + outputs)
    grouped = (("groups", (4,)),)
    depthwise = work_of(Call("aten::conv2d", ((1, 4, 8, 8), (4, 1, 3, 3)), FLOAT2, grouped))
    assert depthwise.flop == 2.0 * 4 * 36 * 9


def test_work_of_lookups():
    types = ("float", "long int")
    bag = work_of(Call("aten::_embedding_bag", ((1000, 64), (160,), (8,)), types))
    assert dict(bag.sizes) == {"batch": 8, "rows": 1000, "tables": 1, "lookups": 20, "width": 64}
    assert bag.moved_bytes == 4.0 * (160 * 64 + 8 * 64) + 8 * 160
    ended = (("include_last_offset", (1,)),)
    shapes = ((1000, 64), (160,), (9,))
    assert work_of(Call("aten::_embedding_bag", shapes, types, ended)) == bag
    plain = work_of(Call("aten::embedding", ((50, 4), (2, 3)), ("float", "long int")))
    assert dict(plain.sizes)["lookups"] == 1


@pytest.mark.parametrize(
    "call",
    [
        None,
        Call("aten::mm", ((4, 8), (9, 2)), FLOAT2),
        Call("aten::mm", ((4, 8),), FLOAT2),
        Call("aten::conv2d", ((8, 3, 32, 32), (16, 4, 3, 3)), FLOAT2),
        Call("aten::unknown", ((4, 8),), FLOAT2),
        Call("aten::relu", ((0, 8),), ("float",)),
        Call("mine::relu", ((4, 8),), ("float",)),
    ],
)
def test_what_is_not_known_has_no_work(call):
    assert work_of(call) is None


@pytest.mark.parametrize(
    ("flop", "moved", "bound"),
    [
        (0.9, 0.1, "compute-bound"),
        (0.1, 0.9, "memory-bound"),
        (0.1, 0.1, "latency-bound"),
        (0.1, None, None),
        (0.8, None, "compute-bound"),
        (None, 0.8, "memory-bound"),
        (None, None, None),
    ],
)
def test_bounds(flop, moved, bound):
    found = bound_of(
        1.0, flop=flop, moved_bytes=moved, peak_flop_per_s=1.0, bandwidth_bytes_per_s=1.0
    )
    assert found == (flop, moved, bound)


def test_a_row_against_the_device():
    device = get_device("v100")
    kernel = row(
        total_s=1e-3, calls=2, moved_bytes=0.45e6 * 1000, flop=1e9,
        launch=Launch((64, 1, 1), (256, 1, 1), 96, 49152),
    )  # fmt: skip
    line = explain(profile(kernel), device)[0]
    assert line.bytes_per_s == pytest.approx(450e9)
    assert line.bandwidth_share == pytest.approx(450e9 / device.mem_bandwidth_bytes_per_s)
    assert line.bound == "memory-bound"
    expected = occupancy(
        occupancy_limits("7.0"), 256, registers_per_thread=96, shared_bytes_per_block=49152
    )
    assert (line.occupancy, line.limiters) == (expected.occupancy, expected.limiters)
    bare = explain(profile(kernel), None)[0]
    assert (bare.bound, bare.occupancy, bare.bandwidth_share) == (None, None, None)
    assert bare.flop_per_s == pytest.approx(1e12)


def test_copies_over_the_bus_have_no_share_of_the_memory_bandwidth():
    device = get_device("v100")
    lines = explain(
        profile(
            row("[CUDA memcpy HtoD]", kind="memcpy", moved_bytes=1e9),
            row("[CUDA memcpy DtoD]", kind="memcpy", moved_bytes=9e11),
        ),
        device,
    )
    shares = {line.name: line.bandwidth_share for line in lines}
    assert shares["[CUDA memcpy HtoD]"] is None
    assert shares["[CUDA memcpy DtoD]"] == pytest.approx(1.0)


def test_shares_are_of_the_own_time_of_a_block():
    lines = explain(
        profile(row("a", total_s=3.0), row("b", total_s=1.0), row("c", kind="api", total_s=9.0)),
        None,
    )
    assert [(line.name, line.block, line.share) for line in lines] == [
        ("c", "api", 1.0), ("a", "device", 0.75), ("b", "device", 0.25),
    ]  # fmt: skip


def test_shapes_of_one_name_are_one_line_or_several():
    rows = [
        row("mm", kind="cpu_op", calls=2, call=Call("aten::mm", ((4, 8), (8, n)), FLOAT2))
        for n in (2, 4)
    ]
    assert [line.calls for line in explain(profile(*rows), None)] == [4]
    assert len(explain(profile(*rows), None, by_shape=True)) == 2
    total = explain(profile(*rows), None)[0]
    assert total.flop_per_s == pytest.approx((2 * 128 + 2 * 256) / 2.0)


def test_predictions_are_those_of_our_models():
    gpu = KernelPredictor(get_device("v100"))
    gemm = work_of(Call("aten::mm", ((512, 256), (256, 128)), FLOAT2))
    model = OperatorModel.load(OperatorModel.packaged_path())
    sizes = {"batch": [1.0], "m": [512.0], "n": [128.0], "k": [256.0]}
    expected = model.predict(
        make_operators(["linear"], sizes), np.array(["v100"]), known_hardware(["v100"]),
        context="queued",
    )[0]  # fmt: skip
    assert gpu.predict(gemm).seconds == pytest.approx(expected)
    assert gpu.predict(gemm).model == "operator model"
    bag = work_of(Call("aten::embedding_bag", ((5000, 64), (640,), (32,)), ("float", "long int")))
    shape = EmbeddingShape(batch=32, rows=5000, tables=1, lookups=20, width=64)
    found = gpu.predict(bag)
    assert (found.model, found.seconds) == (
        "embedding model", estimate(shape, kernel_device("v100")).latency_s,
    )  # fmt: skip
    padded = (("padding", (1, 1)),)
    conv = work_of(Call("aten::conv2d", ((8, 64, 56, 56), (64, 64, 3, 3)), FLOAT2, padded))
    found = gpu.predict(conv)
    assert found.model == "convolution model"
    least = conv.flop / get_device("v100").peak_fp32_flop_per_s
    assert 0.2 * least < found.seconds < 20 * least
    oblong = work_of(Call("aten::conv2d", ((8, 64, 56, 28), (64, 64, 3, 3)), FLOAT2, padded))
    assert gpu.predict(oblong).model == "roofline"


def test_without_a_model_the_roofline_answers():
    cpu = get_device("xeon-avx2-1c")
    work = work_of(Call("aten::mm", ((512, 256), (256, 128)), FLOAT2))
    found = KernelPredictor(cpu).predict(work)
    limits = (
        work.flop / cpu.peak_fp32_flop_per_s, work.moved_bytes / cpu.mem_bandwidth_bytes_per_s,
    )  # fmt: skip
    assert (found.seconds, found.model) == (max(limits), "roofline")
    half = work_of(Call("aten::mm", ((512, 256), (256, 128)), ("c10::Half", "c10::Half")))
    assert KernelPredictor(get_device("p100")).predict(half).model == "roofline"
    assert KernelPredictor(get_device("hl-100")).predict(work) is None


def test_line_has_the_mean_prediction_of_its_calls():
    device = get_device("v100")
    rows = [
        row("mm", kind="cpu_op", calls=calls, call=Call("aten::mm", ((64, 64), (64, n)), FLOAT2))
        for calls, n in ((1, 64), (3, 4096))
    ]
    each = [KernelPredictor(device).predict(work_of(item.call)).seconds for item in rows]
    line = explain(profile(*rows), device)[0]
    assert line.predicted_s == pytest.approx((each[0] + 3 * each[1]) / 4)
    unknown = row("mm", kind="cpu_op")
    assert explain(profile(*rows, unknown), device)[0].predicted_s is None


def test_comparison_finds_a_real_difference_and_no_other():
    rng = np.random.default_rng(0)

    def side(factor):
        samples = {
            "same": rng.normal(1.0, 0.05, 60), "slow": factor * rng.normal(1.0, 0.05, 60),
        }  # fmt: skip
        return profile(
            *(
                row(name, calls=60, total_s=float(values.sum()), samples_s=values)
                for name, values in samples.items()
            ),
            row("sums", total_s=2.0),
        )

    before, after = side(1.0), side(1.2)
    after = Profile("b", "test", (*after.rows, row("new")))
    found = {change.name: change for change in compare(before, after)}
    assert found["slow"].is_significant
    assert found["slow"].ratio == pytest.approx(1.2, abs=0.03)
    assert found["same"].is_significant is False
    assert (found["sums"].p_value, found["sums"].ratio) == (None, 1.0)
    assert (found["new"].calls, found["new"].ratio) == ((0, 1), None)


def test_a_profile_does_not_differ_from_itself():
    same = profile(row(calls=5, total_s=5.0, samples_s=np.ones(5)))
    assert compare(same, same)[0].p_value == 1.0


def test_holm():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([]) == []


def events(*items, lanes=("a", "b")):
    start, duration, lane, of_row = (np.array(values) for values in zip(*items, strict=True))
    return Events(start.astype(float), duration.astype(float), lane, of_row, lanes)


def test_utilisation_counts_time_once():
    timeline = events((0, 2, 0, 0), (1, 2, 1, 0), (5, 1, 0, 0), (0, 10, 1, 1))
    found = utilisation(profile(row(), row("api", kind="api"), events=timeline))
    assert (found.span_s, found.device_busy_s, found.device_share) == (10.0, 4.0, 0.4)
    assert found.lane_busy_s == {"a": 3.0, "b": 10.0}
    assert utilisation(profile(row())) is None
    assert union_s(np.array([3.0, 0.0, 1.0]), np.array([4.0, 10.0, 2.0])) == 10.0


def test_clocks_are_aligned_or_it_is_said():
    one = profile(row(), events=events((0, 1, 0, 0), lanes=("s",)), epoch_s=100.0)
    two = profile(row(), events=events((0, 1, 0, 0), lanes=("s",)), epoch_s=103.5)
    both = merge_profiles([one, two])
    assert both.events.start_s.tolist() == [0.0, 3.5]
    assert both.rows[0].calls == 2
    assert both.epoch_s == 100.0
    unknown = profile(row(), events=events((0, 1, 0, 0), lanes=("s",)))
    assert any("starts at 0" in note for note in merge_profiles([one, unknown]).notes)
