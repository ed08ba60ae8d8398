"""Why networks take as long as predicted: their kernels by share, then into each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.predict.networks import (
    NetworkKernel,
    NetworkPrediction,
    NetworkQuestion,
    with_shares,
)
from cdmpp.predict.requested_device import asked_devices
from tvm_helper.predict.explain import ExplainedProgram, explain_programs
from tvm_helper.predict.predictor import Predictor
from tvm_helper.replay.ways import network_answers
from tvm_helper.tasks.program_file import NamedProgram

#: Kernels that are explained, dearest first; the others are only counted.
MOST_KERNELS = 5


@dataclass(frozen=True)
class ExplainedKernel:
    """A kernel of a network.

    Attributes:
        share: of the time of all kernels, in [0, 1].
        program: why it takes its time alone; None where it was not asked or has no program.
    """

    answer: NetworkKernel
    share: float
    program: ExplainedProgram | None


@dataclass(frozen=True)
class ExplainedNetwork:
    """A network on a device, compiled by TVM.

    Attributes:
        kernels: dearest first.
    """

    answer: NetworkPrediction
    kernels: tuple[ExplainedKernel, ...]

    def row(self) -> dict[str, Any]:
        """Returns all of it as JSON."""
        one = self.answer
        return {
            "network": one.name, "device": one.device, "way": one.way,
            "latency_s": one.latency_s, "low_s": one.low_s, "high_s": one.high_s,
            "schedule": one.schedule or None, "reasons": list(one.reasons),
            "kernels": [
                {
                    "name": kernel.answer.name, "calls": kernel.answer.calls,
                    "shapes": list(kernel.answer.shapes), "share": kernel.share,
                    "in_network_s": kernel.answer.in_network_s,
                    "reason": kernel.answer.reason or None,
                    "explanation": None if kernel.program is None else kernel.program.row(),
                }
                for kernel in self.kernels
            ],
        }  # fmt: skip


def explain_network(
    question: NetworkQuestion, *, compiles: bool = False, most_kernels: int = MOST_KERNELS
) -> list[ExplainedNetwork]:
    """Returns the explanation of a network on every device.

    Args:
        question: without ways it is run as TVM compiles it: tuned where there is a database.
        compiles: whether it is said what the compiler makes of the kernels.
        most_kernels: that are explained.

    Raises:
        CdmppError: as `network_answers`.
    """
    if not question.ways:
        is_tuned = question.database is not None
        question = replace(question, ways=("tvm-tuned" if is_tuned else "tvm-untuned",))
    trained = question.cost_model()
    devices = {
        spec.name: spec
        for spec in asked_devices(question.labels, question.descriptions, trained.card)
    }
    found = []
    for one in network_answers(replace(question, loaded=lambda: trained)):
        predictor = Predictor(trained, [devices[one.device]], compiles=compiles)
        found.append(ExplainedNetwork(one, tuple(_kernels(one, predictor, compiles, most_kernels))))
    return found


def _kernels(
    one: NetworkPrediction, predictor: Predictor, compiles: bool, most_kernels: int
) -> Sequence[ExplainedKernel]:
    found = []
    for place, (kernel, share) in enumerate(with_shares(one.kernels)):
        program = None
        if place < most_kernels and kernel.module is not None:
            named = [NamedProgram(kernel.name, kernel.module)]
            (program,) = explain_programs(predictor, named, compiles=compiles)
        found.append(ExplainedKernel(kernel, share, program))
    return found
