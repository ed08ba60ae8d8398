"""Latency of compiled programs: trees and perceptrons over leaf columns and machine code.

They are trained on programs with known machine code, and predict the ratio of the latency to the
instruction time (`core_time.py`). The log latency is a weighted mean of the trees, the perceptrons
and the model that they extend. The fastest measured program of a task is faster than predicted, so
its prediction has its own weights and a shift.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.calibration.intervals import operator_kinds
from cdmpp.calibration.left_out_kinds import strange_factor
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.vector import DEVICE_VECTOR_NAMES, device_vector
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, replaced_folder, write_json
from cdmpp.files.boosted_trees import (
    ask_trees,
    grow_trees,
    load_booster,
    save_booster,
    tree_rows,
)
from cdmpp.files.stored import from_json
from cdmpp.models.parts.pooling import pooled_features
from cdmpp.predict.machine_code.cold_memory import NetworkWidths
from cdmpp.predict.machine_code.core_time import core_log_s
from cdmpp.predict.machine_code.expected_error import (
    calibrated_width,
    expected_error,
    learn_expected_error,
)
from cdmpp.predict.machine_code.gpu_time import gpu_log_s
from cdmpp.programs.code_layout import CODE_LAYOUTS, CodeKind

if TYPE_CHECKING:  # torch takes long to import
    from cdmpp.predict.machine_code.net import CodeNet

FOLDER = "machine_code"
#: Folder in the model's folder by the kind of the devices.
FOLDERS: Mapping[CodeKind, str] = MappingProxyType({"cpu": FOLDER, "gpu": f"{FOLDER}_gpu"})
FORMAT = 8
#: Had searches of one device.
_ONE_SEARCHED = 7
#: Minimum number of measured programs of a task for a correction of the fastest one.
LEAST_MEASURED = 8
#: Shares of trees and perceptron for an unseen device (an Ice Lake left out,
#: `docs/lab/experiments.md`).
NEW_DEVICE_SHARES = (0.4, 0.4)

_TREES, _NET, _FACTS = "trees.ubj.xz", "perceptron.safetensors", "machine_code.json"
_ERROR_TREES, _DEVICE_TREES = "expected_error.ubj.xz", "device-{}.ubj.xz"
_TENTHS = 10
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 9,
    "eta": 0.04,
    "subsample": 0.8,
    "colsample_bytree": 0.4,
    "min_child_weight": 4,
    "nthread": 1,
}
_MOST_TREES, _PATIENCE = 1200, 60
#: Number of trees without some kinds of operators, and of their training programs.
_LEFT_OUT_TREES, _MOST_LEFT_OUT = 250, 20_000
#: Number of programs of each chip that are also learned from without the device.
_WITHOUT_DEVICE = 4000


@dataclass(frozen=True)
class CodeRows:
    """Compiled programs with a model's predictions.

    Attributes:
        columns: float32 [N, columns].
        core_log_s: float64 [N], log of the instruction time in seconds.
        model_log_s: float64 [N], log of the model's prediction in seconds.
        log_s: float64 [N], log of the measured seconds; NaN if not measured.
        task: str [N].
        kind: str [N], kind of the operator.
        is_record: bool [N], True for measure records (Ansor's schedules), False for modules.
        device: str [N], label of the device.
        chip: str [N], architecture of the device, its label if unknown.
    """

    columns: NDArray[np.float32]
    core_log_s: FloatArray
    model_log_s: FloatArray
    log_s: FloatArray
    task: TextArray
    kind: TextArray
    is_record: BoolArray
    device: TextArray
    chip: TextArray

    @classmethod
    def of(
        cls,
        samples: Samples,
        code: NDArray[np.float32],
        model_latency_s: FloatArray,
        *,
        kind: CodeKind = "cpu",
    ) -> CodeRows:
        """Returns the rows of samples.

        Columns are the pooled leaves, the machine code, the time by each bound of the instructions
        (`core_log_s`, `gpu_log_s`), and the device vector.

        Args:
            code: float32 [N, len(CODE_LAYOUTS[kind].names)].
            model_latency_s: float64 [N], predicted seconds of the model.
            kind: kind of the devices.
        """
        programs, rows = samples.programs, samples.program
        time_of = gpu_log_s if kind == "gpu" else core_log_s
        core = time_of(code, samples.devices, samples.device)
        device = np.stack([device_vector(one) for one in samples.devices])[samples.device]
        columns = np.concatenate(
            [pooled_features(programs, rows), code, core[:, 1:], device], axis=1
        )
        return cls(
            columns.astype(np.float32),
            core[:, 0],
            np.log(model_latency_s),
            np.log(samples.latency_s),
            np.asarray(programs.tasks, np.str_)[samples.task_id],
            operator_kinds(samples).astype(np.str_),
            np.diff(programs.schedule_offset)[rows] > 0,
            np.array([one.name for one in samples.devices], np.str_)[samples.device],
            np.array([one.architecture or one.name for one in samples.devices])[samples.device],
        )

    @classmethod
    def joined(cls, parts: Sequence[CodeRows]) -> CodeRows:
        """Returns the rows of all parts, at least one."""
        return cls(
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.core_log_s for part in parts]),
            np.concatenate([part.model_log_s for part in parts]),
            np.concatenate([part.log_s for part in parts]),
            np.concatenate([part.task for part in parts]),
            np.concatenate([part.kind for part in parts]),
            np.concatenate([part.is_record for part in parts]),
            np.concatenate([part.device for part in parts]),
            np.concatenate([part.chip for part in parts]),
        )

    def take(self, where: BoolArray) -> CodeRows:
        """Returns some of the rows."""
        return CodeRows(
            self.columns[where], self.core_log_s[where], self.model_log_s[where],
            self.log_s[where], self.task[where], self.kind[where], self.is_record[where],
            self.device[where], self.chip[where],
        )  # fmt: skip

    def without_device(self, where: BoolArray) -> CodeRows:
        """Returns the rows, some of them with an unknown device: all of its vector is 0."""
        columns = self.columns.copy()
        columns[where, -len(DEVICE_VECTOR_NAMES) :] = 0.0
        return replace(self, columns=columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class CodeErrors:
    """Errors on a test part.

    Attributes:
        programs: number of programs.
        mape: mean |predicted - measured| / measured.
        median_ape: median |predicted - measured| / measured.
        log_deviation: standard deviation of log(predicted / measured).
        coverage: share of programs in their interval.
        model_mape: `mape` of the model without machine code.
        model_log_deviation: `log_deviation` of the model without machine code.
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
    """Weights and interval width, chosen on the validation part.

    Attributes:
        trees, perceptron: weights of the log predictions; the model has the rest.
        width: half width of the interval of the logarithm over the expected error.
        shift: added to the log prediction.
    """

    trees: float
    perceptron: float
    width: float
    shift: float = 0.0


@dataclass(frozen=True)
class _Mixed:
    """Weights of the parts, and what they leave over.

    Attributes:
        shares: of trees and perceptron.
        residual: float64 [N], log of predicted over measured seconds, with the shift.
        shift: added to the log prediction.
    """

    shares: tuple[float, float]
    residual: FloatArray
    shift: float

    def calibrated(self, expected: FloatArray, task: TextArray) -> CodeCalibration:
        """Returns the calibration for float64 [N] expected errors."""
        width = calibrated_width(self.residual, expected, task)
        return CodeCalibration(*self.shares, width, self.shift)


class CodeModel:
    """Trees and perceptrons over leaf columns and machine code.

    Attributes:
        kind: kind of the devices.
        targets: label of each device -> target of its programs, TVM's JSON.
        feature_schema: versions of the leaf columns.
        calibration: calibration of all programs, of modules only if `of_records` is set.
        of_records: calibration of measure records; None if the data has only one of the two.
        of_device: label of each device that the model was adapted to -> its calibration.
        device_trees: label of such a device -> trees over `error_columns`, whose prediction is
            added to the logarithm; only of devices with enough measured programs.
        errors: errors on the test part.
        fastest: label of each searched device -> calibration for the fastest of at least
            `LEAST_MEASURED` measured programs of a task.
        fastest_errors: label of such a device -> errors on the test part of its searches.
        added_tasks: digests (`task_digest`) of the tasks that were learned from, but not by the
            cost model.
        cold_s_per_byte: label of such a device -> extra seconds per byte of a kernel's arguments in
            a network, if kernels were timed in networks on it.
        network_widths: intervals of times in a network; None if not fitted.
        typical_error: expected error on an unseen device, whose parts disagree for other reasons
            than on the known ones: the median over the validation part.
        strange_factor: factor on the half width of an out-of-distribution program
            (`cdmpp.calibration.left_out_kinds`); None if it was not measured.
        chips: `CodeRows.chip` of the training programs. Programs of other chips are predicted
            without the device, as its vector tells nothing after a few chips; None if the parts did
            not learn that.
    """

    def __init__(
        self,
        targets: Mapping[str, str],
        feature_schema: dict[str, int],
        booster: Any,
        net: CodeNet,
        calibration: CodeCalibration,
        errors: CodeErrors | None,
        *,
        kind: CodeKind = "cpu",
        error_trees: Any | None = None,
    ) -> None:
        self.kind = kind
        self.targets = dict(targets)
        self.calibration, self.errors = calibration, errors
        self.of_records: CodeCalibration | None = None
        self.of_device: dict[str, CodeCalibration] = {}
        self.device_trees: dict[str, Any] = {}
        self.record_errors: CodeErrors | None = None
        self.fastest: dict[str, CodeCalibration] = {}
        self.fastest_errors: dict[str, CodeErrors] = {}
        self.added_tasks: frozenset[str] = frozenset()
        self.cold_s_per_byte: dict[str, float] = {}
        self.network_widths: NetworkWidths | None = None
        self.typical_error = 1.0
        self.strange_factor: float | None = None
        self.chips: frozenset[str] | None = None
        self.feature_schema = feature_schema
        self._booster, self._net, self._error_trees = booster, net, error_trees

    @classmethod
    def fit(
        cls,
        parts: tuple[CodeRows, CodeRows, CodeRows],
        *,
        targets: Mapping[str, str],
        feature_schema: dict[str, int],
        seed: int,
        kind: CodeKind = "cpu",
    ) -> CodeModel:
        """Trains on the first part, calibrates on the second and evaluates on the third.

        The second part also stops the growth of the trees.

        Raises:
            DataError: a part is empty.
        """
        train, validation, test = parts
        for name, part in zip(("training", "validation", "test"), parts, strict=True):
            if len(part) == 0:
                raise DataError(f"the {name} part has no program with machine code; add datasets")
        found = cls.learned(
            train, validation, targets=targets, feature_schema=feature_schema, seed=seed, kind=kind
        )
        is_record = validation.is_record
        has_both = all(0 < part.is_record.sum() < len(part) for part in (validation, test))
        groups = [is_record, ~is_record] if has_both else [np.ones(len(validation), bool)]
        mixed = [found._mixed(validation.take(group), is_shifted=False) for group in groups]
        residual = np.empty(len(validation))
        for group, one in zip(groups, mixed, strict=True):
            residual[group] = one.residual
        found._error_trees, expected = learn_expected_error(
            found.error_columns(validation), residual, validation.task, seed=seed
        )
        found.typical_error = float(np.median(expected))
        calibrations = [
            one.calibrated(expected[group], validation.task[group])
            for group, one in zip(groups, mixed, strict=True)
        ]
        found.calibration = calibrations[-1]
        if has_both:
            found.of_records = calibrations[0]
            found.record_errors = found._judged(test.take(test.is_record))
            validation, test = validation.take(~is_record), test.take(~test.is_record)
        found.errors = found._judged(test)
        found.strange_factor = found._strange_factor(train, validation, seed=seed)
        return found

    @classmethod
    def learned(
        cls,
        train: CodeRows,
        validation: CodeRows,
        *,
        targets: Mapping[str, str],
        feature_schema: dict[str, int],
        seed: int,
        kind: CodeKind = "cpu",
    ) -> CodeModel:
        """Fits trees and perceptrons, not calibrated yet: use only `parts_log_s` of the result."""
        from cdmpp.predict.machine_code.net import CodeNet

        chips = frozenset(train.chip.tolist())
        train = CodeRows.joined([train, _without_device(train, seed=seed)])
        grown, watched = (
            tree_rows(part.columns, part.log_s - part.core_log_s) for part in (train, validation)
        )
        booster = grow_trees(
            {**_PARAMETERS, "seed": seed}, grown, watched, trees=_MOST_TREES, patience=_PATIENCE
        )
        net = CodeNet.fit(train.columns, train.log_s - train.core_log_s, seed=seed)
        uncalibrated = CodeCalibration(0.0, 0.0, 0.0)
        found = cls(targets, feature_schema, booster, net, uncalibrated, None, kind=kind)
        found.chips = chips
        return found

    def calibrate_fastest(self, validation: CodeRows, test: CodeRows) -> None:
        """Calibrates the predictions for fastest programs on those of searched tasks, device by
        device.

        Raises:
            DataError: a part has no program of a device.
        """
        for label, (known, held_out) in check_fastest(validation, test).items():
            mixed = self._mixed(known, is_shifted=True)
            self.fastest[label] = mixed.calibrated(self.expected_error(known), known.task)
            self.fastest_errors[label] = self._judged(held_out, are_fastest=True)

    def adapted(
        self, label: str, target: str, calibration: CodeCalibration, trees: Any | None = None
    ) -> CodeModel:
        """Returns a copy that also supports a device.

        Args:
            target: target of the device's programs, TVM's JSON.
            trees: correct its predictions; see `device_trees`.
        """
        found = copy.copy(self)
        found.targets = {**self.targets, label: target}
        found.of_device = {**self.of_device, label: calibration}
        found.device_trees = {**self.device_trees}
        found.device_trees.pop(label, None)
        if trees is not None:
            found.device_trees[label] = trees
        return found

    @property
    def most_threads(self) -> int | None:
        """Largest number of threads of a device in `targets`; None if none says it."""
        named = [json.loads(text).get("num-cores") for text in self.targets.values()]
        return max((int(count) for count in named if count), default=None)

    def supports_threads(self, device: DeviceSpec) -> bool:
        """Returns whether a device in `targets` has as many threads as a device, or more."""
        most = self.most_threads
        return most is None or (device.threads or 1) <= most

    @property
    def leaf_extra_version(self) -> int:
        """Version of the added leaf columns that it reads."""
        return self.feature_schema.get("leaf_extra", 0)

    def estimate(
        self, rows: CodeRows, *, are_fastest: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Returns float64 [N] and float64 [N], log of the predicted seconds and half width of the
        interval.

        A device outside `targets` uses `NEW_DEVICE_SHARES`, `typical_error` and the width of
        `calibration`. Fastest programs on devices that were not searched have the mean shift of the
        searched ones.

        Args:
            are_fastest: whether each is the fastest of many measured programs of its task.
        """
        parts = self.parts_log_s(rows)
        is_new = ~np.isin(rows.device, list(self.targets))
        columns = self.error_columns(rows, parts)
        expected = expected_error(self._error_trees, columns)
        expected = np.where(is_new, self.typical_error, expected)
        new = mixed_log_s(NEW_DEVICE_SHARES, parts, rows.model_log_s)

        def said(known: CodeCalibration) -> tuple[FloatArray, FloatArray]:
            shares = (known.trees, known.perceptron)
            log_s = mixed_log_s(shares, parts, rows.model_log_s) + known.shift
            log_s = np.where(is_new, new, log_s)
            return log_s, known.width * expected

        log_s, half_width = said(self.calibration)
        others = [(rows.device == label, known) for label, known in self.of_device.items()]
        if self.of_records is not None:
            others.insert(0, (rows.is_record, self.of_records))
        for where, known in others:
            own = said(known)
            log_s, half_width = np.where(where, own, (log_s, half_width))
        for label, trees in self.device_trees.items():
            where = rows.device == label
            if where.any():
                log_s[where] += ask_trees(trees, columns[where])
        if are_fastest:
            assert self.fastest
            log_s = log_s + np.mean([one.shift for one in self.fastest.values()])
            for label, known in self.fastest.items():
                own = said(known)
                log_s, half_width = np.where(rows.device == label, own, (log_s, half_width))
        return log_s, half_width

    def parts_log_s(self, rows: CodeRows) -> tuple[FloatArray, FloatArray]:
        """Returns the log seconds predicted by the trees and by the perceptrons, float64 [N]."""
        if self.chips is not None and not self.chips.issuperset(rows.chip.tolist()):
            rows = rows.without_device(~np.isin(rows.chip, list(self.chips)))
        trees = ask_trees(self._booster, rows.columns)
        return rows.core_log_s + trees, rows.core_log_s + self._net.log_s(rows.columns)

    def expected_error(
        self, rows: CodeRows, parts: tuple[FloatArray, FloatArray] | None = None
    ) -> FloatArray:
        """Returns float64 [N], the expected absolute error of the logarithm.

        Args:
            parts: of `parts_log_s`, where they are known.
        """
        return expected_error(self._error_trees, self.error_columns(rows, parts))

    def error_columns(
        self, rows: CodeRows, parts: tuple[FloatArray, FloatArray] | None = None
    ) -> NDArray[np.float32]:
        """Returns the columns, and how far the parts are from each other and from the model.

        Args:
            parts: of `parts_log_s`, where they are known.
        """
        trees, net = self.parts_log_s(rows) if parts is None else parts
        added = [
            net, net - rows.core_log_s, np.abs(trees - net), np.abs(trees - rows.model_log_s),
            np.abs(net - rows.model_log_s),
        ]  # fmt: skip
        return np.concatenate([rows.columns, np.stack(added, 1).astype(np.float32)], axis=1)

    def _mixed(self, validation: CodeRows, *, is_shifted: bool) -> _Mixed:
        """Returns the weights with the least error."""
        parts, measured = self.parts_log_s(validation), validation.log_s

        def residual_of(shares: tuple[float, float]) -> tuple[FloatArray, float]:
            residual = mixed_log_s(shares, parts, validation.model_log_s) - measured
            shift = -float(np.median(residual)) if is_shifted else 0.0
            return residual + shift, shift

        # By log error: MAPE would let one program that is overestimated a thousandfold decide.
        shares = min(tried_shares(), key=lambda one: float(np.abs(residual_of(one)[0]).mean()))
        return _Mixed(shares, *residual_of(shares))

    def _strange_factor(self, train: CodeRows, validation: CodeRows, *, seed: int) -> float | None:
        """Returns the factor on half widths for kinds of operators outside the training data."""
        pool = CodeRows.joined([train.take(~train.is_record), validation])
        if len(pool) > _MOST_LEFT_OUT:
            draw = np.random.default_rng(seed)
            chosen = np.zeros(len(pool), bool)
            chosen[draw.choice(len(pool), _MOST_LEFT_OUT, replace=False)] = True
            pool = pool.take(chosen)
        half_width = self.calibration.width * self.expected_error(validation)

        def error_of(is_left_out: BoolArray) -> FloatArray:
            strange = validation.take(is_left_out)
            known = pool.take(~np.isin(pool.kind, strange.kind))
            trees = grow_trees(
                {**_PARAMETERS, "eta": 0.1, "seed": seed},
                tree_rows(known.columns, known.log_s - known.core_log_s, threads=1),
                trees=_LEFT_OUT_TREES,
            )
            said = ask_trees(trees, strange.columns)
            return np.asarray(np.abs(strange.core_log_s + said - strange.log_s))

        return strange_factor(validation.kind, validation.task, half_width, error_of)

    def _judged(self, test: CodeRows, *, are_fastest: bool = False) -> CodeErrors:
        log_s, half_width = self.estimate(test, are_fastest=are_fastest)
        residual = log_s - test.log_s
        alone = test.model_log_s - test.log_s
        return CodeErrors(
            programs=len(residual),
            mape=_mape(residual),
            median_ape=float(np.median(np.abs(np.expm1(residual)))),
            log_deviation=float(residual.std()),
            coverage=float(np.mean(np.abs(residual) <= half_width)),
            model_mape=_mape(alone),
            model_log_deviation=float(alone.std()),
        )

    def save(self, directory: Path) -> None:
        """Writes the model of machine code into the folder of a model.

        Raises:
            DataError: a file cannot be written.
        """
        facts = {
            "format": FORMAT,
            "targets": self.targets,
            "feature_schema": self.feature_schema,
            "machine_code_schema": CODE_LAYOUTS[self.kind].version,
            "calibration": asdict(self.calibration),
            "of_records": _plain(self.of_records),
            "of_device": {label: asdict(one) for label, one in self.of_device.items()},
            "record_test": _plain(self.record_errors),
            "test": _plain(self.errors),
            "fastest": {label: asdict(one) for label, one in self.fastest.items()},
            "fastest_test": {label: asdict(one) for label, one in self.fastest_errors.items()},
            "added_tasks": sorted(self.added_tasks),
            "cold_s_per_byte": self.cold_s_per_byte,
            "network_widths": _plain(self.network_widths),
            "strange_factor": self.strange_factor,
            "typical_error": self.typical_error,
            "chips": None if self.chips is None else sorted(self.chips),
            "has_error_trees": self._error_trees is not None,
            "device_trees": list(self.device_trees),
        }
        own = Path(directory) / FOLDERS[self.kind]
        with replaced_folder(own, what="model of machine code") as folder:
            save_booster(self._booster, folder / _TREES)
            if self._error_trees is not None:
                save_booster(self._error_trees, folder / _ERROR_TREES)
            self._net.save(folder / _NET)
            for number, trees in enumerate(self.device_trees.values()):
                save_booster(trees, folder / _DEVICE_TREES.format(number))
            write_json(folder / _FACTS, facts)

    @classmethod
    def load(cls, directory: Path, *, kind: CodeKind = "cpu") -> CodeModel | None:
        """Loads what `save` wrote; None if the model has no machine code for this kind of devices.

        Raises:
            DataError: a file is damaged or of another version.
        """
        folder = Path(directory) / FOLDERS[kind]
        if not folder.is_dir():
            return None
        hint = _hint(Path(directory))
        facts = read_json(folder / _FACTS, what="model of machine code", hint=hint)
        versions = facts.get("format"), facts.get("machine_code_schema")
        expected = FORMAT, CODE_LAYOUTS[kind].version
        if versions not in (expected, (_ONE_SEARCHED, expected[1])):
            raise DataError(f"{folder} has versions {versions}, expected {expected}; {hint}")
        from cdmpp.predict.machine_code.net import CodeNet

        booster = load_booster(folder / _TREES, hint=hint)
        error_file = folder / _ERROR_TREES
        has_trees = facts.get("has_error_trees")
        error_trees = load_booster(error_file, hint=hint) if has_trees else None
        net = CodeNet.load(folder / _NET, hint=hint)
        try:
            if facts["format"] == _ONE_SEARCHED:
                facts = _by_device(facts)
            errors = facts["test"]
            found = cls(
                facts["targets"], facts["feature_schema"], booster, net,
                from_json(CodeCalibration, facts["calibration"]),
                None if errors is None else CodeErrors(**errors), kind=kind,
                error_trees=error_trees,
            )  # fmt: skip
            if facts["of_records"] is not None:
                found.of_records = from_json(CodeCalibration, facts["of_records"])
            if facts["record_test"] is not None:
                found.record_errors = CodeErrors(**facts["record_test"])
            found.of_device = {
                label: from_json(CodeCalibration, one)
                for label, one in facts.get("of_device", {}).items()
            }
            for number, label in enumerate(facts.get("device_trees", [])):
                place = folder / _DEVICE_TREES.format(number)
                found.device_trees[label] = load_booster(place, hint=hint)
            found.fastest = {
                label: from_json(CodeCalibration, one) for label, one in facts["fastest"].items()
            }
            found.fastest_errors = {
                label: CodeErrors(**one) for label, one in facts["fastest_test"].items()
            }
            found.added_tasks = frozenset(facts.get("added_tasks", ()))
            found.cold_s_per_byte = {
                label: float(one) for label, one in facts["cold_s_per_byte"].items()
            }
            found.strange_factor = facts.get("strange_factor")
            found.typical_error = float(facts["typical_error"])
            if facts["chips"] is not None:
                found.chips = frozenset(facts["chips"])
            if facts.get("network_widths") is not None:
                found.network_widths = from_json(NetworkWidths, facts["network_widths"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder} is damaged ({error}); {hint}") from None
        return found


def _by_device(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts of an earlier format in today's form."""
    label = facts["searched"]
    names = ("fastest", "fastest_test", "cold_s_per_byte")
    return {**facts, **{name: {label: facts[name]} if facts.get(name) else {} for name in names}}


def _hint(directory: Path) -> str:
    """Returns the next step if the machine-code model of a run folder is damaged."""
    config = directory / "config.yaml"
    if not config.is_file() or "from_run:" not in config.read_text("utf-8", errors="replace"):
        return "retrain it with `cdmpp train-code`"
    if (directory / "plan.json").is_file():  # it keeps finished fits
        fits = directory / "curve" / "pretrained-*.json"
        return f"remove {fits} and rerun the `cdmpp device add` that made the folder"
    return f"rerun the `cdmpp finetune` that made {directory}"


def _without_device(rows: CodeRows, *, seed: int) -> CodeRows:
    """Returns some programs of each chip without the device; chips have about the same weight."""
    draw = np.random.default_rng(seed)
    chosen = np.zeros(len(rows), bool)
    for chip in np.unique(rows.chip):
        own = np.flatnonzero(rows.chip == chip)
        chosen[draw.permutation(own)[:_WITHOUT_DEVICE]] = True
    found = rows.take(chosen)
    return found.without_device(np.ones(len(found), bool))


def tried_shares() -> list[tuple[float, float]]:
    """Returns all weights of trees and perceptron in steps of 0.1; the model has the rest."""
    return [
        (trees / _TENTHS, net / _TENTHS)
        for trees in range(_TENTHS + 1)
        for net in range(_TENTHS + 1 - trees)
    ]


def check_fastest(validation: CodeRows, test: CodeRows) -> dict[str, tuple[CodeRows, CodeRows]]:
    """Returns the fastest programs of both parts by the label of the device.

    Raises:
        DataError: a part has none, or none of a device.
    """
    labels = {*validation.device.tolist(), *test.device.tolist()}
    for name, part in (("validation", validation), ("test", test)):
        lacking = sorted(labels - {*part.device.tolist()})
        if lacking or not labels:
            where = f" on {', '.join(lacking)}" if lacking else ""
            raise DataError(
                f"the {name} part has no searched task{where} with {LEAST_MEASURED} measured "
                "programs outside the training data; search more networks"
            )
    return {
        label: (
            validation.take(validation.device == label),
            test.take(test.device == label),
        )
        for label in sorted(labels)
    }


def mixed_log_s(
    shares: tuple[float, float], parts: tuple[FloatArray, FloatArray], model: FloatArray
) -> FloatArray:
    """Returns the weighted mean of the parts and the model."""
    trees, net = shares
    return trees * parts[0] + net * parts[1] + (1.0 - trees - net) * model


def _plain(value: CodeCalibration | CodeErrors | NetworkWidths | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def _mape(log_ratio: FloatArray) -> float:
    """Returns the MAPE of logarithms of predicted over measured."""
    return float(np.abs(np.expm1(log_ratio)).mean())
