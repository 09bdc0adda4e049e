"""The inputs of a diffusion in a store: the graph, the labels of its seeds, and the lists of the test points."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.errors import FILE, BadLabels, BadOption, CountMismatch, Missing, Parameter, Stale, call
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.spec import is_file
from mmdiff.formats.sources.text import LIST_BYTES, read_lines
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import NONE
from mmdiff.labels.classes import UNLABELLED, Classes, encode, labels_of
from mmdiff.runtime.find_or_make import input_of
from mmdiff.runtime.staleness import require_current

BACKGROUND, SEEDS, TEST, TEST_LISTS = "descriptors/background", "descriptors/seeds", "descriptors/test", "knn/test"
_SHOWN = 5


@dataclass(frozen=True)
class Problem:
    """The inputs of a diffusion, as arrays and as entries of a recipe. `neighbors` are the lists of the test points."""

    graph: CsrGraph
    W: Artifact
    background: int
    seeds: Seeds
    classes: Classes
    neighbors: NDArray[np.uint32] | None
    inputs: Json
    source_fingerprint: Json = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def tests(self) -> int:
        return 0 if self.neighbors is None else len(self.neighbors)


def read_problem(store: Store, labels: str | None, chosen: str | None) -> Problem:
    """The problem of a store; refused if its parts do not fit together. `labels` is a file with a label for each node."""
    if store.id(GRAPH) is None:
        raise Missing(f"{store.path}: no graph to spread labels over. Run first: ", call("build_graph"))
    artifact = store.open_artifact(GRAPH)
    require_current(store, artifact)
    _require_rows_of_roles(store, artifact)
    inputs: Json = {"W": input_of(artifact)}
    graph = CsrGraph.from_artifact(artifact)
    if labels is not None:
        column = read_column(labels, graph.nodes)
        if len(column) != graph.nodes:
            raise CountMismatch(f"{labels}: {len(column)} labels for {graph.nodes:,} nodes. Give one for each, -1 for none.")
        table, classes = encode(column, None, numbered=True, where=labels)
        nodes, path = graph.node_of_row, Path(labels.partition("::")[0])
        inputs["labels"] = fingerprint(path.name, [path])
        seen = {"labels": source_fingerprint([path])}
    elif (collection := _labelled_background(store, artifact)) is not None:
        classes, seen = Classes.of(collection).numbered(), {}
        table = labels_of(collection, classes)
        nodes = graph.node_of_row[: len(table)]
        inputs["background"] = input_of(collection)
    else:
        labelled = _labelled_seeds(store, artifact)
        classes, seen = Classes.of(labelled), {}
        table = labels_of(labelled, classes)
        nodes = artifact.manifest.facts["background"] + np.arange(len(table))
        inputs["seeds"] = input_of(labelled)
    columns = _chosen(classes, chosen)
    # A label of a class that is not chosen counts as none. The last entry is for UNLABELLED, which is -1.
    place = np.full(len(classes) + 1, UNLABELLED, np.int32)
    place[columns] = np.arange(len(columns))
    seeds = Seeds.of(nodes, place[table], len(columns))
    if not len(seeds.columns):
        raise BadLabels(
            "none of the chosen classes has a seed, so there is nothing to spread. Choose others with ",
            Parameter("classes"),
            ".",
        )
    neighbors = _neighbors(store, artifact, graph, inputs)
    classes = classes.take(columns)
    background = artifact.manifest.facts["background"]
    return Problem(
        graph=graph,
        W=artifact,
        background=background,
        seeds=seeds,
        classes=classes,
        neighbors=neighbors,
        inputs=inputs,
        source_fingerprint=seen,
        warnings=_seedless(classes, seeds),
    )


def _require_rows_of_roles(store: Store, graph: Artifact) -> None:
    """Compares the nodes of each role with its rows. Imported graphs may be older than the rows."""
    if "source" in graph.manifest.inputs:
        return
    for role in ("background", "seeds", "test"):
        nodes = graph.manifest.facts[role]
        if nodes and store.id(f"descriptors/{role}") is not None:
            rows = store.open_artifact(f"descriptors/{role}").spec("vectors").shape[0]
            if rows != nodes:
                raise Stale(
                    f"{GRAPH}: made with {nodes:,} rows of descriptors/{role}, which has {rows:,}. "
                    f"Run again: {graph.run['command']}"
                )


def _labelled_background(store: Store, graph: Artifact) -> Artifact | None:
    """The background, if it is what has labels: there are no seeds, and some of its rows are labelled."""
    if store.id(SEEDS) is not None or store.id(BACKGROUND) is None:
        return None
    background = store.open_artifact(BACKGROUND)
    if "labels" not in background or background.spec("vectors").shape[0] != graph.manifest.facts["background"]:
        return None
    return background if (background.array("labels") != UNLABELLED).any() else None


def _labelled_seeds(store: Store, graph: Artifact) -> Artifact:
    if store.id(SEEDS) is None:
        raise Missing(f"{store.path}: no seeds, so no labels to spread. Run: ", call("add", FILE, labels=FILE, role="seeds"))
    seeds = store.open_artifact(SEEDS)
    if "labels" not in seeds:
        raise BadLabels(
            f"{SEEDS}: no labels, so there is nothing to spread. Import the seeds again with ", Parameter("labels", FILE), "."
        )
    rows, nodes = seeds.spec("vectors").shape[0], graph.manifest.facts["seeds"]
    if rows != nodes:
        raise Stale(f"{GRAPH}: made with {nodes:,} seeds, but {SEEDS} has {rows:,}. Run again: {graph.run['command']}")
    return seeds


def _neighbors(store: Store, artifact: Artifact, graph: CsrGraph, inputs: Json) -> NDArray[np.uint32] | None:
    """The lists of the test points. Test points that are nodes of an imported graph have themselves as their list."""
    tests = artifact.manifest.facts["test"]
    imported = "source" in artifact.manifest.inputs
    if imported and tests:
        first = artifact.manifest.facts["background"] + artifact.manifest.facts["seeds"]
        inputs["test"] = input_of(store.open_artifact(TEST))
        return np.arange(first, first + tests, dtype=np.uint32)[:, None]
    if imported or store.id(TEST) is None:
        return None
    if store.id(TEST_LISTS) is None:
        raise Stale(f"{GRAPH}: made before {TEST} was imported. Run again: {artifact.run['command']}")
    lists = store.open_artifact(TEST_LISTS)
    require_current(store, lists)
    if lists.manifest.facts["nodes"] != graph.nodes:
        raise Stale(f"{TEST_LISTS}: made for another graph. Run again: {artifact.run['command']}")
    lists.require_shape("neighbors", (store.open_artifact(TEST).spec("vectors").shape[0], lists.spec("neighbors").shape[1]))
    inputs["test"] = input_of(lists)
    return lists.index_array("neighbors", below=graph.nodes, none=int(NONE))


def _chosen(classes: Classes, chosen: str | None) -> NDArray[np.int64]:
    """The columns of the chosen classes, listed by number or name, in the order of the table; all without a list."""
    if chosen is None:
        return np.arange(len(classes))
    if classes.find(chosen) is not None:
        listed = [chosen]
    else:
        listed = read_lines(Path(chosen), LIST_BYTES) if is_file(chosen) else chosen.split(",")
    found = []
    for wanted in filter(None, map(str.strip, listed)):
        column = classes.find(wanted)
        if column is None:
            known = ", ".join(classes.title(index) for index in range(min(_SHOWN, len(classes))))
            raise BadOption(Parameter("classes", wanted), f": no seed has such a class. There are {len(classes)}: {known}, ...")
        found.append(column)
    return np.unique(np.array(found, np.int64))


def _seedless(classes: Classes, seeds: Seeds) -> list[str]:
    without = np.flatnonzero(seeds.per_class() == 0)
    if not len(without):
        return []
    shown = ", ".join(classes.title(int(column)) for column in without[:_SHOWN]) + (", ..." if len(without) > _SHOWN else "")
    return [f"{len(without)} of {len(classes)} classes have no seed ({shown}): their scores are zero everywhere."]
