"""Trained models that come with the package; `--model pretrained` names the default one."""

from __future__ import annotations

from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.files.places import package_folder

DEFAULT = "default"
#: What `--model` says where the packaged model is meant.
PRETRAINED = "pretrained"


def find_pretrained(name: str = DEFAULT, *, parent: Path | None = None) -> Path:
    """Returns the folder of a packaged model; it has what a run folder's model needs.

    Args:
        parent: where packaged models are looked for; None = in this package.

    Raises:
        UsageError: there is no packaged model of that name.
    """
    parent = parent or package_folder("cdmpp.pretrained")
    found = sorted(path.parent.name for path in parent.glob("*/model.json"))
    if name not in found:
        here = f"packaged: {', '.join(found)}" if found else "no packaged models"
        raise UsageError(
            f"no pretrained model {name!r}: {here}; expected pretrained, pretrained:NAME or a "
            "run folder of `cdmpp train`"
        )
    return parent / name


def own_model_folder(model: Path | str, *, is_package: bool = False) -> Path:
    """Returns the folder of a model that is to be changed.

    Args:
        is_package: whether it may be the installed package's.

    Raises:
        UsageError: it is, and it may not be; or there is no packaged model of that name.
    """
    if not is_package and str(model).partition(":")[0] == PRETRAINED:
        raise UsageError(
            f"--model {model} is a part of the installed package; give a run folder of your own, "
            "or --package to write into the package"
        )
    return model_folder(model)


def model_folder(model: Path | str) -> Path:
    """Returns the folder that `--model` means: `pretrained`, `pretrained:NAME` or a run folder.

    A run folder that is itself called so is meant with `./pretrained`.

    Raises:
        UsageError: there is no packaged model of that name, or the value is not a name or path.
    """
    if not isinstance(model, str | Path):
        raise UsageError(f"model is {model!r}, expected 'pretrained' or a run folder")
    word, colon, name = str(model).partition(":")
    if word != PRETRAINED:
        return Path(model)
    return find_pretrained(name if colon else DEFAULT)
