"""Options and interval widths of corrections, selected on held-out GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.operators.operators import MATMUL_KINDS
from cdmpp.analytic.sweep.calls import Fp32Operator, SweepCall, sweep_family
from cdmpp.analytic.sweep.correction import CorrectionOptions
from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.files.places import package_folder
from cdmpp.files.stored import from_json, to_json

RULES_FILE, TORCH_FILE = "rules.json", "torch.json"
_FORMAT, _TORCH_FORMAT = "sweep-rules-1", "torch-errors-1"
_AGAIN = "reinstall cdmpp"
#: Groups of operators that are corrected together: products; row-wise and element-wise operators.
MATMUL, ROW_WISE = "matmul", "row-wise"


@dataclass(frozen=True)
class FamilyRules:
    """Rules of corrections of one family, from the GPUs of the package's data.

    Attributes:
        options: options of the fit.
        widening: factor on the interval of the sweep's own held-out errors.
    """

    options: CorrectionOptions
    widening: float


@dataclass(frozen=True)
class SweepRules:
    """Rules of every corrected family.

    Attributes:
        families: name of `corrected_family` -> its rules; other families are not corrected, since
            no simulation measured the benefit.
    """

    families: Mapping[str, FamilyRules]

    def save(self, path: Path) -> None:
        """Writes the rules as JSON."""
        write_json(path, {"format": _FORMAT, "families": to_json(dict(self.families))})

    @classmethod
    def load(cls, path: Path) -> SweepRules:
        """Reads what `save` wrote.

        Raises:
            DataError: the file is missing, damaged or of another format.
        """
        value = read_json(path, what="rules of sweeps", hint=_AGAIN, format=_FORMAT)
        try:
            return cls(from_json(dict[str, FamilyRules], value["families"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot read the rules ({error}); {_AGAIN}") from None


@lru_cache(maxsize=1)
def packaged_rules() -> SweepRules:
    """Returns the rules that come with the package."""
    return SweepRules.load(package_folder("cdmpp.pretrained") / "gpu_sweep" / RULES_FILE)


def torch_errors_text(errors: Mapping[str, LogErrors]) -> dict[str, Any]:
    """Returns the content of `TORCH_FILE`, which `torch_errors` reads."""
    return {"format": _TORCH_FORMAT, "errors": to_json(dict(errors))}


@lru_cache(maxsize=1)
def torch_errors() -> Mapping[str, LogErrors]:
    """Returns group -> errors of torch's kernels on GPUs without a sweep, corrected by the packaged
    sweep of another GPU; the widest over these GPUs.
    """
    path = package_folder("cdmpp.pretrained") / "gpu_sweep" / TORCH_FILE
    value = read_json(path, what="errors of torch's kernels", hint=_AGAIN, format=_TORCH_FORMAT)
    return from_json(dict[str, LogErrors], value["errors"])


def corrected_family(call: SweepCall) -> str:
    """Returns the family whose correction applies to a call: a family of the kernel models or of
    the operator model; `copy` and `launch` have no correction.
    """
    if isinstance(call, Fp32Operator):
        return operator_family(call.kind)
    return sweep_family(call)


def operator_family(kind: str) -> str:
    """Returns the group of operators that a kind is corrected with."""
    if kind in MATMUL_KINDS:
        return MATMUL
    return ROW_WISE


def widened(errors: FloatArray, of_family: FloatArray, widening: float) -> LogErrors | None:
    """Returns the errors of a group, widened.

    Args:
        errors: float64, log(measured / corrected) of the group's calls in a sweep.
        of_family: the same for all calls of the family; used if the group has too few.
        widening: factor on both ends.
    """
    found = LogErrors.of(errors) or LogErrors.of(of_family)
    if found is None:
        return None
    return LogErrors(found.low * widening, found.high * widening, found.count)
