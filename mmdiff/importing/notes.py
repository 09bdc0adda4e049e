"""What an import means for what was there before: labels that no seed has, roles that were made with another PCA."""

from __future__ import annotations

import numpy as np

from mmdiff.classes import UNLABELLED, Classes
from mmdiff.formats.errors import BadLabels, Corrupt
from mmdiff.formats.store import Artifact, Store
from mmdiff.importing import space as spaces

_SHOWN = 5


def notes_on(store: Store, imported: str) -> list[str]:
    """Sentences for the user, after one role was imported; damage to another role is worth one, and no reason to fail."""
    artifacts: dict[str, Artifact] = {}
    damage = []
    for name in (f"descriptors/{role}" for role in ("background", "seeds", "test")):
        try:
            if store.id(name) is not None:
                artifacts[name] = store.open_artifact(name)
        except Corrupt as error:
            damage.append(str(error))
    stale = [
        f"{name} was made with another {spaces.NAME}: import it again."
        for name, artifact in artifacts.items()
        if artifact.manifest.inputs["pca"]["object"] != store.id(spaces.NAME)
    ]
    seeds = artifacts.get("descriptors/seeds")
    labelled = [name for name in artifacts if name != "descriptors/seeds" and imported in ("seeds", name.split("/")[1])]
    return damage + stale + [note for name in labelled if seeds for note in _unseen(artifacts[name], seeds)]


def unseen_classes(artifact: Artifact, seeds: Artifact) -> list[str]:
    """The classes of an artifact's labels that no seed has."""
    classes = Classes.of(artifact)
    used = np.unique(artifact.array("labels"))
    unknown = np.flatnonzero(classes.columns_in(Classes.of(seeds)) == UNLABELLED)
    return [classes.title(int(index)) for index in np.intersect1d(used, unknown)]


def _unseen(artifact: Artifact, seeds: Artifact) -> list[str]:
    if "labels" not in artifact:
        return []
    try:
        unseen = unseen_classes(artifact, seeds)
    except BadLabels as error:
        return [f"{artifact.name}: {error}"]
    except Corrupt as error:
        return [str(error)]
    if not unseen:
        return []
    shown = ", ".join(unseen[:_SHOWN]) + (", ..." if len(unseen) > _SHOWN else "")
    return [f"{artifact.name}: no seed has {len(unseen)} of its classes ({shown}). Kept; they can only be misses."]
