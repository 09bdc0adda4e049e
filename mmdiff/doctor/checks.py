"""What the doctor finds: facts, a verdict on them, and what to do.

Versions of what mmdiff stands on, and which of its extras are installed.

All is read from the metadata of installed distributions: importing torch to learn its version would take seconds.

Cores, memory, GPUs, and what the system lets us map.
"""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

from mmdiff.formats.storage.arrays import CHUNK_BYTES, PAGE_BYTES
from mmdiff.formats.storage.crc import in_hardware
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.memory import Cgroups, machine_memory


class Verdict(StrEnum):
    """How a finding matters."""

    OK = "ok"
    WORTH_KNOWING = "worth knowing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `advice` says what to do about it, where there is something to do."""

    group: str
    name: str
    facts: Json
    verdict: Verdict = Verdict.OK
    advice: str = ""

    def to_json(self) -> Json:
        return {**self.facts, "verdict": str(self.verdict), "advice": self.advice}


# What each extra of pyproject.toml is for.
EXTRAS = {
    "cpu": "search for neighbours",
    "gpu": "the same on GPUs, instead of cpu",
    "torch": "models for other tools",
    "files": "Parquet and HDF5 files",
    "dask": "more than one machine",
    "s3": "stores on S3",
    "report": "plots",
    "sklearn": "scikit-learn estimators",
}
_BASE = ("numpy", "scipy", "numba", "zarr")
_REQUIREMENT = re.compile(r"([\w.-]+).*extra\s*==\s*[\"']([\w-]+)[\"']")


def check_software() -> Iterator[Check]:
    """The versions, then the extras."""
    installed = installed_distributions()
    yield Check("software", "mmdiff", {"version": version("mmdiff")})
    yield Check("software", "python", {"version": platform.python_version(), "system": platform.platform(terse=True)})
    for name in _BASE:
        yield Check("software", name, {"version": installed.get(name)})
    yield _check_faiss(installed)
    yield Check("software", "torch", {"version": installed.get("torch")})
    for extra, purpose in EXTRAS.items():
        yield check_extra(extra, purpose, requirements_of(extra), installed)


def check_extra(extra: str, purpose: str, wanted: list[str], installed: dict[str, str]) -> Check:
    """An extra that is missing is no fault; the advice is how to get it."""
    present: dict[str, str] = {}
    missing = []
    for requirement in wanted:
        # Builds for one version of CUDA have it in their name: faiss-gpu-cu12.
        found = {name: installed[name] for name in installed if name == requirement or name.startswith(f"{requirement}-cu")}
        present |= found
        if not found:
            missing.append(requirement)
    facts = {"purpose": purpose, "present": present, "missing": missing}
    return Check("extras", extra, facts, advice=f"pip install 'mmdiff[{extra}]'" if missing else "")


def installed_distributions() -> dict[str, str]:
    """Every distribution on sys.path with its version, by its name in lower case with dashes."""
    found: dict[str, str] = {}
    for distribution in distributions():
        # What a broken installation has left may have no name. Of two versions the first is the one that is imported.
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return found


def requirements_of(extra: str) -> list[str]:
    """The distributions that an extra of mmdiff asks for."""
    matches = (_REQUIREMENT.match(line) for line in requires("mmdiff") or [])
    return [match[1] for match in matches if match and match[2] == extra]


def _check_faiss(installed: dict[str, str]) -> Check:
    builds = {name: version for name, version in installed.items() if name.startswith("faiss")}
    # A build that conda or its author's own hands have put there may have no metadata.
    unlisted = "unknown" if find_spec("faiss") else None
    facts = {"version": next(iter(builds.values()), unlisted), "distributions": builds}
    if len(builds) > 1:
        names = " and ".join(builds)
        advice = f"{names} provide the same module, and one has overwritten the other. Uninstall both, then install one."
        return Check("software", "faiss", facts, Verdict.WORTH_KNOWING, advice)
    if facts["version"] is None:
        advice = "Without Faiss there is no search for neighbours, so no graph. Run: pip install 'mmdiff[cpu]'"
        return Check("software", "faiss", facts, Verdict.PROBLEM, advice)
    return Check("software", "faiss", facts)


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
