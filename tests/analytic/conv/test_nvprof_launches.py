"""nvprof's tables become workbooks: by hand, and refused where launches and layers do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp.analytic.conv.seer.workbook import read_workbook
from cdmpp.cli.main import main

_TRACE = """==7== NVPROF is profiling process 7, command: ./convolutions, all
==7== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",\
"Registers Per Thread","Static SMem","Dynamic SMem","Size","Throughput","Device","Context",\
"Stream","Name","Correlation_ID"
ms,us,,,,,,,,KB,B,MB,GB/s,,,,,
1.0,3.2,,,,,,,,,,1.5,0.5,"TITAN Xp (0)","1","7","[CUDA memcpy HtoD]",3
2.0,{first},784,2,1,256,1,1,80,8.0,0,,,"TITAN Xp (0)","1","7",\
"maxwell_scudnn_128x64_relu_interior_nn [12]",12
3.0,500.0,196,4,1,256,1,1,80,8.0,0,,,"TITAN Xp (0)","1","7",\
"maxwell_scudnn_128x64_relu_interior_nn [19]",19
"""
_METRICS = """==9== Profiling result:
"Device","Context","Stream","Kernel","{fp32}","dram_read_transactions",\
"dram_write_transactions","single_precision_fu_utilization","dram_utilization"
"TITAN Xp (0)","1","7","maxwell_scudnn_128x64_relu_interior_nn [12]",\
1000000,2000,3000,"High (8)","Low (2)"
"TITAN Xp (0)","1","7","maxwell_scudnn_128x64_relu_interior_nn [19]",\
4000000,5000,6000,"Mid (5)","High (9)"
"""


def arguments(folder: Path, *layers: str) -> list[str]:
    return [
        "analytic", "conv", "from-nvprof", "--trace", str(folder / "a.csv"), "--trace",
        str(folder / "b.csv"), "--metrics", str(folder / "m.csv"), "--algorithm",
        "implicit_precomp_gemm", "--device", "titan-xp", "--out", str(folder / "out"), "--json",
        *(word for layer in layers for word in ("--layer", layer)),
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.csv").write_text(_TRACE.format(first="1000.0"))
    (tmp_path / "b.csv").write_text(_TRACE.format(first="1200.0"))
    (tmp_path / "m.csv").write_text(_METRICS.format(fp32="inst_fp_32"))
    return tmp_path


@pytest.mark.parametrize("fp32", ["inst_fp_32", "FP Instructions(Single)"])
def test_launches_become_rows(folder, capsys, fp32):
    (folder / "m.csv").write_text(_METRICS.format(fp32=fp32))
    assert main(arguments(folder, "32,64,56,128,3,1,1", "32,128,28,256,3,1,1")) == 0
    assert json.loads(capsys.readouterr().out) == {"tables": {"algo1_128x64": 2}, "unmatched": {}}
    table = read_workbook(folder / "out" / "algo1_128x64")["train"]
    assert table.shapes.out_channels.tolist() == [128, 256]
    assert table.time_ms == pytest.approx([1.1, 0.5])
    assert table.fp32_instructions.tolist() == [1e6, 4e6]
    assert table.dram_writes.tolist() == [3000, 6000]
    assert table.fp32_level.tolist() == [8, 5]
    assert table.dram_level.tolist() == [2, 9]
    assert table.blocks.tolist() == [1568, 784]
    # 80 registers of 256 threads: three blocks of 20,480 in the 65,536 of each of 30 cores.
    assert table.resident.tolist() == [90, 90]


def test_launches_that_are_not_the_layers_are_refused(folder, capsys):
    assert main(arguments(folder, *["32,64,56,128,3,1,1"] * 3)) == 3
    assert "not a multiple of 3 layers" in capsys.readouterr().err
    (folder / "b.csv").write_text(_TRACE.format(first="1.0").replace("scudnn", "other"))
    assert main(arguments(folder, "32,64,56,128,3,1,1")) == 3
    assert "runs of the same program" in capsys.readouterr().err


def test_other_tables_are_refused(folder, capsys):
    (folder / "m.csv").write_text(_METRICS.format(fp32="something"))
    assert main(arguments(folder, "32,64,56,128,3,1,1")) == 3
    assert "metric inst_fp_32" in capsys.readouterr().err
    (folder / "m.csv").write_text("nothing")
    assert main(arguments(folder, "32,64,56,128,3,1,1")) == 3
    assert "--print-gpu-trace" in capsys.readouterr().err
