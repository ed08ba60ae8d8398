"""Loaded models, reloaded when their run folders change."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cdmpp.errors import CdmppError, NotFoundError, UsageError
from cdmpp.files.atomic import sha256_file
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.pretrained import model_folder

_log = logging.getLogger("cdmpp.serve")
_Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class HotModel:
    """A loaded model.

    Attributes:
        name: its name in requests, as given to the server.
        folder: folder of its files.
        trained: the model.
        version: digest of its files.
        loaded_at: Unix time in seconds.
        last_error: why a newer version in its folder cannot be loaded; None without an error.
    """

    name: str
    folder: Path
    trained: TrainedModel
    version: str
    loaded_at: float
    last_error: str | None = None


class HotModels:
    """The models of a server. The old model answers until the new one is loaded.

    Args:
        names: run folders or packaged models.

    Attributes:
        loads: number of loads.

    Raises:
        CdmppError: a model cannot be loaded, or a name occurs twice.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if not names or len(set(names)) < len(names):
            raise UsageError(f"expected different models, got {', '.join(names) or 'none'}")
        self.loads = 0
        self._folders = {name: Path(model_folder(name)) for name in names}
        self._seen = {name: _signature(folder) for name, folder in self._folders.items()}
        self._pending = dict(self._seen)
        self._models = {name: self._load(name) for name in names}
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    def find(self, name: str | None) -> HotModel:
        """Returns a model by name; the first one for None.

        Raises:
            NotFoundError: there is no model of that name.
        """
        if name is None:
            return next(iter(self._models.values()))
        if name not in self._models:
            names = ", ".join(self._models)
            raise NotFoundError(f"no model {name!r} here; expected one of {names}")
        return self._models[name]

    def all(self) -> list[HotModel]:
        """Returns the models, the default first."""
        return list(self._models.values())

    def watch(self, every_s: float) -> None:
        """Starts a thread that checks the folders every `every_s` seconds until `stop`."""
        self._watcher = threading.Thread(target=self._watch, args=(every_s,), daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """Stops the thread."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()

    def look(self) -> None:
        """Reloads changed models whose files were equal in two looks and after loading."""
        for name, folder in self._folders.items():
            now = _signature(folder)
            pending, self._pending[name] = self._pending[name], now
            if now == self._seen[name] or now != pending:
                continue
            try:
                model = self._load(name)
                if _signature(folder) != now:
                    continue
            except (CdmppError, OSError, ValueError) as error:
                _log.warning("%s: cannot load the new model, the old one stays in use: %s", name,
                             error)  # fmt: skip
                model = replace(self._models[name], last_error=str(error)[:400])
            else:
                _log.warning("%s: loaded version %s", name, model.version)
            self._seen[name] = now
            self._models[name] = model

    def _load(self, name: str) -> HotModel:
        folder = self._folders[name]
        trained = load_trained(folder)
        digest = hashlib.sha256()
        for path in sorted(one for one in folder.rglob("*") if _is_of_model(one, folder)):
            digest.update(f"{path.relative_to(folder)} {sha256_file(path)}\n".encode())
        self.loads += 1
        return HotModel(name, folder, trained, digest.hexdigest()[:16], time.time())

    def _watch(self, every_s: float) -> None:
        while not self._stopped.wait(every_s):
            self.look()


def _signature(folder: Path) -> _Signature:
    """Returns names, times and sizes of the files that a model is loaded from."""
    found = []
    for path in folder.rglob("*"):
        if _is_of_model(path, folder):
            try:
                stat = path.stat()
            except OSError:
                continue  # being replaced; the next look sees the result
            found.append((str(path.relative_to(folder)), stat.st_mtime_ns, stat.st_size))
    return tuple(sorted(found))


def _is_of_model(path: Path, folder: Path) -> bool:
    """Whether a file belongs to the model; run folders also contain logs and reports."""
    is_saved = path.suffix in (".json", ".safetensors", ".ubj", ".xz")
    is_in_other = "checkpoints" in path.relative_to(folder).parts
    return is_saved and not is_in_other and path.name != "metrics.json" and path.is_file()
