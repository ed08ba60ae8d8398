"""Makes every Python that a test starts with this folder on its path find no TVM.

`CDMPP_TEST_HIDE=tvm_helper` hides those modules too.
"""

import os
import sys
from importlib import metadata

for _name in ("tvm", "tvm_ffi", *os.environ.get("CDMPP_TEST_HIDE", "").split()):
    sys.modules[_name] = None  # type: ignore[assignment]  # an import of it fails
_version = metadata.version


def version(name: str) -> str:
    """Returns the version of a distribution; TVM's are not installed."""
    if name.startswith("apache-tvm"):
        raise metadata.PackageNotFoundError(name)
    return _version(name)


metadata.version = version
