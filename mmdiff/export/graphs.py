"""Graphs and lists of neighbours as other libraries take them: sparse matrices, edge indices and tables of edges.

Everything streams: an array takes one pass over the lists or the graph, so that neither has to fit in memory.

- `csr`: for `scipy.sparse.load_npz`. Lists are the distances that scikit-learn's `KNeighborsTransformer` gives, a graph is W.
- `edge-index`: `edge_index` (2, edges), `edge_weight` and `num_nodes` for PyTorch Geometric and DGL. An edge leads from a
  neighbour to the row whose list names it, so that a sum over incoming messages is a product with W.
- `edges`: a table with the columns `source`, a row, `target`, its neighbour, and `weight`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.arrays import entry_of, write_csr, write_header
from mmdiff.export.neighbours import RowIds, UserLists, missing, require_nodes, require_unit_length
from mmdiff.export.reading import Selection, checked_graph, most_edges
from mmdiff.export.tables import arrow, cell, strings_column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.knn.csr import Entries, distances_of, entries_of_lists, index_type
from mmdiff.labels.ids import Ids
from mmdiff.runtime.progress import Advance, Progress


@dataclass(frozen=True)
class Task:
    """What to write in a format for other libraries: an artifact, and the choices of the user. `notes` are for the user."""

    store: Store
    artifact: Artifact
    ending: str
    self_loops: bool = True
    projection: Any = None
    notes: list[str] = field(default_factory=list)


_COLUMNS = ("source", "target", "weight")

# Lines of text made at a time.
_LINES = 1 << 14


class EdgeBlock(NamedTuple):
    """Some edges: each leads from a row to one of its neighbours."""

    rows: NDArray[np.int64]
    neighbors: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class Edges:
    """The edges of a graph, with the entries of W as weights, or of lists, with inner products; in the user's row order."""

    artifact: Artifact
    self_loops: bool
    graph: CsrGraph | None
    rows: int
    nodes: int

    @classmethod
    def of(cls, task: Task) -> Edges:
        artifact = task.artifact
        if artifact.manifest.kind == "graph":
            graph = checked_graph(Selection(artifact, ()))
            return cls(artifact, task.self_loops, graph, graph.nodes, graph.nodes)
        lists = UserLists.of(artifact)
        # Test points have no edges to themselves: equal numbers are those of other rows.
        return cls(artifact, task.self_loops or not lists.of_nodes, None, lists.rows, lists.nodes)

    def count(self) -> int:
        """The number of edges."""
        if self.graph is not None and self.self_loops:
            return self.graph.edges
        return sum(len(block.rows) for block in self.blocks(weights=False))

    def blocks(self, weights: bool = True) -> Iterator[EdgeBlock]:
        """All edges, row after row. Without `weights` those of lists are not read, and 0."""
        for block in self._lists(weights) if self.graph is None else self._graph(self.graph):
            kept = slice(None) if self.self_loops else block.rows != block.neighbors
            yield EdgeBlock(block.rows[kept], block.neighbors[kept], block.weights[kept])

    def _lists(self, weights: bool) -> Iterator[EdgeBlock]:
        lists = UserLists.of(self.artifact, similarities=weights)
        for start, neighbors, similarities in lists.blocks(rows_of_lists(lists)):
            given = ~missing(neighbors)
            rows = np.repeat(np.arange(start, start + len(neighbors)), given.sum(axis=1))
            yield EdgeBlock(rows, neighbors[given].astype(np.int64), similarities[given])

    def _graph(self, graph: CsrGraph) -> Iterator[EdgeBlock]:
        start = 0
        for degrees, columns, values in graph.user_rows(most_edges=most_edges()):
            yield EdgeBlock(np.repeat(np.arange(start, start + len(degrees)), degrees), columns, values)
            start += len(degrees)


