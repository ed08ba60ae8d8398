"""Installed packages, executed code and network access."""

from __future__ import annotations

import ast
import gzip
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests import house, licences
from tests.paths import ROOT

LOCKS = ROOT / "locks"
_PIN = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.+?))? \\$", re.MULTILINE)


def _pins(name: str) -> list[tuple[str, str, str | None]]:
    """Returns package, version and marker of each pin of a lock file."""
    found = _PIN.findall((LOCKS / name).read_text("utf-8"))
    return [(canonicalize_name(package), version, marker) for package, version, marker in found]


def test_the_locks_pin_every_requirement_of_the_two_commands_by_hash() -> None:
    pinned: dict[str, set[str]] = {}
    for path in sorted(LOCKS.iterdir()):
        text = path.read_text("utf-8")
        entries = [one for one in re.split(r"\n(?=\w)", text.partition("\n")[2]) if "==" in one]
        assert len(entries) == len(_pins(path.name))
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", one) for one in entries), path.name
        assert not re.search(r"https?:|file:|--index|--find-links", text), path.name
        for package, version, _ in _pins(path.name):
            pinned.setdefault(package, set()).add(version)
    for name in ("`cdmpp`", "`cdmpp[tvm]`", "group `dev`"):
        for requirement, source in licences.requirements():
            if source == name:
                versions = pinned[canonicalize_name(requirement.name)]
                assert all(requirement.specifier.contains(one) for one in versions), requirement
    same = {p: v for p, v, _ in _pins("torch-cpu.lock") if p != "torch"}
    assert all(version in pinned[package] for package, version in same.items())
    assert {p for p, _, _ in _pins("torch-cpu.lock")} <= {p for p, _, _ in _pins("torch-pypi.lock")}


def test_every_requirement_has_its_licence_on_the_page() -> None:
    rows = licences.listed()
    named = {canonicalize_name(requirement.name) for requirement, _ in licences.requirements()}
    locked = {package for package, _, marker in _pins("all.lock") if not marker}
    missing = (named | locked) - set(rows)
    assert missing == set(), "run make licences"
    unknown = [name for name, row in rows.items() if row[2] in ("not said", "-")]
    assert unknown == []
    absent = [name for name, row in rows.items() if "not installed" in row[2]]
    assert absent == [], "run make licences where they are installed"


def test_a_licence_is_read_from_what_the_metadata_have(tmp_path: Path) -> None:
    from importlib.metadata import PathDistribution

    lines = {
        "License-Expression: MIT\nLicense: other": "MIT",
        "Classifier: License :: OSI Approved :: BSD License\nLicense: x": "BSD License",
        "License: Some Licence, 2026": "Some Licence, 2026",
        "Summary: nothing": "not said",
    }
    for number, (text, expected) in enumerate(lines.items()):
        folder = tmp_path / f"p{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: p\nVersion: 1\n{text}\n")
        assert licences.licence(PathDistribution(folder)) == expected


#: Calls that execute a text or the content of a file; `torch.load` has a safe form, see below.
_RUNS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads",
    "cloudpickle.load", "cloudpickle.loads", "marshal.load", "marshal.loads", "shelve.open",
    "yaml.unsafe_load", "yaml.full_load", "joblib.load", "pd.read_pickle",
}  # fmt: skip
#: Matches the source of every module with an unsafe call; the others need not be searched.
_MAY_RUN = re.compile(
    r"\b(eval|exec|compile|__import__|system|popen|loads?|shelve|\w+_load|read_pickle)\b\s*[.(]"
    r"|\b(shell|allow_pickle)\b"
)


def _dotted(node: ast.AST) -> str:
    """Returns `a.b.c` of such an expression without the parts that are no names."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _unsafe_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        values = {
            one.arg: ast.unparse(one.value)
            for one in node.keywords
            if one.arg in ("shell", "allow_pickle", "weights_only")
        }
        if (
            name in _RUNS
            or values.get("shell", "False") != "False"
            or values.get("allow_pickle", "False") != "False"
            or (name == "yaml.load" and "SafeLoader" not in ast.unparse(node))
            or (name == "torch.load" and values.get("weights_only") != "True")
        ):
            yield ast.unparse(node)[:100]


def test_nothing_is_run_that_is_data() -> None:
    found = {
        name: calls
        for name, path in house.modules().items()
        if _MAY_RUN.search(path.read_text("utf-8"))
        if (calls := list(_unsafe_calls(house.tree_of(path))))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("code", "is_unsafe"),
    [
        ("subprocess.run(command, shell=True)", True),
        ("subprocess.run(command, shell=False)", False),
        ("eval(text)", True),
        ("model.eval()", False),
        ("yaml.load(text, yaml.Loader)", True),
        ("yaml.load(text, yaml.SafeLoader)", False),
        ("np.load(path, allow_pickle=True)", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=True)", False),
        ("pickle.loads(data)", True),
    ],
)
def test_unsafe_calls_are_found(code: str, is_unsafe: bool) -> None:
    assert bool(list(_unsafe_calls(ast.parse(code)))) == is_unsafe
    assert not is_unsafe or _MAY_RUN.search(code)


def test_every_call_that_runs_a_text_is_searched_for() -> None:
    assert [name for name in _RUNS if not _MAY_RUN.search(f"{name}(x)")] == []


_GUARDED = """
import sys

def hook(event, arguments):
    is_out = event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
    if event == "socket.connect":  # the address of a socket of this machine is a path
        is_out = not isinstance(arguments[1], (str, bytes))
    if is_out:
        raise SystemExit(f"the network is asked: {event} {arguments[1:]}")

sys.addaudithook(hook)
from cdmpp.cli.main import main

for line in sys.stdin.read().splitlines():
    if code := main(line.split()):
        raise SystemExit(f"{line}: exit code {code}")
"""


def _guarded(tmp_path: Path, commands: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _GUARDED], input="\n".join(commands), cwd=tmp_path, text=True,
        capture_output=True, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/bin"},
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
def test_only_fetching_reaches_the_network(tmp_path: Path) -> None:
    source = next(iter(sorted((ROOT / "data/tenset-cpu/measure_records").rglob("*.json.gz"))))
    lines = gzip.decompress(source.read_bytes()).splitlines(keepends=True)[:3]
    (tmp_path / "few.json").write_bytes(b"".join(lines))
    commands = [
        "device list",
        "dataset fetch --list",
        "predict --model pretrained --records few.json --device epyc-avx2-1c --json",
        "roofline --op linear --shape batch=1,m=64,n=64,k=64 --device v100",
    ]
    done = _guarded(tmp_path, commands)
    assert done.returncode == 0, done.stderr[-2000:]


def test_fetching_does(tmp_path: Path) -> None:
    done = _guarded(tmp_path, ["dataset fetch t4 --cache here"])
    assert done.returncode != 0
    assert "the network is asked" in done.stderr
