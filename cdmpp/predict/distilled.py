"""A small perceptron distilled from a trained model, fast enough for schedule searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.judge import judged
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, replaced_folder, write_json
from cdmpp.metrics import spearman_by_task, top_k_score
from cdmpp.models.nets.options import LoopOptions
from cdmpp.models.options import SegmentMlpOptions

if TYPE_CHECKING:  # torch takes long to import
    from cdmpp.models.baselines.segment_mlp import SegmentMlpCostModel

#: Subfolder of the model's folder.
FOLDER = "distilled"
FORMAT = 1
#: Candidate weights of the teacher in the training target; the measurement has the rest.
TRIED_SHARES = (0.5, 1.0)
#: Weight of (1 - rank correlation) relative to the log error when a share is chosen.
_ORDER_WEIGHT = 0.5
_OPTIONS = SegmentMlpOptions(
    hidden=256, loop=LoopOptions(epochs=20, programs_per_batch=128, programs_per_task=16,
                                 learning_rate=7e-4, weight_decay=1e-6, patience=15),
)  # fmt: skip
_FACTS = "distilled.json"
_HINT = "recreate it with `cdmpp distil`, or remove the folder"


@dataclass(frozen=True)
class RankErrors:
    """Errors and rank metrics of predictions on measured programs.

    Attributes:
        log_error: mean |log(predicted / measured)|.
        spearman: mean rank correlation within tasks; None if no task has enough programs.
        top_1: latency of the tasks' fastest programs over that of the programs predicted fastest.
        top_5: the same with the best of the five programs predicted fastest.
    """

    log_error: float
    spearman: float | None
    top_1: float | None
    top_5: float | None

    @classmethod
    def of(cls, samples: Samples, predicted_s: FloatArray) -> RankErrors:
        """Returns the errors of float64 [N], seconds."""
        found = judged(samples, predicted_s)
        return cls(
            float(np.abs(np.log(predicted_s / samples.latency_s)).mean()),
            spearman_by_task(found), top_k_score(found, 1), top_k_score(found, 5),
        )  # fmt: skip

    @property
    def badness(self) -> float:
        """Log error + (1 - Spearman) / 2."""
        return self.log_error + _ORDER_WEIGHT * (1.0 - (self.spearman or 0.0))


class DistilledModel:
    """A perceptron on each leaf, a sum over leaves, and a perceptron on the sum and the device.

    The training target is a weighted mean of measured and teacher-predicted log seconds.

    Attributes:
        kind: name of this kind of model.
        kinds: kinds of devices in its training data.
        taught_by: digest of the teacher's training data.
        teacher_share: weight of the teacher in the target, in [0, 1].
        errors: errors on held-out tasks; None without a test part.
        teacher_errors: errors of the teacher on the same programs.
    """

    kind: ClassVar[str] = "distilled"

    def __init__(
        self,
        network: SegmentMlpCostModel,
        *,
        kinds: Sequence[str],
        taught_by: str,
        teacher_share: float,
        errors: RankErrors | None = None,
        teacher_errors: RankErrors | None = None,
    ) -> None:
        self._network = network
        self.kinds, self.taught_by, self.teacher_share = tuple(kinds), taught_by, teacher_share
        self.errors, self.teacher_errors = errors, teacher_errors

    @classmethod
    def fit(
        cls,
        parts: tuple[Samples, Samples, Samples],
        taught_s: tuple[FloatArray, FloatArray, FloatArray],
        *,
        taught_by: str,
        seed: int,
    ) -> DistilledModel:
        """Trains a perceptron for each candidate share of the teacher and selects the best.

        Args:
            parts: training, validation and test samples. The validation part stops training and
                selects the share. Training samples without latency (NaN) use the teacher alone.
            taught_s: float64 [N] per part, seconds predicted by the teacher.
            taught_by: digest of the teacher's training data.

        Raises:
            DataError: the first or second part is empty.
        """
        from cdmpp.models.baselines.segment_mlp import SegmentMlpCostModel

        train, validation, test = parts
        for name, part in (("training", train), ("validation", validation)):
            if len(part) == 0:
                raise DataError(
                    f"the {name} part has no program of the model's devices; add datasets"
                )
        found: list[tuple[float, float, SegmentMlpCostModel]] = []
        for share in TRIED_SHARES:
            mean_s = taught_s[0] ** share * train.latency_s ** (1.0 - share)
            wanted_s = np.where(np.isnan(train.latency_s), taught_s[0], mean_s)
            network = SegmentMlpCostModel(_OPTIONS)
            network.fit(replace(train, latency_s=wanted_s), validation, seed=seed)
            badness = RankErrors.of(validation, network.predict(validation)).badness
            found.append((badness, share, network))
        _, share, network = min(found, key=lambda one: one[0])
        kinds = sorted({train.devices[place].kind for place in np.unique(train.device)})
        model = cls(network, kinds=kinds, taught_by=taught_by, teacher_share=share)
        if len(test):
            model.errors = RankErrors.of(test, model.predict(test))
            model.teacher_errors = RankErrors.of(test, taught_s[2])
        return model

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds.

        Raises:
            DataError: the leaf features differ from the model's.
        """
        return self._network.predict(samples)

    def save(self, directory: Path) -> None:
        """Writes the network into the model's folder.

        Raises:
            DataError: the folder cannot be written.
        """
        with replaced_folder(Path(directory) / FOLDER, what="distilled network") as folder:
            facts = {
                "format": FORMAT,
                "kinds": list(self.kinds),
                "taught_by": self.taught_by,
                "teacher_share": self.teacher_share,
                "test": self.errors and asdict(self.errors),
                "teacher_test": self.teacher_errors and asdict(self.teacher_errors),
                "state": self._network.save(folder),
            }
            write_json(folder / _FACTS, facts)

    @classmethod
    def load(cls, directory: Path, *, taught_by: str) -> DistilledModel | None:
        """Reads the network that `save` wrote; None if the model has none.

        Args:
            taught_by: digest of the data that the model was trained on.

        Raises:
            DataError: a file is damaged, of another version or of another model.
        """
        folder = Path(directory) / FOLDER
        if not folder.is_dir():
            return None
        facts = read_json(folder / _FACTS, what="distilled network", hint=_HINT, format=FORMAT)
        from cdmpp.models.baselines.segment_mlp import SegmentMlpCostModel

        try:
            network = SegmentMlpCostModel.load(folder, facts["state"])
            assert isinstance(network, SegmentMlpCostModel)
            errors = [
                None if facts[name] is None else RankErrors(**facts[name])
                for name in ("test", "teacher_test")
            ]
            found = cls(
                network, kinds=facts["kinds"], taught_by=facts["taught_by"],
                teacher_share=float(facts["teacher_share"]),
                errors=errors[0], teacher_errors=errors[1],
            )  # fmt: skip
        except (DataError, KeyError, TypeError, ValueError) as error:
            reason = str(error).partition(";")[0]  # without the hint for standalone models
            raise DataError(f"{folder} is damaged ({reason}); {_HINT}") from None
        if found.taught_by != taught_by:
            raise DataError(
                f"{folder} was distilled from a model of other data ({found.taught_by:.12}) than "
                f"this one ({taught_by:.12}); {_HINT}"
            )
        return found
