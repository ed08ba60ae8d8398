"""Adapts all of a trained model to one new device: tunes what can be tuned, scales the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel
from cdmpp.models.ensemble import EnsembleCostModel, StandIn
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.nn.loop.progress import OnTrain
from cdmpp.training.finetune.few_shot import Kept, finetune_in_detail
from cdmpp.training.finetune.folds import budget_folds
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.finetune.tuning_trainee import error

FloatArray = NDArray[np.float64]

#: The transformer's share in an ensemble is a multiple of one over this.
_SHARE_STEPS = 10


@dataclass(frozen=True)
class Adapted:
    """A model adapted to a device.

    Attributes:
        model: the new model.
        kept: what of its tunable part is new.
        steps: which weights were tuned -> steps of the optimiser.
        nearest: known device by whose numbers the parts that cannot be tuned see the new one; None
            where the whole model is tunable.
        shares: of the ensemble's parts; None likewise.
        held_out: the measured samples, each as it was held out; None where there are too few.
        held_out_s: float64 [N], what models that had not seen them predicted; None likewise.
    """

    model: CostModel
    kept: Kept
    steps: dict[str, int]
    nearest: str | None
    shares: tuple[float, ...] | None
    held_out: Samples | None
    held_out_s: FloatArray | None


def adapt(
    model: CostModel,
    train: Samples,
    known: Sequence[DeviceSpec],
    *,
    options: FinetuneOptions | None = None,
    seed: int,
    run_dir: Path | None = None,
    on_progress: OnTrain | None = None,
) -> Adapted:
    """Returns the model adapted to the device of some measured tasks.

    The tunable part is fine-tuned (`finetune_in_detail`). The other parts of an ensemble take the
    device for the known one that fits best, times one factor each. The transformer's share is the
    one with the least error on held-out tasks, half way back to what it was; factors and shares are
    judged on tasks that did not take part in them.

    Args:
        train: measured samples of one device.
        known: the devices that the model was trained on.

    Raises:
        UsageError: several devices, or a model that cannot be fine-tuned.
        DataError: no samples, or features of another schema version.
    """
    options = options or FinetuneOptions()
    devices = np.unique(train.device)
    if len(devices) > 1:
        raise UsageError(f"a model is adapted to one device at a time, got {len(devices)} devices")
    tuned = finetune_in_detail(
        model, train, train.take(np.zeros(0, np.int64)), options=options, seed=seed,
        run_dir=run_dir, on_progress=on_progress,
    )  # fmt: skip
    if not isinstance(model, EnsembleCostModel) or not isinstance(
        tuned.model, TransformerCostModel
    ):
        return Adapted(
            tuned.model, tuned.kept, tuned.steps, None, None, tuned.held_out, tuned.held_out_s
        )
    label = train.devices[int(devices[0])].name
    stand_in = _stand_in(model, train, known)
    shares, held_out_s = model.shares, None
    if tuned.held_out is not None and tuned.held_out_s is not None:
        others = _held_out_others(model, train, known, options, seed)
        parts = model.fenced(np.log(np.concatenate([tuned.held_out_s[None], others])))
        shares = _shares(parts, model.shares, tuned.held_out.latency_s)
        held_out_s = np.exp(np.asarray(shares) @ parts)
    adapted = model.adapted(tuned.model, {label: stand_in}, shares=shares)
    return Adapted(
        adapted, tuned.kept, tuned.steps, stand_in.device.name, shares, tuned.held_out, held_out_s
    )


def comparable(samples: Samples, known: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """Returns the labels of the known devices of the same kind as that of the samples; of all
    where there is none of that kind.
    """
    kind = samples.devices[int(samples.device[0])].kind
    same = tuple(spec.name for spec in known if spec.kind == kind)
    return same or tuple(spec.name for spec in known)


def _stand_in(model: EnsembleCostModel, train: Samples, known: Sequence[DeviceSpec]) -> StandIn:
    """Returns the known device that the whole model fits best with, and its parts' factors."""
    samples = with_devices(train, known)
    nearest, _ = fit_one_factor(model, samples, comparable(train, known))
    parts = model.parts_s(as_device(samples, nearest))[1:]
    first, second = np.median(train.latency_s / parts, axis=1)
    device = next(spec for spec in known if spec.name == nearest)
    return StandIn(device, (float(first), float(second)))


def _held_out_others(
    model: EnsembleCostModel,
    train: Samples,
    known: Sequence[DeviceSpec],
    options: FinetuneOptions,
    seed: int,
) -> FloatArray:
    """Returns float64 [2, N]: seconds by perceptron and trees, fold by fold as in fine-tuning, with
    stand-ins fitted to the other folds.
    """
    found = []
    for rows in budget_folds(train, options.folds, seed=seed):
        stand_in = _stand_in(model, train.take(~rows), known)
        held_out = as_device(with_devices(train.take(rows), known), stand_in.device.name)
        found.append(np.array(stand_in.factors)[:, None] * model.parts_s(held_out)[1:])
    return np.concatenate(found, axis=1)


def _shares(
    parts: FloatArray, before: Sequence[float], measured_s: FloatArray
) -> tuple[float, ...]:
    """Returns the shares: that of the first part is chosen, the others keep their ratio.

    Args:
        parts: float64 [3, N], log seconds.
    """
    others = np.array([0.0, *before[1:]])
    others = others / others.sum() if others.sum() > 0 else np.array([0.0, 0.5, 0.5])
    candidates = [
        share * np.array([1.0, 0.0, 0.0]) + (1.0 - share) * others
        for share in np.linspace(0.0, 1.0, _SHARE_STEPS + 1)
    ]
    best = min(candidates, key=lambda shares: error(np.exp(shares @ parts), measured_s))
    return tuple(float(value) for value in (best + np.asarray(before)) / 2.0)
