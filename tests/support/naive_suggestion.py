"""Coverage and greedy choice as the documentation defines them, on dense matrices of float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmdiff.graph.graph import CsrGraph

Values = NDArray[np.float64]


def two_steps(graph: CsrGraph) -> Values:
    """W^2, in the order of the nodes: column j is what every row receives from j in two iterations."""
    W = graph.to_scipy().toarray().astype(np.float64)
    return np.asarray(W @ W)


def coverage_of(kernel: Values, nodes: Sequence[int]) -> Values:
    """The largest entry that any of some nodes gives each row."""
    return np.asarray(kernel[:, list(nodes)].max(axis=1, initial=0))


def gains(kernel: Values, coverage: Values, weight: Values) -> Values:
    """The gain of each node."""
    return np.asarray(weight @ np.maximum(0, kernel - coverage[:, None]))
