"""The kinds of faults: what happens to a command, when, and how it may end."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.faults.trial import Befallen, Trial

_SIZES = (0, 100, 2_000, 20_000, 100_000, 1_000_000)
_DISKS = (4_096, 16_384, 65_536, 262_144, 1_048_576)
#: Words -> seconds.
_JUMPS = {"-10d": -864_000, "-1h": -3_600, "+1h": 3_600, "+10d": 864_000}


def killed(trial: Trial, rng: random.Random) -> Befallen:
    """SIGKILL at a random moment."""
    return _signalled(trial, rng, signal.SIGKILL, {-9, 0})


def ended(trial: Trial, rng: random.Random) -> Befallen:
    """SIGINT or SIGTERM at a random moment, as Ctrl-C or a scheduler does."""
    number = rng.choice((signal.SIGINT, signal.SIGTERM))
    # While Python itself starts, signals do what they do to every process, see `Trial` too.
    return _signalled(trial, rng, number, {130, 143, 0, -number})


def sized(trial: Trial, rng: random.Random) -> Befallen:
    """No file may become larger than some bytes."""
    size = rng.choice(_SIZES)
    process = trial.start(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    return Befallen(f"files of at most {size} bytes", [process])


def full(trial: Trial, rng: random.Random) -> Befallen:
    """The disk is small, and is then made large."""
    size = rng.choice(_DISKS)
    _mount(trial.out, f"size={size}")
    process = trial.start()

    def undo() -> None:
        kept = trial.out.with_name("kept")
        shutil.copytree(trial.out, kept, symlinks=True)
        subprocess.run(["umount", "--lazy", str(trial.out)], check=True)
        trial.out.rmdir()
        kept.rename(trial.out)

    return Befallen(f"a disk of {size} bytes", [process], undo=undo)


def read_only(trial: Trial, rng: random.Random) -> Befallen:
    """Its folders cannot be written, from the start or from a random moment on."""
    moment = rng.choice((0.0, rng.uniform(0, trial.usual_s)))
    # What lets root write everywhere is taken from it.
    rights = "--bounding-set=-dac_override,-dac_read_search"
    prefix = ("setpriv", rights) if os.geteuid() == 0 else ()
    if not moment:
        _set_rights(trial.out, 0o555)
    process = trial.start(prefix=prefix)
    time.sleep(moment)
    _set_rights(trial.out, 0o555)
    return Befallen(
        f"read-only after {moment:.2f} s", [process], undo=lambda: _set_rights(trial.out, 0o755)
    )


def vanished(trial: Trial, rng: random.Random) -> Befallen:
    """Its folder is taken away at a random moment, and is back when it has ended."""
    process = trial.start()
    moment = rng.uniform(0, trial.usual_s)
    time.sleep(moment)
    away = trial.out.with_name("away")
    trial.out.rename(away)

    def undo() -> None:
        shutil.rmtree(trial.out, ignore_errors=True)
        away.rename(trial.out)

    return Befallen(f"no folder after {moment:.2f} s", [process], undo=undo)


def clock(trial: Trial, rng: random.Random) -> Befallen:
    """The time of day jumps at a random moment, for this run alone; half of them are killed too."""
    jump, moment = rng.choice(list(_JUMPS)), rng.uniform(0, trial.usual_s)
    file, library = trial.folder / "clock", trial.folder / "clock.so"
    if not library.is_file():
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    file.write_text("0\n", "ascii")
    process = trial.start(environment={"LD_PRELOAD": str(library), "SHIFTED_BY": str(file)})
    time.sleep(moment)
    file.write_text(f"{_JUMPS[jump]}\n", "ascii")
    where = f"the clock {jump} after {moment:.2f} s"
    if rng.random() < 0.5:
        return Befallen(where, [process], {0})
    time.sleep(rng.uniform(0, trial.usual_s - moment))
    process.kill()
    return Befallen(f"{where}, then killed", [process], {0, -9})


def twice(trial: Trial, rng: random.Random) -> Befallen:
    """A second one is started on the same folder, at a random moment."""
    first = trial.start()
    moment = rng.uniform(0, trial.usual_s)
    time.sleep(moment)
    return Befallen(f"a second one after {moment:.2f} s", [first, trial.start()])


KINDS: Mapping[str, Callable[[Trial, random.Random], Befallen]] = {
    "killed": killed, "ended": ended, "sized": sized, "full": full, "read-only": read_only,
    "vanished": vanished, "clock": clock, "twice": twice,
}  # fmt: skip


def why_not(kind: str) -> str | None:
    """Returns why a kind of fault cannot be made on this machine; None = it can."""
    if kind == "full" and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        return "no small disk may be mounted"
    if kind == "read-only" and os.geteuid() == 0 and not shutil.which("setpriv"):
        return "root writes everywhere, and there is no setpriv"
    if kind == "clock" and not shutil.which("gcc"):
        return "no gcc"
    return None


def _signalled(
    trial: Trial, rng: random.Random, number: signal.Signals, codes: set[int]
) -> Befallen:
    process = trial.start()
    moment = rng.uniform(0, trial.usual_s)
    time.sleep(moment)
    process.send_signal(number)
    return Befallen(f"{number.name} after {moment:.2f} s", [process], codes)


def _mount(folder: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    subprocess.run(command, check=True)


def _set_rights(folder: Path, rights: int) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(rights)
