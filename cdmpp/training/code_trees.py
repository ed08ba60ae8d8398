"""Trees over leaf columns and machine code: what a program takes that has been compiled.

They are trained beside a model on the programs of one device whose machine code is known, and
answer together with it: a share of the logarithm is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.atomic import make_folder
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.features.extra import LEAF_EXTRA_NAMES
from cdmpp.features.machine_code import MACHINE_CODE_NAMES, MACHINE_CODE_SCHEMA_VERSION
from cdmpp.models._boosted import load_booster, save_booster
from cdmpp.models._pooling import pooled_features
from cdmpp.training._files import read_json, write_json

FOLDER = "machine_code"
FORMAT = 1
COVERAGE = 0.9

_TREES, _FACTS = "trees.json.gz", "machine_code.json"
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
#: Beyond this quantile a ratio of measured over predicted seconds counts as that.
_HIGHEST_RATIO = 0.99
_FLOPS = MACHINE_CODE_NAMES.index("flops")
_FLOAT_OPS = LEAF_EXTRA_NAMES.index("program.float_ops")
_PARAMETERS = {
    "objective": "reg:squarederror", "tree_method": "hist", "max_depth": 6, "eta": 0.08,
    "subsample": 0.8, "colsample_bytree": 0.3, "min_child_weight": 3,
}  # fmt: skip
_MOST_TREES, _PATIENCE = 400, 60
_HINT = "train them again with `cdmpp train-code`"

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class CodeRows:
    """Compiled programs, and what a model says of them.

    Attributes:
        columns: float32 [N, columns].
        model_log_s: float64 [N], logarithm of the model's seconds.
        log_s: float64 [N], logarithm of the measured seconds; NaN where there are none.
    """

    columns: NDArray[np.float32]
    model_log_s: FloatArray
    log_s: FloatArray

    @classmethod
    def of(
        cls, samples: Samples, code: NDArray[np.float32], model_latency_s: FloatArray
    ) -> CodeRows:
        """Returns the rows of samples.

        Columns are the pooled leaves, the machine code, and how many more floating point operations
        (log2) the code seems to have than the program.

        Args:
            code: float32 [N, len(MACHINE_CODE_NAMES)].
            model_latency_s: float64 [N], the model's seconds.
        """
        programs, rows = samples.programs, samples.program
        operations = programs.leaf_extra[programs.leaf_offset[rows], _FLOAT_OPS]
        more = code[:, _FLOPS] - operations
        columns = np.concatenate([pooled_features(programs, rows), code, more[:, None]], axis=1)
        return cls(columns.astype(np.float32), np.log(model_latency_s), np.log(samples.latency_s))

    @classmethod
    def joined(cls, parts: Sequence[CodeRows]) -> CodeRows:
        """Returns the rows of all parts, at least one."""
        return cls(
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.model_log_s for part in parts]),
            np.concatenate([part.log_s for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class CodeErrors:
    """How the answers were on a test part.

    Attributes:
        programs: how many.
        mape: mean |predicted - measured| / measured.
        median_ape: median of the same.
        log_deviation: standard deviation of the logarithm of predicted over measured.
        coverage: share of programs in their interval.
        model_mape: mape of the model alone.
        model_log_deviation: the same of the model alone.
    """

    programs: int
    mape: float
    median_ape: float
    log_deviation: float
    coverage: float
    model_mape: float
    model_log_deviation: float


@dataclass(frozen=True)
class CodeCalibration:
    """What the validation part said.

    Attributes:
        share: of the trees in the logarithm; the rest is the model's.
        half_width: of the 90 % interval of the logarithm.
        mean_ratio: mean of measured over predicted seconds: what sums are multiplied by.
    """

    share: float
    half_width: float
    mean_ratio: float


class CodeTrees:
    """Trees over leaf columns and machine code of one device's programs.

    Attributes:
        device: label of the measurements.
        target: what the programs are compiled for, TVM's JSON.
        feature_schema: versions of the leaf columns.
        calibration: see there.
        errors: on the test part.
    """

    def __init__(
        self,
        device: str,
        target: str,
        feature_schema: dict[str, int],
        booster: Any,
        calibration: CodeCalibration,
        errors: CodeErrors | None,
    ) -> None:
        self.device, self.target = device, target
        self.calibration, self.errors = calibration, errors
        self.feature_schema = feature_schema
        self._booster = booster

    @classmethod
    def fit(
        cls,
        parts: tuple[CodeRows, CodeRows, CodeRows],
        *,
        device: str,
        target: str,
        feature_schema: dict[str, int],
        seed: int,
    ) -> CodeTrees:
        """Returns trees boosted on the first part until the error on the second stops to fall; the
        second calibrates them and the third judges them.

        Raises:
            DataError: a part is empty.
        """
        import xgboost

        train, validation, test = parts
        for name, part in zip(("training", "validation", "test"), parts, strict=True):
            if len(part) == 0:
                raise DataError(f"the {name} part has no program with machine code; add data")
        watched = xgboost.DMatrix(validation.columns, label=validation.log_s)
        booster = xgboost.train(
            {**_PARAMETERS, "nthread": 1, "seed": seed},
            xgboost.DMatrix(train.columns, label=train.log_s),
            num_boost_round=_MOST_TREES,
            evals=[(watched, "validation")],
            early_stopping_rounds=_PATIENCE,
            verbose_eval=False,
        )
        booster = booster[: booster.best_iteration + 1]
        uncalibrated = CodeCalibration(1.0, 0.0, 1.0)
        trees = cls(device, target, feature_schema, booster, uncalibrated, None)
        trees.calibration = trees._calibrated(validation)
        trees.errors = trees._judged(test)
        return trees

    def log_s(self, rows: CodeRows) -> FloatArray:
        """Returns float64 [N], logarithm of the predicted seconds."""
        share = self.calibration.share
        return share * self._trees_log_s(rows) + (1.0 - share) * rows.model_log_s

    def _trees_log_s(self, rows: CodeRows) -> FloatArray:
        import xgboost

        matrix = xgboost.DMatrix(rows.columns, nthread=1)
        return np.asarray(self._booster.predict(matrix), np.float64)

    def _calibrated(self, validation: CodeRows) -> CodeCalibration:
        trees, measured = self._trees_log_s(validation), validation.log_s
        predicted = {
            share: share * trees + (1.0 - share) * validation.model_log_s for share in _SHARES
        }
        share = min(_SHARES, key=lambda one: _mape(predicted[one] - measured))
        residual = measured - predicted[share]
        ratio = np.exp(residual)
        return CodeCalibration(
            share=share,
            half_width=float(np.quantile(np.abs(residual), COVERAGE, method="higher")),
            mean_ratio=float(np.minimum(ratio, np.quantile(ratio, _HIGHEST_RATIO)).mean()),
        )

    def _judged(self, test: CodeRows) -> CodeErrors:
        residual = self.log_s(test) - test.log_s
        alone = test.model_log_s - test.log_s
        return CodeErrors(
            programs=len(residual),
            mape=_mape(residual),
            median_ape=float(np.median(np.abs(np.expm1(residual)))),
            log_deviation=float(residual.std()),
            coverage=float(np.mean(np.abs(residual) <= self.calibration.half_width)),
            model_mape=_mape(alone),
            model_log_deviation=float(alone.std()),
        )

    def save(self, directory: Path) -> None:
        """Writes the trees into the model's folder.

        Raises:
            DataError: they cannot be written.
        """
        folder = Path(directory) / FOLDER
        make_folder(folder, what="trees over machine code")
        save_booster(self._booster, folder / _TREES)
        facts = {
            "format": FORMAT,
            "device": self.device,
            "target": self.target,
            "feature_schema": self.feature_schema,
            "machine_code_schema": MACHINE_CODE_SCHEMA_VERSION,
            "calibration": asdict(self.calibration),
            "test": None if self.errors is None else asdict(self.errors),
        }
        write_json(folder / _FACTS, facts)

    @classmethod
    def load(cls, directory: Path) -> CodeTrees | None:
        """Returns what `save` wrote; None where the model has no such trees.

        Raises:
            DataError: they are damaged or of another version.
        """
        folder = Path(directory) / FOLDER
        if not folder.is_dir():
            return None
        facts = read_json(folder / _FACTS, what="trees over machine code", hint=_HINT)
        versions = facts.get("format"), facts.get("machine_code_schema")
        if versions != (FORMAT, MACHINE_CODE_SCHEMA_VERSION):
            raise DataError(
                f"{folder} has versions {versions}, expected "
                f"{(FORMAT, MACHINE_CODE_SCHEMA_VERSION)}; {_HINT}"
            )
        booster = load_booster(folder / _TREES, hint=_HINT)
        try:
            errors = facts["test"]
            return cls(
                facts["device"], facts["target"], facts["feature_schema"], booster,
                CodeCalibration(**facts["calibration"]),
                None if errors is None else CodeErrors(**errors),
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise DataError(f"{folder} is damaged ({error}); {_HINT}") from None


def _mape(log_ratio: FloatArray) -> float:
    """Returns the MAPE of logarithms of predicted over measured."""
    return float(np.abs(np.expm1(log_ratio)).mean())
