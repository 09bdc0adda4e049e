"""Descriptors that were imported in several batches: their inputs, their columns and their matrices, one after the other.

`descriptors/appended` holds all rows that were appended to the background. A merged background holds rows of both. The inputs
of the first batch have the usual keys, those of batch i are `source_i`, `labels_i` and so on; the parameter `on_bad` is a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.collection import rows_of
from mmdiff.labels.ids import Ids, ids_of, joined
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.threads import in_threads

_KEYS = ("source", "labels", "ids", "class_names")

# More threads than cores, because some of them wait for the disk to confirm a write.
_THREADS = 4


@dataclass(frozen=True)
class Batch:
    """The inputs of one import by key, the state of their files, and the treatment of bad rows."""

    inputs: Json
    states: Json
    on_bad: str

    @property
    def source(self) -> tuple[Json, Json]:
        """The fingerprint of the rows themselves, and the state of their files."""
        return self.inputs["source"], self.states["source"]


def batches_of(artifact: Artifact) -> list[Batch]:
    """The batches of an artifact, in the order of their rows."""
    manifest, states = artifact.manifest, artifact.run["witness"]
    on_bad = manifest.parameters["on_bad"]
    found = []
    for number, treatment in enumerate(on_bad if isinstance(on_bad, list) else [on_bad]):
        keys = {key: _key(key, number) for key in _KEYS if _key(key, number) in manifest.inputs}
        inputs = {key: manifest.inputs[stored] for key, stored in keys.items()}
        found.append(Batch(inputs, {key: states[stored] for key, stored in keys.items()}, treatment))
    return found


def inputs_of_batches(batches: Sequence[Batch]) -> tuple[Json, Json]:
    """The inputs of a recipe over several batches, and their source fingerprints."""
    inputs, states = {}, {}
    for number, batch in enumerate(batches):
        for key, entry in batch.inputs.items():
            inputs[_key(key, number)], states[_key(key, number)] = entry, batch.states[key]
    return inputs, states


def _key(key: str, number: int) -> str:
    return key if number == 0 else f"{key}_{number + 1}"


@dataclass(frozen=True)
class RowColumns:
    """Labels and ids of some rows, the ids of rows that were dropped among them, and how many for each reason.

    Without `ids` rows are identified by their numbers.
    """

    rows: int
    labels: NDArray[np.int32] | None
    classes: Classes | None
    ids: Ids | None
    dropped_ids: Ids | None
    dropped: Mapping[str, int]

    @classmethod
    def of(cls, artifact: Artifact) -> RowColumns:
        """The columns of descriptors."""
        classes = Classes.of(artifact) if "labels" in artifact else None
        labels = None if classes is None else labels_of(artifact, classes)
        ids = ids_of(artifact)
        dropped_ids: Ids | None = artifact.array("dropped_ids") if "dropped_ids" in artifact else None
        if "dropped_ids_offsets" in artifact:
            dropped_ids = artifact.strings("dropped_ids")
        given = None if isinstance(ids, range) else ids
        return cls(rows_of(artifact), labels, classes, given, dropped_ids, artifact.facts["dropped"])

    def followed_by(self, other: RowColumns) -> RowColumns:
        """The columns of these rows and of others after them; the classes that only the others have come last."""
        labels, classes = self._labels_with(other)
        following = np.arange(self.rows, self.rows + other.rows)
        added = following if other.ids is None else other.ids
        ids: Ids | None = None
        # Row numbers that simply go on need not be stored.
        if self.ids is not None or isinstance(added, Strings) or not np.array_equal(added, following):
            ids = joined(np.arange(self.rows) if self.ids is None else self.ids, added)
        dropped_ids = [part for part in (self.dropped_ids, other.dropped_ids) if part is not None]
        reasons = {**self.dropped, **other.dropped}
        return RowColumns(
            rows=self.rows + other.rows,
            labels=labels,
            classes=classes,
            ids=ids,
            dropped_ids=reduce(joined, dropped_ids) if dropped_ids else None,
            dropped={reason: self.dropped.get(reason, 0) + other.dropped.get(reason, 0) for reason in reasons},
        )

    def _labels_with(self, other: RowColumns) -> tuple[NDArray[np.int32] | None, Classes | None]:
        if self.labels is None or self.classes is None or other.labels is None or other.classes is None:
            classes = self.classes if other.classes is None else other.classes
            columns = np.arange(0 if classes is None else len(classes))
        else:
            classes, columns = self.classes.extended_by(other.classes)
        if classes is None:
            return None, None
        tables = [
            np.full((part.rows, 1), UNLABELLED, np.int32) if part.labels is None else part.labels.reshape(part.rows, -1)
            for part in (self, other)
        ]
        labels = np.full((self.rows + other.rows, max(table.shape[1] for table in tables)), UNLABELLED, np.int32)
        labels[: self.rows, : tables[0].shape[1]] = tables[0]
        # The entry appended to the columns is the one that index -1, no label, finds.
        labels[self.rows :, : tables[1].shape[1]] = np.append(columns, UNLABELLED)[tables[1]]
        return labels[:, 0] if labels.shape[1] == 1 else labels, classes

    def write(self, draft: Draft) -> None:
        """Writes the columns into an artifact."""
        if self.labels is not None and self.classes is not None:
            draft.values("labels", self.labels)
            self.classes.write(draft)
        for name, ids in (("ids", self.ids), ("dropped_ids", self.dropped_ids)):
            if isinstance(ids, Strings):
                draft.strings(name, ids)
            elif ids is not None:
                draft.values(name, ids)

    def facts(self) -> Json:
        classes = {} if self.classes is None else {"classes": len(self.classes)}
        return classes | {"rows": self.rows, "dropped": dict(self.dropped)}


@dataclass(frozen=True)
class Matrices:
    """The matrices of an artifact, by name their width and dtype: the rows of `continued`, then `added` more rows.

    Their chunks hold the same rows. `read` gives rows start..stop-1 of those that are added, one array for each matrix.
    """

    shapes: Mapping[str, tuple[int, str]]
    continued: Artifact | None
    added: int
    rows_per_chunk: int
    read: Callable[[int, int], Mapping[str, NDArray[np.generic]]]

    def write(self, draft: Draft, what: str, progress: Progress) -> int:
        """Writes the chunks that are neither shared with `continued` nor left by an interrupted run; counts the latter."""
        before = 0 if self.continued is None else rows_of(self.continued)
        rows = before + self.added
        if self.continued is not None:
            for name, (width, _) in self.shapes.items():
                self.continued.require_shape(name, (before, width))
        writers = {
            name: draft.array(name, (rows, width), dtype, self.rows_per_chunk, self.continued)
            for name, (width, dtype) in self.shapes.items()
        }
        vectors = writers["vectors"]
        same = self.continued is not None and self.continued.spec("vectors").rows_per_chunk == self.rows_per_chunk
        found = len(vectors.crcs) - (before // self.rows_per_chunk if same else 0)
        earlier = {} if self.continued is None else {name: self.continued[name] for name in self.shapes}

        def write(chunk: int) -> int:
            start, stop = vectors.spec.rows(chunk)
            parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in self.shapes}
            if start < before:
                for name, values in earlier.items():
                    parts[name].append(values[start : min(stop, before)])
            if stop > before:
                for name, block in self.read(max(start, before) - before, stop - before).items():
                    parts[name].append(block)
            for name, writer in writers.items():
                if chunk not in writer.crcs:
                    writer.write(chunk, np.concatenate(parts[name]), cached=False)
            return stop - start

        todo = sorted({chunk for writer in writers.values() for chunk in writer.missing})
        with progress(what, rows, "rows") as advance:
            advance(rows - sum(stop - start for start, stop in map(vectors.spec.rows, todo)))
            for count in in_threads(write, todo, _THREADS):
                advance(count)
        return found
