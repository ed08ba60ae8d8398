"""`/v1/compare`: `cdmpp compare` for language models and shipped networks.

Torch modules are code and network files need a compiler; `/v1/network` accepts files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import FastAPI
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.comparison.cell import CompareCell, Objective, ranked
from cdmpp.comparison.known_networks import BATCHES, KNOWN_NETWORKS, known_graph
from cdmpp.comparison.llm.calibrate import table_of_rows
from cdmpp.comparison.llm.config_file import decoder_of_config, known_models, read_model
from cdmpp.comparison.llm.decoder import Decoder, Parallel
from cdmpp.comparison.llm.schedule import LEAST_SHARE, Load
from cdmpp.comparison.llm.server_options import Backend, parse_server_options
from cdmpp.comparison.llm.sweep import load_cells, sweep_json
from cdmpp.comparison.prices import prices_of
from cdmpp.comparison.run import Question, asked_devices, compare
from cdmpp.comparison.tables import groups, json_rows
from cdmpp.comparison.transformer import all_passes, parse_transformer
from cdmpp.comparison.what_if import LEAST_FACTOR, MOST_FACTOR, SCALED
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import NotFoundError, UsageError
from cdmpp.serve.gate import FewAtATime
from cdmpp.text import nearest

_MOST_CELLS = 4096
_MOST_COMPARING = 16
_SHAPE = "name=8B,layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16"
_Count = Annotated[int, Field(ge=1, le=2**40)]
_Counts = Annotated[list[_Count], Field(max_length=64)]
_Factor = Annotated[float, Field(ge=LEAST_FACTOR, le=MOST_FACTOR)]
_Users = Annotated[int, Field(ge=1, le=1024)]
_TokensIn = Annotated[int, Field(ge=1, le=2**20)]
_TokensOut = Annotated[int, Field(ge=2, le=2**16)]
_Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Word = Annotated[str, Field(min_length=1, max_length=400)]
_Options = Annotated[dict[_Word, StrictBool | StrictInt | StrictFloat], Field(max_length=12)]


class ModelConfig(BaseModel):
    """A language model by Hugging Face's `config.json`."""

    model_config = ConfigDict(extra="forbid")
    name: _Word
    content: dict[str, Any]


class MeasuredRow(BaseModel):
    """A measured load, a row of `cdmpp compare --measured`; other columns identify the server."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str | int | float | None] = Field(init=False)
    concurrency: _Users
    isl: _TokensIn
    osl: _TokensOut
    ttft_ms: _Time
    tpot_ms: _Time


class UnderLoad(BaseModel):
    """Requests in flight: each user sends the next request after an answer."""

    model_config = ConfigDict(extra="forbid")
    concurrency: Annotated[list[_Users], Field(min_length=1, max_length=12)]
    input_tokens: _TokensIn
    output_tokens: _TokensOut
    backend: Backend = "vllm"
    server_options: _Options | _Word = Field(
        {}, description="launch options by the backend's names, or as NAME=VALUE,..."
    )
    measured: list[MeasuredRow] = Field(
        [], max_length=12, description="measured loads of this server, which calibrate the answers"
    )


class CompareRequest(BaseModel):
    """Networks, their passes or loads, and devices."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "transformers": [_SHAPE], "prefill": [2048], "decode_at": [4096],
                    "devices": ["h100", "a100"], "objective": "cost",
                }
            ]
        },
    )  # fmt: skip
    transformers: list[_Word] = Field([], max_length=64, description="by their shapes")
    models: list[_Word] = Field([], max_length=16, description="names of shipped configs")
    configs: list[ModelConfig] = Field([], max_length=16)
    networks: list[_Word] = Field(
        [],
        max_length=16,
        description=f"shipped networks: {', '.join(KNOWN_NETWORKS)}; at batch "
        f"{', '.join(map(str, BATCHES))}",
    )
    under_load: UnderLoad | None = Field(None, description="of language models, instead of passes")
    prefill: _Counts = Field([], description="prefill: tokens of the prompt")
    decode_at: _Counts = Field([], description="decode one token: tokens in the KV cache before it")
    batch: _Counts = Field([1], min_length=1, description="sequences of one run")
    tensor_parallel: _Counts = Field(
        [1], min_length=1, description="devices that share a matrix product"
    )
    expert_parallel: _Count = Field(1, description="groups of experts; at most all the devices")
    devices: list[_Word] = Field([], max_length=512)
    all_devices: bool = False
    scale: dict[_Word, _Factor] = Field(
        {}, description="what if: also compare every device with these values multiplied"
    )
    objective: Objective = "latency"

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        is_language = bool(self.transformers or self.models or self.configs)
        if not is_language and not self.networks:
            raise ValueError("expected transformers, models, configs or networks")
        asks = bool(self.prefill or self.decode_at)
        if is_language and asks == (self.under_load is not None):
            raise ValueError(
                "no pass given: expected prefill or decode_at, or under_load without them"
            )
        if self.under_load is not None and self.networks:
            raise ValueError("under_load is of language models: expected no networks beside it")
        unknown = [name for name in self.scale if name not in SCALED]
        if unknown:
            raise ValueError(f"scale: expected some of {', '.join(SCALED)}")
        return self


