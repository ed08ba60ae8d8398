"""A DeviceSpec as the text of a device file."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import yaml

from cdmpp.devices.spec import DeviceSpec


def device_file_text(spec: DeviceSpec, *, comment: str) -> str:
    """Returns the YAML text of one device, as `read_device_file` reads it.

    Args:
        comment: description of the file, one line.
    """
    values: dict[str, Any] = {"kind": spec.kind}
    for item in fields(DeviceSpec):
        value = getattr(spec, item.name)
        if item.name not in ("name", "kind", "sources") and value is not None:
            source = spec.sources.get(item.name, "not told")
            values[item.name] = {"value": value, "source": source}
    body = yaml.safe_dump({"devices": {spec.name: values}}, sort_keys=False, width=200)
    return f"# {comment} Fields that are not listed are unknown.\n{body}"
