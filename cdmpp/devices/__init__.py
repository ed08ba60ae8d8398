"""Known devices, descriptions of the machine at hand, occupancy, and the device vector."""

from cdmpp.devices.device_file import load_device_spec as read
from cdmpp.devices.registry import get_device as get
from cdmpp.devices.registry import list_devices as list
from cdmpp.devices.spec import DeviceSpec

__all__ = ["DeviceSpec", "get", "list", "read"]
