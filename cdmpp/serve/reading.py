"""Reads the programs of requests in separate processes, as inputs of models."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp import errors
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, ServerError
from cdmpp.models.assemble import AskedProgram
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.processes.worker import Answer, Worker
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.work import ProgramWork
from cdmpp.serve.gate import FewAtATime
from cdmpp.serve.leaf_table import decode_asts

_START_S = 120.0
#: Programs per call: a request of thousands does not block a process, and only a hanging program
#: uses up the time limit.
_PART = 16


@dataclass(frozen=True)
class ReadProgram:
    """A program of a request on a device.

    Attributes:
        entry: index of its entry in the request.
        name: its name in the entry.
        operator: empty if unknown.
        device: label.
        asked: input of the model; None if it cannot be predicted.
        reason: why it cannot be predicted.
        is_scheduled: whether it has a schedule.
        note: remark on how it was read or scheduled; may be empty.
    """

    entry: int
    name: str
    operator: str
    device: str
    asked: AskedProgram | None
    reason: str | None = None
    is_scheduled: bool = True
    note: str = ""


class ProgramReader:
    """Processes that read programs, processes that explain them, and threads that wait for both.

    A process that dies or exceeds its time limit is restarted; the request fails.

    Args:
        command: starts a process that answers `read` (see `cdmpp.serve.reader_process`), and with
            TVM also `explain` and `network`.
        workers: number of processes that read.
        explainers: number of processes that explain; each starts with its first request.
        most_explaining: maximum concurrent explanations; more are rejected.
        folder: folder of their logs.
        timeout_s: time limit for reading a few programs.
        has_tvm: whether the processes read more than records.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        workers: int,
        explainers: int,
        most_explaining: int,
        folder: Path,
        timeout_s: float,
        has_tvm: bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._has_tvm = has_tvm
        self._readers = _Processes(command, "reader", workers, folder)
        self._explainers = _Processes(command, "explainer", explainers, folder)
        self._explaining = FewAtATime("explaining", explainers, most_explaining)
        self._threads = ThreadPoolExecutor(workers, "cdmpp-reader")
        self._decoder = ThreadPoolExecutor(1, "cdmpp-decoder")

    @property
    def restarts(self) -> int:
        """Number of processes lost to programs."""
        return self._readers.restarts + self._explainers.restarts

    def start(self) -> None:
        """Starts the reading processes and waits until they are ready.

        Raises:
            DeviceError: a process does not become ready.
        """
        self._readers.start()

    def stop(self) -> None:
        """Stops all threads and processes."""
        self._threads.shutdown(cancel_futures=True)
        self._decoder.shutdown(cancel_futures=True)
        self._explaining.stop()
        self._readers.stop()
        self._explainers.stop()

    async def read(
        self, entries: Sequence[dict[str, Any]], devices: Sequence[DeviceSpec], leaf_extra: int
    ) -> list[ReadProgram]:
        """Returns every program of every entry on every device.

        Args:
            leaf_extra: version of the extra leaf columns that the model reads.

        Raises:
            DataError: the entries are not programs, or reading them died or timed out.
            ServerError: the entries need TVM, which is missing.
        """
        if any(entry.get("tvmscript") or entry.get("tir_json") for entry in entries):
            self._need_tvm()
        loop = asyncio.get_running_loop()
        texts = [place for place, entry in enumerate(entries) if entry.get("leaves") is None]
        found: list[ReadProgram] = []
        for start in range(0, len(texts), _PART):
            part = texts[start : start + _PART]
            some = [entries[place] for place in part]
            read = await loop.run_in_executor(self._threads, self._read, some, devices, leaf_extra)
            found += [_placed(one, part[one.entry]) for one in read]
        if len(texts) < len(entries):
            found += await loop.run_in_executor(
                self._decoder, _decoded, entries, devices, leaf_extra
            )
        return sorted(found, key=lambda one: one.entry) if texts else found

    async def explain(
        self,
        entries: Sequence[dict[str, Any]],
        devices: Sequence[DeviceSpec],
        *,
        model: tuple[Path, str],
        most: int,
        timeout_s: float,
    ) -> list[dict[str, Any]]:
        """Returns explanations of every program on every device, as JSON.

        Args:
            model: folder and version of the model.
            most: maximum programs x devices.
            timeout_s: time limit in seconds.

        Raises:
            DataError: the entries are not programs, or explaining them died or timed out.
            ServerError: too many explanations are running or waiting.
        """
        self._need_tvm()
        facts = {"folder": str(model[0]), "version": model[1], "most": most}
        request = _request("explain", entries, devices, **facts)
        answer = await self._explaining.run(lambda: self._explainers.ask(request, timeout_s))
        rows: list[dict[str, Any]] = answer["explained"]
        return rows

    async def network(
        self,
        path: Path,
        name: str,
        devices: Sequence[DeviceSpec],
        *,
        model: tuple[Path, str],
        sizes: InputSizes,
        timeout_s: float,
    ) -> list[dict[str, Any]]:
        """Returns the prediction of a network on every device, kernel by kernel, as JSON.

        Args:
            path: network file, named by its digest.
            name: name in the result.
            model: folder and version of the model.
            sizes: input sizes of an ONNX file.
            timeout_s: time limit in seconds.

        Raises:
            DataError: the file is not a supported network, sizes do not fit, or reading it died or
                timed out.
            ServerError: too many explanations are running or waiting.
        """
        self._need_tvm()
        facts = {"path": str(path), "name": name, "folder": str(model[0]), "version": model[1]}
        told = {"batch": sizes.batch, "inputs": {k: list(v) for k, v in sizes.shapes.items()}}
        request = _request("network", (), devices, **facts, **told)
        answer = await self._explaining.run(lambda: self._explainers.ask(request, timeout_s))
        rows: list[dict[str, Any]] = answer["networks"]
        return rows

    def _need_tvm(self) -> None:
        if not self._has_tvm:
            raise ServerError(
                "this server runs without TVM: got a program or network, expected records or leaf "
                "tables. Install apache-tvm where it runs and restart it."
            )

    def _read(
        self, entries: Sequence[dict[str, Any]], devices: Sequence[DeviceSpec], leaf_extra: int
    ) -> list[ReadProgram]:
        specs = {device.name: device for device in devices}
        request = _request("read", entries, devices, leaf_extra=leaf_extra)
        answer = self._readers.ask(request, self._timeout_s)
        asts = iter(decode_asts(answer["leaves"]))
        return [_read_program(row, specs[row["device"]], asts) for row in answer["asked"]]


