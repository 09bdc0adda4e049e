"""Lists of neighbours, one per node: the rows of W0 (paper, section 3.2), in memory, mapped or in a file.

Seeds change few lists of the background. `knn/W0` is therefore a patch over `knn/BB`: it holds the changed lists, and those of
the nodes that join. `PatchedLists` are both together.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Damaged
from mmdiff.formats.store.checks import problem_of_patched_rows
from mmdiff.formats.store.store import Artifact

MOST_NODES = (1 << 31) - 1
"""The largest number of nodes: the top bit of an index marks a reciprocal edge."""

Block = tuple[NDArray[np.uint32], NDArray[np.float32]]


class Lists(Protocol):
    """The k nearest neighbours of every node and their similarities, in blocks of rows."""

    @property
    def nodes(self) -> int: ...

    @property
    def k(self) -> int: ...

    def block(self, start: int, stop: int) -> Block:
        """Neighbours and similarities of rows start..stop-1; NONE, with any similarity, where there are fewer than k.

        May be called from several threads at once, and repeatedly for the same rows.
        """


class ArrayLists:
    """Lists in arrays, mapped or in memory. Missing similarities are all 0."""

    def __init__(self, neighbors: NDArray[np.uint32], similarities: NDArray[np.float32] | None = None) -> None:
        self.nodes: int = neighbors.shape[0]
        self.k: int = neighbors.shape[1]
        self._neighbors = neighbors
        self._similarities: NDArray[Any] = (
            np.broadcast_to(np.float32(0), neighbors.shape) if similarities is None else similarities
        )

    @classmethod
    def of(cls, artifact: Artifact, similarities: bool = True) -> Self:
        """The lists of an artifact; without `similarities` these are not read."""
        return cls(artifact.array("neighbors"), artifact.array("similarities") if similarities else None)

    def block(self, start: int, stop: int) -> Block:
        return self._neighbors[start:stop], self._similarities[start:stop]

    def take(self, nodes: NDArray[Any]) -> Block:
        """The lists of scattered nodes."""
        return self._neighbors[nodes], self._similarities[nodes]


class PatchedLists:
    """Lists of the background and a patch over them: `rows` are the nodes, increasing, that have their lists in the patch.

    These are the nodes of the background whose lists have changed, and all nodes after the background.
    """

    def __init__(self, background: ArrayLists, patch: ArrayLists, rows: NDArray[np.uint32], nodes: int) -> None:
        self.nodes, self.k = nodes, patch.k
        self._background, self._patch, self._rows = background, patch, rows

    @classmethod
    def of(cls, background: Artifact, patch: Artifact, similarities: bool = True) -> Self:
        """The lists of `knn/BB` under those of `knn/W0`, with the nodes of the patch checked."""
        border, nodes = patch.facts["background"], patch.facts["nodes"]
        background.require_shape("neighbors", (border, patch.spec("neighbors").shape[1]))
        rows = patch.array("rows")
        problem = problem_of_patched_rows(rows, border, nodes)
        if problem is not None:
            raise Damaged(f"{patch.name}, array rows: {problem}. {patch.remedy}")
        return cls(ArrayLists.of(background, similarities), ArrayLists.of(patch, similarities), rows, nodes)

    def block(self, start: int, stop: int) -> Block:
        # Of the type of the rows, which would else be converted as a whole.
        first, last = np.searchsorted(self._rows, np.array([start, stop], self._rows.dtype)).tolist()
        patch, border = self._patch.block(first, last), self._background.nodes
        if last - first == stop - start:
            return patch
        lists = self._background.block(start, min(stop, border))
        if first == last:
            return lists
        places = self._rows[first:last] - self._rows.dtype.type(start)
        return _overlaid(lists[0], stop - start, places, patch[0]), _overlaid(lists[1], stop - start, places, patch[1])

    def take(self, nodes: NDArray[Any]) -> Block:
        """The lists of scattered nodes."""
        wanted = nodes.astype(self._rows.dtype)
        at = np.minimum(np.searchsorted(self._rows, wanted), len(self._rows) - 1)
        patched = self._rows[at] == wanted
        lists, patch = self._background.take(nodes[~patched]), self._patch.take(at[patched])
        neighbors, similarities = np.empty((len(nodes), self.k), np.uint32), np.empty((len(nodes), self.k), np.float32)
        neighbors[~patched], similarities[~patched] = lists
        neighbors[patched], similarities[patched] = patch
        return neighbors, similarities


def _overlaid(values: NDArray[Any], rows: int, places: NDArray[np.uint32], patch: NDArray[Any]) -> NDArray[Any]:
    """The values, continued up to `rows`, with the patch in its places."""
    result = np.empty((rows, values.shape[1]), values.dtype)
    result[: len(values)] = values
    result[places] = patch
    return result
