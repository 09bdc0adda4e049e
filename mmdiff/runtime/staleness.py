"""Staleness: whether an artifact is still what its inputs would give. All stages ask here.

An artifact is stale if an artifact that it was made from, directly or further back, has been replaced since. The user's files
count only for the artifact that was imported from them: what is in the store goes together until they are imported again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmdiff.formats.errors import Stale
from mmdiff.formats.store.fingerprint import state
from mmdiff.formats.store.store import Artifact, Store

# Made by building the graph, which reads the descriptors of all roles.
_OF_THE_GRAPH = ("cells", "knn", "graph")

LABELS = "labels/current"


@dataclass(frozen=True)
class StaleArtifact:
    """A stale artifact, the input that has changed, and the command that makes it anew."""

    artifact: str
    changed: str
    command: str

    def __str__(self) -> str:
        return f"{self.changed} has changed since {self.artifact} was made from it"


def stale_artifacts(store: Store, artifact: Artifact) -> list[StaleArtifact]:
    """All that is stale among an artifact's inputs, near and far, and itself; each follows what it is made from."""
    return list(_Search(store).visit(artifact).stale.values())


def reasons_stale(store: Store, artifact: Artifact) -> list[str]:
    """Why an artifact is stale, in a sentence for each cause; nothing if it is current."""
    search = _Search(store).visit(artifact)
    reasons = []
    for key, entry in artifact.manifest.inputs.items():
        if "artifact" not in entry:
            if state(artifact.run["witness"][key]) == "changed":
                reasons.append(f"{entry['source']} has changed since")
        elif store.id(entry["artifact"]) != entry["object"]:
            reasons.append(f"{entry['artifact']} has changed since")
        elif entry["artifact"] in search.stale:
            reasons.append(str(search.cause(entry["artifact"])))
    if _labelled_since(store, artifact):
        reasons.append(f"{LABELS} has changed since")
    return list(dict.fromkeys(reasons))


def require_current(store: Store, artifact: Artifact) -> None:
    """Raises Stale unless an artifact is current, with the commands that make it anew in an order that works."""
    found = stale_artifacts(store, artifact)
    if found:
        raise Stale(f"{artifact.name}: {found[0]}. Run again: {'; then '.join(commands(store, found))}")


def commands(store: Store, stale: Sequence[StaleArtifact]) -> list[str]:
    """The commands that make stale artifacts anew, each once, and each after those whose results it reads."""
    search = _Search(store)
    for entry in stale:
        search.visit(store.open_artifact(entry.artifact))
    if any(store.open_artifact(entry.artifact).manifest.kind in _OF_THE_GRAPH for entry in stale):
        for name in store.names():
            if name.startswith("descriptors/"):
                search.visit(store.open_artifact(name))
    return search.commands()


def _labelled_since(store: Store, artifact: Artifact) -> bool:
    """Whether labels were recorded, or held out, after an artifact was made from the labels of the store without any."""
    kind, method = artifact.manifest.kind, artifact.manifest.parameters.get("method")
    learned = kind in ("folds", "logreg") or (kind == "scores" and method in ("diffusion", "logreg"))
    learned |= kind == "audit" and artifact.manifest.parameters["part"] == "leaks"
    if not learned or "labels" in artifact.manifest.inputs or store.id(LABELS) is None:
        return False
    manifest = store.open_artifact(LABELS).manifest
    return bool(manifest.facts["entries"] or manifest.parameters["holdout"])


def made_from(artifact: Artifact) -> list[str]:
    """The inputs of an artifact by name: its source, other files, other artifacts."""
    inputs = sorted(artifact.manifest.inputs.items(), key=lambda item: (item[0] != "source", "artifact" in item[1]))
    return [entry.get("artifact") or entry["source"] for _, entry in inputs]


def sources_gone(artifact: Artifact) -> list[str]:
    """The user's files that are no longer where they were read. The artifact does not need them."""
    inputs = artifact.manifest.inputs.items()
    return [entry["source"] for key, entry in inputs if "source" in entry and state(artifact.run["witness"][key]) == "gone"]


class _Search:
    """Visits artifacts, inputs first, and collects those that are stale."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stale: dict[str, StaleArtifact] = {}
        self._inputs: dict[str, list[str]] = {}
        self._kinds: dict[str, str] = {}

    def visit(self, artifact: Artifact) -> _Search:
        if artifact.name in self._inputs:
            return self
        self._inputs[artifact.name], self._kinds[artifact.name] = [], artifact.manifest.kind
        changed, behind = [], []
        for entry in artifact.manifest.inputs.values():
            if "artifact" not in entry:
                continue
            name, now = entry["artifact"], self.store.id(entry["artifact"])
            self._inputs[artifact.name].append(name)
            if now is not None:
                self.visit(self.store.open_artifact(name))
            if now != entry["object"]:
                changed.append(name)
            elif name in self.stale:
                behind.append(name)
        if _labelled_since(self.store, artifact):
            changed.append(LABELS)
        if changed or behind:
            self.stale[artifact.name] = StaleArtifact(artifact.name, [*changed, *behind][0], artifact.run["command"])
        return self

    def cause(self, name: str) -> StaleArtifact:
        """The change, furthest back, that makes an artifact stale. Exchanged names can lead in a circle."""
        seen = {name}
        found = self.stale[name]
        while found.changed in self.stale and found.changed not in seen:
            seen.add(found.changed)
            found = self.stale[found.changed]
        return found

    def commands(self) -> list[str]:
        """One pass for each command that is next: the first one that reads nothing which another is still to make."""
        waiting = dict.fromkeys(entry.command for entry in self.stale.values())
        ordered: list[str] = []
        while waiting:
            ready = [command for command in waiting if not (self._before(command) & waiting.keys() - {command})]
            ordered.append(ready[0] if ready else next(iter(waiting)))
            del waiting[ordered[-1]]
        return ordered

    def _before(self, command: str) -> set[str]:
        """The commands that make what this one reads."""
        made = [name for name, entry in self.stale.items() if entry.command == command]
        reads = {name for artifact in made for name in self._inputs[artifact]}
        if any(self._kinds[name] in _OF_THE_GRAPH for name in made):
            reads |= {name for name in self.stale if name.startswith("descriptors/")}
        return {self.stale[name].command for name in reads if name in self.stale}
