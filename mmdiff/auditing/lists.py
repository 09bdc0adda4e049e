"""The lists of neighbours that an audit reads: those that `graph/W` was made of, and those of the test points.

An imported graph has no lists: it is symmetrised, and without similarities. Rows that were not scaled to unit length have inner
products that are no similarities. Both are refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.scores import TEST
from mmdiff.formats.errors import BadOption, Damaged, Missing, Parameter, Stale, call
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import order_of
from mmdiff.graph.lists import ArrayLists, Block, PatchedLists
from mmdiff.knn.targets import recalls
from mmdiff.labels.collection import APPENDED, BACKGROUND
from mmdiff.labels.rows_by_id import SEEDS
from mmdiff.runtime.find_or_make import input_of
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.staleness import require_current
from mmdiff.runtime.threads import in_threads

_TEST_LISTS = "knn/test"

# Entries of lists in a block, of which some are in work: the pairs that are found in one take at most 16 bytes an entry.
BLOCK_ENTRIES = 1 << 19

# Inner products of equal rows differ from 1 by so much at most, since components are rounded to the type they are stored in:
# each by 2^-11 of itself in half precision, and twice that together.
ROUNDING = {"float32": 1e-5, "float16": 1e-3}

Result = TypeVar("Result")


class Lists(NamedTuple):
    """Lists of some rows among `nodes`, in blocks; `artifacts` are what they are stored in, by their key in a recipe."""

    lists: ArrayLists | PatchedLists
    artifacts: dict[str, Artifact]
    nodes: int

    @property
    def inputs(self) -> Json:
        return {key: input_of(artifact) for key, artifact in self.artifacts.items()}

    @property
    def estimated(self) -> Json:
        """The recall that was measured for each part of the lists, by what it is of."""
        return {what: figure for artifact in self.artifacts.values() for what, figure in recalls(artifact).items()}

    def blocks(self, work: Callable[[int, Block], Result], what: str, progress: Progress) -> Iterator[Result]:
        """The results of `work` for all blocks, in order; it gets the first row of a block and its lists."""
        step, rows = max(1, BLOCK_ENTRIES // self.lists.k), self.lists.nodes

        def read(start: int) -> tuple[int, Result]:
            stop = min(start + step, rows)
            block = self.lists.block(start, stop)
            self._refuse_bad(start, block)
            return stop - start, work(start, block)

        with progress(what, rows, "rows") as advance:
            for count, result in in_threads(read, range(0, rows, step)):
                yield result
                advance(count)

    def _refuse_bad(self, start: int, block: Block) -> None:
        """Refuses neighbours that are no nodes: kernels index with them. The number after NONE is 0."""
        following = block[0] + np.uint32(1)
        if following.max(initial=0) > self.nodes:
            row = start + int((following.max(axis=1) > self.nodes).argmax())
            artifact = next(iter(self.artifacts.values()))
            raise Damaged(f"{artifact.name}: the list of {row:,} names more than the {self.nodes:,} nodes. {artifact.remedy}")


@dataclass(frozen=True)
class Rows:
    """The numbering of rows in an audit: the collection, then the seeds, then the test points.

    `order` has the row of each node of the background, which are in cell order; all others are in the order of their rows.
    """

    of: dict[str, int]
    order: NDArray[np.uint32] | None

    @classmethod
    def read(cls, store: Store, W: Artifact) -> Rows:
        facts = W.manifest.facts
        tests = store.open_artifact(TEST).spec("vectors").shape[0] if store.id(TEST) is not None else facts["test"]
        of = {"background": facts["background"], "appended": facts.get("appended", 0), "seeds": facts["seeds"], "test": tests}
        return cls(of, order_of(W))

    @property
    def first_test(self) -> int:
        return sum(self.of.values()) - self.of["test"]

    def of_nodes(self, nodes: NDArray[Any]) -> NDArray[np.int64]:
        """The rows of some nodes."""
        if self.order is None or not len(self.order):
            return nodes.astype(np.int64)
        return np.where(nodes < len(self.order), self.order[np.minimum(nodes, len(self.order) - 1)], nodes).astype(np.int64)

    def node_of_row(self, nodes: int) -> NDArray[np.int64]:
        """The node of each row that is one."""
        found = np.arange(nodes)
        if self.order is not None:
            found[: len(self.order)] = np.argsort(self.order)
        return found


def open_lists(store: Store, W: Artifact) -> Lists:
    """The lists of the nodes that the graph was made of."""
    if "source" in W.manifest.inputs:
        raise Missing(
            f"{W.name}: imported, so that there are no lists of neighbours with similarities. Build the graph here: ",
            call("build_graph"),
        )
    _require_unit_length(store)
    artifacts: dict[str, Artifact] = {
        key: store.open_artifact(f"knn/{key}") for key in ("BB", "W0") if key in W.manifest.inputs
    }
    nodes = W.manifest.facts["nodes"]
    several = len(artifacts) == 2
    lists = PatchedLists.of(artifacts["BB"], artifacts["W0"]) if several else ArrayLists.of(next(iter(artifacts.values())))
    if lists.nodes != nodes:
        raise Damaged(f"{W.name}: {nodes:,} nodes, but lists of {lists.nodes:,}. {W.remedy}")
    return Lists(lists, artifacts, nodes)


def open_test_lists(store: Store, W: Artifact) -> Lists | None:
    """The lists of the test points among the nodes; None where there are no test points."""
    if store.id(TEST) is None:
        return None
    if store.id(_TEST_LISTS) is None:
        raise Stale(f"{W.name}: made before {TEST} was imported. Run again: {W.run['command']}")
    lists = store.open_artifact(_TEST_LISTS)
    require_current(store, lists)
    if lists.manifest.facts["nodes"] != W.manifest.facts["nodes"]:
        raise Stale(f"{_TEST_LISTS}: made for another graph. Run again: {W.run['command']}")
    return Lists(ArrayLists.of(lists), {"test": lists}, W.manifest.facts["nodes"])


def graph_recalls(store: Store, W: Artifact) -> Json:
    """The recall that was measured for the lists of a graph, by what it is of; none for an imported graph."""
    artifacts = [store.open_artifact(f"knn/{key}") for key in ("BB", "W0") if key in W.manifest.inputs]
    return {what: figure for artifact in artifacts for what, figure in recalls(artifact).items()}


def rounding_of(store: Store) -> float:
    """By how much the similarity of equal rows may fall short of 1."""
    roles = (BACKGROUND, APPENDED, SEEDS, TEST)
    dtypes = {store.open_artifact(name).spec("vectors").dtype for name in roles if store.id(name) is not None}
    return max(ROUNDING[dtype] for dtype in dtypes)


def _require_unit_length(store: Store) -> None:
    """Without unit length the nearest rows need not be alike, and no threshold says how much."""
    name = BACKGROUND if store.id(BACKGROUND) is not None else SEEDS
    if not store.open_artifact("models/pca").manifest.parameters["normalize"]:
        raise BadOption(
            f"{name}: its rows were not scaled to unit length, so that inner products do not tell how similar rows are. "
            "Import the rows with ",
            Parameter("normalize", True),
            ".",
        )