class CompareAnswer(BaseModel):
    """The rows of `cdmpp compare --json`, best by the objective first in every group.

    Attributes:
        loads: with `under_load`: a row per device and concurrency, instead of cells.
    """

    cells: list[dict[str, Any]]
    loads: list[dict[str, Any]] = []


def add_compare(app: FastAPI) -> None:
    """Adds the route to the application."""
    threads = FewAtATime("comparing", 1, _MOST_COMPARING)

    @app.post("/v1/compare")
    async def compared(request: CompareRequest) -> CompareAnswer:
        """Compares language models and networks on many devices: time, memory, cost, load."""
        return await threads.run(lambda: _answer(request))


def _answer(request: CompareRequest) -> CompareAnswer:
    """Returns the cells of a comparison as JSON.

    Raises:
        CdmppError: an unknown network or device, or no device can be predicted.
    """
    devices, hypothetical = asked_devices(
        request.devices, (), request.scale, takes_all=request.all_devices
    )
    prices = prices_of(own=[spec.name for spec in devices])
    decoders = _decoders(request)
    parallels = _parallels(request) if decoders else []
    languages = len(decoders) * len(parallels)
    if request.under_load is not None:
        load = request.under_load
        _check_count(len(devices) * languages * len(load.concurrency))
        loads = [
            Load(users, load.input_tokens, load.output_tokens, LEAST_SHARE)
            for users in load.concurrency
        ]
        measured = [row.model_dump() for row in load.measured]
        given = load.server_options
        options = parse_server_options(given) if isinstance(given, str) else given
        found = load_cells(
            decoders, parallels, devices, loads, load.backend, SweptKernels.packaged(),
            prices, hypothetical, table_of_rows(measured, "measured") if measured else None,
            options,
        )  # fmt: skip
        return CompareAnswer(cells=[], loads=sweep_json(found))
    asked = len(request.prefill) + len(request.decode_at)
    of_batch = languages * asked + len(request.networks)
    _check_count(len(devices) * len(request.batch) * of_batch)
    passes = [
        one
        for parallel in parallels
        for batch in request.batch
        for one in all_passes(request.prefill, request.decode_at, [batch], [parallel])
    ]
    question = Question(
        devices, hypothetical, passes=passes, transformers=decoders, prices=prices,
        graphs=[known_graph(name, batch) for name in request.networks for batch in request.batch],
    )  # fmt: skip
    cells = compare(question, onnx_cells=_no_onnx, kernels=SweptKernels.packaged)
    best_first = [cell for _, group in groups(cells) for cell in ranked(group, request.objective)]
    return CompareAnswer(cells=json_rows(best_first, request.objective))


def _decoders(request: CompareRequest) -> list[Decoder]:
    found = [parse_transformer(text).decoder for text in request.transformers]
    for name in request.models:
        if name not in known_models():
            raise NotFoundError(
                f"no shipped config {name[:100]!r}{nearest(name, known_models())}; expected one "
                f"of {', '.join(known_models())}, or send its config.json"
            )
        found.append(read_model(name))
    return found + [decoder_of_config(one.content, one.name) for one in request.configs]


def _parallels(request: CompareRequest) -> list[Parallel]:
    return [
        Parallel(degree, expert=min(request.expert_parallel, degree))
        for degree in request.tensor_parallel
    ]


def _check_count(count: int) -> None:
    if count > _MOST_CELLS:
        raise UsageError(f"{count} results in one request; expected at most {_MOST_CELLS}")


def _no_onnx(path: Path, name: str, devices: Sequence[DeviceSpec]) -> list[CompareCell]:
    raise UsageError(f"{path.name}: the server compares no ONNX files; use `cdmpp compare`")