class _Processes:
    """A pool of equal processes.

    Attributes:
        restarts: number of processes lost to programs.
    """

    def __init__(self, command: Sequence[str], name: str, count: int, folder: Path) -> None:
        self.restarts = 0
        self._workers = [
            Worker(command, folder / f"{name}-{number}.log", queue_timeout_s=_START_S)
            for number in range(count)
        ]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Returns the answer of the next free process.

        Raises:
            DataError: the process reported an error, died, or exceeded its time limit.
            ServerError: the process cannot be started.
        """
        worker = self._free.get()
        try:
            answer = worker.ask(request, timeout_s=timeout_s)
        except DeviceError as error:
            raise ServerError(str(error)) from None
        finally:
            self._free.put(worker)
        if answer.outcome != "done":
            self.restarts += answer.outcome != "failed"
            what = "network" if request["op"] == "network" else "programs"
            raise DataError(f"the {what} cannot be read ({_why(answer)})")
        return answer.value


def _request(
    op: str, entries: Sequence[dict[str, Any]], devices: Sequence[DeviceSpec], **facts: Any
) -> dict[str, Any]:
    specs = [asdict(one) for one in devices]
    return {"op": op, "entries": list(entries), "devices": specs, **facts}


def _why(answer: Answer) -> str:
    if answer.outcome == "died":
        return f"the reading process {answer.text}"
    kind, _, text = answer.text.partition(": ")
    return text if hasattr(errors, kind) else answer.text


def _read_program(row: dict[str, Any], device: DeviceSpec, asts: Any) -> ReadProgram:
    facts = row["entry"], row["name"], row["operator"], row["device"]
    if row["reason"] is not None:
        return ReadProgram(*facts, None, row["reason"])
    asked = AskedProgram(
        row["program_id"], row["task"], next(asts), device, schedule=row["schedule"],
        operator=row["operator"], measured_s=row["measured_s"],
        work=ProgramWork(**row["work"]) if row.get("work") else None,
        doubts=tuple(row.get("doubts", ())),
    )  # fmt: skip
    return ReadProgram(*facts, asked, is_scheduled=row["is_scheduled"], note=row.get("note", ""))


def _placed(one: ReadProgram, entry: int) -> ReadProgram:
    return replace(one, entry=entry)


def _decoded(
    entries: Sequence[dict[str, Any]], devices: Sequence[DeviceSpec], leaf_extra: int
) -> list[ReadProgram]:
    """Returns the programs that clients have featurised; they have no names of their own.

    Raises:
        DataError: the tables are invalid, or have another version than the model reads.
    """
    found = []
    for place, entry in enumerate(entries):
        if entry.get("leaves") is None:
            continue
        for number, ast in enumerate(decode_asts(entry["leaves"], leaf_extra)):
            for device in devices:
                found.append(_featurised(place, number, ast, device))
    return found


def _featurised(place: int, number: int, ast: CompactAst, device: DeviceSpec) -> ReadProgram:
    name = f"{place}.{number}"
    asked = AskedProgram(name, "", ast, device)
    return ReadProgram(place, name, "", device.name, asked)
