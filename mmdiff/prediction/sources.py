"""The rows to predict, read from a store: ids, best classes and given labels of the collection and of the test points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.problem import open_graph
from mmdiff.evaluation.scores import TEST, Scores, test_points_of
from mmdiff.formats.errors import FILE, BadOption, Missing, Parameter, Placeholder, Stale, call
from mmdiff.formats.errors import Part as MessagePart
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.fusion.late import probabilities
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.collection import BACKGROUND
from mmdiff.labels.ids import Ids, ids_of
from mmdiff.labels.label_set import LabelSet, read_label_set
from mmdiff.labels.rows_by_id import RowsById
from mmdiff.prediction.rows import Given, Part, best_classes
from mmdiff.runtime.staleness import require_current

Rows = Literal["all", "collection", "test"]
ROWS: tuple[Rows, ...] = ("all", "collection", "test")


@dataclass(frozen=True)
class Source:
    """Scores of a store, and the rows that they predict. `classes` are those of the scores, then others of given labels."""

    scores: Artifact
    parts: list[Part]
    classes: Classes

    @property
    def method(self) -> str:
        return str(self.scores.manifest.parameters["method"])

    @property
    def iteration(self) -> int | None:
        """The iteration of the scores; None for methods without iterations."""
        return int(self.scores.manifest.parameters["iterations"]) if self.method == "diffusion" else None

    @property
    def score_classes(self) -> int:
        """The classes that can be predicted."""
        return int(self.scores.facts["classes"])

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def read_source(store: Store, name: str, rows: Rows) -> Source:
    """The current scores of a name and their rows; refused where they are missing, stale, or of other rows."""
    if store.id(name) is None:
        raise _missing(store, name)
    artifact = store.open_artifact(name)
    require_current(store, artifact)
    file = artifact.manifest.inputs.get("labels", {}).get("source")
    if file is not None:
        raise BadOption(
            f"{name}: made with labels from {file}, which are not in the store, so that none can be held out. Import the rows "
            "with their labels, then run: ",
            call("diffuse"),
        )
    classes: Classes = Classes.of(artifact)
    parts: list[Part] = []
    if rows != "test":
        classes, parts = _collection(store, artifact)
    if rows != "collection" and "scores" in artifact:
        parts.append(_tests(store, artifact))
    if not parts:
        raise Missing(
            Parameter("rows", rows),
            f": {name} has no scores of test points. Leave it out to predict the rows of the collection.",
        )
    return Source(artifact, parts, classes)


def _missing(store: Store, name: str) -> Missing:
    """The error for scores that do not exist, with all steps to them in their order."""
    steps: list[MessagePart] = []
    if store.id(GRAPH) is None:
        if store.id(BACKGROUND) is None:
            steps.append(call("add", FILE, labels=FILE))
        steps.append(call("build_graph"))
    method = name.removeprefix("scores/")
    known = {"diffusion": call("diffuse"), "logreg": call("logreg"), "fusion": call("fuse")}
    steps.append(known.get(method, call("diffuse", name=method)))
    parts: list[MessagePart] = [f"{store.path}: no {name} to predict from. Run first: "]
    for place, step in enumerate(steps):
        parts += ["; then ", step] if place else [step]
    return Missing(*parts)


def _collection(store: Store, artifact: Artifact) -> tuple[Classes, list[Part]]:
    """The rows of the collection, and the table of all classes that they may have."""
    if "top_classes" not in artifact:
        raise _without_collection(artifact)
    own = Classes.of(artifact)
    top, scores = labels_of(artifact, own, "top_classes"), artifact.array("top_scores")
    labels = current_labels(store, artifact)
    classes, columns = own.extended_by(labels.classes)
    # The entry appended to the columns is the one that index -1, no label, finds.
    given = Given(labels.rows, np.append(columns, UNLABELLED)[labels.labels].astype(np.int32))
    parts, first = [], 0
    for ids in ids_of_collection(store, artifact, len(top)):

        def best(start: int, stop: int, first: int = first) -> TopClasses:
            return TopClasses(top[first + start : first + stop], scores[first + start : first + stop])

        parts.append(Part(ids, best, given.between(first, first + len(ids))))
        first += len(ids)
    return classes, parts


def current_labels(store: Store, scores: Artifact) -> LabelSet:
    """The labels of a store; refused where a diffusion was made with others."""
    labels = read_label_set(store, open_graph(store))
    made = scores.manifest
    if made.parameters["method"] == "diffusion":
        for key, entry in labels.inputs.items():
            if made.inputs.get(key) != entry:
                raise Stale(
                    f"{scores.name}: made without the labels of {entry['artifact']}. Run again: {scores.run['command']}"
                )
    return labels


def _without_collection(artifact: Artifact) -> Missing:
    """The error for scores of test points only."""
    parts: list[MessagePart] = [f"{artifact.name}: made without predictions of the rows of the collection. "]
    if artifact.manifest.parameters["method"] == "diffusion":
        parts += ["Make them with ", call("diffuse", predict_nodes=Placeholder("FILE.parquet")), ", or predict "]
    else:
        parts.append("Predict ")
    return Missing(*parts, "the test points alone, with ", Parameter("rows", "test"), ".")


def ids_of_collection(store: Store, artifact: Artifact, rows: int) -> list[Ids | range]:
    """The ids of each part of the collection; row numbers where an imported graph stands for rows that are not in the store."""
    collection = RowsById.of(store)
    if not collection.parts:
        return [range(rows)]
    if len(collection) != rows:
        raise Stale(
            f"{artifact.name}: made for {rows:,} rows of the collection, which has {len(collection):,}. {artifact.remedy}"
        )
    return [part.ids for part in collection.parts]


def _tests(store: Store, artifact: Artifact) -> Part:
    if test_points_of(store, artifact) != store.id(TEST):
        raise Stale(f"{artifact.name}: {TEST} has changed since, so the ids belong to other points. {artifact.remedy}")
    scores = Scores.of(artifact)
    values = scores.after()

    def best(start: int, stop: int) -> TopClasses:
        return best_of(values[start:stop], scores.method)

    return Part(ids_of(store.open_artifact(TEST)), best, Given.none())


def best_of(values: NDArray[np.float32], method: str) -> TopClasses:
    """The best few classes of rows of scores, which are logarithms unless they come from a diffusion."""

    def block(start: int, stop: int) -> NDArray[np.float32]:
        return values[start:stop] if method == "diffusion" else probabilities(values[start:stop])

    return best_classes(block, len(values), values.shape[1])
