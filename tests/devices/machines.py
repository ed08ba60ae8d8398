"""Machines as the kernel shows them: `/proc` and `/sys` in a folder."""

from __future__ import annotations

from pathlib import Path

from cdmpp.devices.probe import probe_cpu

#: Label of a CPU that this machine cannot be.
ELSEWHERE = "graviton2" if probe_cpu("here").vendor in ("AMD", "Intel") else "i7-3770"
CPUS = "sys/devices/system/cpu"

AMD = """processor\t: {cpu}
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9354 32-Core Processor
stepping\t: 1
cpu MHz\t\t: 3249.998
flags\t\t: fpu sse2 fma avx avx2 avx512f avx512dq avx512vl
"""
INTEL = """processor\t: {cpu}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Platinum 8272CL CPU @ 2.60GHz
stepping\t: 7
flags\t\t: fpu sse2 avx avx2 avx512f avx512vl
"""
IVY_BRIDGE = """processor\t: {cpu}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 58
model name\t: Intel(R) Core(TM) i7-3770 CPU @ 3.40GHz
stepping\t: 9
flags\t\t: fpu sse2 avx
"""
ARM = """processor\t: {cpu}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3
"""


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{text}\n", encoding="utf-8")


def machine(
    root: Path,
    processor: str,
    *,
    cpus: int,
    hyperthreads: int = 1,
    caches: tuple[tuple[int, str, str, int], ...] = (),
    allowed: str | None = None,
    memory_kb: int = 16_000_000,
) -> Path:
    """Writes a machine.

    Args:
        processor: block of cpuinfo, `{cpu}` for the number.
        cpus: logical CPUs; siblings of a core are `cpus / hyperthreads` apart.
        caches: (level, type, size, cores that share it).
        allowed: list of CPUs that the process may use.
    """
    cores = cpus // hyperthreads
    write(root, "proc/cpuinfo", "\n".join(processor.format(cpu=cpu) for cpu in range(cpus)))
    write(root, "proc/meminfo", f"MemTotal:       {memory_kb} kB\nMemFree: 1 kB")
    write(root, "proc/self/status", f"Name:\tx\nCpus_allowed_list:\t{allowed or f'0-{cpus - 1}'}")
    write(root, f"{CPUS}/online", f"0-{cpus - 1}" if cpus > 1 else "0")
    for cpu in range(cpus):
        core = cpu % cores
        siblings = ",".join(str(core + cores * turn) for turn in range(hyperthreads))
        write(root, f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", siblings)
        write(root, f"{CPUS}/cpu{cpu}/topology/physical_package_id", "0")
        for number, (level, kind, size, sharing) in enumerate(caches):
            first = core // sharing * sharing
            folder = f"{CPUS}/cpu{cpu}/cache/index{number}"
            group = [
                str(one + cores * turn)
                for turn in range(hyperthreads)
                for one in range(first, min(first + sharing, cores))
            ]
            write(root, f"{folder}/level", str(level))
            write(root, f"{folder}/type", kind)
            write(root, f"{folder}/size", size)
            write(root, f"{folder}/shared_cpu_list", ",".join(group))
    return root
