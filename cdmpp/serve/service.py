"""The server without HTTP: reads programs, queues and scores them, returns rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from cdmpp.devices.registry import load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.models.assemble import AskedProgram
from cdmpp.predict.estimates import Estimates
from cdmpp.predict.prediction import Prediction, estimated
from cdmpp.predict.requested_device import asked_devices
from cdmpp.serve.hot_models import HotModel, HotModels
from cdmpp.serve.options import ServeOptions
from cdmpp.serve.reading import ProgramReader, ReadProgram
from cdmpp.serve.scoring import Scored, Scoring, is_too_large


class TooLargeError(UsageError):
    """A request beyond the limits of the server."""


class Service:
    """Models, the processes that read programs, and the thread that scores them.

    Args:
        options: the models and the limits.
        models: the loaded models.
        reader: reads programs.
        on_batch: called with the number of programs of every scored batch.
    """

    def __init__(
        self,
        options: ServeOptions,
        models: HotModels,
        reader: ProgramReader,
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.models = models
        self.reader = reader
        self.started_s = time.monotonic()
        self._options = options
        self._scoring = Scoring(on_batch)

    def stop(self) -> None:
        """Stops all threads and processes."""
        self.models.stop()
        self._scoring.stop()
        self.reader.stop()

    async def predict(
        self, entries: Sequence[dict[str, Any]], labels: Sequence[str], model: str | None
    ) -> tuple[HotModel, list[dict[str, Any]]]:
        """Returns the model used and a row per program and device.

        Raises:
            CdmppError: the request cannot be answered.
        """
        hot = self.models.find(model)
        programs = await self._read(hot, entries, asked_devices(labels, (), hot.trained.card))
        asked = [program.asked for program in programs if program.asked is not None]
        scored = await self._scored(hot, asked, has_estimates=True)
        rows, place = [], scored.start
        for program in programs:
            row = _prediction(program, scored.estimates, place).to_json()
            place += program.asked is not None
            rows.append({"entry": program.entry, **row})
        return hot, rows

    async def rank(
        self,
        entries: Sequence[dict[str, Any]],
        label: str | None,
        model: str | None,
        *,
        own_batch: bool,
    ) -> tuple[HotModel, DeviceSpec, list[float | None], list[str | None]]:
        """Returns the model, the device, and seconds or a reason for every program.

        Raises:
            CdmppError: the request cannot be answered.
        """
        hot = self.models.find(model)
        devices = asked_devices([] if label is None else [label], (), hot.trained.card)
        if len(devices) != 1:
            names = ", ".join(device.name for device in devices)
            raise UsageError(f"expected one device to rank for; the model has {names}")
        programs = await self._read(hot, entries, devices)
        asked = [program.asked for program in programs if program.asked is not None]
        scored = await self._scored(hot, asked, has_estimates=False, own_batch=own_batch)
        seconds: list[float | None] = []
        reasons = [program.reason for program in programs]
        values = iter(scored.latency_s.tolist())
        for place, program in enumerate(programs):
            value = None if program.asked is None else next(values)
            if value is not None and not 0 < value < np.inf:
                value, reasons[place] = (
                    None,
                    "the model's prediction for these columns is not finite",
                )
            seconds.append(value)
        return hot, devices[0], seconds, reasons

    async def explain(
        self, entries: Sequence[dict[str, Any]], labels: Sequence[str], model: str | None
    ) -> tuple[HotModel, list[dict[str, Any]]]:
        """Returns the model, and an explanation of every program on every device.

        Raises:
            CdmppError: the request cannot be answered.
        """
        hot = self.models.find(model)
        devices = asked_devices(labels, (), hot.trained.card)
        most = self._options.most_explained
        if len(entries) * len(devices) > most:
            raise TooLargeError(f"more than {most} programs x devices; send them in parts")
        if any(entry.get("records") or entry.get("leaves") for entry in entries):
            raise DataError(
                "only programs with a text can be explained; expected tvmscript or tir_json"
            )
        rows = await self.reader.explain(
            entries, devices, model=(hot.folder, hot.version), most=most,
            timeout_s=self._options.answer_timeout_s,
        )  # fmt: skip
        return hot, rows

    def devices(self) -> list[dict[str, Any]]:
        """Returns the devices of the registry and of the models, with the models trained on
        each.
        """
        found = {spec.name: spec for spec in load_registry().values()}
        trained: dict[str, list[str]] = {}
        for hot in self.models.all():
            for spec in hot.trained.card.devices:
                found.setdefault(spec.name, spec)
                trained.setdefault(spec.name, []).append(hot.name)
        return [
            {**asdict(spec), "trained_in": trained.get(name, [])}
            for name, spec in sorted(found.items())
        ]

    async def _read(
        self, hot: HotModel, entries: Sequence[dict[str, Any]], devices: Sequence[DeviceSpec]
    ) -> list[ReadProgram]:
        most = self._options.most_programs
        if len(entries) * len(devices) > most:
            raise TooLargeError(f"more than {most} programs x devices; send them in parts")
        version = hot.trained.card.leaf_extra_version
        programs = await self.reader.read(entries, devices, version)
        if len(programs) > most:
            raise TooLargeError(f"{len(programs)} programs x devices, expected at most {most}")
        return programs

    async def _scored(
        self,
        hot: HotModel,
        asked: Sequence[AskedProgram],
        *,
        has_estimates: bool,
        own_batch: bool = False,
    ) -> Scored:
        if not asked:
            return Scored(np.zeros(0))
        if is_too_large(asked):
            raise TooLargeError("too many stores in one request; send fewer programs")
        future = self._scoring.submit(hot, asked, has_estimates=has_estimates, own_batch=own_batch)
        return await asyncio.wrap_future(future)


def _prediction(program: ReadProgram, found: Estimates | None, place: int) -> Prediction:
    if program.asked is None or found is None:
        reasons = () if program.reason is None else (program.reason,)
        return Prediction(program.name, program.device, operator=program.operator, reasons=reasons)
    one = estimated(program.asked, found, place, name=program.name)
    note = "; ".join(filter(None, (program.note, one.note)))
    return replace(one, is_scheduled=program.is_scheduled, note=note)
