"""Names of processor architectures for the numbers that processors report."""

from __future__ import annotations

from types import MappingProxyType

#: (family, first model, last model, name). Source: Linux kernel, arch/x86/kernel/cpu/amd.c.
_AMD = (
    (23, 0x00, 0x2F, "zen"), (23, 0x30, 0x7F, "zen2"), (23, 0x90, 0xAF, "zen2"),
    (25, 0x00, 0x0F, "zen3"), (25, 0x10, 0x1F, "zen4"), (25, 0x20, 0x5F, "zen3"),
    (25, 0x60, 0x7F, "zen4"), (25, 0xA0, 0xAF, "zen4"), (26, 0x00, 0x7F, "zen5"),
)  # fmt: skip
#: Model of family 6 -> name. Source: Linux kernel, arch/x86/include/asm/intel-family.h.
_INTEL = MappingProxyType({
    0x2A: "sandy-bridge", 0x2D: "sandy-bridge", 0x3A: "ivy-bridge", 0x3E: "ivy-bridge",
    0x3C: "haswell", 0x3F: "haswell", 0x45: "haswell", 0x46: "haswell",
    0x3D: "broadwell", 0x47: "broadwell", 0x4F: "broadwell", 0x56: "broadwell",
    0x4E: "skylake", 0x5E: "skylake", 0x8E: "kaby-lake", 0x9E: "kaby-lake",
    0xA5: "comet-lake", 0xA6: "comet-lake", 0xA7: "rocket-lake", 0x7D: "ice-lake", 0x7E: "ice-lake",
    0x6A: "ice-lake-server", 0x6C: "ice-lake-server", 0x8C: "tiger-lake", 0x8D: "tiger-lake",
    0x97: "alder-lake", 0x9A: "alder-lake", 0xB7: "raptor-lake", 0xBA: "raptor-lake",
    0xBF: "raptor-lake", 0xAA: "meteor-lake", 0x8F: "sapphire-rapids", 0xCF: "emerald-rapids",
    0xAD: "granite-rapids", 0xAE: "granite-rapids",
})  # fmt: skip
_SKYLAKE_SERVER = 0x55
#: First steppings of `_SKYLAKE_SERVER` with another name.
_COOPER_LAKE, _CASCADE_LAKE = 10, 5
#: Part number of Arm's own cores -> name. Source: Linux kernel, arch/arm64/include/asm/cputype.h.
_ARM = MappingProxyType({
    0xD03: "cortex-a53", 0xD05: "cortex-a55", 0xD07: "cortex-a57", 0xD08: "cortex-a72",
    0xD09: "cortex-a73", 0xD0A: "cortex-a75", 0xD0B: "cortex-a76", 0xD0D: "cortex-a77",
    0xD41: "cortex-a78", 0xD44: "cortex-x1", 0xD47: "cortex-a710", 0xD48: "cortex-x2",
    0xD0C: "neoverse-n1", 0xD40: "neoverse-v1", 0xD49: "neoverse-n2", 0xD4F: "neoverse-v2",
})  # fmt: skip
_IMPLEMENTERS = MappingProxyType({
    0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon",
    0x4E: "NVIDIA", 0x51: "Qualcomm", 0x61: "Apple", 0xC0: "Ampere",
})  # fmt: skip


def x86_architecture(vendor_id: str, family: int, model: int, stepping: int) -> str | None:
    """Returns the name of an AMD or Intel architecture; None if it is not listed here."""
    if vendor_id == "AuthenticAMD":
        for known, first, last, name in _AMD:
            if family == known and first <= model <= last:
                return name
        return None
    if vendor_id != "GenuineIntel" or family != 6:
        return None
    if model == _SKYLAKE_SERVER:
        if stepping >= _COOPER_LAKE:
            return "cooper-lake"
        return "cascade-lake" if stepping >= _CASCADE_LAKE else "skylake-avx512"
    return _INTEL.get(model)


def arm_architecture(implementer: int, part: int) -> tuple[str, str | None]:
    """Returns (vendor, name of the core or None)."""
    vendor = _IMPLEMENTERS.get(implementer, f"implementer 0x{implementer:02x}")
    return vendor, _ARM.get(part) if implementer == 0x41 else None
