"""Trained models: predict latencies of programs, records and networks.

Only `cdmpp.api` and `cdmpp.cli` import `tvm_helper`, inside the functions that need it. Therefore
`cdmpp.load` takes milliseconds, and predictions from records work without TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.api.arguments import PATH, check_machine_code, check_type
from cdmpp.api.dataset import Dataset
from cdmpp.api.predictions import Predictions
from cdmpp.api.sources import (
    Device,
    Source,
    described,
    flattened,
    named_programs,
    source_kind,
    split_devices,
)
from cdmpp.errors import UsageError
from cdmpp.networks.graph.execution import Running
from cdmpp.predict.explained import ExplainedAnswer
from cdmpp.pretrained import PRETRAINED, model_folder

if TYPE_CHECKING:
    import torch

    from cdmpp.datasets.extraction.source import RecordSource
    from cdmpp.datasets.samples import Samples
    from cdmpp.devices.spec import DeviceSpec
    from cdmpp.networks.graph.execution import Dtype, Layout, Mode
    from cdmpp.networks.graph.torch_graph import Method
    from cdmpp.predict.estimates import TrainedModel
    from cdmpp.predict.networks import NetworkPrediction, NetworkQuestion, Way
    from cdmpp.predict.records import CompiledCode
    from cdmpp.predict.saved_model import ModelCard
    from tvm_helper.predict.predictor import Predictor
    from tvm_helper.tasks.program_file import NamedProgram

#: Maximum number of programs in a call that are compiled by default, half a second each.
MOST_COMPILED = 20
#: Label of records without a device.
_UNNAMED = "unnamed"


def load(model: str | Path = PRETRAINED) -> Model:
    """Returns a trained model; its weights are read at the first prediction.

    Example:
        >>> import cdmpp
        >>> model = cdmpp.load("pretrained")
        >>> "v100" in model.devices
        True

    Args:
        model: `pretrained` (the packaged model), `pretrained:NAME`, or a run folder of
            `cdmpp train`, `cdmpp finetune` or `cdmpp networks train`.

    Raises:
        UsageError: there is no packaged model with that name.
        DataError: the folder does not contain a complete model.
    """
    found = Model(model)
    if not found.is_of_networks:
        found.card  # noqa: B018  # fails here if the folder has no model
    return found


class Model:
    """A trained model, returned by `cdmpp.load` and `cdmpp.train`.

    Args:
        place: see `load`.

    Attributes:
        place: the name, such as `pretrained`, or the folder it was loaded from.
        folder: folder of the model.
    """

    place: str | Path
    folder: Path

    def __init__(self, place: str | Path) -> None:
        self.place = place
        self.folder = model_folder(place)

    def __repr__(self) -> str:
        kind = "networks" if self.is_of_networks else "programs"
        names = self.devices
        more = f" and {len(names) - 4} more" if len(names) > 5 else ""
        shown = ", ".join(names[:4] if more else names)
        return f"<Model {str(self.place)!r} of {kind}, trained on {shown}{more}>"

    @property
    def devices(self) -> tuple[str, ...]:
        """Labels of the devices in the training data."""
        if self.is_of_networks:
            from cdmpp.networks.run import load_run

            return tuple(spec.name for spec in load_run(self.folder).devices)
        return tuple(spec.name for spec in (*self.card.devices, *self.card.described))

    @cached_property
    def card(self) -> ModelCard:
        """Model card of a model of programs.

        Raises:
            DataError: the folder does not contain a complete model of programs.
        """
        from cdmpp.predict.saved_model import read_card

        return read_card(self.folder)

    @cached_property
    def is_of_networks(self) -> bool:
        """Whether the model only predicts whole torch networks."""
        if str(self.place).partition(":")[0] == PRETRAINED:
            return False
        from cdmpp.networks.run import is_networks_run  # it loads pyarrow

        return is_networks_run(self.folder)

    def predict(
        self,
        source: Source,
        device: Device | Sequence[Device] | None = None,
        *,
        machine_code: bool | None = None,
        shapes: Sequence[tuple[int, ...]] | None = None,
        batches: Sequence[int] | None = None,
    ) -> Predictions:
        """Predicts the latency of programs, records or networks. Nothing is run or measured.

        Args:
            source: a TVM `PrimFunc` or `IRModule`; TVMScript text, which is not executed; a Python
                file with programs (`.py`), which is executed; a file of Tenset's measure records
                (`.json`, `.json.gz`); a network (a torch module or a function that returns one,
                `.onnx`, or `.pt2` of `torch.export.save`); a `Dataset` or its samples; or a list of
                these.
            device: label, `DeviceSpec`, device file (YAML), or several of them; None = the devices
                of the records or samples, otherwise the model's only device.
            machine_code: whether programs are compiled (half a second each) to use their machine
                code, for smaller errors. True = always, an error if the model does not support it
                or a program does not compile; None = networks and up to 20 programs on CPUs, if
                the model supports it; False = never. Records are only compiled with True.
            shapes: of a torch module's inputs, without the batch; required for torch modules.
            batches: batch sizes of networks; `network` has more options.

        Returns:
            programs in their order, each on all devices, `is_compiled` if their machine code was
            used; records fastest first; networks by device and way of running. For a single
            prediction, `latency_s` in seconds, `low_s`, `high_s` and `explain()` are attributes of
            the list.

        Raises:
            UsageError: an unknown kind of source, or no device is given and the model has several.
            DataError: a file cannot be read, or has nothing that can be predicted.
            DeviceError: an unknown device.
        """
        check_machine_code(machine_code)
        sources: list[Source] = [
            one.samples if isinstance(one, Dataset) else one for one in flattened(source)
        ]
        kinds = [source_kind(one) for one in sources]
        if "program" in kinds:
            self._asked(device)  # a wrong label fails before a file runs
        named = [
            named_programs(one) if kind == "program" else []
            for one, kind in zip(sources, kinds, strict=True)
        ]
        count = sum(map(len, named))
        reads_code, notes = self._tier(device, machine_code, count) if count else (None, [])
        parts = []
        for one, kind, programs in zip(sources, kinds, named, strict=True):
            if kind == "program":
                parts.append(self._programs(programs, device, reads_code, described(one)))
            elif kind == "records":
                parts.append(self.records(one, device, machine_code=bool(machine_code)))
            elif kind == "network":
                _check_shapes(one, shapes)
                parts.append(self.network(
                    one, device, machine_code=machine_code, batches=batches,
                    shapes=shapes or ((3, 224, 224),),
                ))  # fmt: skip
            else:
                parts.append(self.samples(one, device))
        return Predictions(
            (one for part in parts for one in part),
            notes=[*notes, *(note for part in parts for note in part.notes)],
        )

    def programs(
        self,
        source: Source,
        device: Device | Sequence[Device] | None = None,
        *,
        machine_code: bool | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Predictions:
        """Predicts the latency of tensor programs, scheduled or not.

        Other arguments and errors: see `predict`.

        Args:
            sizes: values of symbolic sizes by name, e.g. {"n": 4096}.
        """
        check_machine_code(machine_code)
        self._asked(device)  # a wrong label fails before a file runs
        named = named_programs(source, sizes)
        reads_code, notes = self._tier(device, machine_code, len(named))
        return Predictions(
            self._programs(named, device, reads_code, described(source)), notes=notes
        )

    def records(
        self,
        path: str | Path,
        device: Device | Sequence[Device] | None = None,
        *,
        network_info: str | Path | None = None,
        measured_on: str | None = None,
        target: str | None = None,
        machine_code: bool = False,
        prepare: Callable[[], object] | None = None,
    ) -> Predictions:
        """Predicts the programs of measure records, fastest first.

        Args:
            path: a file of Ansor's records, an AutoTVM log, or the folder of a MetaSchedule
                database. The latter two are featurised with a TVM.
            device: see `predict`; None = the device of each record.
            machine_code: see `predict`; only for Ansor's records.
            network_info: folder of the tasks; None = of the file's dataset, or the shipped one.
            measured_on: the device of the records, to correct the predictions for other devices
                with the measured times.
            target: AutoTVM, MetaSchedule: only records whose target contains this text.
            prepare: called before logs need the old TVM; None = an error if that is missing.

        Raises:
            UsageError: `machine_code` and `measured_on` together, or the model supports neither.
            DataError: the file or the tasks cannot be read, or no record can be predicted.
            DeviceError: an unknown device.
        """
        from cdmpp.predict.records import predict_records, predict_source
        from cdmpp.predict.requested_device import asked_devices

        check_machine_code(machine_code)
        check_type("path", path, PATH, "a file of records, or a database")
        check_type("network_info", network_info, PATH | None, "a folder or None")
        path = Path(path)
        trained = self.trained(machine_code=machine_code)
        labels, files = split_devices(device)
        devices = asked_devices(labels, files, trained.card) if labels or files else ()
        source = _source_of_tvm(path, measured_on, target, prepare, trained.leaf_extra_version)
        if source is None:
            found = predict_records(
                trained, path, devices=devices,
                network_info=None if network_info is None else Path(network_info),
                measured_on=measured_on, compiled=_record_compiler() if machine_code else None,
            )  # fmt: skip
        elif machine_code or network_info is not None:
            raise UsageError(
                f"{path}: machine code and network_info can only be used with Ansor records; "
                "leave them out"
            )
        else:
            found = predict_source(trained, source, devices=devices, measured_on=measured_on)
        found.check(path)
        return Predictions(found.programs, notes=found.notes())

    def samples(
        self, samples: Samples, device: Device | Sequence[Device] | None = None
    ) -> Predictions:
        """Predicts samples in their order, one device after another.

        Args:
            samples: N samples.
            device: None = the device of each sample. Measured times do not correct predictions for
                other devices.

        Raises:
            DataError: the features have another version than the model's.
            DeviceError: an unknown device.
        """
        import numpy as np

        from cdmpp.calibration.transfer import on_device
        from cdmpp.predict.prediction import estimated_samples
        from cdmpp.predict.requested_device import asked_devices, check_kinds

        trained = self.trained()
        parts = [samples]
        if device is None:
            used = [samples.devices[place] for place in np.unique(samples.device)]
            check_kinds(used, trained.card)
        else:
            parts = [
                replace(on_device(samples, spec), latency_s=np.full(len(samples), np.nan))
                for spec in asked_devices(*split_devices(device), trained.card)
            ]
        return Predictions(
            one for part in parts for one in estimated_samples(part, trained.estimate(part))
        )

    def network(
        self,
        network: Source,
        device: Device | Sequence[Device] | None = None,
        *,
        name: str = "",
        ways: Way | Sequence[Way] = (),
        database: str | Path | None = None,
        machine_code: bool | None = None,
        batches: Sequence[int] | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        shapes: Sequence[tuple[int, ...]] = ((3, 224, 224),),
        dtypes: Sequence[torch.dtype] | None = None,
        method: Method = "fx",
        dtype: Dtype | None = None,
        layout: Layout = "nchw",
        compiled: bool = False,
        mode: Mode | None = None,
        memory_limit_bytes: float | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> Predictions:
        """Predicts whole networks: one row per device, batch size and way of running.

        Args:
            network: an ONNX file, a `.pt2` file, a torch module, or a function that returns one.
            device, machine_code: see `predict`.
            name: name in the results; empty = that of the file or class.
            ways: ways of running: `tvm-untuned` (compiled by TVM with default schedules),
                `tvm-tuned` (with the programs of `database`), `torch-eager`; empty = all.
            database: folder of a MetaSchedule database, such as that of `cdmpp search --network`.
            batches: samples per iteration; None = 1, or the batch of a file. For an ONNX file: the
                size of its dynamic first axes.
            input_shapes: full shapes of an ONNX file's inputs with dynamic sizes, by name; the name
                `""` is the only input.
            shapes, dtypes: of a torch module's inputs, without the batch; dtypes None = float32, or
                int64 if the first layer is an embedding.
            method: tracing method for a torch module: `fx`, or `export`, which is slower and
                supports more code.
            dtype: element types in torch: `float32`, `float16`, `bfloat16`, or float32 weights
                under autocast, `amp-fp16` or `amp-bf16`; None = those of the weights. With `dtype`,
                `layout` or `compiled`, only torch's way of running is predicted.
            layout: memory format in torch: `nchw`, or `nhwc` (channels_last).
            compiled: whether torch.compile compiles the module.
            mode: `infer` or `train`; None = both.
            memory_limit_bytes: available memory; None = that of the device.
            on_step: called with the name of the next step.

        Raises:
            UsageError: a way needs a database, or does not support the file.
            DataError: the network cannot be read, or no way of running it can be predicted.
            DeviceError: an unknown device.
        """
        from tvm_helper.replay.ways import network_answers

        check_machine_code(machine_code)
        question = self._question(network, device, name=name, machine_code=machine_code)
        question = replace(
            question, ways=(ways,) if isinstance(ways, str) else ways,
            database=None if database is None else Path(database),
            memory_limit_bytes=memory_limit_bytes, input_shapes=input_shapes or {},
            running=Running(dtype, layout, compiled, mode),
        )  # fmt: skip
        if batches is not None:
            question = replace(question, batches=batches)
        if not isinstance(question.source, Path):
            question = replace(question, shapes=shapes, dtypes=dtypes, method=method)
        return Predictions(
            replace(one, _explain=self._explains_network(question, one))
            for one in network_answers(question, on_step=on_step or (lambda step: None))
        )  # fmt: skip

    def explain(
        self,
        source: Source,
        device: Device | Sequence[Device] | None = None,
        *,
        machine_code: bool | None = None,
        kernels: int = 5,
        batch: int | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        shapes: Sequence[tuple[int, ...]] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> list[ExplainedAnswer]:
        """Explains the predictions of programs or networks, in the order of `predict`.

        Args:
            source: a program or a network, see `predict`.
            device: see `predict`.
            machine_code: whether programs are compiled to use and describe their machine code; None
                = as `predict` does.
            kernels: number of kernels of a network to explain, most expensive first.
            batch: samples of a network; None = 1, or the batch of a file.
            input_shapes: of an ONNX file, see `network`.
            shapes: of a torch module's inputs, see `predict`.
            sizes: of programs, see `programs`.

        Raises:
            UsageError: `source` is a record or sample, which has no text.
            DataError, DeviceError: see `predict`.
        """
        check_machine_code(machine_code)
        kind = source_kind(source)
        if kind not in ("program", "network"):
            raise UsageError(
                f"{kind} cannot be explained, because they have no text; expected a program or a "
                "network"
            )
        if kind == "network":
            from tvm_helper.replay.explain import explain_network

            question = self._question(source, device, name="", machine_code=machine_code)
            _check_shapes(source, shapes)
            question = replace(
                question, input_shapes=input_shapes or {}, shapes=shapes or (),
                batches=question.batches if batch is None else (batch,),
            )  # fmt: skip
            found = explain_network(question, most_kernels=kernels)
            return [ExplainedAnswer(one.row()) for one in found]
        from cdmpp.predict.prediction import check_predicted
        from tvm_helper.predict.explain import explain_programs

        self._asked(device)  # a wrong label fails before a file runs
        named = named_programs(source, sizes)
        reads_code, notes = self._tier(device, machine_code, len(named))
        predictor = self._predictor(device, reads_code)
        programs = explain_programs(predictor, named, compiles=bool(reads_code))
        check_predicted([one.prediction for one in programs], described(source))
        why = {"no_machine_code": notes[0]} if notes else {}
        return [ExplainedAnswer(one.row() | why) for one in programs]

    def trained(self, *, machine_code: bool = False) -> TrainedModel:
        """Returns the trained model behind this object. Its interface is internal.

        Args:
            machine_code: whether to read its machine-code models too.

        Raises:
            DataError: the model is incomplete.
        """
        return self._with_code if machine_code else self._without_code

    @cached_property
    def _without_code(self) -> TrainedModel:
        from cdmpp.predict.estimates import load_trained

        return load_trained(self.folder)

    @cached_property
    def _with_code(self) -> TrainedModel:
        from cdmpp.predict.estimates import read_code

        return read_code(self._without_code, self.folder)

    def _tier(
        self, device: Device | Sequence[Device] | None, machine_code: bool | None, count: int
    ) -> tuple[bool | None, list[str]]:
        """Returns whether programs are compiled (see `predict`), and a note if they are too many
        to compile by default.
        """
        if machine_code is not None or count <= MOST_COMPILED:
            return machine_code, []
        predictor = self._predictor(device, None)
        if not any(map(predictor.reads_code_of, predictor.devices)):
            return None, []
        return False, [
            f"{count} programs are predicted without machine code, as they are more than "
            f"{MOST_COMPILED}; --machine-code (Python: machine_code=True) compiles them, about "
            "half a second each"
        ]

    def _programs(
        self,
        named: list[NamedProgram],
        device: Device | Sequence[Device] | None,
        machine_code: bool | None,
        name: str,
    ) -> Predictions:
        from cdmpp.predict.prediction import check_predicted
        from tvm_helper.predict.predictor import check_reads_code

        predictor = self._predictor(device, machine_code)
        if machine_code:
            check_reads_code(predictor)
        asked = [(program, spec) for program in named for spec in predictor.devices]
        found = predictor.programs(named)
        check_predicted(found, name)
        return Predictions(
            replace(one, _explain=self._explains_program(program, spec, machine_code))
            for (program, spec), one in zip(asked, found, strict=True)
        )

    def _asked(self, device: Device | Sequence[Device] | None) -> list[DeviceSpec]:
        from cdmpp.predict.requested_device import asked_devices

        return asked_devices(*split_devices(device), self.trained().card)

    def _predictor(
        self, device: Device | Sequence[Device] | None, machine_code: bool | None
    ) -> Predictor:
        from tvm_helper.predict.predictor import Predictor

        devices = self._asked(device)
        has_cpu = any(one.kind == "cpu" for one in devices)
        compiles = has_cpu if machine_code is None else machine_code
        return Predictor(
            self.trained(machine_code=compiles), devices,
            compiles=compiles, must_compile=machine_code is True,
        )  # fmt: skip

    def _question(
        self,
        network: Source,
        device: Device | Sequence[Device] | None,
        *,
        name: str,
        machine_code: bool | None,
    ) -> NetworkQuestion:
        from cdmpp.predict.networks import NetworkQuestion

        labels, files = split_devices(device)
        is_file = isinstance(network, str | Path)
        source = Path(network) if is_file else network
        named = source.stem if is_file else getattr(network, "__name__", type(network).__name__)
        question = NetworkQuestion(
            source, name or named, labels=labels, descriptions=files, model=self.place,
            batches=(None,) if is_file else (1,),
        )  # fmt: skip
        return self._with_tier(question, machine_code)

    def _with_tier(self, question: NetworkQuestion, machine_code: bool | None) -> NetworkQuestion:
        compiles = machine_code is not False
        return replace(
            question, compiles=compiles, must_compile=machine_code is True,
            loaded=None if self.is_of_networks else lambda: self.trained(machine_code=compiles),
        )  # fmt: skip

    def _explains_program(
        self, program: NamedProgram, device: DeviceSpec, predicted_with: bool | None
    ) -> Callable[[bool | None], ExplainedAnswer]:
        def explain(machine_code: bool | None) -> ExplainedAnswer:
            from tvm_helper.predict.explain import explain_programs

            check_machine_code(machine_code)
            reads_code = predicted_with if machine_code is None else machine_code
            predictor = self._predictor(device, reads_code)
            (one,) = explain_programs(predictor, [program], compiles=bool(reads_code))
            return ExplainedAnswer(one.row())

        return explain

    def _explains_network(
        self, question: NetworkQuestion, one: NetworkPrediction
    ) -> Callable[[bool | None], ExplainedAnswer] | None:
        if one.way == "torch-eager":
            return None
        asked = replace(question, ways=(one.way,), batches=(one.batch,))

        def explain(machine_code: bool | None) -> ExplainedAnswer:
            from tvm_helper.replay.explain import explain_network

            check_machine_code(machine_code)
            found = explain_network(
                asked if machine_code is None else self._with_tier(asked, machine_code)
            )
            (answer,) = (other for other in found if other.answer.device == one.device)
            return ExplainedAnswer(answer.row())

        return explain


def _source_of_tvm(
    path: Path,
    measured_on: str | None,
    target: str | None,
    prepare: Callable[[], object] | None,
    version: int,
) -> RecordSource | None:
    """Returns the source of an AutoTVM log or MetaSchedule database; None for other records."""
    from cdmpp.api.featurisers import tvm_featurisers
    from cdmpp.datasets.autotvm.logs import is_autotvm_log
    from cdmpp.datasets.metaschedule.databases import is_metaschedule_database
    from cdmpp.datasets.sources import source_at

    labels = None if measured_on is None else [measured_on]
    if is_metaschedule_database(path):
        labels = labels or [_UNNAMED]
    elif not is_autotvm_log(path):
        if target is not None:
            raise UsageError(
                f"{path}: a target can only be used with records of AutoTVM or MetaSchedule"
            )
        return None
    featurisers = tvm_featurisers(prepare, version=version)
    return source_at(path, labels, target=target, featurisers=featurisers)


def _check_shapes(network: Source, shapes: Sequence[tuple[int, ...]] | None) -> None:
    if not isinstance(network, str | Path) and shapes is None:
        raise UsageError(
            f"{type(network).__name__} is a network without input shapes; give them "
            "without the batch, e.g. shapes=[(3, 224, 224)]"
        )


def _record_compiler() -> CompiledCode:
    from tvm_helper.predict.compiled_records import compiled_code

    return compiled_code
