"""Whether an artifact is still what its inputs would give: the artifacts it was made from, and the user's files."""

from __future__ import annotations

from mmdiff.formats.fingerprint import unchanged
from mmdiff.formats.store import Artifact, Store


def made_from(artifact: Artifact) -> list[str]:
    """What an artifact was made from, by the names that people know."""
    return [entry.get("artifact") or entry["source"] for entry in artifact.manifest.inputs.values()]


def reasons_stale(store: Store, artifact: Artifact) -> list[str]:
    """Why an artifact is no longer current; nothing if it is."""
    reasons = []
    for key, entry in artifact.manifest.inputs.items():
        if "artifact" in entry:
            if store.id(entry["artifact"]) != entry["object"]:
                reasons.append(f"{entry['artifact']} has changed since")
        elif not unchanged(artifact.run["witness"][key]):
            reasons.append(f"{entry['source']} has changed since, or is gone")
    return reasons