def rows_of_lists(lists: UserLists) -> int:
    """Rows of lists in a block, of which several copies in wider types are in memory."""
    return max(1, most_edges() // max(1, lists.k))


class Section(NamedTuple):
    """An array of a file: its name, dtype and shape, and its values in blocks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[NDArray[Any]]]


def write_csr_of(task: Task, stream: IO[bytes], progress: Progress) -> int:
    """Writes the distances of neighbours, or W, as a sparse matrix."""
    if task.artifact.manifest.kind == "graph":
        arrays = [name for name in task.artifact.manifest.arrays if name != "order"]
        write_csr(Selection(task.artifact, arrays), stream, progress)
        return int(task.artifact.spec("scale").shape[0])
    lists = UserLists.of(task.artifact)
    require_unit_length(lists, "csr")
    itself = task.self_loops if lists.of_nodes else None

    def entries(similarities: bool = True) -> Iterator[Entries]:
        read = lists if similarities else UserLists.of(task.artifact, similarities=False)
        for start, neighbors, found in read.blocks(rows_of_lists(lists)):
            yield entries_of_lists(neighbors, distances_of(found), itself, start)

    def offsets() -> Iterator[NDArray[np.int64]]:
        yield np.zeros(1, np.int64)
        before = 0
        for block in entries(similarities=False):
            ends = before + np.cumsum(block.counts)
            yield ends
            before = int(ends[-1])

    edges = sum(len(block.columns) for block in entries(similarities=False))
    index = np.dtype(index_type(edges, max(lists.rows, lists.nodes))).name
    sections = [
        Section("format", "S3", (), lambda: iter([np.array(b"csr")])),
        Section("shape", "int64", (2,), lambda: iter([np.array([lists.rows, lists.nodes])])),
        Section("indptr", index, (lists.rows + 1,), offsets),
        Section("indices", index, (edges,), lambda: (block.columns for block in entries())),
        Section("data", "float32", (edges,), lambda: (block.values for block in entries())),
    ]
    with progress(f"exporting {task.artifact.name}", _values_in(sections), "values") as advance:
        _write_npz(sections, stream, advance)
    return lists.rows


def write_edge_index(task: Task, stream: IO[bytes], progress: Progress) -> int:
    """Writes edges as two rows of node numbers, with their weights."""
    edges = Edges.of(task)
    if task.artifact.manifest.kind == "knn":
        require_nodes(UserLists.of(task.artifact, similarities=False), "edge index")
    count = edges.count()

    def both() -> Iterator[NDArray[np.int64]]:
        yield from (block.neighbors for block in edges.blocks(weights=False))
        yield from (block.rows for block in edges.blocks(weights=False))

    sections = [
        Section("edge_index", "int64", (2, count), both),
        Section("edge_weight", "float32", (count,), lambda: (block.weights for block in edges.blocks())),
        Section("num_nodes", "int64", (), lambda: iter([np.array(edges.nodes)])),
    ]
    with progress(f"exporting {task.artifact.name}", _values_in(sections), "values") as advance:
        (_write_safetensors if task.ending == ".safetensors" else _write_npz)(sections, stream, advance)
    return edges.rows


def _values_in(sections: list[Section]) -> int:
    return sum(math.prod(section.shape) for section in sections)


def _write_npz(sections: list[Section], stream: IO[bytes], advance: Advance) -> None:
    with ZipFile(stream, "w") as archive:
        for section in sections:
            with entry_of(archive, section.name) as entry:
                write_header(entry, section.dtype, section.shape)
                _write_values(section, entry, advance)


_SAFETENSORS = {"int64": "I64", "float32": "F32"}


def _write_safetensors(sections: list[Section], stream: IO[bytes], advance: Advance) -> None:
    """The length of a header in JSON, the header, and the arrays one after the other."""
    header, first = {}, 0
    for section in sections:
        size = math.prod(section.shape) * np.dtype(section.dtype).itemsize
        entry = {"dtype": _SAFETENSORS[section.dtype], "shape": section.shape, "data_offsets": [first, first + size]}
        header[section.name], first = entry, first + size
    text = json.dumps(header, separators=(",", ":")).encode()
    # The arrays begin at a multiple of eight bytes, so that they can be mapped.
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for section in sections:
        _write_values(section, stream, advance)


def _write_values(section: Section, stream: IO[bytes], advance: Advance) -> None:
    little = np.dtype(section.dtype).newbyteorder("<")
    for block in section.blocks():
        stream.write(np.ascontiguousarray(block, little).tobytes())
        advance(block.size)


def write_edge_table(task: Task, stream: IO[bytes], progress: Progress) -> int:
    """Writes edges as a table, with the user's ids where all rows have some."""
    edges, (sources, targets) = Edges.of(task), ids_of_edges(task)
    write = (_parquet_edges if task.ending == ".parquet" else _csv_edges)(stream, sources.are_strings, targets.are_strings)
    done = 0
    with progress(f"exporting {task.artifact.name}", edges.rows, "rows") as advance, write as table:
        for block in edges.blocks():
            table(sources.take(block.rows), targets.take(block.neighbors), block.weights)
            if len(block.rows):
                advance(int(block.rows[-1]) + 1 - done)
                done = int(block.rows[-1]) + 1
    return edges.rows


def ids_of_edges(task: Task) -> tuple[RowIds, RowIds]:
    """The ids of the rows that have lists, and of their neighbours."""
    store, artifact = task.store, task.artifact
    nodes = RowIds.of_nodes(store, artifact, artifact.manifest.facts["nodes"])
    if artifact.manifest.kind == "knn" and not UserLists.of(artifact, similarities=False).of_nodes:
        return RowIds.of_tests(store, artifact), nodes
    return nodes, nodes


_WriteEdges = Callable[[Ids, Ids, NDArray[np.float32]], None]


@contextmanager
def _parquet_edges(stream: IO[bytes], *strings: bool) -> Iterator[_WriteEdges]:
    pa, parquet = arrow("writing .parquet")
    types = [*(pa.string() if each else pa.int64() for each in strings), pa.float32()]
    schema = pa.schema(list(zip(_COLUMNS, types, strict=True)))

    def write(sources: Ids, targets: Ids, weights: NDArray[np.float32]) -> None:
        ids = [strings_column(pa, each) if isinstance(each, Strings) else pa.array(each) for each in (sources, targets)]
        writer.write_table(pa.Table.from_arrays([*ids, pa.array(weights)], schema=schema))

    with parquet.ParquetWriter(stream, schema) as writer:
        yield write


@contextmanager
def _csv_edges(stream: IO[bytes], *strings: bool) -> Iterator[_WriteEdges]:
    line = ",".join([*("%s" if each else "%d" for each in strings), "%.9g"]) + "\n"
    stream.write((",".join(_COLUMNS) + "\n").encode())

    def write(*columns: Any) -> None:
        for start in range(0, len(columns[-1]), _LINES):
            part = [_cells(values, start) for values in columns]
            stream.write(((line * len(part[-1])) % tuple(chain.from_iterable(zip(*part, strict=True)))).encode())

    yield write


def _cells(values: Ids | NDArray[np.float32], start: int) -> list[Any]:
    stop = min(start + _LINES, len(values))
    return [cell(text) for text in values.span(start, stop)] if isinstance(values, Strings) else values[start:stop].tolist()
