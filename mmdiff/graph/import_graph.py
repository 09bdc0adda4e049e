"""`mmdiff import-graph`: a graph that was made elsewhere, as lists of neighbours or as a sparse matrix, becomes `graph/W`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, BadRow, CountMismatch, InputError, UnreadableSource
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.graphs import ENDINGS, NeighbourFile, read_csr
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import KIND, NAME, SCHEMA
from mmdiff.graph.in_memory import symmetric_graph
from mmdiff.graph.lists import MOST_NODES, Block
from mmdiff.graph.symmetrise import symmetrise
from mmdiff.graph.weights import EdgeWeights, Weighting, choose, parameters
from mmdiff.kernels.constants import COLUMN, NONE
from mmdiff.runtime.find_or_make import Run, make
from mmdiff.runtime.progress import Progress, silent

Metric = Literal["similarity", "distance"]
MATRIX = ".npz"


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

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
    """What an import came to."""

    artifact: Artifact
    reused: bool
    seconds: float

    def summary(self) -> Json:
        """The outcome as plain values."""
        manifest = self.artifact.manifest
        return {
            "artifact": NAME,
            "object": self.artifact.id,
            **manifest.facts,
            "bytes": manifest.bytes_on_disk,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
        }


class FileLists:
    """Lists in a user's file, checked as they are read; distances become the similarity that unit vectors would have."""

    def __init__(self, file: NeighbourFile, distances: Source | None, metric: Metric) -> None:
        self._file, self._distances, self._metric = file, distances, metric
        self.nodes, self.k = file.rows, file.width

    def block(self, start: int, stop: int) -> Block:
        found = self._file.read(start, stop)
        none = found == found.dtype.type(-1) if found.dtype.kind == "i" else found == NONE
        outside = ~none & ((found < 0) | (found >= self.nodes))
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise BadRow(
                f"{self._file.path}, row {start + row}: neighbour {found[row, column]} of {self.nodes} nodes. Neighbours are "
                f"rows, 0 to {self.nodes - 1}, or -1 for none: correct the list."
            )
        neighbors = np.where(none, NONE, found.astype(np.uint32))
        return neighbors, self._similarities(start, stop, none)

    def _similarities(self, start: int, stop: int, none: NDArray[np.bool_]) -> NDArray[np.float32]:
        if self._distances is None:
            return np.broadcast_to(np.float32(0), none.shape)
        values = self._distances.read(start, stop).astype(np.float64)
        bad = ~none & ~np.isfinite(values)
        negative = ~none & (values < 0) if self._metric == "distance" else np.zeros_like(bad)
        for wrong, remedy in (
            (bad, "Give a finite one."),
            (negative, "Distances are not negative; if these are similarities, say --metric similarity."),
        ):
            if wrong.any():
                row, column = np.argwhere(wrong)[0]
                where = self._distances.locate(start + int(row))
                raise BadRow(f"{where}: the {self._metric} {values[row, column]:g} of a neighbour. {remedy}")
        values = np.where(none, 0, values)
        return (values if self._metric == "similarity" else 1 - values * values / 2).astype(np.float32)


class MatrixFile:
    """A sparse matrix in a user's file; it is read as a whole, since it may be compressed."""

    def __init__(self, file: Path) -> None:
        from scipy.sparse import csr_array

        data, indices, indptr, shape = read_csr(file)
        self.graph, self.symmetrised = symmetric_graph(csr_array((data, indices, indptr), shape), str(file))
        self.nodes = self.graph.nodes

    def write(self, draft: Draft) -> Json:
        """Writes the arrays of the graph; returns what there is to know of it."""
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


def import_graph(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Makes `graph/W` of a file. An import that was made before is recognised and left as it is."""
    run = Run(request.command)
    weighting = _weighting(request)
    given = MatrixFile(request.file) if request.file.suffix.lower() == MATRIX else _open_lists(request)
    roles = _roles(Store(path), request.file, given.nodes)

    def fill(draft: Draft) -> Json:
        if isinstance(given, MatrixFile):
            return given.write(draft) | roles
        return symmetrise(given, draft, request.memory, progress, weighting) | {"symmetrised": True} | roles

    with Publication(path, [NAME], request.command) as publication:
        recipe = _recipe(request, Store(path), roles, parameters(weighting))
        made = make(publication, NAME, recipe, run, fill)
        return Outcome(made.artifact, made.reused, run.seconds)


def _weighting(request: Request) -> Weighting | None:
    """The weighting that was asked for, if there is what it needs."""
    if request.file.suffix.lower() == MATRIX and (request.edge_weights != "constant" or request.distances is not None):
        raise BadOption(f"{request.file}: a matrix has its weights in it. Leave --distances and --edge-weights out.")
    if request.edge_weights != "constant" and request.distances is None:
        raise BadOption(f"--edge-weights {request.edge_weights} needs the distances of neighbours. Give --distances FILE.")
    if request.edge_weights == "constant" and request.distances is not None:
        raise BadOption("--distances: constant weights do not depend on them. Leave them out, or choose other --edge-weights.")
    return choose(request.edge_weights, request.sigma, request.lambda_)


def _open_lists(request: Request) -> FileLists:
    if request.file.suffix.lower() not in ENDINGS:
        endings = ", ".join((MATRIX, *ENDINGS))
        raise UnreadableSource(f"{request.file}: a graph is read from a file that ends in {endings}. Convert the file.")
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
    """How many nodes are what: background first, then seeds, then test points if there are as many nodes as all together."""
    counts = {role: _rows(store, role) for role in ("background", "seeds", "test")}
    background, seeds, test = counts.values()
    if background + seeds == 0:
        return {"background": nodes, "seeds": 0, "test": 0}
    if nodes == background + seeds:
        return {**counts, "test": 0}
    if nodes == background + seeds + test:
        return counts
    present = ", ".join(f"{count:,} {role}" for role, count in counts.items() if count)
    raise CountMismatch(
        f"{file}: {nodes:,} nodes, but the store holds {present}. Give a graph over the background and the seeds behind it, "
        "or name another store with --store."
    )


def _rows(store: Store, role: str) -> int:
    name = f"descriptors/{role}"
    return 0 if store.id(name) is None else store.open_artifact(name).spec("vectors").shape[0]


def _recipe(request: Request, store: Store, roles: Json, weights: Json) -> Recipe:
    files = {"source": request.file} | ({} if request.distances is None else {"distances": request.distances})
    inputs: Json = {key: fingerprint(file.name, [file]) for key, file in files.items()}
    for role, count in roles.items():
        identity = store.id(f"descriptors/{role}")
        if identity is not None and count:
            inputs[role] = {"artifact": f"descriptors/{role}", "object": identity}
    chosen = weights | ({} if request.distances is None else {"metric": request.metric})
    return Recipe(KIND, SCHEMA, chosen, inputs, {key: source_fingerprint([file]) for key, file in files.items()})
