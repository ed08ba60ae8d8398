"""What every cost model must do. A test class per kind inherits `CostModelContract`."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.models.base import CostModel
from tests.models.synthetic import make_samples, split_by_task


class CostModelContract:
    """Subclasses give `new_model`, an untrained model that learns the synthetic samples within
    seconds.
    """

    def new_model(self) -> CostModel:
        raise AssertionError("a contract test must override new_model")

    @pytest.fixture(scope="class")
    @classmethod
    def parts(cls):
        return split_by_task(make_samples(10, 6))

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, parts):
        model = cls().new_model()
        model.fit(parts[0], parts[1], seed=3)
        return model

    @staticmethod
    def round_trip(model: CostModel, directory: Path) -> CostModel:
        directory.mkdir(exist_ok=True)
        state: dict[str, Any] = json.loads(json.dumps(model.save(directory), allow_nan=False))
        return type(model).load(directory, state)

    def test_predictions_are_positive_finite_seconds(self, trained, parts):
        predicted = trained.predict(parts[2])
        assert predicted.dtype == np.float64
        assert predicted.shape == (len(parts[2]),)
        assert np.all(np.isfinite(predicted))
        assert np.all(predicted > 0)

    def test_loaded_model_predicts_the_same(self, trained, parts, tmp_path):
        loaded = self.round_trip(trained, tmp_path / "model")
        assert np.array_equal(loaded.predict(parts[2]), trained.predict(parts[2]))

    def test_loaded_model_saves_the_same_state(self, trained, tmp_path):
        loaded = self.round_trip(trained, tmp_path / "model")
        (tmp_path / "again").mkdir()
        assert json.dumps(loaded.save(tmp_path / "again")) == json.dumps(trained.save(tmp_path))

    def test_nothing_pickled_is_written(self, trained, tmp_path):
        trained.save(tmp_path)
        assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {
            ".json",
            ".xz",
            ".safetensors",
        }
        for path in tmp_path.rglob("*.xz"):
            assert lzma.decompress(path.read_bytes()).startswith(b"{")

    def test_same_seed_same_bytes(self, trained, parts, tmp_path):
        again = self.new_model()
        again.fit(parts[0], parts[1], seed=3)
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        assert trained.save(tmp_path / "a") == again.save(tmp_path / "b")
        written = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
        for path in written:
            twin = tmp_path / "b" / path.relative_to(tmp_path / "a")
            assert path.read_bytes() == twin.read_bytes()

    def test_order_of_samples_does_not_change_the_answer(self, trained, parts):
        test = parts[2]
        order = np.random.default_rng(0).permutation(len(test)).astype(np.int64)
        assert np.allclose(
            trained.predict(test)[order], trained.predict(test.take(order)), rtol=1e-4
        )

    def test_measured_latency_is_never_read(self, trained, parts):
        from dataclasses import replace

        blind = replace(parts[2], latency_s=np.full(len(parts[2]), np.nan))
        assert np.array_equal(trained.predict(blind), trained.predict(parts[2]))

    def test_any_number_of_leaves(self, trained):
        larger = make_samples(3, 4, seed=9, most_leaves=23)
        assert np.diff(larger.programs.leaf_offset).max() > 6
        assert np.all(np.isfinite(trained.predict(larger)))

    def test_another_feature_schema_is_refused_in_one_sentence(self, trained):
        with pytest.raises(DataError, match=r"leaf v1.*leaf v2.*cdmpp dataset extract") as caught:
            trained.predict(make_samples(2, 2, leaf_schema=2))
        assert "\n" not in str(caught.value)

    def test_untrained_model_says_so(self, parts):
        with pytest.raises(UsageError, match="not been trained"):
            self.new_model().predict(parts[2])

    def test_empty_training_part_is_refused(self, parts):
        nothing = parts[0].take(np.zeros(0, np.int64))
        with pytest.raises(DataError, match="training part is empty"):
            self.new_model().fit(nothing, parts[1], seed=0)

    def test_no_samples_no_predictions(self, trained, parts):
        assert len(trained.predict(parts[2].take(np.zeros(0, np.int64)))) == 0

    def test_unknown_device_has_an_answer(self, trained, parts):
        from dataclasses import replace

        from cdmpp.devices.spec import DeviceSpec

        unknown = replace(parts[2], devices=(DeviceSpec("new", "cpu"), DeviceSpec("newer", "cpu")))
        predicted = trained.predict(unknown)
        assert np.all(np.isfinite(predicted))
        assert np.all(predicted > 0)
