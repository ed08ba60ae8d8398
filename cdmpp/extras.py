"""Optional dependencies: packages that are only needed for some options."""

from __future__ import annotations

import importlib
from types import ModuleType

from cdmpp.errors import UsageError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Returns an optional module, imported.

    Args:
        module: name to import.
        extra: the extra of this package that installs it.
        purpose: what it is needed for, e.g. `--backend ray`.

    Raises:
        UsageError: it is not installed, or it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs the package {module!r}, which cannot be imported ({error}); "
            f"install it with: pip install 'cdmpp[{extra}]'"
        ) from None
