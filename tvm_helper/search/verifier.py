"""Predictions of a machine-code model for the built drafts of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.errors import UsageError
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.requested_device import asked_device
from tvm_helper.cost_model.module_scores import module_samples
from tvm_helper.tasks.machine_code import reads_code


class Verifier:
    """Trained model that uses the machine code of programs.

    It also supports unseen devices whose instructions were in the training data: the ranking of a
    task's programs differs little between such devices (`docs/results/search.md`).

    Args:
        trained: the model, with its machine-code model.
        device: label of the measured device.
        target: compile target of the programs.

    Attributes:
        is_new_device: whether the device's machine code was not in the training data.

    Raises:
        UsageError: the model does not read the machine code of the device and target.
    """

    def __init__(self, trained: TrainedModel, device: str, target: Any) -> None:
        code = trained.code
        known = {} if code is None else code.targets
        self.is_new_device = device not in known
        if not reads_code(known, device, target):
            can = ", ".join(f"{label} for {text}" for label, text in known.items()) or "no device"
            raise UsageError(
                f"verify: the model reads the machine code of {can}, not of {device} for "
                f"{target}; leave verify out, or extend the model with `cdmpp train-code`"
            )
        self._trained = trained
        self._device = asked_device(device, trained.card)
        self._target = target

    def latency_s(self, modules: Sequence[Any], columns: Sequence[Sequence[float]]) -> FloatArray:
        """Returns float64 [N], predicted seconds; infinity for a program without machine code or
        features.

        Args:
            modules: N scheduled modules.
            columns: machine-code columns of each module (`cdmpp.programs.machine_code.columns`);
                empty without machine code.
        """
        read = [place for place, one in enumerate(columns) if len(one)]
        found = module_samples(
            [modules[place] for place in read], self._target, self._device,
            version=self._trained.leaf_extra_version,
        )  # fmt: skip
        latency_s = np.full(len(modules), np.inf)
        if len(found.supported):
            places = np.array(read)[found.supported]
            code = np.array([columns[place] for place in places], np.float32)
            step = MachineCodeCorrection(code)
            latency_s[places] = self._trained.estimate(found.samples, [step]).latency_s
        return latency_s
