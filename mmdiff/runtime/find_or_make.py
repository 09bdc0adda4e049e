"""The record of a run: when, how long, with what versions and how much memory. It is kept beside the artifact it made.

One artifact of a stage: found if it was made before from the same inputs, else made, and given its name.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact
from mmdiff.runtime.memory import PeakMemory

_VERSIONS = ("mmdiff", "numpy", "scipy", "numba", "zarr")


class Run:
    """A run that is under way."""

    def __init__(self, command: str) -> None:
        self.command = command
        self._started = datetime.now(UTC)
        self._clock = time.perf_counter()
        self._memory = PeakMemory()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._clock

    def record(self, **more: Any) -> dict[str, Any]:
        """What is known of the run now."""
        return {
            "command": self.command,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "peak_memory": self._memory.bytes,
            "host": platform.node(),
            "cores": len(os.sched_getaffinity(0)),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}},
            **more,
        }


@dataclass(frozen=True)
class Made:
    """An artifact, and the seconds it took; None if it was there."""

    artifact: Artifact
    seconds: float | None

    def summary(self) -> Json:
        return {
            "artifact": self.artifact.name,
            "object": self.artifact.id,
            "reused": self.seconds is None,
            "seconds": round(self.seconds or 0.0, 3),
            "bytes": self.artifact.manifest.bytes_on_disk,
            "facts": self.artifact.manifest.facts,
        }


def make(publication: Publication, name: str, recipe: Recipe, command: str, fill: Callable[[Draft], Json], **more: Any) -> Made:
    """`fill` writes the arrays and returns the facts; `more` is for the record of the run."""
    artifact, seconds = publication.find(recipe), None
    if artifact is None:
        run = Run(command)
        draft = publication.draft(name, recipe)
        facts = fill(draft)
        artifact = publication.publish(draft, facts, run.record(**more))
        seconds = run.seconds
    publication.link({name: artifact})
    return Made(publication.store.open_artifact(name), seconds)


def input_of(artifact: Artifact) -> Json:
    """How a recipe names an artifact that something is made from."""
    return {"artifact": artifact.name, "object": artifact.id}
