"""Computes the cells of an experiment's grid, in this process or in Dask workers (paper, section 4).

`CellComputer` computes the cells of one group and caches everything that several cells share: neighbour lists, graphs, models
and scores. `GridComputer` has one for the group at hand. `ExperimentWork` is the same for workers, each of which reads the data
once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.options import COLS_PER_BATCH
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import class_prior
from mmdiff.experiment.cells import COLUMNS, DATA, FIGURES, Cell, Counts, Result, hits
from mmdiff.experiment.config import Background, Config, Group
from mmdiff.experiment.methods import as_key, variant_of, weighting_of
from mmdiff.experiment.protocol import Data, Ids, Protocol
from mmdiff.experiment.shared_lists import Nodes, SharedLists
from mmdiff.formats.errors import BadOption, MissingExtra, Stale
from mmdiff.formats.store.manifest import Json, encode
from mmdiff.fusion.late import WEIGHTS, fuse, log_of_scores
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.in_memory import graph_of
from mmdiff.labels.classes import UNLABELLED
from mmdiff.logreg.training import Model, Options, Samples, load_torch, train
from mmdiff.runtime.progress import Advance

Scores = NDArray[np.float32]
Made = TypeVar("Made")

# Cache limits: graphs, nodes and models by number, scores by bytes.
_GRAPHS, _NODES, _MODELS = 6, 3, 4
_SCORE_BYTES = 512 << 20


class LruCache(Generic[Made]):
    """The values used last, up to a limit on the sum of their sizes; by default each counts as 1."""

    def __init__(self, limit: int, size: Callable[[Made], int] = lambda _: 1) -> None:
        self._limit, self._size = limit, size
        self._values: OrderedDict[Hashable, Made] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        made = make()
        self._values[key] = made
        while self._values and sum(map(self._size, self._values.values())) > self._limit:
            self._values.popitem(last=False)
        return made


class CellComputer:
    """Computes the cells of one group, in any order; results do not depend on it."""

    def __init__(self, protocol: Protocol, dims: int, most_neighbors: int) -> None:
        self.protocol, self.dims, self.most_neighbors = protocol, dims, most_neighbors
        self._shared: dict[Background, SharedLists] = {}
        self._nodes: LruCache[Nodes] = LruCache(_NODES)
        self._graphs: LruCache[CsrGraph] = LruCache(_GRAPHS)
        self._models: LruCache[Model] = LruCache(_MODELS)
        self._scores: LruCache[tuple[Scores, Counts]] = LruCache(_SCORE_BYTES, lambda cached: cached[0].nbytes)

    def result(self, cell: Cell) -> Result:
        clock = time.perf_counter()
        scores, reached = self._fused(cell) if cell.kind == "fusion" else self._scored(cell)
        counts = np.zeros((len(scores), len(COLUMNS)), np.int64)
        counts[:, len(FIGURES) :] = reached
        truth, novel = self.protocol.truth, self.protocol.tests_are_novel
        for step, values in enumerate(scores):
            counts[step, : len(FIGURES)] = hits(values, truth, novel)
        return Result(counts, time.perf_counter() - clock)

    def _scored(self, cell: Cell) -> tuple[Scores, Counts]:
        """Scores of a logistic regression, or of a diffusion after every iteration, with non-zero and all entries of L."""
        key = (cell.n, cell.draw, cell.background, encode(cell.options))
        return self._scores.get(key, lambda: self._classified(cell) if cell.background is None else self._diffused(cell))

    def _fused(self, cell: Cell) -> tuple[list[Scores], Counts]:
        """Fused scores at every weight, from the iteration chosen for the diffusion."""
        logs, _ = self._scored(replace(cell, kind="logreg", background=None, options=cell.options["logreg"]))
        diffused, _ = self._scored(replace(cell, kind="diffusion", options=cell.options["diffusion"]))
        log_p, log_q = logs[0], log_of_scores(diffused[cell.options["iteration"]])
        return [fuse(log_p, log_q, weight) for weight in WEIGHTS], np.zeros((len(WEIGHTS), 2), np.int64)

    def _classified(self, cell: Cell) -> tuple[Scores, Counts]:
        model = self._model(cell.n, cell.draw, cell.options)
        return model.log_probabilities(self.protocol.data.test[self.protocol.tests])[None], np.zeros((1, 2), np.int64)

    def _model(self, n: int, draw: int, options: Json) -> Model:
        """The logistic regression on the raw descriptors of a draw's seeds; the draw number seeds its batches."""

        def learn() -> Model:
            rows = np.concatenate([self.protocol.base, self.protocol.drawn(n, draw)])
            samples = Samples.of(self.protocol.columns(rows))
            return train(self.protocol.data.train[rows], samples, len(self.protocol.classes), Options(**options, seed=draw))

        return self._models.get((n, draw, encode(options)), learn)

    def _diffused(self, cell: Cell) -> tuple[Scores, Counts]:
        options, classes = cell.options, len(self.protocol.classes)
        nodes, graph = self._graph(cell)
        labels = self.labels(nodes, self.protocol.drawn(cell.n, cell.draw))
        neighbors = np.ascontiguousarray(nodes.test_lists[0][:, : options["k"]])
        variant = variant_of(options)
        given = self._prior(cell, nodes, labels)
        p = class_prior(variant, given, options.get("prior"), options.get("prior_power"), classes)
        seeds = Seeds.of(np.arange(graph.nodes), labels.astype(np.int32), classes)
        scores = np.empty((options["iterations"] + 1, len(neighbors), classes), np.float32)
        reached = np.zeros((len(scores), 2), np.int64)
        reached[:, 1] = graph.nodes * classes
        with Stream(graph) as stream:
            # Every row is computed, beyond those that test points gather, since non-zero entries are counted in all of L.
            diffusion = Diffusion(
                stream=stream,
                seeds=seeds,
                variant=variant,
                prior=p,
                iterations=len(scores) - 1,
                width=min(COLS_PER_BATCH, classes),
                neighbors=neighbors,
                every_row=True,
            )
            for result in diffusion.results():
                scores[result.iteration][:, diffusion.columns(result.batch)] = result.scores(neighbors)
                reached[result.iteration, 0] += result.nonzero
        return scores, reached

    def _graph(self, cell: Cell) -> tuple[Nodes, CsrGraph]:
        background: Any = cell.background
        shared = self.shared_lists(background)
        drawn = (cell.n, cell.draw) if shared.draws_matter else None
        k, weighting = cell.options["k"], weighting_of(cell.options)
        nodes = self._nodes.get((background, drawn), lambda: shared.with_draw(self.protocol.drawn(cell.n, cell.draw)))

        def symmetrised() -> CsrGraph:
            neighbors, similarities = nodes.lists
            # Lists are sorted by falling similarity, so a smaller k takes their first columns.
            first = np.ascontiguousarray(neighbors[:, :k]), np.ascontiguousarray(similarities[:, :k])
            try:
                return graph_of(*first, weighting)
            except BadOption as error:
                where = f"the graph of background {background}, n = {cell.n}"
                raise BadOption(f"{where}: {error.spelled(as_key)}") from error

        return nodes, self._graphs.get((background, drawn, k, weighting), symmetrised)

    def shared_lists(self, background: Background) -> SharedLists:
        if background not in self._shared:
            self._shared[background] = SharedLists.make(self.protocol, background, self.dims, self.most_neighbors)
        return self._shared[background]

    def labels(self, nodes: Nodes, drawn: Ids) -> Ids:
        """The class column of each node, UNLABELLED for the background."""
        seeds = np.isin(nodes.rows, np.concatenate([self.protocol.base, drawn]))
        return np.where(seeds, self.protocol.columns(nodes.rows), UNLABELLED)

    def _prior(self, cell: Cell, nodes: Nodes, labels: Ids) -> NDArray[np.float64] | None:
        """Class frequencies: of the seeds, or as a logistic regression predicts them for all nodes (paper, supplement)."""
        if cell.options.get("prior") == "seeds":
            return np.bincount(labels[labels != UNLABELLED], minlength=len(self.protocol.classes)).astype(np.float64)
        if cell.options.get("prior") == "logreg":
            model = self._model(cell.n, cell.draw, {})
            # Mean probabilities instead of counts of the most likely class, since no class may have the prior 0.
            logs = model.log_probabilities(self.protocol.data.train[nodes.rows])
            return np.asarray(np.exp(logs.astype(np.float64)).mean(axis=0))
        return None


