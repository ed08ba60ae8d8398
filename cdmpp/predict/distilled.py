"""One small perceptron that says what a trained model says: quick enough for searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.vector import device_vector
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, replaced_folder, write_json
from cdmpp.metrics import Judged, spearman_by_task, top_k_score
from cdmpp.models.parts.checks import check_schema
from cdmpp.models.parts.pooling import pooled_features

if TYPE_CHECKING:  # torch takes long to import
    from cdmpp.models.nets.column_net import ColumnNet

#: Folder in a model's.
FOLDER = "distilled"
FORMAT = 1
#: Shares of the teacher in what is learned that are tried; the rest is what was measured.
TRIED_SHARES = (0.5, 1.0)
#: What a rank correlation lost counts beside a log error of the same size, when one is chosen.
_ORDER_WEIGHT = 0.5
_NET_OPTIONS: dict[str, Any] = {
    "width": 192, "layers": 2, "dropout": 0.0, "epochs": 30, "batch": 128, "weight_decay": 0.05,
}  # fmt: skip
_NET, _FACTS = "perceptron.safetensors", "distilled.json"
_HINT = "make it again with `cdmpp distil`, or remove the folder"


@dataclass(frozen=True)
class TaughtRows:
    """Programs on devices, with what was measured of them and what a teacher says.

    Attributes:
        columns: float32 [N, columns], see `distilled_columns`.
        log_s: float64 [N], logarithm of the measured seconds; NaN of programs that never ran.
        taught_log_s: float64 [N], logarithm of the teacher's seconds.
        task: str [N].
        device: str [N], label.
    """

    columns: NDArray[np.float32]
    log_s: FloatArray
    taught_log_s: FloatArray
    task: TextArray
    device: TextArray

    @classmethod
    def of(cls, samples: Samples, taught_log_s: FloatArray) -> TaughtRows:
        """Returns the rows of samples."""
        return cls(
            distilled_columns(samples),
            np.log(samples.latency_s),
            taught_log_s,
            np.asarray(samples.programs.tasks, np.str_)[samples.task_id],
            np.array([one.name for one in samples.devices], np.str_)[samples.device],
        )

    @classmethod
    def joined(cls, parts: Sequence[TaughtRows]) -> TaughtRows:
        """Returns the rows of all parts, at least one."""
        names = [one.name for one in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, where: BoolArray) -> TaughtRows:
        """Returns some of the rows."""
        return TaughtRows(*(getattr(self, one.name)[where] for one in fields(self)))

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class RankErrors:
    """How predictions were on measured programs.

    Attributes:
        log_error: mean |log of predicted over measured|.
        spearman: mean within tasks; None where no task has enough programs.
        top_1: what the fastest programs of tasks take over what those predicted fastest do.
        top_5: likewise, the best of the five predicted fastest.
    """

    log_error: float
    spearman: float | None
    top_1: float | None
    top_5: float | None

    @classmethod
    def of(cls, rows: TaughtRows, log_s: FloatArray) -> RankErrors:
        """Returns the errors of float64 [N], logarithm of the predicted seconds."""
        tasks, task = np.unique(rows.task, return_inverse=True)
        judged = Judged(
            measured_s=np.exp(rows.log_s),
            predicted_s=np.exp(log_s),
            task=task,
            device=np.unique(rows.device, return_inverse=True)[1],
            task_weight=np.ones(len(tasks)),
        )
        return cls(
            float(np.abs(log_s - rows.log_s).mean()),
            spearman_by_task(judged), top_k_score(judged, 1), top_k_score(judged, 5),
        )  # fmt: skip

    @property
    def badness(self) -> float:
        """Log error, and half of the order that is lost."""
        return self.log_error + _ORDER_WEIGHT * (1.0 - (self.spearman or 0.0))


class DistilledModel:
    """A perceptron over sums and maxima of a program's leaf columns and the device vector.

    What it learns is a mean of what was measured and of what a teacher says, both as logarithms.

    Attributes:
        kind: name of such models.
        kinds: of the devices that it learned from.
        feature_schema: versions of the leaf columns.
        taught_by: digest of the data that the teacher was trained on.
        teacher_share: weight of the teacher in the mean, in [0, 1].
        errors: on programs of held-out tasks; None where none were there.
        teacher_errors: likewise of the teacher.
    """

    kind: ClassVar[str] = "distilled"

    def __init__(
        self,
        net: ColumnNet,
        *,
        kinds: Sequence[str],
        feature_schema: dict[str, int],
        taught_by: str,
        teacher_share: float,
        errors: RankErrors | None = None,
        teacher_errors: RankErrors | None = None,
    ) -> None:
        self._net = net
        self.kinds, self.feature_schema = tuple(kinds), feature_schema
        self.taught_by, self.teacher_share = taught_by, teacher_share
        self.errors, self.teacher_errors = errors, teacher_errors

    @classmethod
    def fit(
        cls,
        parts: tuple[TaughtRows, TaughtRows, TaughtRows],
        *,
        kinds: Sequence[str],
        feature_schema: dict[str, int],
        taught_by: str,
        seed: int,
        unmeasured: TaughtRows | None = None,
    ) -> DistilledModel:
        """Returns what was fitted to the first part; the second chooses the teacher's share, the
        third judges.

        Args:
            unmeasured: programs of which the teacher alone says something, also learned from.

        Raises:
            DataError: the first or second part is empty.
        """
        from cdmpp.models.nets.column_net import ColumnNet, ColumnNetOptions

        train, validation, test = parts
        for name, part in (("training", train), ("validation", validation)):
            if len(part) == 0:
                raise DataError(f"the {name} part has no program of the model's devices; add data")
        if unmeasured is not None:
            train = TaughtRows.joined([train, unmeasured])
        found: list[tuple[float, float, ColumnNet]] = []
        for share in TRIED_SHARES:
            wanted = share * train.taught_log_s + (1.0 - share) * train.log_s
            wanted = np.where(np.isnan(train.log_s), train.taught_log_s, wanted)
            net = ColumnNet.fit(
                train.columns, wanted, seed=seed, options=ColumnNetOptions(**_NET_OPTIONS)
            )
            badness = RankErrors.of(validation, net.log_s(validation.columns)).badness
            found.append((badness, share, net))
        _, share, net = min(found, key=lambda one: one[0])
        model = cls(
            net, kinds=kinds, feature_schema=feature_schema, taught_by=taught_by,
            teacher_share=share,
        )  # fmt: skip
        if len(test):
            model.errors = RankErrors.of(test, net.log_s(test.columns))
            model.teacher_errors = RankErrors.of(test, test.taught_log_s)
        return model

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds.

        Raises:
            DataError: other leaf features than the model's.
        """
        samples = check_schema(self.feature_schema, samples)
        return np.asarray(np.exp(self._net.log_s(distilled_columns(samples))))

    def save(self, directory: Path) -> None:
        """Writes it into the model's folder.

        Raises:
            DataError: it cannot be written.
        """
        facts = {
            "format": FORMAT,
            "kinds": list(self.kinds),
            "feature_schema": self.feature_schema,
            "taught_by": self.taught_by,
            "teacher_share": self.teacher_share,
            "test": None if self.errors is None else asdict(self.errors),
            "teacher_test": None if self.teacher_errors is None else asdict(self.teacher_errors),
        }
        with replaced_folder(Path(directory) / FOLDER, what="distilled network") as folder:
            self._net.save(folder / _NET)
            write_json(folder / _FACTS, facts)

    @classmethod
    def load(cls, directory: Path, *, taught_by: str) -> DistilledModel | None:
        """Returns what `save` wrote; None where the model has none.

        Args:
            taught_by: digest of the data that the model was trained on.

        Raises:
            DataError: a file is damaged, of another version or of another model.
        """
        folder = Path(directory) / FOLDER
        if not folder.is_dir():
            return None
        facts = read_json(folder / _FACTS, what="distilled network", hint=_HINT, format=FORMAT)
        from cdmpp.models.nets.column_net import ColumnNet

        net = ColumnNet.load(folder / _NET, hint=_HINT)
        try:
            errors = [
                None if facts[name] is None else RankErrors(**facts[name])
                for name in ("test", "teacher_test")
            ]
            found = cls(
                net, kinds=facts["kinds"], feature_schema=facts["feature_schema"],
                taught_by=facts["taught_by"], teacher_share=float(facts["teacher_share"]),
                errors=errors[0], teacher_errors=errors[1],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder} is damaged ({error}); {_HINT}") from None
        if found.taught_by != taught_by:
            raise DataError(
                f"{folder} was taught by a model of other data ({found.taught_by:.12}) than this "
                f"one ({taught_by:.12}); {_HINT}"
            )
        return found


def distilled_columns(samples: Samples) -> NDArray[np.float32]:
    """Returns float32 [N, columns], sums and maxima of leaf columns, and the device vector."""
    device = np.stack([device_vector(one) for one in samples.devices])[samples.device]
    return np.concatenate([pooled_features(samples.programs, samples.program), device], axis=1)
