"""Explanations of network predictions: kernels by share, and explanations of the largest."""

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

#: Default number of explained kernels, most expensive first; the others are only listed.
MOST_KERNELS = 5


@dataclass(frozen=True)
class ExplainedKernel:
    """A kernel of a network.

    Attributes:
        share: share of the time of all kernels, in [0, 1].
        program: explanation of the kernel alone; None if it was not requested or the kernel has no
            program.
    """

    answer: NetworkKernel
    share: float
    program: ExplainedProgram | None


@dataclass(frozen=True)
class ExplainedNetwork:
    """A network on a device, compiled by TVM.

    Attributes:
        kernels: kernels, most expensive first.
    """

    answer: NetworkPrediction
    kernels: tuple[ExplainedKernel, ...]

    def row(self) -> dict[str, Any]:
        """Returns the explanation as JSON values."""
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
    question: NetworkQuestion, *, most_kernels: int = MOST_KERNELS
) -> list[ExplainedNetwork]:
    """Returns the explanations of a network on all devices.

    Args:
        question: the network; without ways, TVM compiles it, tuned if there is a database.
        most_kernels: number of kernels to explain.

    Raises:
        CdmppError: see `network_answers`.
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
        predictor = Predictor(
            trained, [devices[one.device]],
            compiles=question.compiles, must_compile=question.must_compile,
        )  # fmt: skip
        kernels = _kernels(one, predictor, question.must_compile, most_kernels)
        found.append(ExplainedNetwork(one, tuple(kernels)))
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
