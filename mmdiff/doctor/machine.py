"""Cores, memory, GPUs, and what the system lets us map."""

from __future__ import annotations

import math
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mmdiff.cgroups import Cgroups
from mmdiff.doctor.check import Check, Verdict
from mmdiff.doctor.software import installed_distributions
from mmdiff.formats.arrays import CHUNK_BYTES, PAGE_BYTES
from mmdiff.formats.crc import in_hardware
from mmdiff.memory import machine_memory

_LITTLE_MEMORY = 2 << 30
_USUAL_MAPS = 65530
_PATIENCE_SECONDS = 2


def check_machine() -> Iterator[Check]:
    cgroups = Cgroups()
    yield check_cores(len(os.sched_getaffinity(0)), cgroups.cpu_limit())
    yield _check_memory(cgroups)
    yield _check_gpus()
    yield _check_crc()
    yield check_page_size(resource.getpagesize())
    yield from _check_maps(Path("/proc/sys/vm/max_map_count"))


def check_cores(affinity: int, limit: float | None) -> Check:
    """Threads beyond a limit of the control group only get in each other's way."""
    facts = {"usable": affinity, "limit": limit}
    if limit is None or limit >= affinity:
        return Check("machine", "cores", facts)
    threads = max(1, math.floor(limit))
    facts["usable"] = threads
    advice = f"The control group allows less than the {affinity} cores that are visible. Set NUMBA_NUM_THREADS={threads}."
    return Check("machine", "cores", facts, Verdict.WORTH_KNOWING, advice)


def check_page_size(page: int) -> Check:
    """Chunks are mapped side by side, so each must be of whole pages."""
    facts = {"bytes": page, "divides_chunks": PAGE_BYTES % page == 0}
    if facts["divides_chunks"]:
        return Check("machine", "page_size", facts)
    advice = f"Chunks are multiples of {PAGE_BYTES:,} bytes, which cannot be mapped here. Use a kernel with such pages."
    return Check("machine", "page_size", facts, Verdict.PROBLEM, advice)


def _check_memory(cgroups: Cgroups) -> Check:
    total, available = machine_memory(cgroups, Path("/proc/meminfo").read_text())
    facts = {"total_bytes": total, "available_bytes": available, "limit_bytes": cgroups.memory_limit()}
    if available >= _LITTLE_MEMORY:
        return Check("machine", "memory", facts)
    advice = "That is little: expect small batches. Close what else is running, or raise the limit."
    return Check("machine", "memory", facts, Verdict.WORTH_KNOWING, advice)


def _check_gpus() -> Check:
    names = gpus()
    can_search = any(name.startswith("faiss-gpu") for name in installed_distributions())
    if names and not can_search:
        advice = "The search for neighbours could run on them: pip uninstall faiss-cpu, then pip install 'mmdiff[gpu]'"
        return Check("machine", "gpus", {"names": names}, Verdict.WORTH_KNOWING, advice)
    return Check("machine", "gpus", {"names": names})


def gpus() -> list[str]:
    """The NVIDIA GPUs of this machine, as the driver calls them."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return _gpus_of_driver(Path("/proc/driver/nvidia/gpus"))
        return parse_gpu_list(listed.stdout)
    return _gpus_of_driver(Path("/proc/driver/nvidia/gpus"))


def parse_gpu_list(text: str) -> list[str]:
    """Names from `nvidia-smi -L`, without the serial numbers that nobody wants in a bug report."""
    return [line.partition(": ")[2].partition(" (UUID")[0] for line in text.splitlines() if line.startswith("GPU ")]


def _gpus_of_driver(folder: Path) -> list[str]:
    lines = (line for file in sorted(folder.glob("*/information")) for line in file.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _check_crc() -> Check:
    if in_hardware():
        return Check("machine", "crc32c", {"in_hardware": True})
    advice = "Checksums run in pure Python, a thousand times slower. Run: pip install --force-reinstall google-crc32c"
    return Check("machine", "crc32c", {"in_hardware": False}, Verdict.PROBLEM, advice)


def _check_maps(setting: Path) -> Iterator[Check]:
    """Each chunk is a map of its own, and the system counts them."""
    if not setting.exists():
        return
    most = int(setting.read_text())
    facts = {"max_map_count": most, "mappable_bytes": most * CHUNK_BYTES}
    if most >= _USUAL_MAPS:
        yield Check("machine", "maps", facts)
        return
    advice = f"Less than usual: larger stores cannot be mapped. Run: sudo sysctl -w vm.max_map_count={_USUAL_MAPS}"
    yield Check("machine", "maps", facts, Verdict.WORTH_KNOWING, advice)
