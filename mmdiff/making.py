"""One artifact of a stage: found if it was made before from the same inputs, else made, and given its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmdiff.formats.manifest import Json, Recipe
from mmdiff.formats.publish import Draft, Publication
from mmdiff.formats.store import Artifact
from mmdiff.runs import Run


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
