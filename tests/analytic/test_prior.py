"""Analytic times of samples, and what is recognised from leaves alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.analytic.conv.layers.model import LayerModel
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.embedding.devices import from_spec
from cdmpp.analytic.embedding.gpu import estimate
from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.prior import PRIOR_SOURCES, prior_times
from cdmpp.analytic.recognise import ConvLoops, conv_shape, recognise
from cdmpp.analytic.roofline.programs import leaf_work, roofline_s
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.registry import get_device
from cdmpp.programs.added_columns import LEAF_EXTRA_COUNT, LEAF_EXTRA_NAMES
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from cdmpp.testing.synthetic import make_samples

CONV = ConvShapes.of(16, 32, 28, 64, 3, 1, 1)
Leaf = dict[str, float]


def signed_log(value: float) -> np.float32:
    return np.float32(np.log2(value + 1.0))


def read(slot: int, elements: float, *, is_parameter: bool) -> Leaf:
    return {
        f"B{slot}.acc_type.kRead": 1.0,
        f"B{slot}.bytes": 4.0 * elements,
        f"B{slot}.unique_bytes": 4.0 * elements,
        f"alloc.B{slot}.is_parameter": float(is_parameter),
    }


def store(elements: float) -> Leaf:
    return {"scope.store.global": 1.0, "alloc.store.bytes": 4.0 * elements}


def conv_leaves(shape: ConvShapes, *, over: float = 1.0) -> list[Leaf]:
    """The leaves of a convolution whose tiles touch `over` times its tensors."""
    products = float(shape.multiplications[0])
    image, weights = float(shape.inputs[0]), float(shape.reduction_by_channels[0])
    total = {"program.input_bytes": 4.0 * (image + weights)}
    product = {"float_mul": products, "float_addsub": products, "outer_prod": products}
    reads = read(0, over * image, is_parameter=False) | read(2, over * weights, is_parameter=False)
    return [product | reads | total, store(float(shape.outputs[0])) | total]


def bag_leaves(shape: EmbeddingShape) -> list[Leaf]:
    table, indices = shape.rows * shape.width, shape.batch * shape.lookups
    iterations = indices * shape.width
    reads = read(1, indices, is_parameter=True) | read(3, table, is_parameter=True)
    added = {"float_addsub": float(iterations)} if shape.lookups > 1 else {}
    total = {"program.input_bytes": 4.0 * (table + indices), "outer_prod": float(iterations)}
    return [reads | added | total | store(shape.batch * shape.width)]


def programs_of(every: list[list[Leaf]], *, extra: int = LEAF_EXTRA_COUNT) -> ProgramArrays:
    leaves = [leaf for program in every for leaf in program]
    features = np.zeros((len(leaves), len(LEAF_FEATURE_NAMES)), np.float32)
    added = np.zeros((len(leaves), LEAF_EXTRA_COUNT), np.float32)
    for row, leaf in enumerate(leaves):
        for name, value in leaf.items():
            if name in LEAF_FEATURE_NAMES:
                features[row, LEAF_FEATURE_NAMES.index(name)] = signed_log(value)
            else:
                added[row, LEAF_EXTRA_NAMES.index(name)] = signed_log(value)
    base = make_samples(len(every), 1, extra=1).programs
    return replace(
        base,
        leaf_offset=np.cumsum([0, *map(len, every)]).astype(np.int64),
        leaf_features=features,
        leaf_extra=added[:, :extra],
        leaf_position=np.zeros(len(leaves), np.int32),
    )


def samples_on(programs: ProgramArrays, labels: list[str]) -> Samples:
    """Every program on every device."""
    count = len(programs.leaf_offset) - 1
    return Samples(
        programs=programs,
        devices=tuple(get_device(label) for label in labels),
        program=np.tile(np.arange(count), len(labels)),
        device=np.repeat(np.arange(len(labels)), count),
        latency_s=np.full(count * len(labels), np.nan),
        latency_std_s=np.full(count * len(labels), np.nan),
    )


def only(every: list[Leaf], **options) -> object:
    """What a program is recognised as: a shape or the reason why it is none."""
    found = recognise(programs_of([every], **options), np.array([0]))
    return found.conv.get(0) or found.embedding.get(0) or found.reason[0]


@pytest.mark.parametrize("over", [1.0, 1.3, 2.5])
@pytest.mark.parametrize(
    "shape",
    [
        CONV,
        ConvShapes.of(128, 256, 28, 256, 3, 1, 0),
        ConvShapes.of(128, 64, 56, 128, 3, 2, 1),
        ConvShapes.of(1, 96, 27, 256, 5, 1, 2),
        ConvShapes.of(1, 3, 224, 64, 7, 2, 3),
    ],
)
def test_a_convolution_has_the_products_and_tensors_of_its_leaves(shape, over):
    found = only(conv_leaves(shape, over=over))
    assert isinstance(found, ConvShapes)
    for name in ("multiplications", "reduction", "reduction_by_channels"):
        assert getattr(found, name) == pytest.approx(getattr(shape, name))
    assert found.inputs == pytest.approx(shape.inputs, rel=1e-4)
    assert found.outputs == pytest.approx(shape.outputs)
    assert found.kernel[0] == shape.kernel[0]


def test_a_matrix_product_and_a_pointwise_convolution_look_alike():
    assert only(conv_leaves(ConvShapes.of(128, 256, 14, 512, 1))) == "pointwise"
    assert only(conv_leaves(ConvShapes.of(4096, 1024, 1, 1000, 1))) == "pointwise"


def test_a_depthwise_convolution_is_not_a_convolution():
    products, outputs = 9.0 * 32 * 14**2, 32.0 * 14**2
    loops = ConvLoops(products, outputs, 32 * 16**2 + 9 * 32, 9 * 32, 32 * 16**2)
    assert conv_shape(loops) in ("no-fit", "pointwise")


@given(st.floats(1e3, 1e9), st.floats(1.6, 1e4), st.floats(2.0, 1e8), st.floats(1.0, 1e8))
def test_sizes_of_nothing_are_never_an_impossible_convolution(outputs, reduction, inputs, smaller):
    found = conv_shape(ConvLoops(outputs * reduction, outputs, inputs, smaller, inputs))
    if isinstance(found, ConvShapes):
        assert found.multiplications[0] == pytest.approx(outputs * reduction, rel=1e-3)


@pytest.mark.parametrize("lookups", [1, 20])
def test_a_lookup_has_its_shape(lookups):
    shape = EmbeddingShape(256, 10_000, 1, lookups, 64, 4)
    assert only(bag_leaves(shape)) == shape


def test_an_elementwise_sum_of_two_tensors_is_not_a_lookup():
    reads = read(0, 4096, is_parameter=True) | read(1, 4096, is_parameter=True)
    total = {"program.input_bytes": 4.0 * 8192, "outer_prod": 4096.0, "float_addsub": 4096.0}
    assert only([reads | total | store(4096)]) == "other"


def test_programs_without_the_added_columns_are_not_recognised():
    assert only(conv_leaves(CONV), extra=0) == "no-columns"
    assert only([]) == "other"


def test_the_roofline_is_that_of_the_whole_program():
    samples = make_samples(6, 4)
    found = prior_times(samples, "roofline")
    work = leaf_work(samples.programs.leaf_features)
    for index, spec in enumerate(samples.devices):
        rows = samples.device == index
        expected = roofline_s(samples.programs, spec, work)[samples.program[rows]]
        assert np.allclose(found.log_s[rows], np.log(expected))
    assert found.counts() == {"roofline": len(samples), "conv": 0, "embedding": 0}
    assert found.fallbacks == {}


def test_some_samples_of_a_program_set_have_the_times_that_all_have():
    samples = samples_on(programs_of([conv_leaves(CONV), [store(8)], []]), ["v100", "k80"])
    every = prior_times(samples, "auto")
    index = np.array([5, 0, 2])
    assert np.array_equal(prior_times(samples.take(index), "auto").log_s, every.log_s[index])
    assert len(prior_times(samples.take(index[:0]), "auto").log_s) == 0


def test_each_program_gets_its_model_where_the_device_has_one():
    lookup = EmbeddingShape(256, 10_000, 1, 20, 64, 4)
    programs = programs_of([conv_leaves(CONV), bag_leaves(lookup), [store(8)]])
    samples = samples_on(programs, ["t4", "mi50", "e5-2673"])
    found = prior_times(samples, "auto")
    names = [PRIOR_SOURCES[source] for source in found.source]
    assert names[:3] == ["conv", "embedding", "roofline"]
    assert names[3:6] == ["roofline", "embedding", "roofline"]  # no convolution model of AMD's
    assert names[6:] == ["roofline"] * 3  # nor any of CPUs
    assert found.fallbacks == {
        "a convolution on a GPU that is not NVIDIA's": 1,
        "neither a convolution nor a lookup": 2,
        "not a GPU": 3,
    }
    closed = LayerModel.load(LayerModel.packaged_path()).closed
    time_ms = closed.predict(recognise(programs, np.array([0])).conv[0], get_device("t4"))[0]
    assert np.exp(found.log_s[0]) == pytest.approx(time_ms.min() / 1e3)
    assert np.exp(found.log_s[1]) == pytest.approx(
        estimate(lookup, from_spec(get_device("t4"))).latency_s
    )
    assert np.array_equal(found.log_s[6:], prior_times(samples, "roofline").log_s[6:])


def test_another_label_of_a_fitted_chip_has_its_times():
    samples = samples_on(programs_of([conv_leaves(CONV)]), ["v100", "v100-32gb"])
    found = prior_times(samples, "auto")
    assert found.counts()["conv"] == 2
    assert found.log_s[0] == found.log_s[1]


def test_a_gpu_without_numbers_keeps_the_roofline():
    samples = samples_on(programs_of([conv_leaves(CONV)]), ["t4"])
    bare = replace(samples.devices[0], name="bare", core_count=None)
    found = prior_times(replace(samples, devices=(bare,)), "auto")
    assert found.counts()["roofline"] == 1
    assert found.fallbacks == {"a convolution on a GPU with too few values in the registry": 1}
