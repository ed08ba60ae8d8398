"""Checks that the wheel is complete: it works from an empty folder, writes nothing into its
packages, and needs no compiler unless TVM programs are featurised.

python -m tests.wheel WHEEL [--device-add]

It downloads nothing: dependencies come from this Python's environment. `.ci/run` runs it (a minute
on one core); `--device-add` adds five minutes of measuring.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from pathlib import Path

_DEVICE = "epyc-avx2-1c"
_KERNEL = """from tvm.script import ir as I
from tvm.script import tirx as T


@I.ir_module
class Module:
    @T.prim_func
    def main(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32")):
        for i, j in T.grid(64, 64):
            b[i, j] = T.max(a[i, j], T.float32(0))
"""
_TRAIN = (
    f"train --device {_DEVICE} --dataset data --from-scratch --config configs/train/quick.yaml "
    "--set transformer.loop.cpu_seconds=2 --jobs 1 --out run --json"
)
_PREDICT = (
    f"predict --model pretrained --program kernel.py --device {_DEVICE} --json",
    "latency_s",
)
#: A command, and a name in the JSON that it prints; in this order, where there is no compiler.
_WITHOUT_COMPILER = (
    _PREDICT,
    (f"dataset extract --device {_DEVICE} --jobs 1 --out data --json", "programs"),
    (_TRAIN, "by_device"),
    (f"evaluate --model run --dataset data --device {_DEVICE} --jobs 1 --json", "mape"),
    ("device show v100 --json", "name"),
)
_WITH_COMPILER = (
    (
        f"search --task dense:m=16,n=16,k=16 --trials 2 --threads 1 --device {_DEVICE} --force "
        "--out search --json",
        "tasks",
    ),
    ("replay configs/replay/dlrm-default.yaml --device v100 --json", "total_s"),
)
_DEVICE_ADD = ("device add mine --minutes 5 --threads 1 --json", "run")


def main(wheel: str, *options: str) -> None:
    """Installs the wheel into a new environment and uses it; raises SystemExit on failure."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        packages = install(Path(wheel).resolve(), folder / "venv")
        before = files_in(packages)
        work = folder / "work"
        work.mkdir()
        (work / "kernel.py").write_text(_KERNEL, "utf-8")
        compiled = folder / "cache" / "cdmpp" / "native"
        # No other program is found: no compiler, no linker.
        bare = Installed(folder, work, path=str(folder / "venv" / "bin"))
        bare.text("--help")
        bare.python_once()
        for words, name in _WITHOUT_COMPILER:
            bare.json_with(words, name)
        if list(compiled.glob("*")):
            raise SystemExit(f"compiled without a compiler: {list(compiled.glob('*'))}")
        used = Installed(folder, work, path=os.environ["PATH"])
        for words, name in (*_WITH_COMPILER, *[_DEVICE_ADD] * ("--device-add" in options)):
            used.json_with(words, name)
        used.serve_once()
        written = sorted(files_in(packages) - before)
        if written:
            raise SystemExit(f"written into the installed packages: {written}")
        shipped = [name for name in before if name.startswith("cdmpp/programs/") and ".so" in name]
        if len(shipped) != 1:
            raise SystemExit(f"expected one library of the record featuriser, got {shipped}")
        if [path.name.partition("-")[0] for path in compiled.glob("*")] != ["tir_featurise"]:
            raise SystemExit(
                f"expected only TVM's featuriser in {compiled}: {os.listdir(compiled)}"
            )
    print(f"{Path(wheel).name}: {Path(wheel).stat().st_size / 1e6:.1f} MB, complete")


def install(wheel: Path, venv: Path) -> Path:
    """Creates an environment with the wheel; this Python's packages come after its own.

    Returns:
        Its folder of packages.
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "--disable-pip-version-check"]
    options = ["--quiet", "--no-compile", "--no-deps", "--no-index"]
    _run([*pip, "install", *options, str(wheel)])
    bare = venv / "bin"
    _run([str(bare / "python"), "-c", "import cdmpp, tvm_helper"], cwd=venv)
    _run([str(bare / "cdmpp"), "--help"], cwd=venv)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    # Paths in a .pth file are searched last, and their own .pth files (an editable cdmpp) not read.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others) + "\n", "utf-8")
    place = _run(
        [str(venv / "bin" / "python"), "-c", "import cdmpp; print(cdmpp.__file__)"], cwd=venv
    )
    if not place.startswith(str(venv)):
        raise SystemExit(f"the wheel's cdmpp is not the one that is imported: {place}")
    return packages


def files_in(packages: Path) -> set[str]:
    """Returns the files of a folder except compiled Python."""
    found = (path.relative_to(packages) for path in packages.rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


class Installed:
    """The installed command, with a working folder and home of its own."""

    def __init__(self, folder: Path, work: Path, *, path: str) -> None:
        self._command = str(folder / "venv" / "bin" / "cdmpp")
        self._work = work
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._variables = {
            **kept, "PATH": path, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"),
            "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1",
        }  # fmt: skip

    def text(self, words: str) -> str:
        """Runs `cdmpp WORDS` and returns what it prints."""
        return _run([self._command, *words.split()], cwd=self._work, env=self._variables)

    def json_with(self, words: str, name: str) -> None:
        """Runs `cdmpp WORDS` and looks for a name in the JSON that it prints."""
        answer = self.text(words)
        if name not in answer or not json.loads(answer):
            raise SystemExit(f"cdmpp {words}: no {name!r} in {answer[:500]!r}")
        print(f"ok: cdmpp {words}", flush=True)

    def python_once(self) -> None:
        """Predicts once from Python with the packaged model, also as a frame and a plot."""
        code = (
            "import cdmpp\n"
            f"found = cdmpp.load('pretrained').predict('kernel.py', {_DEVICE!r})\n"
            "assert 0 < found.low_s < found.latency_s < found.high_s\n"
            "assert found.to_frame()['latency_s'].item() == found.latency_s\n"
            "assert found.plot().get_xlabel() == 'latency'\n"
        )
        python = str(Path(self._command).with_name("python"))
        _run([python, "-c", code], cwd=self._work, env=self._variables)
        print("ok: import cdmpp", flush=True)

    def serve_once(self) -> None:
        """Starts a server, fetches its page, requests one prediction and stops it."""
        words = [self._command, "serve", "--port", "0", "--json", "--quiet"]
        with subprocess.Popen(
            words, cwd=self._work, env=self._variables, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                with urllib.request.urlopen(url, timeout=60) as page:
                    page.read()
                self.text(f"predict --server {url} --program kernel.py --device {_DEVICE} --json")
            finally:
                server.terminate()
        print("ok: cdmpp serve", flush=True)


def _run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
