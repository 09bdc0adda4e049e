"""Versions of what mmdiff stands on, and which of its extras are installed.

All is read from the metadata of installed distributions: importing torch to learn its version would take seconds.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import distributions, requires, version
from importlib.util import find_spec

from mmdiff.doctor.check import Check, Verdict

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
