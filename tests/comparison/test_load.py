"""Servers under load: the schedule by hand, the table of steps, memory, fronts and sentences."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cdmpp.analytic.gpu_kernels.calls import GpuCall
from cdmpp.cli.main import main
from cdmpp.comparison.llm.calibrate import curve
from cdmpp.comparison.llm.config_file import known_models, read_model
from cdmpp.comparison.llm.decoder import Parallel
from cdmpp.comparison.llm.evaluate import evaluate_serving, groups, read_serving, scores
from cdmpp.comparison.llm.kernels import ServingStep
from cdmpp.comparison.llm.load import HostFit, LoadCell, LoadedServer, ServerCalibration
from cdmpp.comparison.llm.memory import least_step_s
from cdmpp.comparison.llm.schedule import Load, Rules, serve
from cdmpp.comparison.llm.server_options import BACKENDS, Backend, rules_of
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.llm.sweep import on_front
from cdmpp.comparison.llm.times import step_times
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from tests.comparison.llama import MODEL, Answer, Millisecond

_ENDS = {"ttft": (0.5, 2.0), "tpot": (0.8, 1.25)}
PLAIN = HostFit(0.0, 0.0, ("h100", "l40s"), _ENDS, {**_ENDS, "tpot": (0.4, 2.5)})


def test_one_request_at_a_time() -> None:
    """A prompt of 300 tokens is three chunks of 0.2 s; nine more tokens are a step of 0.1 s."""
    found = serve(
        Load(1, 300, 10), Rules(step_tokens=100), lambda tokens, *_: 0.2 if tokens else 0.1
    )
    assert found.ttft_s == pytest.approx(0.6)
    assert found.tpot_s == pytest.approx(0.1)
    assert found.tokens_per_s == pytest.approx(10 / 1.5)
    assert found.waited == 0


def test_the_first_round_waits_for_each_other() -> None:
    """Four prompts come at once and are read one after the other; then all stay in step."""
    found = serve(
        Load(4, 100, 101), Rules(step_tokens=100, is_mixed=False),
        lambda tokens, *_: 1.0 if tokens else 0.001,
    )  # fmt: skip
    assert found.ttft_s > 1.0
    assert found.ttft_s < 4.0
    assert 0.001 < found.tpot_s < 0.1


def test_prompts_of_their_own_steps_hold_up_the_others() -> None:
    def seconds(tokens: int, past: int, sequences: int, context: float) -> float:
        return 1e-3 + 1e-5 * (tokens + sequences)

    load = Load(16, 2000, 100, 0.8)
    mixed = serve(load, Rules(512), seconds)
    apart = serve(load, Rules(512, is_mixed=False), seconds)
    assert apart.ttft_s < mixed.ttft_s
    assert apart.tpot_s > mixed.tpot_s


def test_a_request_waits_for_the_step_in_which_it_comes() -> None:
    """It may be read 0.25 s after it came, and waits for the end of a step of 0.1 s."""
    found = serve(Load(2, 100, 11), Rules(), lambda *_: 0.1, request_s=0.25)
    assert found.ttft_s == pytest.approx(0.35, abs=0.06)
    assert found.tpot_s == pytest.approx(0.1)
    alone = serve(Load(1, 100, 11), Rules(), lambda *_: 0.1, request_s=0.25)
    assert alone.ttft_s == pytest.approx(0.35)


def test_requests_wait_until_the_server_looks_for_them() -> None:
    """A user who asks while another is served waits for up to ten steps, five in the mean."""
    load, rules = Load(2, 100, 101, 0.8), Rules(is_mixed=False)
    often = serve(load, rules, lambda *_: 0.1)
    rarely = serve(load, replace(rules, poll_steps=10), lambda *_: 0.1)
    assert 0.2 < rarely.ttft_s - often.ttft_s < 1.0
    alone = serve(Load(1, 100, 101), replace(rules, poll_steps=10), lambda *_: 0.1)
    assert alone.ttft_s == pytest.approx(0.1)


def test_new_prompts_wait_for_more_of_them() -> None:
    """A user who asks while the other is served waits for ten steps; one alone does not."""
    load, rules = Load(2, 100, 101, 0.8), Rules(2000, wait_steps=10, wait_share=0.5)
    at_once = serve(load, Rules(), lambda *_: 0.1)
    waiting = serve(load, rules, lambda *_: 0.1)
    assert 0.6 < waiting.ttft_s - at_once.ttft_s < 1.0
    assert waiting.tpot_s == pytest.approx(at_once.tpot_s, rel=0.05)
    enough = serve(load, replace(rules, wait_share=0.025), lambda *_: 0.1)
    assert enough == at_once
    alone = serve(Load(1, 100, 101), rules, lambda *_: 0.1)
    assert alone.ttft_s == pytest.approx(0.1)


def test_a_full_cache_makes_requests_wait() -> None:
    load = Load(8, 100, 100)
    found = serve(load, Rules(cache_tokens=450), lambda *_: 0.01)
    assert found.waited > 0.5
    free = serve(load, Rules(), lambda *_: 0.01)
    assert found.ttft_s > 3 * free.ttft_s
    assert free.waited == 0


def test_a_limit_of_sequences_makes_requests_wait_for_others() -> None:
    """Four users of one sequence at a time: each waits for the three others."""
    found = serve(Load(4, 100, 101), Rules(sequences=1), lambda *_: 0.1)
    alone = serve(Load(1, 100, 101), Rules(), lambda *_: 0.1)
    assert replace(found, queued_s=0.0) == alone
    assert found.queued_s == pytest.approx(3 * 10.1)


def test_a_simulation_of_too_many_steps_is_refused() -> None:
    with pytest.raises(UsageError, match=r"about 1.6e\+08 steps to simulate, at most 3,000,000"):
        serve(Load(1024, 2**20, 64), Rules(64), lambda *_: 0.1)


@pytest.mark.parametrize(
    ("backend", "options", "expected"),
    [
        ("vllm", {"max_num_seqs": 64, "max_num_batched_tokens": "2048"},
         Rules(2048, sequences=64)),
        ("vllm", {"max_num_batched_tokens": 128}, Rules(128, sequences=128)),
        ("vllm", {"--gpu-memory-utilization": "0.85"},
         Rules(8192, sequences=8192, memory_share=0.85)),
        ("sglang", {"chunked-prefill-size": 4096, "enable_mixed_chunk": True},
         Rules(2048, sequences=2048)),
        ("sglang", {"max_running_requests": 3, "scheduler_recv_interval": 10.0},
         Rules(8192, is_mixed=False, sequences=1, poll_steps=10)),
        ("trtllm", {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.75},
         Rules(8192, sequences=8192, wait_steps=20, wait_share=0.75)),
        ("trtllm", {"batch_wait_timeout_iters": 0, "batch_wait_max_tokens_ratio": 0},
         Rules(8192, sequences=8192)),
    ],
)  # fmt: skip
def test_launch_options_are_rules(
    backend: Backend, options: dict[str, Any], expected: Rules
) -> None:
    """Two replicas of SGLang share the tokens of a chunk and the running requests."""
    assert rules_of(backend, options, Parallel(data=2)) == expected


@pytest.mark.parametrize(
    ("backend", "options", "text"),
    [
        ("vllm", {"max_num_seq": 4}, "'max_num_seq' of vllm, did you mean 'max_num_seqs'"),
        (
            "sglang",
            {"max_num_seqs": 4},
            r"of sglang \(an option of vllm\); expected one of chunked",
        ),
        ("vllm", {"max_num_seqs": 0}, "max_num_seqs=0: expected a whole number from 1"),
        ("vllm", {"max_num_seqs": "all"}, "max_num_seqs=all: expected a whole number"),
        ("vllm", {"max_num_seqs": float("inf")}, "expected a whole number"),
        ("vllm", {"max_num_seqs": "1_0"}, "max_num_seqs=1_0: expected a whole number"),
        ("vllm", {"max_num_seqs": 8, "--max-num-seqs": 4}, "max_num_seqs is given twice"),
        (
            "trtllm",
            {"free_gpu_memory_fraction": 0.9, "kv-cache-free-gpu-memory-fraction": 0.8},
            "kv_cache_free_gpu_memory_fraction sets what free_gpu_memory_fraction sets",
        ),
        ("sglang", {"chunked_prefill_size": -1}, "=-1: expected a whole number from 64"),
        ("vllm", {1: 2}, "unknown server option '1' of vllm"),
        ("vllm", {"max_num_batched_tokens": 1}, "tokens=1: expected a whole number from 64"),
        ("sglang", {"max_running_requests": 1}, "at least 2, because 2 replicas and stages share"),
        ("vllm", {"gpu_memory_utilization": 90}, "=90: expected a share above 0, at most 1"),
        ("trtllm", {"batch_wait_max_tokens_ratio": -1}, "=-1: expected a share from 0 to 1"),
        ("sglang", {"enable_mixed_chunk": "yes"}, "enable_mixed_chunk=yes: expected true or false"),
    ],
)
def test_launch_options_that_cannot_be(
    backend: Backend, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        rules_of(backend, options, Parallel(data=2))


@pytest.mark.parametrize(("numbers", "option"), [((0, 1, 2), "concurrency"), ((1, 1, 1), "output")])
def test_loads_that_cannot_be(numbers: tuple[int, int, int], option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option}"):
        Load(*numbers)


def test_the_table_is_what_steps_take() -> None:
    device, parallel = get_device("h100"), Parallel(2)
    table = StepTable.of(MODEL, parallel, device, Millisecond())
    for step in (ServingStep(sequences=24, context=3000), ServingStep(prompts=1, chunk=1500)):
        (found,) = step_times(MODEL, parallel, [step], device, Millisecond())
        asked = table.seconds(
            step.prompts * step.chunk, 0, step.sequences, step.context, prompt=1500
        )
        assert asked == pytest.approx(found.ends[0], rel=0.02)


def server(device: str = "h100", **changes: object) -> LoadedServer:
    spec = get_device(device)
    table = StepTable.of(MODEL, Parallel(), spec, Millisecond())
    return LoadedServer(MODEL, Parallel(), spec, "vllm", table, hosts=PLAIN)


def test_a_cell_has_ends_and_a_full_cache_has_no_first_token() -> None:
    early = server().cell(Load(4, 512, 64))
    assert early.ttft_s is not None
    assert early.tpot_s is not None
    assert early.tpot_s[1] <= 0.8 * early.tpot_s[0]
    assert early.tpot_s[2] >= 1.25 * early.tpot_s[0]
    late = server("l40s").cell(Load(400, 2048, 64))
    assert late.ttft_s is None
    assert late.waited
    assert "so queueing dominates" in late.reasons[0]
    assert late.tpot_s is not None
    assert late.tpot_s[2] / late.tpot_s[0] > early.tpot_s[2] / early.tpot_s[0]


def test_memory_shares_count_as_their_backend_does() -> None:
    one = server()
    default, whole = one.free_bytes, 80 * 2**30
    held = 0.9 * whole - default
    cases: list[tuple[Backend, float, float]] = [
        ("vllm", 0.9, default), ("vllm", 1.0, whole - held), ("trtllm", 0.5, (whole - held) / 2),
    ]  # fmt: skip
    for backend, share, expected in cases:
        rules = Rules(8192, memory_share=share)
        changed = replace(one, backend=backend, rules=rules)
        assert changed.free_bytes == pytest.approx(expected)
    part = replace(one, backend="sglang", rules=Rules(8192, memory_share=0.5)).free_bytes
    assert 0.5 * whole - held < part < 0.5 * whole
    least = replace(one, rules=Rules(8192, memory_share=0.05))
    assert "5% of h100 are 4 GiB" in least.cell(Load(1, 512, 64)).reasons[0]
    (reason,) = replace(least, backend="sglang").cell(Load(1, 512, 64)).reasons
    assert "of the 80 GiB of h100, 0.05 as launched leave 0 GiB for the cache" in reason


def test_a_limit_below_the_users_is_said() -> None:
    cell = replace(server(), rules=Rules(8192, sequences=2)).cell(Load(4, 512, 64))
    assert cell.reasons[0] == "at most 2 requests run at once: others wait for them"
    free = server().cell(Load(2, 512, 64))
    assert cell.ttft_s is not None
    assert free.ttft_s is not None
    assert cell.ttft_s[0] > 5 * free.ttft_s[0]
    waiting_s = cell.ttft_s[0] - free.ttft_s[0]
    assert cell.ttft_s[2] == pytest.approx(free.ttft_s[2] + 1.25 * waiting_s, rel=0.05)
    assert cell.tpot_s == free.tpot_s
    assert cell.tokens_per_s == free.tokens_per_s


def test_a_calibration_scales_the_wait_for_others_as_their_answers() -> None:
    """Its factor of first tokens was applied to the wait: more sequences than the limit ran."""
    limited = replace(server(), rules=Rules(8192, sequences=2))
    calibration = ServerCalibration(0.0, ttft=0.3, tpot=1.5)
    found, free = (limited.served(Load(users, 512, 64)) for users in (8, 2))
    corrected = calibration.corrected(found, Load(8, 512, 64))
    alone = calibration.corrected(free, Load(2, 512, 64))
    assert corrected.tokens_per_s == alone.tokens_per_s
    assert corrected.queued_s == pytest.approx(3 * 2 * 64 / alone.tokens_per_s, rel=0.1)
    assert np.isnan(curve(limited, Load(8, 512, 64))[0]).all()


def test_a_device_without_measured_servers_has_the_ends_of_systems_left_out() -> None:
    known, new = server().cell(Load(4, 512, 64)), server("h200").cell(Load(4, 512, 64))
    assert known.tpot_s is not None
    assert new.tpot_s is not None
    assert known.tpot_s[2] / known.tpot_s[0] == pytest.approx(1.25)
    assert new.tpot_s[2] / new.tpot_s[0] == pytest.approx(2.5)


def test_users_that_stages_cannot_share_evenly_are_not_more_of_them() -> None:
    """Three users of two stages were counted as four."""
    spec, parallel = get_device("h100"), Parallel(pipeline=2)
    table = StepTable.of(MODEL, parallel, spec, Millisecond())
    served = LoadedServer(MODEL, parallel, spec, "vllm", table, hosts=PLAIN).served
    three, four = served(Load(3, 512, 64)), served(Load(4, 512, 64))
    assert three.tpot_s == four.tpot_s
    assert three.tokens_per_s == pytest.approx(3 / 4 * four.tokens_per_s)


def test_no_end_is_below_what_the_device_can_do() -> None:
    """The lower end of a time to the first token was a quarter of the time, at any share of the
    peak.
    """
    ends = {"ttft": (1e-6, 2.0), "tpot": (1e-6, 2.0)}
    loaded = replace(server(), hosts=HostFit(0.0, 0.0, ("h100",), ends, ends))
    load = Load(1, 8192, 64, 0.8)
    cell = loaded.cell(load)
    prompt, token = ServingStep(prompts=1, chunk=6553), ServingStep(sequences=1, context=6553)
    for found, step in ((cell.ttft_s, prompt), (cell.tpot_s, token)):
        assert found is not None
        assert found[1] == least_step_s(MODEL, Parallel(), step, get_device("h100"))
    assert cell.tokens_per_s is not None
    assert cell.tpot_s is not None
    assert cell.tokens_per_s[2] == pytest.approx(
        cell.tokens_per_s[0] * cell.tpot_s[0] / cell.tpot_s[1]
    )


@pytest.mark.parametrize(
    "words",
    [
        "meta-llama/Llama-3.1-8B --concurrency 8,64,256 --target-tpot 20ms",
        "deepseek-ai/DeepSeek-V3 --tensor-parallel 8 --expert-parallel 1,8 --concurrency 64 "
        "--backend sglang",
        "openai/gpt-oss-120b --tensor-parallel 4 --concurrency 32,512 --backend trtllm",
    ],
)
def test_models_under_load_are_compared(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    rest = "--device h100,b200 --input-tokens 1024 --output-tokens 512"
    assert main(shlex.split(f"compare --model {words} {rest}")) == 0
    shown = [line.split()[:1] for line in capsys.readouterr().out.splitlines()]
    assert min(shown.count(["h100"]), shown.count(["b200"])) > 1


def test_what_does_not_fit_says_so() -> None:
    cell = server("l4").cell(Load(1, 100_000, 64))
    assert cell.tpot_s is None
    assert "does not fit" in cell.reasons[0]


def test_requests_beyond_the_context_are_marked() -> None:
    model = replace(MODEL, context=4096)
    for output, is_marked in ((96, False), (97, True)):
        cell = replace(server(), model=model).cell(Load(1, 4000, output))
        assert any("exceed the model's context" in one for one in cell.reasons) == is_marked


def test_multi_token_prediction_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    """A note for all devices; H100's memory is too small for the model."""
    words = ["compare", "--model", "deepseek-ai/DeepSeek-V3", "--tensor-parallel", "8"]
    load = ["--concurrency", "8", "--input-tokens", "256", "--output-tokens", "64"]
    assert main([*words, *load, "--device", "h100,b200"]) == 0
    assert "\n  multi-token prediction is off" in capsys.readouterr().out
    plain = read_model("moonshotai/Kimi-K2-Instruct")
    assert not plain.has_drafts


