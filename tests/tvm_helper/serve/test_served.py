"""Clients of a whole server, TVM included: their answers are those of a model here."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")

from cdmpp.cli.main import main
from cdmpp.errors import DataError, UsageError
from cdmpp.serve.client import Client
from tests.paths import ROOT
from tests.serve.test_serve_docs import COMMANDS
from tests.tvm_helper.cost_model.ansor.test_ansor import shipped
from tests.tvm_helper.cost_model.test_metaschedule import Batch
from tests.tvm_helper.search.fixtures import DEVICE, matmul, search, train_into
from tests.tvm_helper.serve.test_script import PLAIN
from tvm_helper.compat import tvm
from tvm_helper.cost_model.ansor.scorer import AnsorScorer
from tvm_helper.cost_model.ansor.served import ServedAnsor
from tvm_helper.cost_model.metaschedule import CdmppCostModel
from tvm_helper.predict.predictor import Predictor

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("served") / "run")


@pytest.fixture(scope="module")
def server(run_folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL and the process of a server; the last test ends it."""
    command = [sys.executable, "-m", "cdmpp.cli.main", "serve", "--model", str(run_folder)]
    with subprocess.Popen(
        [*command, "--port", "0", "--json", "-q"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def url(server: tuple[str, subprocess.Popen[str]]) -> str:
    return server[0]


def test_programs_in_all_forms_get_the_answer_of_a_model_here(
    url: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    (here,) = Predictor(run_folder, [DEVICE]).programs(path)
    with Client(url) as client:
        module = tvm.IRModule({"f": _function(path)})
        for entry in ({"tvmscript": PLAIN}, {"tir_json": tvm.ir.save_json(module)}):
            (row,) = client.predict([entry], devices=[DEVICE])["predictions"]
            assert row["program_id"] == here.program_id
            for name in ("latency_s", "low_s", "high_s"):
                assert row[name] == pytest.approx(getattr(here, name), rel=1e-5)
    assert main(["predict", "--server", url, "--program", str(path), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["latency_s"] == pytest.approx(here.latency_s, rel=1e-5)
    assert main(["predict", "--server", url, "--program", str(path)]) == 0
    assert "is not scheduled" in capsys.readouterr().out


def _function(path: Path) -> tvm.tirx.PrimFunc:
    from tvm_helper.tasks.script import read_script

    return read_script(path.read_text())[0].module["main"]


def test_the_guides_commands_get_latencies(url: str) -> None:
    for command in COMMANDS:
        if "/v1/predict" in command or "/v1/rank" in command:
            command = command.replace("http://127.0.0.1:8080", url)
            command = command.replace(', "t4"]', "]")  # the model here has learned no GPU
            done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
            answer = json.loads(done.stdout)
            seconds = answer.get("latency_s") or [one["latency_s"] for one in answer["predictions"]]
            assert seconds[0] > 0


@pytest.mark.exhaustive
def test_an_explanation_is_that_of_the_command_here(
    url: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    with Client(url) as client:
        (served,) = client.explain([{"tvmscript": PLAIN}], devices=[DEVICE])
        with pytest.raises(DataError, match="with a text can be explained"):
            client.explain([{"records": ["x"]}], devices=[DEVICE])
    options = ["--program", str(path), "--model", str(run_folder), "--device", DEVICE, "--json"]
    assert main(["explain", *options]) == 0
    (here,) = json.loads(capsys.readouterr().out)
    assert served["entry"] == 0
    assert served["latency_s"] == pytest.approx(here["latency_s"], rel=1e-5)
    for name in ("lines", "leaves", "counterfactuals"):
        assert len(served[name]) == len(here[name]) > 0


def test_a_file_of_records(
    url: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records.json"
    path.write_text("\n".join(shipped()[1][:3]))
    options = ["--records", str(path), "--device", DEVICE, "--json"]
    found = []
    for model in (["--server", url], ["--model", str(run_folder)]):
        assert main(["predict", *model, *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    served, here = ({row["program_id"]: row["latency_s"] for row in rows} for rows in found)
    assert served == pytest.approx(here, rel=1e-5)


def test_what_does_not_go_with_a_server_is_refused(url: str, tmp_path: Path) -> None:
    command = ["predict", "--server", url, "--program", "x.py"]
    assert main([*command, "--machine-code"]) == 2
    assert main([*command]) == 3
    code = tmp_path / "code.py"
    code.write_text("import os\n")
    assert main([*command[:-1], str(code), "--device", DEVICE]) == 3
    assert main(["predict", "--server", "http://127.0.0.1:9", "--program", str(code)]) == 4


def test_scores_of_a_server_are_those_of_a_model_here_to_the_bit(
    url: str, run_folder: Path
) -> None:
    here = CdmppCostModel(run_folder, DEVICE)
    served = CdmppCostModel(run_folder, DEVICE, server=url)
    for count in (1, 7, 40):
        batch = Batch(matmul(64), count, seed=count)
        np.testing.assert_array_equal(
            served.predict(batch.context, batch.candidates),
            here.predict(batch.context, batch.candidates),
        )
    with pytest.raises(UsageError, match="cannot be fine-tuned"):
        CdmppCostModel(run_folder, DEVICE, server=url, finetune_every=8)
    with pytest.raises(UsageError, match="has no model"):
        CdmppCostModel("pretrained", DEVICE, server=url)


@pytest.mark.exhaustive
def test_ansors_states_get_the_scores_of_a_model_here_to_the_bit(
    url: str, run_folder: Path
) -> None:
    task, lines = shipped()
    here = AnsorScorer(run_folder, DEVICE, neighbours=False)  # a server learns nothing
    here.add_task("task", target=task.target, dag_json=task.dag_json)
    with Client(url) as client:
        served = ServedAnsor(client, str(run_folder), DEVICE)
        served.ask("task", name="task", target=task.target, dag=task.dag_json)
        for part in (lines[:8], lines[8:24]):
            answer = served.ask("predict", name="task", lines=part)
            scores = [-np.inf if one is None else one for one in answer["scores"]]
            assert scores == here.predict("task", part).tolist()
            usage = served.ask("update", name="task", lines=part)["usage"]
            here.update("task", part)
        for name in ("predicted", "measured", "failed", "unsupported"):
            assert usage[name] == here.core.usage.to_json()[name]
        with pytest.raises(UsageError, match="cannot be saved"):
            served.ask("save", path="x")


def _measured(number: int, model: str, server: str | None, folder: str) -> list[float]:
    """Returns what a search measured, in the order of its trials."""
    cost_model = CdmppCostModel(model, DEVICE, server=server)
    runner = search(
        matmul(32 + 16 * number), Path(folder) / f"{number}-{server is None}", cost_model
    )
    return runner.measured_s


@pytest.mark.exhaustive
def test_a_search_on_a_server_measures_what_one_here_does(
    url: str, run_folder: Path, tmp_path: Path
) -> None:
    served, here = (_measured(2, str(run_folder), server, str(tmp_path)) for server in (url, None))
    assert served == here


@pytest.mark.exhaustive
def test_four_searches_at_once_on_one_server_measure_what_they_do_here(
    url: str, run_folder: Path, tmp_path: Path
) -> None:
    arguments = [
        (number, str(run_folder), server, str(tmp_path))
        for server in (url, None)
        for number in range(4)
    ]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.starmap(_measured, arguments, chunksize=1)
    assert found[:4] == found[4:]
    assert len({tuple(one) for one in found}) == 4


@pytest.mark.exhaustive
def test_a_model_here_goes_on_only_where_that_was_asked(
    server: tuple[str, subprocess.Popen[str]], run_folder: Path
) -> None:
    """The last one: it ends the server."""
    url, process = server
    batch = Batch(matmul(64), 4)
    expected = CdmppCostModel(run_folder, DEVICE).predict(batch.context, batch.candidates)
    strict = CdmppCostModel(run_folder, DEVICE, server=url)
    lax = CdmppCostModel(run_folder, DEVICE, server=url, fallback=run_folder)
    process.terminate()
    assert process.wait(20) == 0
    with pytest.raises(RuntimeError, match="cdmpp serve"):  # as TVM passes it on
        strict.predict(batch.context, batch.candidates)
    scores = lax.predict(batch.context, batch.candidates)
    np.testing.assert_array_equal(scores, expected)
