"""The public API on arrays: `Graph`, `knn_graph`, `diffuse` and `evaluate`, in memory and in the caller's row order.

They run the same engine as a store: `knn_graph` builds in a temporary store that it removes, `diffuse` runs the same kernels.
So the numbers equal those of `Store` and of the command line to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion import api
from mmdiff.diffusion.engine.product import matmul
from mmdiff.diffusion.options import options_of
from mmdiff.evaluation.metrics import NO_COLUMN, evaluate_scores
from mmdiff.formats.errors import BadLabels, CountMismatch, Parameter, one_of
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.storage.seam import temporary_folder
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import CHECKS, Checks
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.lists import MOST_NODES
from mmdiff.labels.classes import UNLABELLED, Classes, encode
from mmdiff.results import Evaluation, Scores, class_titles
from mmdiff.runtime.parameters import whole
from mmdiff.signatures import with_diffusion_options


class Graph:
    """The graph W = D^-1 (W0 + W0^T) over rows in the caller's order (paper, section 3.2).

    Made by `knn_graph`, `Graph.from_scipy`, `Graph.open` or a store's `graph`. `graph @ S` is the product with W.

    Args:
        internal: the arrays that the engine reads, in its own order of nodes.

    Attributes:
        internal: the same, for those who want them: `indptr`, `indices`, `scale`, `weights`, and `order`, the row of each
            background node. Everything else about a graph speaks in the caller's rows.

    >>> import numpy as np, scipy.sparse
    >>> graph = Graph.from_scipy(scipy.sparse.csr_array([[1, 1, 0], [1, 1, 1], [0, 1, 1]]))
    >>> graph
    Graph(3 nodes, 7 edges, value-free)
    >>> graph @ np.array([6, 0, 0])
    array([3., 2., 0.], dtype=float32)
    """

    def __init__(self, internal: CsrGraph) -> None:
        self.internal = internal

    @classmethod
    def open(cls, store: str | Path, *, verify: Checks = "touched") -> Graph:
        """The graph of a store, memory-mapped; the same as `mmdiff.open(store, verify=verify).graph`.

        Args:
            store: the folder of the store.
            verify: "touched" compares each chunk with its checksum when it is first read, "all" compares all of them now,
                "none" trusts the disk. Rows that lead out of the graph are refused in any case.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(5)), store.build_graph(k=2)
        ...     len(Graph.open(folder + "/store"))
        5
        """
        one_of("verify", verify, CHECKS)
        return cls(CsrGraph.open(store, verify))

    @classmethod
    def from_scipy(cls, matrix: Any) -> Graph:
        """A graph of your own.

        Args:
            matrix: a square scipy.sparse matrix without negative entries; explicit zeros are no edges. A symmetric matrix is
                taken as W0 + W0^T; of any other A the graph is that of A + A^T (paper, section 3.2).

        >>> import scipy.sparse
        >>> Graph.from_scipy(scipy.sparse.csr_array([[0, 1], [0, 0]])).to_scipy().toarray()
        array([[0., 1.],
               [1., 0.]], dtype=float32)
        """
        return cls(CsrGraph.from_scipy(matrix))

    def to_scipy(self, normalized: bool = True) -> Any:
        """The graph as a scipy.sparse.csr_array of float32 with sorted columns, in the caller's row order.

        Args:
            normalized: True gives W, whose rows sum to 1; False gives W0 + W0^T.

        >>> import scipy.sparse
        >>> Graph.from_scipy(scipy.sparse.eye_array(2)).to_scipy().toarray()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
        """
        from scipy.sparse import csr_array

        own = self.internal
        if own.order is None:
            return own.to_scipy(normalized)
        index = np.int32 if own.edges <= np.iinfo(np.int32).max else np.int64
        indptr, columns, values = np.zeros(own.nodes + 1, index), np.empty(own.edges, index), np.empty(own.edges, np.float32)
        np.cumsum(own.degrees(own.node_of_row), out=indptr[1:])
        done = 0
        for block in own.user_rows(normalized):
            stop = done + len(block.columns)
            columns[done:stop], values[done:stop] = block.columns, block.values
            done = stop
        return csr_array((values, columns, indptr), self.shape)

    def __matmul__(self, dense: Any) -> NDArray[np.float32]:
        """W times a matrix (rows, columns) or a vector (rows), by the kernel of the diffusion, on all cores."""
        values = np.asarray(dense)
        if values.ndim not in (1, 2) or len(values) != len(self):
            raise CountMismatch(f"a matrix of shape {values.shape} for {len(self):,} nodes. Give one row for each node.")
        if self.internal.order is None:
            return matmul(self.internal, values)
        rows = self.internal.rows_of(np.arange(len(self)))
        return matmul(self.internal, values[rows])[self.internal.node_of_row]

    # numpy would otherwise take `dense @ graph` apart entry by entry.
    __array_ufunc__ = None

    @property
    def nodes(self) -> int:
        """The number of rows."""
        return self.internal.nodes

    @property
    def edges(self) -> int:
        """The number of entries of W; an edge between two rows counts in either row."""
        return self.internal.edges

    @property
    def shape(self) -> tuple[int, int]:
        """(nodes, nodes), as of a matrix."""
        return self.nodes, self.nodes

    def __len__(self) -> int:
        return self.nodes

    def __repr__(self) -> str:
        weights = self.internal.weights
        kind = "value-free" if weights is None else f"{weights.dtype} weights"
        return f"Graph({self.nodes:,} nodes, {self.edges:,} edges, {kind})"

    def _repr_html_(self) -> str:
        from mmdiff.notebook import graph_html

        return graph_html(self)


def knn_graph(
    X: Any,
    *,
    k: int = 30,
    recall: float = 0.95,
    index: str = "auto",
    device: str = "auto",
    edge_weights: str = "constant",
    sigma: float | None = None,
    lambda_: float | None = None,
    dims: int | None = None,
    normalize: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    memory: int | str = "8G",
    progress: bool | Callable[..., Any] = False,
) -> Graph:
    """The k-nearest-neighbour graph of the rows of an array, symmetrised.

    The rows are prepared as `Store.add` does: reduced to 256 dimensions by PCA where they are wider, and scaled to unit
    length. The graph is built in a temporary folder, which is removed, and is then held in memory.

    Args:
        X: array (rows, dimensions) of float16, float32, float64, int8 or uint8, without NaN, Inf or rows of zeros.
        k: neighbours of each row, itself included.
        recall: share of the true neighbours to find, measured on a sample.
        index: "auto" (exact for small sets), "flat" (exact), or a Faiss factory string such as "IVF4096,Flat".
        device: "auto", "cpu" or "gpu"; where descriptors are compared. "auto" takes the GPUs that Faiss sees.
        edge_weights: "constant", "gaussian" (needs sigma) or "meaningful" (needs lambda_).
        sigma: bandwidth of the Gaussian edge weights.
        lambda_: parameter of the meaningful-neighbour weights.
        dims: dimensions to reduce to by PCA; None is 256, or all where there are fewer.
        normalize: scale rows to unit length.
        dtype: "float32" or "float16"; how the reduced rows are stored while the graph is built.
        seed: random seed.
        memory: the most memory to use beside X and the result, such as "4G".
        progress: True shows progress bars on stderr.

    Returns:
        The `Graph`, whose rows are those of X.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> len(knn_graph(X, k=5))
    100
    """
    from mmdiff.store import open_store

    values = np.asanyarray(X)
    k = whole("k", k, 1, MOST_NODES)
    with temporary_folder(4 * values.nbytes + 64 * k * len(values) if values.ndim else 0) as folder:
        store = open_store(folder / "store", create=True, memory=memory, progress=progress)
        store.add(values, dims=dims, normalize=normalize, dtype=dtype)
        made = store.build_graph(
            k=k, recall=recall, index=index, device=device, edge_weights=edge_weights, sigma=sigma, lambda_=lambda_, seed=seed
        )
        for sentence in made["knn/BB"]["warnings"]:
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        return Graph(store.graph.internal.in_memory())


@with_diffusion_options
def diffuse(graph: Graph, y: Any, *, neighbors: Any = None, **options: Any) -> Scores:
    """Spreads a few labels over a graph (paper, section 3.3).

    Args:
        graph: the `Graph`, from `knn_graph`, `Graph.from_scipy` or a store.
        y: a label for each row of the graph: class numbers from 0 on, or names; -1, None, NaN or "" for unlabelled rows.
            Several labels a row as a second dimension, or as lists.
        neighbors: rows of the graph near each test point, (points, k), -1 where there are fewer. If given, the result scores
            these points instead of the rows of the graph.

    Returns:
        `Scores` with L after the last iteration: one row for each row of the graph, or for each test point.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[np.arange(2).repeat(30)]
    >>> y = np.array([None] * 60); y[0], y[59] = "cat", "dog"
    >>> result = diffuse(knn_graph(X, k=8), y, iterations=4)
    >>> result.predict()[[1, 58]]
    array(['cat', 'dog'], dtype=object)
    """
    chosen = options_of(options)
    column = column_of(y, "y")
    if len(column) != len(graph):
        raise CountMismatch(
            Parameter("y"),
            f": {len(column):,} labels for {len(graph):,} rows. Give one for each row, -1 or None where there is none.",
        )
    labels, classes = encode(column, None, numbered=True, where="y")
    if (labels == UNLABELLED).all():
        raise BadLabels(Parameter("y"), ": no row has a label, so there is nothing to spread. Label at least one.")
    found = api.diffuse(graph.internal, labels, classes=len(classes), neighbors=neighbors, **vars(chosen))
    titles = class_titles(_public(column, classes))
    if neighbors is None:
        return Scores(found, titles, (chosen.iterations,))
    return Scores(found[-1], titles, tuple(chosen.kept_iterations), _earlier=found)


def _public(column: Column, classes: Classes) -> Classes:
    """The classes as the caller knows them: by name only where names were given."""
    return Classes(None, classes.names) if isinstance(column.values, Strings) else classes


def evaluate(scores: Any, y: Any, *, top: Iterable[int] = (1, 5), classes: Any = None) -> Evaluation:
    """Top-k accuracy: the share of rows whose true class is among their best k, with 95 % bootstrap intervals.

    Ties never count in favour of the scores, rows without a label are left out, and rows of a class that has no column count
    as errors.

    Args:
        scores: array (rows, classes), such as `result.scores[test]`.
        y: the true label of each row, as `diffuse` takes them; several labels a row count as right if one of them is found.
        top: the values of k.
        classes: what the columns of `scores` are. None: known from `result.scores`, else column c is class number c.

    Returns:
        A dict with the number of labelled `points` and, for each k, `topK` with `accuracy`, `low` and `high`.

    >>> import numpy as np
    >>> print(evaluate(np.array([[0.9, 0.1], [0.4, 0.6]]), [0, 0], top=(1,)))
    2 points: top-1 50.0 % (0.0 to 100.0)
    """
    values, column = np.asanyarray(scores), column_of(y, "y")
    if values.ndim != 2 or len(values) != len(column):
        raise CountMismatch(
            Parameter("y"),
            f": {len(column):,} labels for scores of shape {values.shape}. Give one label for each row of scores.",
        )
    known = getattr(values, "classes", None) if classes is None else np.atleast_1d(np.asarray(classes))
    labels, found = encode(column, None, numbered=True, where="y")
    columns = _columns(class_titles(_public(column, found)), known, values.shape[1])
    figures = evaluate_scores(np.asarray(values), columns[labels], top)
    points = int((labels.reshape(len(labels), -1) != UNLABELLED).any(axis=1).sum())
    return Evaluation({"points": points, **{name: figure.to_json() for name, figure in figures.items()}})


def _columns(titles: NDArray[Any], known: NDArray[Any] | None, width: int) -> NDArray[np.int64]:
    """The column of each class, NO_COLUMN for those that have none, and -1 behind them for no label."""
    if known is None:
        if titles.dtype.kind not in "iu":
            raise BadLabels(
                Parameter("y"), ": class names, but scores of unnamed columns. Name them with ", Parameter("classes"), "."
            )
        known = np.arange(width)
    if len(known) != width:
        raise CountMismatch(Parameter("classes"), f": {len(known):,} classes for {width:,} columns of scores. Name each.")
    place = {title: column for column, title in enumerate(known.tolist())}
    return np.array([place.get(title, NO_COLUMN) for title in titles.tolist()] + [UNLABELLED], np.int64)
