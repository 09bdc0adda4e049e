"""The inputs of a diffusion in a store: the graph, the labels of its seeds, and the lists of the test points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, Missing, Parameter, Stale, call
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.spec import is_file
from mmdiff.formats.sources.text import LIST_BYTES, read_lines
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import NONE
from mmdiff.labels.classes import UNLABELLED, Classes, encode
from mmdiff.labels.collection import APPENDED, appended_rows, rows_of
from mmdiff.labels.label_set import read_label_set
from mmdiff.runtime.find_or_make import input_of
from mmdiff.runtime.staleness import require_current

TEST, TEST_LISTS = "descriptors/test", "knn/test"
_SHOWN = 5


@dataclass(frozen=True)
class Problem:
    """The inputs of a diffusion, as arrays and as entries of a recipe. `neighbors` are the lists of the test points.

    `collection` is the number of rows of the background and of those appended to it: the first of the user's rows.
    """

    graph: CsrGraph
    W: Artifact
    collection: int
    seeds: Seeds
    classes: Classes
    neighbors: NDArray[np.uint32] | None
    inputs: Json
    source_fingerprint: Json = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def tests(self) -> int:
        return 0 if self.neighbors is None else len(self.neighbors)


def read_problem(store: Store, labels: str | None, chosen: str | Sequence[str] | None) -> Problem:
    """The problem of a store; refused if its parts do not fit together. `labels` is a file with a label for each node."""
    artifact = open_graph(store)
    inputs: Json = {"W": input_of(artifact)}
    notes: list[str] = []
    graph = CsrGraph.from_artifact(artifact)
    if labels is not None:
        column = read_column(labels, graph.nodes)
        if len(column) != graph.nodes:
            raise CountMismatch(f"{labels}: {len(column)} labels for {graph.nodes:,} nodes. Give one for each, -1 for none.")
        table, classes = encode(column, None, numbered=True, where=labels)
        nodes, path = graph.node_of_row, Path(labels.partition("::")[0])
        inputs["labels"] = fingerprint(path.name, [path])
        seen = {"labels": source_fingerprint([path])}
    else:
        found = read_label_set(store, artifact).used()
        classes, table, seen, notes = found.classes, found.labels, {}, found.notes
        nodes = graph.node_of_row[found.rows]
        inputs |= found.inputs
    classes, table = choose_classes(classes, table, chosen)
    seeds = Seeds.of(nodes, table, len(classes))
    if not len(seeds.columns):
        raise BadLabels(
            "none of the chosen classes has a seed, so there is nothing to spread. Choose others with ",
            Parameter("classes"),
            ".",
        )
    neighbors = _neighbors(store, artifact, graph, inputs)
    facts = artifact.manifest.facts
    return Problem(
        graph=graph,
        W=artifact,
        collection=facts["background"] + facts.get("appended", 0),
        seeds=seeds,
        classes=classes,
        neighbors=neighbors,
        inputs=inputs,
        source_fingerprint=seen,
        warnings=notes + _seedless(classes, seeds),
    )


def open_graph(store: Store) -> Artifact:
    """The graph of a store; refused where it is missing, stale, or of other rows than the store has."""
    if store.id(GRAPH) is None:
        raise Missing(f"{store.path}: no graph to spread labels over. Run first: ", call("build_graph"))
    artifact = store.open_artifact(GRAPH)
    require_current(store, artifact)
    _require_rows_of_roles(store, artifact)
    return artifact


def choose_classes(
    classes: Classes, table: NDArray[np.int32], chosen: str | Sequence[str] | None
) -> tuple[Classes, NDArray[np.int32]]:
    """The chosen classes, and labels as indices into them; a label of a class that is not chosen counts as none."""
    columns = _chosen(classes, chosen)
    # The last entry is for UNLABELLED, which is -1.
    place = np.full(len(classes) + 1, UNLABELLED, np.int32)
    place[columns] = np.arange(len(columns))
    return classes.take(columns), place[table]


def _require_rows_of_roles(store: Store, graph: Artifact) -> None:
    """Compares the nodes of each role with its rows. Imported graphs may be older than the rows."""
    if "source" in graph.manifest.inputs:
        return
    facts, appended = graph.manifest.facts, appended_rows(store)
    rows = 0 if appended is None else rows_of(appended)
    if rows != facts.get("appended", 0):
        raise Stale(
            f"{GRAPH}: made with {facts.get('appended', 0):,} appended rows, but {APPENDED} has {rows:,}. "
            f"Run again: {graph.run['command']}"
        )
    for role in ("background", "seeds", "test"):
        nodes = facts[role]
        if nodes and store.id(f"descriptors/{role}") is not None:
            rows = store.open_artifact(f"descriptors/{role}").spec("vectors").shape[0]
            if rows != nodes:
                raise Stale(
                    f"{GRAPH}: made with {nodes:,} rows of descriptors/{role}, which has {rows:,}. "
                    f"Run again: {graph.run['command']}"
                )


def _neighbors(store: Store, artifact: Artifact, graph: CsrGraph, inputs: Json) -> NDArray[np.uint32] | None:
    """The lists of the test points. Test points that are nodes of an imported graph have themselves as their list."""
    tests = artifact.manifest.facts["test"]
    imported = "source" in artifact.manifest.inputs
    if imported and tests:
        first = graph.nodes - tests
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


def _chosen(classes: Classes, chosen: str | Sequence[str] | None) -> NDArray[np.int64]:
    """The columns of the chosen classes, listed by number or name, in the order of the table; all without a list."""
    if chosen is None:
        return np.arange(len(classes))
    listed: Sequence[str]
    if not isinstance(chosen, str):
        listed = chosen
    elif classes.find(chosen) is not None:
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
