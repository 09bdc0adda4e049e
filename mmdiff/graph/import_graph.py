"""`mmdiff import-graph`: a graph from elsewhere, as lists of neighbours or as a sparse matrix, becomes `graph/W`.

Row i of the file is node i, in the user's order: the background rows as they were imported, then those appended to them, then
the seeds, then, optionally, the test points. The graph is stored in this order, so an imported graph has no `order` array.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import (
    FILE,
    BadOption,
    BadRow,
    CountMismatch,
    InputError,
    Parameter,
    Part,
    UnreadableSource,
    one_of,
)
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.graphs import ENDINGS, NeighbourFile, read_csr
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import KIND, NAME, SCHEMA
from mmdiff.graph.in_memory import symmetric_graph
from mmdiff.graph.lists import MOST_NODES, Block
from mmdiff.graph.symmetrise import symmetrise
from mmdiff.graph.weights import EDGE_WEIGHTS, EdgeWeights, Weighting, choose, parameters
from mmdiff.kernels.constants import COLUMN, NONE
from mmdiff.labels.collection import appended_rows, rows_of
from mmdiff.runtime.find_or_make import Run, make, refuse_forecast
from mmdiff.runtime.progress import Progress, silent

Metric = Literal["similarity", "distance"]
METRICS = ("similarity", "distance")
MATRIX = ".npz"

# Entries of the lists that are counted at once.
_ENTRIES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Request:
    """Parameters of an import. `distances` has a value for each neighbour of `file`, of the kind that `metric` names."""

    file: Path
    distances: Path | None = None
    metric: Metric = "distance"
    edge_weights: EdgeWeights = "constant"
    sigma: float | None = None
    lambda_: float | None = None
    memory: int = 8 << 30
    command: str = "mmdiff import-graph"


@dataclass(frozen=True)
class Outcome:
    """The imported graph, and notes for the user."""

    artifact: Artifact
    reused: bool
    seconds: float
    notes: list[str]

    def summary(self) -> Json:
        """The outcome as plain values, for JSON."""
        manifest = self.artifact.manifest
        return {
            "artifact": NAME,
            "object": self.artifact.id,
            **manifest.facts,
            "bytes": manifest.bytes_on_disk,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
        }


class FileLists:
    """Lists of neighbours in a file, checked as they are read. Distances are converted to inner products of unit vectors."""

    def __init__(self, file: NeighbourFile, distances: Source | None, metric: Metric) -> None:
        self._file, self._distances, self._metric = file, distances, metric
        self.nodes, self.k = file.rows, file.width

    def least_disk(self, weighted: bool, free: int) -> int:
        """Bytes of the graph, at least: an edge for each entry. Entries are only counted where full lists would not fit."""
        edge, nodes = 8 if weighted else 4, 12 * self.nodes
        most = edge * self.k * self.nodes + nodes
        return most if most <= free else edge * self._entries() + nodes

    def _entries(self) -> int:
        """The number of entries, without those that are missing or repeated."""
        rows, count = max(1, _ENTRIES_AT_ONCE // self.k), 0
        for start in range(0, self.nodes, rows):
            found = np.sort(self._neighbors(start, min(start + rows, self.nodes)), axis=1)
            found[:, 1:][found[:, 1:] == found[:, :-1]] = NONE
            count += int((found != NONE).sum())
        return count

    def block(self, start: int, stop: int) -> Block:
        neighbors = self._neighbors(start, stop)
        return neighbors, self._similarities(start, stop, neighbors == NONE)

    def _neighbors(self, start: int, stop: int) -> NDArray[np.uint32]:
        found = self._file.read(start, stop)
        none = found == found.dtype.type(-1) if found.dtype.kind == "i" else found == NONE
        outside = ~none & ((found < 0) | (found >= self.nodes))
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise BadRow(
                f"{self._file.path}, row {start + row}: neighbour {found[row, column]} of {self.nodes} nodes. Neighbours are "
                f"rows, 0 to {self.nodes - 1}, or -1 for none: correct the list."
            )
        return np.where(none, NONE, found.astype(np.uint32))

    def _similarities(self, start: int, stop: int, none: NDArray[np.bool_]) -> NDArray[np.float32]:
        if self._distances is None:
            return np.broadcast_to(np.float32(0), none.shape)
        values = self._distances.read(start, stop).astype(np.float64)
        bad = ~none & ~np.isfinite(values)
        negative = ~none & (values < 0) if self._metric == "distance" else np.zeros_like(bad)
        remedies: tuple[tuple[NDArray[np.bool_], tuple[Part, ...]], ...] = (
            (bad, ("Give a finite one.",)),
            (
                negative,
                ("Distances are not negative; if these are similarities, say so with ", Parameter("metric", "similarity"), "."),
            ),
        )
        for wrong, remedy in remedies:
            if wrong.any():
                row, column = np.argwhere(wrong)[0]
                where = self._distances.locate(start + int(row))
                raise BadRow(f"{where}: the {self._metric} {values[row, column]:g} of a neighbour. ", *remedy)
        values = np.where(none, 0, values)
        return (values if self._metric == "similarity" else 1 - values * values / 2).astype(np.float32)


class MatrixFile:
    """A sparse matrix in a file, read as a whole because it may be compressed."""

    def __init__(self, file: Path) -> None:
        from scipy.sparse import csr_array

        data, indices, indptr, shape = read_csr(file)
        self.graph, self.symmetrised = symmetric_graph(csr_array((data, indices, indptr), shape), str(file))
        self.nodes = self.graph.nodes

    def write(self, draft: Draft) -> Json:
        """Writes the arrays of the graph; returns its facts."""
        graph = self.graph
        for name, values in (
            ("indptr", graph.indptr),
            ("indices", graph.indices),
            ("scale", graph.scale),
            ("weights", graph.weights),
        ):
            if values is not None:
                draft.values(name, values)
        reciprocal = int((graph.indices > COLUMN).sum())
        return {
            "nodes": graph.nodes,
            "edges": graph.edges,
            "reciprocal": round(reciprocal / graph.edges, 6) if graph.edges else 0.0,
            "symmetrised": self.symmetrised,
        }


@explaining
def import_graph(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Imports a file as `graph/W`. A repeated import is recognised and does nothing."""
    run = Run(request.command)
    one_of("metric", request.metric, METRICS)
    weighting = _weighting(request)
    given = MatrixFile(request.file) if request.file.suffix.lower() == MATRIX else _open_lists(request)
    roles = _roles(Store(path), request.file, given.nodes)

    def fill(draft: Draft) -> Json:
        if isinstance(given, MatrixFile):
            return given.write(draft) | roles
        return symmetrise(given, draft, request.memory, progress, weighting) | {"symmetrised": True} | roles

    def refuse_full_disk() -> None:
        if isinstance(given, FileLists):
            refuse_forecast(publication, NAME, given.least_disk(weighting is not None, seam.free_bytes(path)))

    with Publication(path, [NAME], request.command) as publication:
        recipe = _recipe(request, Store(path), roles, parameters(weighting))
        made = make(publication, NAME, recipe, run, fill, before=refuse_full_disk)
        return Outcome(made.artifact, made.reused, run.seconds, _notes(Store(path), roles))


