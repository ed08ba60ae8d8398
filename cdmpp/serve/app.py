"""The HTTP application of the server and its main routes."""

from __future__ import annotations

import json
import re
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from cdmpp import __version__, errors
from cdmpp.errors import CdmppError, DeviceError, NotFoundError, ServerError
from cdmpp.files.places import package_folder
from cdmpp.serve import schemas
from cdmpp.serve.comparing import add_compare
from cdmpp.serve.gate import App, Gate, error_body
from cdmpp.serve.hot_models import HotModel
from cdmpp.serve.measures import Measures
from cdmpp.serve.options import ServeOptions
from cdmpp.serve.routes.browsing import add_browsing
from cdmpp.serve.routes.networks import add_networks
from cdmpp.serve.service import Service, TooLargeError

_STATUS = (
    (TooLargeError, 413), (NotFoundError, 404), (ServerError, 503), (DeviceError, 404),
)  # fmt: skip
_RANK = "/v1/rank"
#: Descriptions of devices by file, which only commands read.
_BY_FILE = re.compile(
    r",? or --device-spec FILE( \(this machine's CPU: [^)]*\))?|; [^;]*: --device-spec FILE"
)
_DEVICES = re.compile(r"--device (?P<labels>[^\s;,]+(?:,[^\s;,]+)*)")
#: Headers of an answer with status 503.
_COME_BACK = {"Retry-After": "1"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer} for status in (401, 404, 408, 413, 422, 503, 504)
}


def make_app(service: Service, options: ServeOptions, measures: Measures, folder: Path) -> App:
    """Returns the server's ASGI application.

    Args:
        folder: folder for uploaded files.
    """
    app = FastAPI(
        title="cdmpp", version=__version__, docs_url=None, redoc_url=None, responses=_ERRORS,
        description="How long tensor programs take on devices, predicted without running them.",
    )  # fmt: skip
    gate = Gate(app, options, options.token(), measures)
    _add_questions(app, service)
    _add_facts(app, service, gate, measures)
    add_compare(app)
    add_networks(app, service, options, folder)
    add_browsing(app, options)
    _add_page(app)
    _add_errors(app)
    measures.routes = frozenset(getattr(route, "path", "") for route in app.routes)
    return gate


def _add_questions(app: FastAPI, service: Service) -> None:
    @app.post("/v1/predict")
    async def predict(request: schemas.PredictRequest) -> schemas.PredictAnswer:
        """Predicts latencies with intervals, of every program on every device."""
        hot, rows = await service.predict(
            _entries(request.programs), request.devices, request.model
        )
        return schemas.PredictAnswer(model=_named(hot), predictions=rows)

    @app.post("/v1/explain")
    async def explain(request: schemas.PredictRequest) -> schemas.ExplainAnswer:
        """Explains latencies: the lines of programs with shares, limits, and possible gains."""
        hot, rows = await service.explain(
            _entries(request.programs), request.devices, request.model
        )
        return schemas.ExplainAnswer(model=_named(hot), explanations=rows)

    @app.post(_RANK)
    async def rank(request: schemas.RankRequest) -> schemas.RankAnswer:
        """Ranks programs on one device, without intervals, e.g. for a search."""
        hot, device, seconds, reasons = await service.rank(
            _entries(request.programs), request.device, request.model, own_batch=request.own_batch
        )
        known = [(value, place) for place, value in enumerate(seconds) if value is not None]
        return schemas.RankAnswer(
            model=_named(hot), device=device.name, latency_s=seconds, reasons=reasons,
            order=[place for _, place in sorted(known)],
        )  # fmt: skip


def _add_facts(app: FastAPI, service: Service, gate: Gate, measures: Measures) -> None:
    @app.get("/v1/models")
    async def models() -> schemas.ModelsAnswer:
        """Lists the models, the default first."""
        return schemas.ModelsAnswer(models=[_described(hot) for hot in service.models.all()])

    @app.get("/v1/devices")
    async def devices() -> schemas.DevicesAnswer:
        """Lists known devices; null is unknown."""
        return schemas.DevicesAnswer(devices=service.devices())

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def health() -> schemas.HealthAnswer:
        """Reports that the server runs; needs no token."""
        return schemas.HealthAnswer(
            status="ok", version=__version__, uptime_s=time.monotonic() - service.started_s,
            waiting=gate.waiting,
        )  # fmt: skip

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Returns counters in the text format of Prometheus."""
        measures.waiting.set(gate.waiting)
        measures.loads.set(service.models.loads)
        measures.lost_readers.set(service.reader.restarts)
        return Response(measures.text(), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    folder = package_folder("cdmpp.serve") / "page"
    style = package_folder("cdmpp.report") / "style.css"  # shared with the reports

    @app.get("/static/style.css", include_in_schema=False)
    async def styles() -> FileResponse:
        return FileResponse(style)

    app.mount("/static", GZipMiddleware(StaticFiles(directory=folder), compresslevel=6))

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(folder / "index.html")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(CdmppError)
    async def expected(request: Request, error: CdmppError) -> Response:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 422)
        known = (kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
        text = _with_fields(str(error), is_rank=request.url.path == _RANK)
        return _error(request, status, next(known), text)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])[:200]
        got = first.get("input")
        if first["type"] == "json_invalid":
            text = f"the body is not JSON ({first['ctx']['error']} at character {place[5:]})"
        elif place == "body" and isinstance(got, bytes):
            text = "the body was not sent as JSON; expected Content-Type: application/json"
        else:
            told = "" if got is None else f", got {str(got)[:40]!r}"
            text = f"{place}: {first['msg'][:200]}{told}; see /openapi.json"
        return _error(request, 422, "UsageError", text)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        text = str(error.detail)
        if text == HTTPStatus(error.status_code).phrase:  # raised by the router
            text = f"{request.method} {request.url.path[:100]}: {text}; see /openapi.json"
        return _error(request, error.status_code, "UsageError", text)


def _with_fields(text: str, *, is_rank: bool) -> str:
    """Returns a message of a command with fields of the request for the options of devices."""

    def field(found: re.Match[str]) -> str:
        labels = found["labels"].split(",")
        return f'"device": "{labels[0]}"' if is_rank else f'"devices": {json.dumps(labels)}'

    text = _DEVICES.sub(field, _BY_FILE.sub("", text))
    text = re.sub("--all(?![a-z-])", '"all_devices": true', text)
    return text.replace("cdmpp device list", "GET /v1/devices")


def _error(request: Request, status: int, kind: str, text: str) -> Response:
    body = error_body(kind, text, request.state.request_id)
    headers = _COME_BACK if status == 503 else None
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _entries(programs: list[schemas.ProgramEntry]) -> list[dict[str, object]]:
    return [program.model_dump(by_alias=True, exclude_none=True) for program in programs]


def _named(hot: HotModel) -> schemas.ModelName:
    return schemas.ModelName(name=hot.name, version=hot.version)


def _described(hot: HotModel) -> schemas.ServedModel:
    card = hot.trained.card
    return schemas.ServedModel(
        name=hot.name, version=hot.version, kind=card.kind,
        devices=[spec.name for spec in card.devices], feature_schema=card.feature_schema,
        data_hash=card.data_hash, has_intervals=card.calibration is not None,
        has_new_intervals=card.of_new_devices is not None,
        loaded_at=hot.loaded_at, last_error=hot.last_error,
    )  # fmt: skip
