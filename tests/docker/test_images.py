"""The images: linted where the linter is, their steps as `docker/try_steps.py` reads them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.paths import ROOT

DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile*"))


def test_the_linter_has_nothing_to_say():
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, *DOCKERFILES], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def test_the_cpu_image_has_the_cpu_torch_that_is_required():
    text = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
    (required,) = re.findall(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.M)
    assert f'"torch=={required}+cpu"' in text
    assert "+cpu" not in (ROOT / "docker" / "Dockerfile.cuda").read_text("utf-8")


def test_steps_are_read_in_order_and_joined():
    place = ROOT / "docker" / "try_steps.py"
    spec = importlib.util.spec_from_file_location("try_steps", place)
    try_steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(try_steps)
    text = 'FROM x\n# why\nRUN a \\\n    && b\n\nCOPY c d ./\nCMD ["e"]\n'
    assert list(try_steps.instructions(text)) == [
        ("FROM", "x"), ("RUN", "a && b"), ("COPY", "c d ./"), ("CMD", '["e"]')
    ]  # fmt: skip


def test_the_service_listens_to_others_with_a_token_only():
    (serve,) = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"].values()
    assert serve["command"][:2] == ["cdmpp", "serve"]
    assert "--token-file" in serve["command"]
    assert all(port.startswith("127.0.0.1:") for port in serve["ports"])
