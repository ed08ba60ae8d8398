"""Every YAML file in configs/ loads, and the defaults are the dataclasses'."""

from __future__ import annotations

import pytest

from cdmpp.analytic.embedding.shapes import EmbeddingPreset
from cdmpp.autotune.options import AutotuneOptions
from cdmpp.config import dump_text, load_config
from cdmpp.networks.campaign.options import NetworksConfig
from cdmpp.training.finetune.run import FinetuneRunOptions
from cdmpp.training.options import TrainOptions
from lab.suites.options import SuiteOptions, load_suite
from tests.paths import ROOT
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.search.options import SearchOptions

CONFIGS = ROOT / "configs"
#: Options; those in configs/replay are graphs (tests/replay reads them).
FILES = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "replay")


def test_there_are_configs():
    assert CONFIGS / "train" / "default.yaml" in FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_config_loads_and_survives_a_round_trip(path, tmp_path):
    cls = {
        "suites": SuiteOptions,
        "finetune": FinetuneRunOptions,
        "embedding": EmbeddingPreset,
        "autotune": AutotuneOptions,
        "measure": MeasureOptions,
        "networks": NetworksConfig,
        "search": SearchOptions,
    }.get(path.parent.name, TrainOptions)
    options = load_suite(str(path)) if cls is SuiteOptions else load_config(cls, path)
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_text(options))
    assert load_config(cls, copy) == options


def test_default_config_states_the_defaults():
    assert load_config(TrainOptions, CONFIGS / "train" / "default.yaml") == TrainOptions()


def test_the_trees_beside_a_model_are_the_tuned_ones() -> None:
    tuned = load_config(TrainOptions, CONFIGS / "models" / "gbdt.yaml")
    assert tuned.gbdt == TrainOptions().gbdt


def test_default_finetune_config_states_the_defaults():
    path = CONFIGS / "finetune" / "default.yaml"
    assert load_config(FinetuneRunOptions, path) == FinetuneRunOptions()
