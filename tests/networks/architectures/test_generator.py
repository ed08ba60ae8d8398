"""Architectures: drawing, text, identity, and the modules they make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.config import load_config
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.architectures.generator import SearchSpace, draw_architecture, generate
from cdmpp.networks.architectures.spec import ArchitectureSpec, CnnSpec, MlpSpec, StageSpec
from cdmpp.networks.campaign.options import NetworksConfig
from tests.paths import ROOT

CONFIGS = ROOT / "configs" / "networks"
SMALL = load_config(NetworksConfig, CONFIGS / "cpu-small.yaml").space
TINY = replace(
    SMALL, resolutions=(32, 48), width=(8, 24), depth=(1, 2), growth=(8, 8), stem_widths=(8,),
    sequence_width=(16, 32), sequence_depth=(1, 2), tokens=(4, 16), transformer_share=0.2,
    mlp_share=0.2, most_flops=None,
)  # fmt: skip
ALL_STYLES = {"plain", "inception", "residual", "dense", "separable"}


def free(spec: ArchitectureSpec) -> float:
    return 1.0


def test_the_same_seed_gives_the_same_and_few_are_the_first_of_many() -> None:
    many = list(generate(SMALL, 60, seed=3, flops_of=free))
    assert many[:20] == list(generate(SMALL, 20, seed=3, flops_of=free))
    assert many == list(generate(SMALL, 60, seed=3, flops_of=free, known=many[:25]))
    assert many != list(generate(SMALL, 60, seed=4, flops_of=free))


def test_no_architecture_comes_twice() -> None:
    narrow = SearchSpace(mlp_share=1.0, sequence_width=(8, 16), sequence_depth=(1, 2))
    ids = [network.spec.architecture_id for network in generate(narrow, 150, flops_of=free)]
    assert len(set(ids)) == 150


def test_a_space_without_enough_architectures_says_so() -> None:
    one = SearchSpace(
        mlp_share=1.0, sequence_width=(8, 8), sequence_depth=(1, 1), classes=(10,),
    )  # fmt: skip
    with pytest.raises(UsageError, match="widen the space"):
        list(generate(one, 500, flops_of=free))
    with pytest.raises(UsageError, match="most_flops"):
        list(generate(replace(SMALL, most_flops=1.0), 1, flops_of=lambda spec: 2.0))


def test_batches_stay_below_the_limit() -> None:
    space = replace(SMALL, most_flops=8.0)
    for network in generate(space, 40, flops_of=lambda spec: 2.0):
        assert max(network.batches) <= 4
        assert len(network.batches) == len(set(network.batches)) >= 2


def test_all_families_styles_and_options_are_drawn() -> None:
    drawn = list(generate(SMALL, 300, flops_of=free))
    cnns = [network.spec.cnn for network in drawn if network.spec.cnn is not None]
    stages = [stage for cnn in cnns for stage in cnn.stages]
    assert {network.spec.family for network in drawn} == {"cnn", "transformer", "mlp"}
    assert {stage.style for stage in stages} == ALL_STYLES
    assert {stage.halving for stage in stages} == set(SMALL.halvings)
    assert {cnn.head for cnn in cnns} == {"linear", "hidden", "conv"}
    assert {len(cnn.stages) for cnn in cnns} == {2, 3, 4, 5}
    assert any(stage.groups > 1 for stage in stages)
    assert any(stage.has_shared_squeeze for stage in stages)


def test_the_default_is_the_published_space() -> None:
    published = load_config(NetworksConfig, CONFIGS / "published.yaml")
    assert published == NetworksConfig()
    network = next(iter(generate(published.space, 1, flops_of=free)))
    assert network.batches == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert network.spec.resolution == 224
    assert network.spec.cnn is not None
    assert len(network.spec.cnn.stages) == 4


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_text_reads_back_equal(seed: int) -> None:
    spec = draw_architecture(SMALL, np.random.default_rng(seed))
    if spec is not None:
        assert ArchitectureSpec.from_text(spec.to_text()) == spec


def test_identity_is_without_the_resolution_and_with_all_else() -> None:
    cnn = CnnSpec(8, 3, 2, False, (StageSpec("plain", 1, 16, "first-conv"),))
    spec = ArchitectureSpec(resolution=64, cnn=cnn)
    assert spec.architecture_id == replace(spec, resolution=96).architecture_id
    other = replace(spec, cnn=replace(cnn, classes=10))
    assert spec.architecture_id != other.architecture_id


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cnn": 3}', '{"resolution": 3, "mlpp": {}}'])
def test_text_that_is_no_architecture(text: str) -> None:
    with pytest.raises(DataError):
        ArchitectureSpec.from_text(text)


def test_an_image_network_needs_a_resolution_and_others_have_none() -> None:
    with pytest.raises(DataError, match="resolution"):
        ArchitectureSpec(resolution=32, mlp=MlpSpec(8, 8, 1))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"depth": (3, 2)}, "depth"),
        ({"kernels": (2,)}, "odd"),
        ({"stem_strides": (3,)}, "stem_strides"),
        ({"mlp_share": 0.7, "transformer_share": 0.7}, "shares"),
        ({"batches": (1, 1)}, "batches"),
        ({"batches": ()}, "batches"),
        ({"batches_per_architecture": (7, 9)}, "batches_per_architecture"),
        ({"most_flops": 0.0}, "most_flops"),
        ({"heads": ()}, "heads"),
    ],
)
def test_spaces_that_make_no_sense(change: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        replace(SMALL, **change).check()


@pytest.mark.slow
def test_modules_run_and_every_weight_is_trained() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from cdmpp.networks.architectures.build import build_module, make_inputs

    styles: set[str] = set()
    for network in generate(TINY, 60, seed=1, flops_of=free):
        spec = network.spec
        module = build_module(spec)
        outputs = module(*make_inputs(spec, 2))
        part = spec.cnn or spec.transformer or spec.mlp
        assert part is not None
        assert outputs.shape == (2, part.classes)
        outputs.square().sum().backward()
        assert all(p.grad is not None for p in module.parameters()), spec.to_text()
        assert torch.isfinite(outputs).all()
        if spec.cnn is not None:
            styles |= {stage.style for stage in spec.cnn.stages}
    assert styles == ALL_STYLES


def test_every_stage_halves_height_and_width_once() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from cdmpp.networks.architectures.build import Cnn, make_inputs

    for network in generate(replace(TINY, transformer_share=0, mlp_share=0), 25, flops_of=free):
        spec = network.spec
        assert spec.cnn is not None
        module = Cnn(spec.cnn)
        features = module.stem(*make_inputs(spec, 2))
        for stage, described in zip(module.stages, spec.cnn.stages, strict=True):
            before = features.shape
            features = stage(features)
            assert features.shape == (2, described.width, -(-before[2] // 2), -(-before[3] // 2))


def test_the_graph_of_a_generated_network_scales_with_the_batch() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from cdmpp.networks.architectures.generated_graph import generated_graph

    for network in generate(TINY, 12, seed=2, flops_of=free):
        one, eight = (generated_graph(network.spec, batch=batch) for batch in (1, 8))
        assert one.kinds == eight.kinds
        assert eight.flops.sum() == pytest.approx(8 * one.flops.sum())
