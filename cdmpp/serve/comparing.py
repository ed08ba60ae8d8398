"""`/v1/compare`: transformers by their shapes on many devices, as `cdmpp compare` does.

Networks of torch are code and ONNX files need a compiler: those are for the command alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator

from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.comparison.cell import CompareCell, Objective, ranked
from cdmpp.comparison.prices import prices_of
from cdmpp.comparison.run import Question, asked_devices, compare
from cdmpp.comparison.tables import groups, json_rows
from cdmpp.comparison.transformer import Pass, parse_transformer
from cdmpp.comparison.what_if import LEAST_FACTOR, MOST_FACTOR, SCALED
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.serve.gate import FewAtATime

_MOST_CELLS = 4096
_MOST_COMPARING = 16
_SHAPE = "name=8B,layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16"
_Count = Annotated[int, Field(ge=1, le=2**40)]
_Counts = Annotated[list[_Count], Field(max_length=64)]
_Factor = Annotated[float, Field(ge=LEAST_FACTOR, le=MOST_FACTOR)]
_Word = Annotated[str, Field(min_length=1, max_length=400)]


class CompareRequest(BaseModel):
    """Transformers, the passes that are asked about, and devices."""

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
    transformers: list[_Word] = Field(min_length=1, max_length=64)
    prefill: _Counts = Field([], description="tokens of a prompt that are read")
    decode_at: _Counts = Field([], description="tokens in the cache when one more is made")
    batch: _Counts = Field([1], min_length=1, description="sequences of one run")
    tensor_parallel: _Counts = Field([1], min_length=1, description="devices that share a product")
    devices: list[_Word] = Field([], max_length=512)
    all_devices: bool = False
    scale: dict[_Word, _Factor] = Field(
        {}, description="what if: every device once more, with these multiplied"
    )
    objective: Objective = "latency"

    @model_validator(mode="after")
    def _has_passes(self) -> Self:
        if not self.prefill and not self.decode_at:
            raise ValueError("expected prefill or decode_at, else no pass is asked about")
        unknown = [name for name in self.scale if name not in SCALED]
        if unknown:
            raise ValueError(f"scale: expected some of {', '.join(SCALED)}")
        return self


class CompareAnswer(BaseModel):
    """What `cdmpp compare --json` prints, the best by the objective first in every group."""

    cells: list[dict[str, Any]]


def add_compare(app: FastAPI) -> None:
    """Adds the route."""
    threads = FewAtATime("comparing", 1, _MOST_COMPARING)

    @app.post("/v1/compare")
    async def compared(request: CompareRequest) -> CompareAnswer:
        """Transformers by their shapes on many devices: time, memory, cost."""
        return CompareAnswer(cells=await threads.run(lambda: _cells(request)))


def _cells(request: CompareRequest) -> list[dict[str, Any]]:
    """Returns the cells of a comparison as JSON.

    Raises:
        CdmppError: a transformer or a device is not known, or no device has an answer.
    """
    devices, hypothetical = asked_devices(
        request.devices, (), request.scale, takes_all=request.all_devices
    )
    passes = [
        one
        for degree in request.tensor_parallel
        for batch in request.batch
        for one in (
            *(Pass("prefill", length, batch, degree) for length in request.prefill),
            *(Pass("decode", length, batch, degree) for length in request.decode_at),
        )
    ]
    count = len(devices) * len(passes) * len(request.transformers)
    if count > _MOST_CELLS:
        raise UsageError(f"{count} answers in one; expected at most {_MOST_CELLS}")
    question = Question(
        devices, hypothetical, passes=passes,
        transformers=[parse_transformer(text).decoder for text in request.transformers],
        prices=prices_of(own=[spec.name for spec in devices]),
    )  # fmt: skip
    cells = compare(question, onnx_cells=_no_onnx, kernels=SweptKernels.packaged)
    best_first = [cell for _, group in groups(cells) for cell in ranked(group, request.objective)]
    return json_rows(best_first, request.objective)


def _no_onnx(path: Path, name: str, devices: Sequence[DeviceSpec]) -> list[CompareCell]:
    raise UsageError(f"{path.name}: the server compares no ONNX files; use `cdmpp compare`")
