"""Merging appended rows into the background, before the graph is built anew: `mmdiff build-graph --merge-appended`.

The merged background has the rows of both, in the user's order, so that row numbers and ids stay. Full chunks of the old
background are shared. The name of the background changes first: from then on the appended rows belong to a background that was
replaced, so that a run that is killed before it removes their name leaves them out all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage.arrays import even_rows_per_chunk
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact
from mmdiff.importing.batches import Matrices, RowColumns, batches_of, inputs_of_batches
from mmdiff.importing.stage import SCHEMA
from mmdiff.labels.collection import BACKGROUND, appended_rows, remove_leftover, rows_of
from mmdiff.runtime.find_or_make import Made, Run, make
from mmdiff.runtime.progress import Progress


def merge_appended(publication: Publication, command: str, progress: Progress) -> Made | None:
    """Makes the background and the rows appended to it one artifact; None where there are none.

    The publication has the names of both.
    """
    store = publication.store
    appended = appended_rows(store)
    if appended is None:
        return None
    background = store.open_artifact(BACKGROUND)
    columns = RowColumns.of(background).followed_by(RowColumns.of(appended))
    matrices = _matrices(background, appended)

    def fill(draft: Draft) -> Json:
        columns.write(draft)
        matrices.write(draft, "merging appended rows", progress)
        return columns.facts()

    # All commands that make these rows, for the time when the artifact is damaged.
    run = Run(f"{background.run['command']}; then {appended.run['command']}; then {command}")
    made = make(publication, BACKGROUND, _recipe(background, appended), run, fill, disk=_disk(appended))
    remove_leftover(publication)
    return made


def _recipe(background: Artifact, appended: Artifact) -> Recipe:
    batches = [*batches_of(background), *batches_of(appended)]
    inputs, states = inputs_of_batches(batches)
    parameters = {
        **background.manifest.parameters,
        "on_bad": [batch.on_bad for batch in batches],
        # The chunks depend on these, the rows only on the batches.
        "merged": [background.id, appended.id],
    }
    return Recipe("descriptors", SCHEMA, parameters, {**inputs, "pca": background.manifest.inputs["pca"]}, states)


def _matrices(background: Artifact, appended: Artifact) -> Matrices:
    """The matrices of both. Those of a background of several chunks keep its chunks, which are then of a good size."""
    shapes = {
        name: (background.spec(name).shape[1], background.spec(name).dtype) for name in ("vectors", "raw") if name in background
    }
    rows, spec = rows_of(background) + rows_of(appended), background.spec("vectors")
    even = even_rows_per_chunk(*(((rows, width), dtype) for width, dtype in shapes.values()))

    def read(start: int, stop: int) -> Mapping[str, NDArray[np.generic]]:
        return {name: appended[name][start:stop] for name in shapes}

    return Matrices(shapes, background, rows_of(appended), spec.rows_per_chunk if spec.chunks > 1 else even, read)


def _disk(appended: Artifact) -> int:
    """Bytes of the matrices of the rows that are added."""
    return sum(appended.spec(name).bytes_on_disk for name in ("vectors", "raw") if name in appended)