KeyedCell = tuple[str, Cell]
"""A cell with its key."""


@dataclass
class GridComputer:
    """Computes cells of any group. Only one group is cached, so the cells of a group should come in sequence."""

    config: Config
    protocols: dict[Group, Protocol]
    _computers: dict[Group, CellComputer] = field(default_factory=dict)

    def result(self, unit: KeyedCell) -> Result:
        return self._computer(unit[1].group).result(unit[1])

    def _computer(self, group: Group) -> CellComputer:
        """The computer of a group; the previous group's is dropped with its caches."""
        if group not in self._computers:
            self._computers.clear()
            self._computers[group] = CellComputer(self.protocols[group], self.config.dims, self.config.most_neighbors)
        return self._computers[group]


@dataclass(frozen=True)
class ExperimentWork:
    """The work that is sent to Dask workers.

    `threads` is the number of BLAS threads of the sending process. Workers use as many, since the rounding of matrix products
    depends on it.
    """

    config: Config
    prints: Json
    threads: int

    @classmethod
    def of(cls, config: Config, prints: Json) -> ExperimentWork:
        files = {role: str(Path(file).absolute()) for role, file in config.files.items()}
        threads = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        return cls(replace(config, files=files), prints, max(threads, default=1))

    @contextmanager
    def opened(self) -> Iterator[Callable[[KeyedCell, Advance], Result]]:
        data = Data.read(self.config)
        for role in DATA:
            if data.prints[role] != self.prints[role]:
                raise Stale(
                    f"{self.config.files[role]}: a worker finds another file there. Workers need the same file at this path."
                )
        computer = GridComputer(self.config, {group: Protocol.of(data, self.config, group) for group in self.config.groups})
        # Thread limits apply only to libraries that are loaded.
        if any(method.kind == "logreg" for method in self.config.methods):
            with suppress(MissingExtra):
                load_torch()

        def compute(unit: KeyedCell, _: Advance) -> Result:
            with threadpool_limits(self.threads):
                return computer.result(unit)

        yield compute
