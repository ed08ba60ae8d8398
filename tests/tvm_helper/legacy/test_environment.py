"""The commands that build the side environment see nothing of the user's own packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cdmpp.errors import UsageError
from tvm_helper.legacy.environment import LegacyEnvironment, run


def test_packages_of_pythonpath_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip took them for installed, and the old TVM, started without them, lacked them."""
    (tmp_path / "ghost_package.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", "import ghost_package"]
    for environment in (None, LegacyEnvironment(tmp_path / "env")):
        with pytest.raises(UsageError, match="No module named 'ghost_package'") as caught:
            run(command, "import it", environment)
        assert "--force" in str(caught.value)