def _weighting(request: Request) -> Weighting | None:
    """The weighting that the request names, refused where the distances it needs are missing or have no use."""
    distances, edge_weights = Parameter("distances"), Parameter("edge_weights")
    one_of("edge_weights", request.edge_weights, EDGE_WEIGHTS)
    weighted = request.edge_weights != "constant"
    if request.file.suffix.lower() == MATRIX and (weighted or request.distances is not None):
        raise BadOption(f"{request.file}: a matrix holds its own weights. Leave ", distances, " and ", edge_weights, " out.")
    if weighted and request.distances is None:
        needing = Parameter("edge_weights", request.edge_weights)
        raise BadOption(needing, " needs the distances of the neighbours. Give ", Parameter("distances", FILE), ".")
    if not weighted and request.distances is not None:
        raise BadOption(
            distances, ": constant weights do not depend on them. Leave them out, or choose other ", edge_weights, "."
        )
    return choose(request.edge_weights, request.sigma, request.lambda_)


def _open_lists(request: Request) -> FileLists:
    if request.file.suffix.lower() not in ENDINGS:
        endings = ", ".join((MATRIX, *ENDINGS))
        raise UnreadableSource(f"{request.file}: graphs are read from files that end in {endings}. Convert the file.")
    file = NeighbourFile(request.file)
    if file.rows > MOST_NODES:
        raise InputError(f"{request.file}: {file.rows:,} nodes. A graph has at most {MOST_NODES:,}.")
    if request.distances is None:
        return FileLists(file, None, request.metric)
    distances = open_source([str(request.distances)])
    if (distances.rows, distances.width) != (file.rows, file.width):
        raise CountMismatch(
            f"{request.distances}: {distances.rows} x {distances.width} values for the {file.rows} x {file.width} neighbours "
            f"of {request.file}. Give one for each neighbour."
        )
    return FileLists(file, distances, request.metric)


def _roles(store: Store, file: Path, nodes: int) -> Json:
    """The number of nodes of each role. Test points are nodes if there are as many nodes as rows of all roles together."""
    counts = {role: _rows(store, role) for role in ("background", "appended", "seeds", "test")}
    without_test = sum(counts.values()) - counts["test"]
    if without_test == 0:
        return {"background": nodes, "appended": 0, "seeds": 0, "test": 0}
    if nodes == without_test:
        return {**counts, "test": 0}
    if nodes == without_test + counts["test"]:
        return counts
    present = ", ".join(f"{count:,} {role}" for role, count in counts.items() if count)
    raise CountMismatch(
        f"{file}: {nodes:,} nodes, but the store holds {present}. Give a graph over the background rows, then those "
        "appended to it, then the seeds, then optionally the test points, or use another store."
    )


def _notes(store: Store, roles: Json) -> list[str]:
    """Sentences for the user: imported test points that the graph leaves out are not forgotten silently."""
    tests = _rows(store, "test")
    if roles["test"] or not tests:
        return []
    points = "1 test point is not a node" if tests == 1 else f"{tests:,} test points are not nodes"
    return [
        f"the {points} of this graph and will get no scores with it. Import a graph over all rows including the test points, "
        "or build one."
    ]


def _rows(store: Store, role: str) -> int:
    name = f"descriptors/{role}"
    if role == "appended":
        appended = appended_rows(store)
        return 0 if appended is None else rows_of(appended)
    return 0 if store.id(name) is None else rows_of(store.open_artifact(name))


def _recipe(request: Request, store: Store, roles: Json, weights: Json) -> Recipe:
    files = {"source": request.file} | ({} if request.distances is None else {"distances": request.distances})
    inputs: Json = {key: fingerprint(file.name, [file]) for key, file in files.items()}
    for role, count in roles.items():
        identity = store.id(f"descriptors/{role}")
        if identity is not None and count:
            inputs[role] = {"artifact": f"descriptors/{role}", "object": identity}
    chosen = weights | ({} if request.distances is None else {"metric": request.metric})
    return Recipe(KIND, SCHEMA, chosen, inputs, {key: source_fingerprint([file]) for key, file in files.items()})
