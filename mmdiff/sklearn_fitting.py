"""Fitting, shared by the estimators of `mmdiff.sklearn`: the graph of the rows of a fit, in memory or in a store."""

from __future__ import annotations

import sys
import warnings
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mmdiff.arrays import Graph
from mmdiff.estimators.neighbours import Neighbours, refuse_zeros
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load
from mmdiff.formats.storage.seam import temporary_folder
from mmdiff.importing.space import DEFAULT_DIMS
from mmdiff.runtime.memory import parse_bytes
from mmdiff.store import open_store

if TYPE_CHECKING:
    from sklearn import base
else:
    base = load("sklearn.base", "mmdiff.sklearn")

# The parameters of an estimator that the graph has too, and what a store of an estimator holds.
_GRAPH = ("recall", "index", "device", "edge_weights", "sigma", "lambda_", "seed")
_COMMAND = "the fit of an estimator of mmdiff.sklearn"
_ARTIFACTS = {"models/pca", "descriptors/background", "models/cells", "knn/BB", "graph/W"}

HELD_SHARE = 0.5
"""The share of the memory that the rows and the graph of a fit may take; larger ones stay in a temporary store."""

_BLOCK_ROWS = 1 << 13


class _Files:
    """Keeps a temporary store as long as the estimator that made it."""

    def __init__(self, stack: ExitStack) -> None:
        self._end = weakref.finalize(self, stack.close)


class FittedOnRows(base.BaseEstimator):  # type: ignore[misc]
    """An estimator that searches neighbours of rows: what its fit builds, and what a copy of it takes along."""

    _rows_of_fit: Any
    _files: _Files | None

    def _build(self, X: NDArray[Any], k: int, normalize: bool = True) -> Graph:
        """The graph of the rows. It stays in the store, or in a temporary one if it takes more than half of the memory."""
        graph = {name: getattr(self, name) for name in _GRAPH if hasattr(self, name)}
        rows, width = X.shape
        # A PCA needs as many rows as it has dimensions.
        dims = min(DEFAULT_DIMS, rows) if self.dims is None and width > DEFAULT_DIMS else self.dims
        for start in range(0, rows, _BLOCK_ROWS):
            refuse_zeros(X[start : start + _BLOCK_ROWS], start)
        held = rows * (4 * min(width, dims or width) + 16 * k)
        self._files = None
        large = held > HELD_SHARE * parse_bytes(self.memory)
        with ExitStack() as stack:
            if self.store is None:
                place = stack.enter_context(temporary_folder(sys.maxsize if large else 4 * X.nbytes + held)) / "store"
            else:
                place = Path(self.store)
            store = open_store(place, create=True, memory=self.memory, progress=self.progress, command=_COMMAND)
            for name in store:
                if name not in _ARTIFACTS or store[name].run["command"] != _COMMAND:
                    message = (
                        f": {name} in this store is no estimator's. Give the estimator a store of its own, in a new folder."
                    )
                    raise BadOption(Parameter("store", str(place)), message)
            store.add(X, dims=dims, normalize=normalize)
            made = store.build_graph(k=k, **graph)
            for sentence in made["knn/BB"]["warnings"]:
                warnings.warn(sentence, RuntimeWarning, stacklevel=3)
            found = store.graph
            near = Neighbours.of(store["models/pca"], store["models/cells"], store["knn/BB"], self.recall, self.seed)
            if self.store is None and not large:
                found, near = Graph(found.internal.in_memory()), near.in_memory()
            elif self.store is None:
                self._files = _Files(stack.pop_all())
            self._rows_of_fit = near
            return found

    def __sklearn_is_fitted__(self) -> bool:
        """Told, because scikit-learn takes the parameter `lambda_` for something that a fit has found."""
        return hasattr(self, "graph_")

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have the rows and the graph in memory: another process does not see a temporary store."""
        state = dict(super().__getstate__())
        state.pop("_files", None)
        if state.get("_rows_of_fit") is not None:
            state["_rows_of_fit"] = state["_rows_of_fit"].in_memory()
        if "graph_" in state:
            state["graph_"] = Graph(state["graph_"].internal.in_memory())
        return state
