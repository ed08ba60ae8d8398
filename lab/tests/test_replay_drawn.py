"""Replays of drawn networks: files and rows belong to a seed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from lab.experiments import replay

pytestmark = pytest.mark.tvm


def test_every_seed_has_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(folder: Path, count: int, seed: int, *more: Any, **options: Any) -> None:
        folder.mkdir(parents=True)
        (folder / "generated-000.pt2").write_text(str(seed))

    monkeypatch.setattr(replay, "ROOT", tmp_path)
    monkeypatch.setattr(replay.varied_networks, "experiment", draw)
    for seed in (1, 2, 1):
        (made,) = replay.drawn_files(seed).values()
        assert made().read_text() == str(seed)


def test_rows_of_another_seed_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []

    def judge(path: Path, *others: Any) -> dict[str, Any]:
        judged.append(path.stem)
        return {
            "network": path.stem, "schedule": "default", "gap_s": 0.0, "replay_error": 0.0,
            "error": 0.0, "is_calibrating": path.stem == "short-operators",
        }  # fmt: skip

    def keep(name: str, text: str, values: Any, origin: Any, *, folder: Path) -> None:
        (folder / f"{name}.json").write_text(json.dumps(values))

    monkeypatch.setattr(replay, "judged", judge)
    monkeypatch.setattr(replay, "page", lambda *args: "")
    monkeypatch.setattr(replay, "write_page", keep)
    monkeypatch.setattr(replay, "stamp", lambda *args, **options: {})
    monkeypatch.setattr(replay, "Predictor", lambda *args, **options: None)
    monkeypatch.setattr(replay, "exported", lambda stem, make, folder: folder / f"{stem}.pt2")
    asked = replay.Replays("drawn", "this-cpu", "pretrained", tmp_path / "work", tmp_path, seed=1)
    files = {"generated-000": partial(Path, tmp_path / "generated-000.pt2")}
    every = ["short-operators", "generated-000"]
    for seed, expected in ((1, every), (1, []), (2, every)):
        judged.clear()
        replay.replayed(replace(asked, seed=seed), files)
        assert judged == expected
