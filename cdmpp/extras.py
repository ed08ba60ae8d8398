"""Optional dependencies."""

from __future__ import annotations

import importlib
from types import ModuleType

from cdmpp.errors import UsageError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports and returns an optional module.

    Args:
        module: name to import.
        extra: extra of this package that installs the module.
        purpose: feature that needs the module, e.g. `--backend ray`.

    Raises:
        UsageError: the module is not installed or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs the package {module!r}, which cannot be imported ({error}); "
            f"install it with: pip install 'cdmpp[{extra}]'"
        ) from None
