"""`/v1/networks` stores network files, `/v1/network` predicts them kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from cdmpp.errors import DataError
from cdmpp.networks.graph.network_file import EXPECTED
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.requested_device import asked_devices
from cdmpp.serve.options import NETWORK_FILES, ServeOptions
from cdmpp.serve.routes.uploads import Uploads
from cdmpp.serve.schemas import Label, ModelName
from cdmpp.serve.service import Service, TooLargeError

_BYTES = "application/octet-stream"
_ZIP = b"PK\x03\x04"
_LARGEST = 2**31 - 1


class KeptNetwork(BaseModel):
    """A stored file, available to requests until it is removed for newer ones."""

    network: str = Field(description="sha256 of the file")
    size_bytes: int


class NetworkRequest(BaseModel):
    """A stored network, and the devices that it is predicted on."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"network": "0" * 64, "devices": ["epyc-avx2-2c"]}]},
    )
    network: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    name: Label = Field("network", description="its name in the result")
    devices: list[Label] = Field(
        [], description="none = the device of the model, if it has only one"
    )
    model: Label | None = Field(None, description="none = the server's first")
    batch: Annotated[int, Field(ge=1, le=_LARGEST)] | None = Field(
        None, description="ONNX: size of the first axes that are dynamic in the file"
    )
    inputs: dict[Label, list[Annotated[int, Field(ge=1, le=_LARGEST)]]] = Field(
        {}, description="ONNX: full shapes of inputs with dynamic sizes"
    )


class NetworkAnswerRows(BaseModel):
    """The values of `cdmpp predict --network --no-machine-code --json` for every device, with the
    share, program and timeline of each kernel.
    """

    model: ModelName
    networks: list[dict[str, Any]]


def add_networks(app: FastAPI, service: Service, options: ServeOptions, folder: Path) -> None:
    """Adds the routes to the application.

    Args:
        folder: folder for uploaded files.
    """
    uploads = Uploads(folder, options.most_kept_bytes)
    content = {_BYTES: {"schema": {"type": "string", "format": "binary"}}}

    @app.post(NETWORK_FILES, openapi_extra={"requestBody": {"content": content, "required": True}})
    async def keep(request: Request) -> KeptNetwork:
        """Stores a file for requests: ONNX, or a file of torch.export.save."""
        if request.headers.get("content-type") != _BYTES:
            raise HTTPException(415, f"expected the file as it is, Content-Type: {_BYTES}")
        data = await request.body()
        if not data:
            raise DataError(f"the file is empty; expected {EXPECTED}")
        suffix = ".pt2" if data.startswith(_ZIP) else ".onnx"
        key = await run_in_threadpool(uploads.keep, data, suffix)
        return KeptNetwork(network=key, size_bytes=len(data))

    @app.post("/v1/network")
    async def network(request: NetworkRequest) -> NetworkAnswerRows:
        """Predicts a network as compiled by TVM without tuning, with its kernels and timeline."""
        hot = service.models.find(request.model)
        devices = asked_devices(request.devices, (), hot.trained.card)
        if len(devices) > options.most_network_devices:
            raise TooLargeError(
                f"{len(devices)} devices; expected at most {options.most_network_devices} at a time"
            )
        rows = await service.reader.network(
            uploads.find(request.network), request.name, devices, model=(hot.folder, hot.version),
            sizes=InputSizes(request.inputs, request.batch), timeout_s=options.answer_timeout_s,
        )  # fmt: skip
        return NetworkAnswerRows(model=ModelName(name=hot.name, version=hot.version), networks=rows)