def test_nvidias_server_runs_on_nvidias_gpus_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--model", "meta-llama/Llama-3.1-8B", "--concurrency", "8", "--json"]
    words += ["--input-tokens", "256", "--output-tokens", "64", "--device", "mi300x,h100"]
    assert main([*words, "--backend", "trtllm"]) == 0
    cells = {cell["device"]: cell for cell in json.loads(capsys.readouterr().out)}
    assert cells["mi300x"]["tpot_s"] is None
    assert cells["h100"]["tpot_s"] > 0
    assert "NVIDIA's GPUs only" in cells["mi300x"]["reasons"][0]


def test_the_front() -> None:
    def cell(tpot_s: float, rate: float) -> LoadCell:
        ends = (tpot_s, tpot_s, tpot_s), (rate, rate, rate)
        return LoadCell("m", "d", Parallel(), Load(1, 1, 2), "vllm", None, *ends)

    assert on_front([cell(1, 10), cell(2, 20), cell(3, 15), cell(2, 20)]) >= {0, 1}
    assert 2 not in on_front([cell(1, 10), cell(2, 20), cell(3, 15)])


def test_a_sweep_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--model", "Qwen/Qwen3-30B-A3B", "--device", "h100,b200"]
    load = ["--concurrency", "1,32", "--input-tokens", "512", "--output-tokens", "64"]
    assert main([*words, *load, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert [(cell["device"], cell["concurrency"]) for cell in cells] == [
        ("h100", 1), ("h100", 32), ("b200", 1), ("b200", 32),
    ]  # fmt: skip
    for cell in cells:
        assert cell["tpot_s_low"] < cell["tpot_s"] < cell["tpot_s_high"]
    assert cells[1]["tpot_s"] > cells[0]["tpot_s"]
    assert cells[1]["tokens_per_s_gpu"] > cells[0]["tokens_per_s_gpu"]
    assert main([*words, *load, "--target-tpot", "0.5s"]) == 0
    said = capsys.readouterr().out
    assert main([*words, *load, "--target-tpot", "0.5s", "--json"]) == 0
    (best,) = (
        cell for cell in json.loads(capsys.readouterr().out) if cell["is_best_within_target"]
    )
    named = f"{best['device']} x 1 with {best['concurrency']} users"
    assert f"cheapest within 500 ms per token: {named}" in said
    assert main([*words, *load, "--target-tpot", "0.001ms", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert not any(cell["is_best_within_target"] for cell in cells)


LOAD = ["--concurrency", "4", "--input-tokens", "9", "--output-tokens", "9"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--concurrency", "4"], "--concurrency needs --input-tokens N"),
        (["--concurrency", "4", "--input-tokens", "9"], "needs --output-tokens N"),
        (["--input-tokens", "4"], "--input-tokens can only be used with --concurrency"),
        (["--disaggregated"], "--disaggregated is not supported"),
        (["nets.py:bert", *LOAD], "with language models, got nets.py:bert; leave it out"),
        (["--model", "Qwen/Qwen3-30B-A3B", *LOAD], "two models have the name 'Qwen3-30B-A3B'"),
        (["--batch", "8", *LOAD], "--batch can only be used with single passes, got --concurrency"),
        (["--objective", "cost", *LOAD], "--objective can only be used with single passes"),
        (["--operators", *LOAD], "--operators can only be used with single passes"),
        (
            ["--concurrency", "1,2", *LOAD[2:], "--pipeline-parallel", "4"],
            "--concurrency 1,2: expected at least 4, one request for each",
        ),
        (
            ["--concurrency", "4", "--input-tokens", "9", "--output-tokens", "9", "--prefill", "8"],
            "leave one out",
        ),
        (
            ["--concurrency", "4", "--input-tokens", "9", "--output-tokens", "9",
             "--target-tpot", "fast"], "--target-tpot 'fast', expected a time above 0",
        ),
    ],
)  # fmt: skip
def test_loads_that_are_not_whole_are_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["compare", "--model", "Qwen/Qwen3-30B-A3B", "--device", "h100", *words]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert text.count("\n") == 1


def rows(**changes: object) -> dict[str, object]:
    return {
        "model_family": "Llama-3.1-8B", "model_path": "meta-llama/Llama-3.1-8B",
        "system": "h100_sxm", "backend": "vllm", "precision": None, "gemm_quant_mode": None,
        "moe_quant_mode": None, "mode": "agg", "isl": 1024, "osl": 128, "concurrency": 8,
        "tp_size": 1, "pp_size": 1, "attention_dp_size": None, "moe_tp_size": 1, "moe_ep_size": 1,
        "ttft_ms": 60.0, "tpot_ms": 9.0, "parallel_suspect": False, **changes,
    }  # fmt: skip


def test_measured_servers_are_read_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "serving.parquet"
    measured = [
        *(rows(concurrency=n, tpot_ms=8.0 + n / 10) for n in (1, 2, 4, 8, 16)),
        rows(mode="disagg"), rows(parallel_suspect=True), rows(model_path="who/knows"),
        rows(tp_size=3),
    ]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(measured), path)
    report = evaluate_serving(read_serving(path), Millisecond(), hosts=PLAIN)
    assert len(report.rows) == 5
    assert sum(report.left_out.values()) == 4
    assert report.left_out["model who/knows without a config.json"] == 1
    found = scores(report.rows, report.rows)
    ratios = [one.cell.tpot_s[0] / one.tpot_s for one in report.rows if one.cell.tpot_s]
    assert found.tpot_ape == pytest.approx(np.median(np.abs(np.array(ratios) - 1)))
    assert found.order is not None
    assert found.order > 0.9
    assert found.baseline_ape is None  # no other family
    parquet.write_table(pa.Table.from_pylist([{"isl": 3}]), path)
    with pytest.raises(DataError, match="no column model_family"):
        read_serving(path)


def test_an_evaluation_refuses_options_that_its_file_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serving.parquet"
    parquet.write_table(pa.Table.from_pylist([rows(model_path="who/knows", mode="disagg")]), path)
    command = ["compare", "--evaluate", str(path)]
    for words, name in (
        (["nets.py:bert"], "NETWORK"), (["--device", "h100"], "--device"),
        (["--concurrency", "8"], "--concurrency"), (["--prefill", "9"], "--prefill"),
        (["--html", "page.html"], "--html"), (["--objective", "cost"], "--objective"),
        (["--layout", "nhwc"], "--layout"), (["--prices", "mine.yaml"], "--prices"),
    ):  # fmt: skip
        assert main([*command, *words]) == 2
        text = capsys.readouterr().err
        assert text.startswith(f"cdmpp: error: {name} cannot be used with --evaluate")
        assert text.count("\n") == 1
    config = tmp_path / "config.json"
    config.write_text(json.dumps(known_models()["meta-llama/Llama-3-8B"]))
    assert main(["-q", *command, "-v", "--json", "--model", f"who/knows={config}"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"disaggregated": 1}


def test_options_of_a_row_are_those_of_its_server() -> None:
    waits = {
        "batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.9, "max_num_tokens": 16384,
    }  # fmt: skip
    measured = [
        rows(backend="trtllm", osl=1024),
        rows(backend="trtllm", osl=1024, **waits),
        rows(backend="trtllm", osl=1024, speculative=True),
    ]
    report = evaluate_serving(measured, Millisecond(), hosts=PLAIN)
    plain, waiting, drafts = report.rows
    assert plain.cell.ttft_s is not None
    assert waiting.cell.ttft_s is not None
    assert waiting.cell.ttft_s[0] > 2 * plain.cell.ttft_s[0]
    assert drafts.cell == plain.cell
    assert drafts.server != plain.server
    assert groups(report)["with speculative decoding"] == [drafts]
    assert not any("speculative" in name for name in groups(replace(report, rows=(plain, waiting))))


def test_repeats_that_differ_are_slower_or_faster_runs() -> None:
    """A version that takes half the time of another one is of another kind of server."""
    measured = [
        rows(concurrency=8, tpot_ms=20.0), rows(concurrency=8, tpot_ms=10.0),
        rows(concurrency=16, tpot_ms=20.0), rows(concurrency=16, tpot_ms=18.0),
        rows(concurrency=32, tpot_ms=12.0, tpot_min_ms=10.0, tpot_max_ms=20.0),
        rows(mode="disagg", concurrency=16, tpot_ms=5.0),
    ]  # fmt: skip
    report = evaluate_serving(measured, Millisecond(), hosts=PLAIN)
    assert [one.repeats for one in report.rows] == ["slower", "faster", "agree", "agree", "faster"]
    found = groups(report)
    assert len(found["repeats differ: slower runs"]) == 1
    assert len(found["repeats differ: faster runs"]) == 2


def test_a_request_waits_for_every_layer_of_experts() -> None:
    model, device = read_model("Qwen/Qwen3-30B-A3B"), get_device("h100")
    table = StepTable.of(model, Parallel(2), device, Millisecond())
    slow = replace(PLAIN, experts_s=1e-3)
    load = Load(1, 100, 10)

    def first_s(backend: Backend, hosts: HostFit) -> float:
        found = LoadedServer(model, Parallel(2), device, backend, table, hosts=hosts).cell(load)
        assert found.ttft_s is not None
        return found.ttft_s[0]

    assert first_s("trtllm", slow) - first_s("trtllm", PLAIN) == pytest.approx(48e-3)
    assert first_s("vllm", slow) == first_s("vllm", PLAIN)


def test_experts_see_the_tokens_of_all_replicas() -> None:
    model, device = read_model("Qwen/Qwen3-30B-A3B"), get_device("h100")
    parallel = Parallel(1, 4, 4)
    table = StepTable.of(model, parallel, device, Millisecond())
    found = LoadedServer(model, parallel, device, "vllm", table, hosts=PLAIN)
    with pytest.raises(UsageError, match="--concurrency 2 is less than the 4 replicas"):
        found.cell(Load(2, 100, 10))
    cell = found.cell(Load(8, 100, 10))
    assert cell.tokens_per_s is not None
    assert cell.tokens_per_s_gpu == tuple(one / 4 for one in cell.tokens_per_s)


class _Frameworks(Millisecond):
    """Kernels of SGLang take twice as long, TensorRT-LLM's three quarters."""

    def times(
        self, calls: Sequence[GpuCall], device: DeviceSpec, *, software: str | None = None
    ) -> Answer:
        found = super().times(calls, device)
        factor = {"sglang": 2.0, "trtllm": 0.75}.get(software or "", 1.0)
        return Answer(factor * found.latency_s, factor * found.low_s, factor * found.high_s)


def test_intervals_hold_what_other_frameworks_kernels_take() -> None:
    model, device = read_model("Qwen/Qwen3-30B-A3B"), get_device("h100")
    kernels, step = _Frameworks(), ServingStep(sequences=16, context=2048)
    steps = {
        name: step_times(model, Parallel(), [step], device, kernels, name)[0].ends[0]
        for name in BACKENDS
    }
    assert steps["sglang"] > 1.1 * steps["vllm"] > 1.1 * steps["trtllm"]
    for backend in BACKENDS:
        table = StepTable.of(model, Parallel(), device, _Frameworks(), backend, BACKENDS)
        low, high = (steps[name] / steps[backend] for name in ("trtllm", "sglang"))
        assert table.of_frameworks(16) == pytest.approx((low, high))
        server = LoadedServer(model, Parallel(), device, backend, table, hosts=PLAIN)
        found = server.cell(Load(16, 512, 64)).tpot_s
        assert found is not None
        assert found[1] / found[0] == pytest.approx(0.8 * low)
        assert found[2] / found[0] == pytest.approx(1.25 * high)
    alone = StepTable.of(model, Parallel(), device, _Frameworks(), "vllm")
    assert alone.of_frameworks(16) == (1.0, 1.0)
