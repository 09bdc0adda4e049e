"""Checks of the software and the machine: facts, a verdict on them, and advice.

Versions and extras are read from the metadata of installed distributions: importing torch to learn its version takes seconds.
"""

from __future__ import annotations

import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import distributions, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path

from mmdiff.commit import COMMIT
from mmdiff.formats.storage.arrays import CHUNK_BYTES, PAGE_BYTES
from mmdiff.formats.storage.crc import in_hardware
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.memory import Cgroups, machine_memory
from mmdiff.runtime.threads import ThreadLimit, deciding_limit


class Verdict(StrEnum):
    """The weight of a finding."""

    OK = "ok"
    WORTH_KNOWING = "worth knowing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """The result of one check, with advice where something can be done."""

    group: str
    name: str
    facts: Json
    verdict: Verdict = Verdict.OK
    advice: str = ""

    def to_json(self) -> Json:
        return {**self.facts, "verdict": str(self.verdict), "advice": self.advice}


# Purposes of the extras that pyproject.toml declares.
PURPOSES = {
    "cpu": "search for neighbours",
    "gpu": "search for neighbours on GPUs, instead of cpu",
    "torch": "logistic regression, and models for other tools",
    "files": "Parquet and HDF5 files",
    "dask": "more than one process or machine",
    "s3": "stores on S3",
    "report": "thumbnails in reports, pictures on the page of a store",
    "images": "describing images with a network, training one",
    "networks": "networks of timm, open_clip and transformers by name",
    "sklearn": "estimators for scikit-learn",
    "web": "the page of a store in a browser",
}
# Extras that developers install, and the one that is all others.
_NOT_FOR_USERS = ("all", "bench", "dev", "interop", "site")
_BASE = ("numpy", "scipy", "numba", "zarr")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)[\"']")
_NAME = re.compile(r"[\w.-]+")


def check_software() -> Iterator[Check]:
    """Versions, then extras."""
    installed = installed_distributions()
    yield Check("software", "mmdiff", {"version": version("mmdiff"), "commit": COMMIT})
    yield Check("software", "python", {"version": platform.python_version(), "system": platform.platform(terse=True)})
    for name in _BASE:
        yield Check("software", name, {"version": installed.get(name)})
    yield _check_faiss(installed)
    yield Check("software", "torch", {"version": installed.get("torch")})
    for extra, requirements in extras().items():
        yield check_extra(extra, PURPOSES.get(extra, ""), requirements, installed)


def check_extra(extra: str, purpose: str, wanted: list[str], installed: dict[str, str]) -> Check:
    """Whether an extra is installed. A missing extra is no problem; the advice is the line that installs it."""
    present: dict[str, str] = {}
    missing = []
    for requirement in wanted:
        name = requirement_name(requirement)
        # Builds for one version of CUDA have it in their name: faiss-gpu-cu12.
        found = {other: installed[other] for other in installed if other == name or other.startswith(f"{name}-cu")}
        present |= found
        if not found:
            missing.append(name)
    facts = {"purpose": purpose, "requires": wanted, "present": present, "missing": missing}
    return Check("extras", extra, facts, advice=f"pip install 'mmdiff[{extra}]'" if missing else "")


def installed_distributions() -> dict[str, str]:
    """Versions of all distributions on sys.path, by their normalised names."""
    found: dict[str, str] = {}
    for distribution in distributions():
        # Remains of a broken installation may have no name. The first of two versions is the one that is imported.
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(_normalised(name), distribution.version)
    return found


def extras() -> dict[str, list[str]]:
    """The extras of mmdiff and their requirements, from its installed metadata."""
    found: dict[str, list[str]] = {extra: [] for extra in metadata("mmdiff").get_all("Provides-Extra") or []}
    for line in requires("mmdiff") or []:
        requirement, _, marker = line.partition(";")
        for extra in _EXTRA.findall(marker):
            found.setdefault(extra, []).append(requirement.strip())
    return {extra: requirements for extra, requirements in found.items() if extra not in _NOT_FOR_USERS}


def requirement_name(requirement: str) -> str:
    """The normalised name of the distribution that a requirement asks for."""
    found = _NAME.match(requirement)
    return _normalised(found[0]) if found else requirement


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _check_faiss(installed: dict[str, str]) -> Check:
    builds = {name: version for name, version in installed.items() if name.startswith("faiss")}
    # A build from conda or from source may have no metadata.
    unlisted = "unknown" if find_spec("faiss") else None
    facts = {"version": next(iter(builds.values()), unlisted), "distributions": builds}
    if len(builds) > 1:
        names = " and ".join(builds)
        advice = f"{names} provide the same module, and one overwrites the other. Uninstall both, then install one."
        return Check("software", "faiss", facts, Verdict.WORTH_KNOWING, advice)
    if facts["version"] is None:
        advice = "Building a graph needs Faiss. Run: pip install 'mmdiff[cpu]'"
        return Check("software", "faiss", facts, Verdict.PROBLEM, advice)
    return Check("software", "faiss", facts)


_LITTLE_MEMORY = 2 << 30
_USUAL_MAPS = 65530
_PATIENCE_SECONDS = 2


def check_machine() -> Iterator[Check]:
    cgroups = Cgroups()
    yield check_cores(deciding_limit(cgroups), cgroups.cpu_limit())
    yield _check_memory(cgroups)
    yield _check_gpus()
    yield _check_crc()
    yield check_page_size(resource.getpagesize())
    yield from _check_maps(Path("/proc/sys/vm/max_map_count"))


def check_cores(deciding: ThreadLimit, quota: float | None) -> Check:
    """The number of threads that commands use, and the limit that decides it."""
    return Check("machine", "cores", {"threads": deciding.threads, "decided_by": deciding.source, "quota": quota})


def check_page_size(page: int) -> Check:
    """Whether chunks, which are mapped side by side, consist of whole pages."""
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
    advice = "Little memory means small batches. Close other programs, or raise the limit."
    return Check("machine", "memory", facts, Verdict.WORTH_KNOWING, advice)


def _check_gpus() -> Check:
    names = gpus()
    can_search = any(name.startswith("faiss-gpu") for name in installed_distributions())
    if names and not can_search:
        advice = "They can search for neighbours: pip uninstall faiss-cpu, then pip install 'mmdiff[gpu]'"
        return Check("machine", "gpus", {"names": names}, Verdict.WORTH_KNOWING, advice)
    return Check("machine", "gpus", {"names": names})


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs of this machine."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return _gpus_of_driver(Path("/proc/driver/nvidia/gpus"))
        return parse_gpu_list(listed.stdout)
    return _gpus_of_driver(Path("/proc/driver/nvidia/gpus"))


def parse_gpu_list(text: str) -> list[str]:
    """Names from `nvidia-smi -L`, without serial numbers, which do not belong in a bug report."""
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
    """Whether the system allows enough maps: each chunk is one."""
    if not setting.exists():
        return
    most = int(setting.read_text())
    facts = {"max_map_count": most, "mappable_bytes": most * CHUNK_BYTES}
    if most >= _USUAL_MAPS:
        yield Check("machine", "maps", facts)
        return
    advice = f"Less than usual: larger stores cannot be mapped. Run: sudo sysctl -w vm.max_map_count={_USUAL_MAPS}"
    yield Check("machine", "maps", facts, Verdict.WORTH_KNOWING, advice)
