"""Predictions for a user's programs, without records and without running them.

from tvm_helper.predict.predictor import Predictor

predictor = Predictor("runs/demo", ["epyc-avx2-2c", "xeon-avx2-2c"])
for one in predictor.programs("my_kernel.py"):
    print(one.name, one.device, one.latency_s, one.low_s, one.high_s)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.schedule_times import packaged_schedule_times
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, ReplayError
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.cpu_rules import erf_note, erf_s, on_one_thread
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.explanation import explain
from cdmpp.predict.machine_code.cold_memory import COLD_SHARE
from cdmpp.predict.machine_code.model import LEAST_MEASURED, CodeModel
from cdmpp.predict.prediction import NO_CODE, Prediction, estimated, reads_no_code
from cdmpp.predict.requested_device import asked_device, asked_devices
from cdmpp.pretrained import model_folder
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION
from cdmpp.programs.gpu_code.columns import gpu_code_columns
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path
from cdmpp.programs.machine_code.columns import machine_code_columns
from cdmpp.records import program_id
from tvm_helper.compat import Schedule, Target
from tvm_helper.predict.reading import (
    Looks,
    ProgramReading,
    fit,
    look_at,
    read_program,
    unsized,
)
from tvm_helper.tasks.gpu_code import gpu_launches
from tvm_helper.tasks.machine_code import CodeReader, code_of, reads_code
from tvm_helper.tasks.network_tasks import NetworkTask
from tvm_helper.tasks.program_file import NamedProgram, read_programs
from tvm_helper.tasks.target import device_target

#: Maximum number of unrolled and vectorised stores that are compiled by default: 4,096 take 2 s,
#: 16,384 half a minute.
_MOST_COPIES = 8192
#: Seconds after which a program that is compiled by default is predicted without machine code.
_LIMIT_S = 30.0


@dataclass
class _Question:
    """A program to predict on a device."""

    name: str
    operator: str
    device: DeviceSpec
    target: Target
    workload_key: str
    module: Any
    trace: list[Any] = field(default_factory=list)
    is_scheduled: bool = True
    is_fastest: bool = False
    in_network: bool = False
    note: str = ""
    source: Any = None


class Predictor:
    """Predictor of programs and of kernels of networks with a trained model.

    Args:
        model: a run folder, `pretrained`, or a loaded model.
        devices: labels, or descriptions of unseen devices.
        compiles: whether to compile programs for the model's machine-code correction, on devices
            where it was evaluated on kernels of networks. A program that does not compile is
            predicted without the correction, as is one that takes longer than 30 s to compile;
            its note has the reason.
        must_compile: whether to compile also where it was only evaluated on single programs. A
            program that does not compile has no latency; there is no time limit.

    Raises:
        DeviceError: an unknown device.
        DataError: there is no complete model.
    """

    def __init__(
        self,
        model: TrainedModel | Path | str,
        devices: Sequence[DeviceSpec | str],
        *,
        compiles: bool = False,
        must_compile: bool = False,
    ) -> None:
        self._compiles, self._must_compile = compiles, must_compile
        self._code_reader = None if must_compile else CodeReader(_LIMIT_S)
        self.trained = (
            model
            if isinstance(model, TrainedModel)
            else load_trained(model_folder(model), with_code=compiles)
        )
        self.devices = tuple(
            device if isinstance(device, DeviceSpec) else asked_device(device, self.trained.card)
            for device in devices
        )

    def reads_code_of(self, device: DeviceSpec, *, of_fastest: bool = False) -> bool:
        """Returns whether predictions for a device use the machine code of the programs.

        Args:
            of_fastest: whether the program is the fastest of a task's measured programs.
        """
        code = self._reader(device)
        if code is None or not self._compiles:
            return False
        # The GPU model was not evaluated on kernels of networks.
        is_judged = code.kind == "cpu"
        return (
            (bool(code.fastest) or not of_fastest)
            and (self._must_compile or is_judged)
            and reads_code(code.targets, device.name, device_target(device))
        )

    def _reader(self, device: DeviceSpec) -> CodeModel | None:
        return self.trained.gpu_code if device.kind == "gpu" else self.trained.code

    def cold_s_per_byte(self, device: DeviceSpec) -> float:
        """Returns the additional seconds per byte of arguments of a kernel in a network, compared
        with the kernel alone; 0 if unknown.

        CPUs on which no networks were timed read `COLD_SHARE` of the arguments at their memory
        bandwidth.
        """
        code = self._reader(device)
        if (
            code is not None
            and device.name in code.cold_s_per_byte
            and self.reads_code_of(device, of_fastest=True)
        ):
            return code.cold_s_per_byte[device.name]
        bandwidth = device.mem_bandwidth_bytes_per_s if device.kind == "cpu" else None
        return COLD_SHARE / bandwidth if bandwidth else 0.0

    def own_half_width(self, device: DeviceSpec, latency_s: float, one: Prediction) -> float:
        """Returns the part of a kernel's half width (of the log interval, combined in quadrature)
        that averages out over a network; 0 if unknown.

        Args:
            latency_s: latency of the kernel in the network.
            one: prediction of the kernel alone.
        """
        if one.by_schedule and one.latency_s and one.high_s:
            shared = packaged_schedule_times().widths_on(device.name).network
            whole = float(np.log(one.high_s / one.latency_s))
            return float(np.sqrt(max(whole**2 - shared**2, 0.0)))
        code = self._reader(device)
        if code is None or code.network_widths is None or not one.is_compiled:
            return 0.0
        log_s = np.log([latency_s])
        return float(code.network_widths.half_width(log_s)[0])

    def programs(self, source: Path | str | Sequence[NamedProgram]) -> list[Prediction]:
        """Returns the predictions of all programs on all devices, program by program.

        Args:
            source: a Python file, which is run, or programs.

        Raises:
            DataError: the file cannot be run or defines no program.
            DeviceError: TVM has no target for a device.
        """
        named = read_programs(Path(source)) if isinstance(source, Path | str) else source
        answers = []
        for program in named:
            fault = program.fault or unsized(program.module)
            looks = None if fault else look_at(program.module)
            for device in self.devices:
                if looks is None:
                    answers.append(_unanswered(program.name, "", device, fault))
                    continue
                target = device_target(device)
                fitted = fit(program, looks, device, target)
                if isinstance(fitted, str):
                    answers.append(_unanswered(program.name, looks.operator, device, fitted))
                    continue
                answers += self._answer([_question(fitted, looks, device, target)])
        return answers

    def on(self, device: DeviceSpec) -> Predictor:
        """Returns a predictor of the same model for one device."""
        return Predictor(
            self.trained, [device], compiles=self._compiles, must_compile=self._must_compile
        )

    def scheduled(
        self,
        task: NetworkTask,
        schedule: Schedule,
        device: DeviceSpec,
        *,
        fastest_of: int = 0,
    ) -> Prediction:
        """Returns the prediction of a network's task alone under a given schedule; its interval
        includes the effects of a network.

        Args:
            fastest_of: number of measured programs of which the schedule was the fastest. With
                `LEAST_MEASURED` or more, a machine-code correction is used only if it was trained
                on results of searches.

        Raises:
            DeviceError: TVM has no target for the device.
        """
        question = _scheduled_question(task, schedule, device, device_target(device))
        is_fastest = fastest_of >= LEAST_MEASURED
        return self._answer([replace(question, is_fastest=is_fastest, in_network=True)])[0]

    def _leaf_shares(self, samples: Samples) -> NDArray[np.float64] | None:
        shares = self.trained.model.leaf_shares(self.trained.card.as_told(samples))
        return None if shares is None else shares[0]

    def _answer(self, questions: Sequence[_Question]) -> list[Prediction]:
        answers = []
        for question in questions:
            version = self.trained.leaf_extra_version
            read = read_program(question.module, question.target, question.source, version=version)
            if isinstance(read, str):
                answers.append(_unanswered(question.name, question.operator, question.device, read))
                continue
            try:
                answers.append(self._estimate(question, read))
            except ReplayError as error:
                answers.append(
                    _unanswered(question.name, question.operator, question.device, str(error))
                )
        return answers

    def _estimate(self, question: _Question, read: ProgramReading) -> Prediction:
        asked = _asked(question, read)
        samples = assemble_samples([asked])
        # The machine-code models were not trained on integer arithmetic either.
        corrections, no_code = (
            ([], "") if read.doubts else self._corrections(question, read, samples)
        )
        found = self.trained.estimate(samples, corrections)
        one = estimated(asked, found, name=question.name)
        more_s = erf_s(read.tree, question.device)
        notes = (question.note, one.note, erf_note(more_s, one.latency_s), no_code)
        return replace(
            one,
            explanation=explain(
                read.tree,
                read.ast,
                self.trained.described_now(question.device),
                self._leaf_shares(samples),
                read.work,
            ),
            is_scheduled=question.is_scheduled,
            code=corrections[0].code[0] if corrections else None,
            erf_s=more_s,
            note="; ".join(filter(None, notes)),
        )

    def _corrections(
        self, question: _Question, read: ProgramReading, samples: Samples
    ) -> tuple[list[MachineCodeCorrection], str]:
        """Returns the corrections of a program's estimate, or a note why its machine code is not
        used although the model reads that of the device.
        """
        reader = self._reader(question.device)
        if reader is None or not self.reads_code_of(
            question.device, of_fastest=question.is_fastest
        ):
            return [], ""
        used = on_one_thread(samples, self.trained.card)
        device = used.devices[used.device[0]]
        if not reader.supports_threads(device):
            reason = (
                f"its loops run on {device.threads} threads, and the model of machine code was "
                f"trained on at most {reader.most_threads}"
            )
            if self._must_compile:
                raise ReplayError(reason)
            return [], NO_CODE + reason
        copies = _copies(read.tree)
        if copies > _MOST_COPIES and not self._must_compile:
            return [], (
                f"{NO_CODE}its unrolled and vectorised loops make {copies:,} copies of its stores, "
                "which take long to compile"
            )
        try:
            code = self._code(question)
        except (ReplayError, DataError) as error:
            if self._must_compile:
                raise
            return [], NO_CODE + str(error).replace("; ", ", ")
        if code is None:
            return [], f"{NO_CODE}it only calls a library"
        correction = MachineCodeCorrection(
            code[None], reader.kind, are_fastest=question.is_fastest,
            in_network=question.in_network,
        )  # fmt: skip
        return [correction], ""

    def _code(self, question: _Question) -> NDArray[np.float32] | None:
        """Returns float32 [columns] of a program's machine code; None if it only calls a
        library.
        """
        if question.device.kind == "gpu":
            return gpu_code_columns(gpu_launches(question.module, question.device))
        if self._code_reader is None:
            return machine_code_columns(code_of(question.module, question.target))
        return self._code_reader.columns(question.module, question.target)


def _copies(tree: LoopTree) -> int:
    """Returns the number of stores after unrolling and vectorising, as annotated."""
    return sum(
        math.prod(
            loop.extent
            for loop in path
            if isinstance(loop, Loop)
            and loop.kind in ("unrolled", "vectorized")
            and isinstance(loop.extent, int)
        )
        for _, path in stores_with_path(tree)
    )


def program_samples(
    program: NamedProgram, device: DeviceSpec, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> Samples:
    """Returns a program on a device as one sample.

    Args:
        version: version of the added leaf columns.

    Raises:
        DataError: the device cannot run the program, or the program has no features.
        DeviceError: TVM has no target for the device.
    """
    fault = program.fault or unsized(program.module)
    if fault:
        raise DataError(f"{program.name}: {fault}")
    target, looks = device_target(device), look_at(program.module)
    fitted = fit(program, looks, device, target)
    read = (
        fitted
        if isinstance(fitted, str)
        else read_program(fitted.module, target, fitted.source, version=version)
    )
    if isinstance(read, str) or isinstance(fitted, str):
        raise DataError(
            f"{program.name} on {device.name}: {read}; expected a program that the device can run"
        )
    return assemble_samples([_asked(_question(fitted, looks, device, target), read)])


def new_predictor(
    model: Path | str,
    labels: Sequence[str] = (),
    descriptions: Sequence[Path] = (),
    *,
    compiles: bool = False,
) -> Predictor:
    """Returns a predictor of a run folder's model for the requested devices.

    Args:
        model: a run folder or `pretrained`.
        labels: labels of devices.
        descriptions: files with descriptions of unseen devices.
        compiles: see `Predictor`.

    Raises:
        DataError: there is no complete model.
        DeviceError: an unknown device.
        UsageError: see `asked_devices`.
    """
    trained = load_trained(model_folder(model), with_code=compiles)
    devices = asked_devices(labels, descriptions, trained.card)
    return Predictor(trained, devices, compiles=compiles)


def check_reads_code(predictor: Predictor) -> None:
    """Checks that a model reads the machine code of at least one of its devices.

    Raises:
        UsageError: it reads the machine code of no device.
    """
    if any(map(predictor.reads_code_of, predictor.devices)):
        return
    raise reads_no_code(predictor.trained, [device.name for device in predictor.devices])


def _question(program: NamedProgram, looks: Looks, device: DeviceSpec, target: Target) -> _Question:
    return _Question(
        name=program.name, operator=looks.operator, device=device, target=target,
        workload_key=looks.workload_key, module=program.module, is_scheduled=looks.is_scheduled,
        note=program.note, source=program.source,
    )  # fmt: skip


def _asked(question: _Question, read: ProgramReading) -> AskedProgram:
    kind = question.target.kind.name
    return AskedProgram(
        program_id=program_id("metaschedule", question.workload_key, question.trace, kind),
        task=f"{question.workload_key}|{kind}", ast=read.ast,
        device=question.device, operator=question.operator, work=read.work, doubts=read.reasons,
    )  # fmt: skip


def _scheduled_question(
    task: NetworkTask, schedule: Schedule, device: DeviceSpec, target: Target
) -> _Question:
    return _Question(
        name=task.name,
        operator=task.operator,
        device=device,
        target=target,
        workload_key=task.workload_key,
        module=schedule.mod,
        trace=_plain(schedule.trace.as_json()),
    )


def _plain(value: Any) -> Any:
    """Returns a value of TVM as JSON values."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(part) for key, part in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(part) for part in value]
    if hasattr(value, "value"):
        return _plain(value.value)
    return str(value)


def _unanswered(name: str, operator: str, device: DeviceSpec, reason: str) -> Prediction:
    return Prediction(name, device.name, operator=operator, reasons=(reason,))
