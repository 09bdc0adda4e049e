"""Whether an artifact is still what its inputs would give: the artifacts it was made from, and the user's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmdiff.formats.store.fingerprint import state
from mmdiff.formats.store.store import Artifact, Store


def made_from(artifact: Artifact) -> list[str]:
    """What an artifact was made from, by the names that people know: its source, other files, other artifacts."""
    inputs = sorted(artifact.manifest.inputs.items(), key=lambda item: (item[0] != "source", "artifact" in item[1]))
    return [entry.get("artifact") or entry["source"] for _, entry in inputs]


def reasons_stale(store: Store, artifact: Artifact) -> list[str]:
    """Why an artifact is no longer current; nothing if it is."""
    reasons = []
    for key, entry in artifact.manifest.inputs.items():
        if "artifact" in entry:
            if store.id(entry["artifact"]) != entry["object"]:
                reasons.append(f"{entry['artifact']} has changed since")
        elif state(artifact.run["witness"][key]) == "changed":
            reasons.append(f"{entry['source']} has changed since")
    return reasons


def sources_gone(artifact: Artifact) -> list[str]:
    """The user's files that are no longer where they were read; the artifact does not need them."""
    inputs = artifact.manifest.inputs.items()
    return [entry["source"] for key, entry in inputs if "source" in entry and state(artifact.run["witness"][key]) == "gone"]


@dataclass(frozen=True)
class StaleArtifact:
    """An artifact that is no longer current, the input that has changed, and the command that makes it anew."""

    artifact: str
    changed: str
    command: str


def stale_artifacts(store: Store, artifact: Artifact) -> list[StaleArtifact]:
    """What is not current among all that an artifact was made from, and itself, in the order in which to make it anew.

    The user's own files are not looked at: what is in the store goes together until they are imported again.
    """
    return list({entry.artifact: entry for entry in _outdated(store, artifact)}.values())


def _outdated(store: Store, artifact: Artifact) -> Iterator[StaleArtifact]:
    behind: list[StaleArtifact] = []
    changed = []
    for entry in artifact.manifest.inputs.values():
        if "artifact" not in entry:
            continue
        now = store.id(entry["artifact"])
        if now is not None:
            behind.extend(_outdated(store, store.open_artifact(entry["artifact"])))
        if now != entry["object"]:
            changed.append(entry["artifact"])
    yield from behind
    if changed or behind:
        yield StaleArtifact(artifact.name, (changed or [behind[-1].artifact])[0], artifact.run["command"])
