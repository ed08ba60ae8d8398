"""Requests and answers of the server, the source of `/openapi.json`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_SCRIPT = """@T.prim_func(s_tir=True)
def scale(A: T.Buffer((1024, 64), "float32"), B: T.Buffer((1024, 64), "float32")):
    for i in T.parallel(1024):
        for j in T.vectorized(64):
            with T.sblock("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(2)
"""
_SLOWER = _SCRIPT.replace("T.parallel", "T.serial")
_DEVICE = "epyc-avx2-2c"

Label = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=16 << 20)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class LeafTables(_Message):
    """Programs featurised by the client, see `cdmpp.serve.leaf_table`."""

    schema_versions: dict[str, int] = Field(alias="schema")
    leaf_count: list[int] = Field(description="stores of each program")
    tree_length: list[int]
    leaf_features: Text = Field(description="little-endian float32 in base64")
    leaf_extra: Text
    leaf_position: Text = Field(description="little-endian int32 in base64")
    tree: Text


class ProgramEntry(_Message):
    """One or several programs in one of four forms."""

    tvmscript: Text | None = Field(None, description="as module.script() prints it; never run")
    tir_json: Text | None = Field(None, description="as tvm.ir.save_json writes it")
    records: list[Text] | None = Field(
        None, min_length=1, description="lines of an Ansor record file"
    )
    leaves: LeafTables | None = None
    dag: Text | None = Field(
        None, description="with records: the task's tensors as TVM's JSON graph, unless shipped"
    )
    target: Label | None = Field(None, description="with dag: its target")

    @model_validator(mode="after")
    def _is_one_form(self) -> Self:
        forms = [self.tvmscript, self.tir_json, self.records, self.leaves]
        if sum(form is not None for form in forms) != 1:
            raise ValueError("expected one of tvmscript, tir_json, records and leaves")
        if self.records is None and (self.dag is not None or self.target is not None):
            raise ValueError("dag and target go with records only")
        return self


class PredictRequest(_Message):
    """Programs, and the devices that they are predicted on."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"programs": [{"tvmscript": _SCRIPT}], "devices": [_DEVICE, "t4"]}]
        }
    )
    programs: list[ProgramEntry] = Field(min_length=1)
    devices: list[Label] = Field(
        [], description="none = the device of the model, if it has only one"
    )
    model: Label | None = Field(None, description="none = the server's first")


class RankRequest(_Message):
    """Programs to rank on one device."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "programs": [{"tvmscript": _SLOWER}, {"tvmscript": _SCRIPT}],
                    "device": _DEVICE,
                }
            ]
        }
    )
    programs: list[ProgramEntry] = Field(min_length=1)
    device: Label | None = None
    model: Label | None = None
    own_batch: bool = Field(
        False,
        description="score these programs in one batch: the results are then bit-identical to a "
        "local model, otherwise equal to six digits",
    )


class ModelName(BaseModel):
    """The model that answered.

    Attributes:
        version: digest of its files.
    """

    name: str
    version: str


class PredictAnswer(BaseModel):
    """The rows of `cdmpp predict --json` for every program and device, with the entry's index."""

    model: ModelName
    predictions: list[dict[str, Any]]


class ExplainAnswer(BaseModel):
    """The rows of `cdmpp explain --json` for every program and device, with the entry's index."""

    model: ModelName
    explanations: list[dict[str, Any]]


class RankAnswer(BaseModel):
    """Predicted seconds of the programs, and their order.

    Attributes:
        latency_s: null if a program cannot be predicted.
        order: indices of the programs, fastest first, without those that cannot be predicted.
        reasons: why a program cannot be predicted; null if it can.
    """

    model: ModelName
    device: str
    latency_s: list[float | None]
    order: list[int]
    reasons: list[str | None]


class ServedModel(BaseModel):
    """A model of the server."""

    name: str
    version: str
    kind: str
    devices: list[str]
    feature_schema: dict[str, int]
    data_hash: str
    has_intervals: bool
    has_new_intervals: bool
    loaded_at: float
    last_error: str | None


class ModelsAnswer(BaseModel):
    """The models of the server, the default first."""

    models: list[ServedModel]


class DevicesAnswer(BaseModel):
    """Known devices by label, with their hardware and the models trained on them."""

    devices: list[dict[str, Any]]


class HealthAnswer(BaseModel):
    """Status and uptime of the server."""

    status: str
    version: str
    uptime_s: float
    waiting: int


class ErrorText(BaseModel):
    """An error: its class, one sentence, and the request id in the log."""

    kind: str
    text: str
    request_id: str


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorText
