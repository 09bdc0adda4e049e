"""The one find-or-make: an artifact of a stage is found by its recipe, or else drafted, filled, published; then it is named.

Beside each artifact lies the record of the run that made it: command, time, versions and peak memory.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmdiff.formats.storage import seam
from mmdiff.formats.store.layouts import require_sound
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication, drafted_bytes, refuse_full_disk
from mmdiff.formats.store.store import Artifact
from mmdiff.runtime.memory import PeakMemory

_ADVICE = "Check the input and the parameters; if they are right, this is an error of mmdiff."
_VERSIONS = ("mmdiff", "numpy", "scipy", "numba", "zarr")


class Run:
    """A run in progress. `entries` are added to the standard entries of its record."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.entries: Json = {}
        self._started = datetime.now(UTC)
        self._clock = time.perf_counter()
        self._memory = PeakMemory()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._clock

    def record(self) -> Json:
        """The record of the run, as of now."""
        return {
            "command": self.command,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "peak_memory": self._memory.bytes,
            "host": platform.node(),
            "cores": len(os.sched_getaffinity(0)),
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _VERSIONS}},
            **self.entries,
        }


@cache
def _version(package: str) -> str:
    return version(package)


@dataclass(frozen=True)
class Made:
    """An artifact, and the seconds it took to make it; None if it was found."""

    artifact: Artifact
    seconds: float | None

    @property
    def reused(self) -> bool:
        return self.seconds is None

    def summary(self) -> Json:
        return {
            "artifact": self.artifact.name,
            "object": self.artifact.id,
            "reused": self.reused,
            "seconds": round(self.seconds or 0.0, 3),
            "bytes": self.artifact.manifest.bytes_on_disk,
            "facts": self.artifact.manifest.facts,
        }


def make(
    publication: Publication,
    name: str,
    recipe: Recipe,
    run: Run | str,
    fill: Callable[[Draft], Json],
    *,
    before: Callable[[], None] = lambda: None,
    disk: int = 0,
    means: Json | None = None,
    named_with: Mapping[str, Artifact] | None = MappingProxyType({}),
    **entries: Any,
) -> Made:
    """Finds the artifact of a recipe, or makes it, and gives it its name.

    `before` is called if the artifact has to be made, before anything is written: it announces what is coming, or refuses it.
    `disk` is the forecast of the bytes that will be written; it is refused where the disk has fewer.
    A draft is only continued by `means` equal to those that it was begun with (`Publication.draft`).
    `fill` writes the arrays and returns the facts; content that `verify` would call bad is refused. `run` is the run that the
    record describes, or a command, which begins a run of its own now; `entries`, and what `fill` adds to `run.entries`, are
    part of the record. The artifacts of `named_with` get their names at the same time, first; with None the artifact gets no
    name yet.
    """
    artifact, seconds = publication.find(recipe), None
    if artifact is None:
        before()
        refuse_forecast(publication, name, disk)
        run = Run(run) if isinstance(run, str) else run
        draft = publication.draft(name, recipe, means)
        facts = fill(draft)
        run.entries |= entries
        artifact = publication.publish(draft, facts, run.record(), partial(require_sound, advice=_ADVICE))
        seconds = run.seconds
    if named_with is None:
        return Made(artifact, seconds)
    publication.link({**named_with, name: artifact})
    return Made(publication.store.open_artifact(name), seconds)


def refuse_forecast(publication: Publication, name: str, needed: int) -> None:
    """Refuses work whose forecast exceeds the free disk. Bytes that an interrupted run has written are not needed again."""
    refuse_full_disk(publication.store.path, name, needed - drafted_bytes(publication.store, name))


def notes_on_disk(path: Path, work: str, needed: int) -> list[str]:
    """A note for plans of work that needs more bytes than the disk of the store has free."""
    free = seam.free_bytes(path)
    if needed <= free:
        return []
    small = f"the disk of {path} is too small: {work} takes about {needed:,} bytes, and {free:,} are free."
    return [f"{small} Make room, or put the store on another disk."]


def input_of(artifact: Artifact) -> Json:
    """An artifact as the input of a recipe."""
    return {"artifact": artifact.name, "object": artifact.id}
