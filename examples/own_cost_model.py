"""A cost model of your own: five methods, checked by the tests that ours pass.

This one knows a single number: the seconds that a store of a program takes.
"""

import numpy as np

from cdmpp.models.base import CostModel
from cdmpp.models.parts.checks import check_schema, check_trainable
from cdmpp.testing import check_cost_model


class PerStoreModel(CostModel):
    """Predicts the same seconds for every store of a program."""

    kind = "per-store"
    seconds: float = 0.0
    schema: dict | None = None

    def _stores(self, samples):
        return np.diff(samples.programs.leaf_offset)[samples.program].astype(np.float64)

    def fit(self, train, validation, *, seed, run_dir=None, on_progress=None):
        check_trainable(train)
        self.seconds = float(np.median(train.latency_s / self._stores(train)))
        self.schema = dict(train.programs.feature_schema)

    def predict(self, samples):
        check_schema(self.schema, samples)
        return self.seconds * self._stores(samples)

    def save(self, directory):
        return {"seconds": self.seconds, "schema": self.schema}

    @classmethod
    def load(cls, directory, state):
        model = cls()
        model.seconds, model.schema = state["seconds"], state["schema"]
        return model


check_cost_model(PerStoreModel)
print("PerStoreModel keeps every promise of a cost model")
