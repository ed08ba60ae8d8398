"""`/v1/results` and `/v1/runs`: browse tables of results, and compare run folders."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query
from pydantic import BaseModel
from starlette.responses import FileResponse

from cdmpp.errors import NotFoundError
from cdmpp.files.places import shipped_places
from cdmpp.report.page import script_hash
from cdmpp.report.run_comparison import RunsFolder
from cdmpp.report.tidy_results import ResultsFolder
from cdmpp.serve.gate import FewAtATime
from cdmpp.serve.options import ServeOptions

#: Policy of a report: inline style, and only the script that names its marks.
_REPORT = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    f"script-src 'sha256-{script_hash()}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox allow-scripts"
}
_MOST_COMPARING = 16
_Word = Annotated[str | None, Query(max_length=400)]
_Name = Annotated[str, Query(min_length=1, max_length=400)]


class ResultsAnswer(BaseModel):
    """Tables of results; empty without a folder."""

    folder: str | None
    tables: list[dict[str, Any]]


class BoardAnswer(BaseModel):
    """Rows and columns at one place of a table, see `cdmpp.report.tidy_results`."""

    board: dict[str, Any]


class RunsAnswer(BaseModel):
    """Run folders; empty without a folder."""

    folder: str | None
    runs: list[dict[str, Any]]


class ComparedRunsAnswer(BaseModel):
    """Runs side by side, see `cdmpp.report.run_comparison`."""

    compared: dict[str, Any]


def add_browsing(app: FastAPI, options: ServeOptions) -> None:
    """Adds the routes to the application; they read files again for every request.

    Raises:
        DataError: a folder in the options does not exist.
    """
    folder = options.results or next(
        (place for place in shipped_places("runs/results") if place.is_dir()), None
    )
    results = None if folder is None else ResultsFolder(folder)
    runs = None if options.runs is None else RunsFolder(options.runs)
    _add_results(app, results)
    _add_runs(app, runs)


def _add_results(app: FastAPI, results: ResultsFolder | None) -> None:
    def known() -> ResultsFolder:
        if results is None:
            raise NotFoundError("the server shows no results; start it with --results DIR")
        return results

    @app.get("/v1/results")
    def tables() -> ResultsAnswer:
        """Lists the tables of results."""
        if results is None:
            return ResultsAnswer(folder=None, tables=[])
        return ResultsAnswer(folder=str(results.folder), tables=results.tables())

    @app.get("/v1/results/{name}")
    def board(
        name: str, suite: _Word = None, dataset: _Word = None, split: _Word = None,
        device: _Word = None, group: _Word = None,
    ) -> BoardAnswer:  # fmt: skip
        """Returns models by metrics at one place of a table: means over seeds, 95 % intervals."""
        asked = {
            "suite": suite, "dataset": dataset, "split": split, "device": device, "group": group
        }  # fmt: skip
        chosen = {facet: value for facet, value in asked.items() if value is not None}
        return BoardAnswer(board=known().board(name, chosen))

    @app.get("/v1/results/{name}/page", response_class=FileResponse)
    def page(name: str) -> FileResponse:
        """Returns the HTML page of results."""
        found = {one["name"]: one["has_page"] for one in known().tables()}
        path = known().page(name) if found.get(name) else None
        if path is None:
            raise NotFoundError(f"no page of results {name[:100]!r}; list them with `/v1/results`")
        return FileResponse(path, media_type="text/html", headers=_REPORT)


def _add_runs(app: FastAPI, runs: RunsFolder | None) -> None:
    threads = FewAtATime("comparing-runs", 1, _MOST_COMPARING)

    def known() -> RunsFolder:
        if runs is None:
            raise NotFoundError("the server shows no runs; start it with --runs DIR")
        return runs

    @app.get("/v1/runs")
    def all_runs() -> RunsAnswer:
        """Lists the run folders."""
        if runs is None:
            return RunsAnswer(folder=None, runs=[])
        return RunsAnswer(folder=str(runs.folder), runs=runs.runs())

    @app.get("/v1/runs/compared")
    async def compared(run: Annotated[list[_Name], Query(max_length=6)]) -> ComparedRunsAnswer:
        """Compares runs: metrics, learning curves, errors by task, worst programs."""
        found = await threads.run(lambda: known().compared(run))
        return ComparedRunsAnswer(compared=found)

    @app.get("/v1/runs/report", response_class=FileResponse)
    def report(run: _Name) -> FileResponse:
        """Returns the HTML report of a run."""
        return FileResponse(known().report(run), media_type="text/html", headers=_REPORT)
