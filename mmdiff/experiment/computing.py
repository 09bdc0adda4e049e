"""Computes the cells of one group. What several cells need is made once: lists of neighbours, graphs, models, scores.

Cells of a grid as units of work, for this process or for others, each of which reads the data once.

What several cells need is made once by each process: lists of neighbours, graphs, models.
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
from mmdiff.experiment.cells import COLUMNS, DATA, FIGURES, Cell, Planes, Result, hits
from mmdiff.experiment.config import Background, Config, Group
from mmdiff.experiment.methods import variant_of, weighting_of
from mmdiff.experiment.protocol import Data, Ids, Protocol
from mmdiff.experiment.shared_lists import Ground, Nodes
from mmdiff.formats.errors import MissingExtra, Stale
from mmdiff.formats.store.manifest import Json, encode
from mmdiff.fusion.late import WEIGHTS, fuse, log_of_scores
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.in_memory import graph_of
from mmdiff.labels.classes import UNLABELLED
from mmdiff.logreg.training import Model, Options, Samples, load_torch, train
from mmdiff.runtime.progress import Advance

Scores = NDArray[np.float32]
Made = TypeVar("Made")

# What is kept of what was made last: graphs and nodes of draws by number, scores by what they take.
_GRAPHS, _NODES, _MODELS = 6, 3, 4
_SCORE_BYTES = 512 << 20


class Recent(Generic[Made]):
    """What was made last, up to a limit; `size` says what a thing counts for."""

    def __init__(self, limit: int, size: Callable[[Made], int] = lambda _: 1) -> None:
        self._limit, self._size = limit, size
        self._kept: OrderedDict[Hashable, Made] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        made = make()
        self._kept[key] = made
        while self._kept and sum(map(self._size, self._kept.values())) > self._limit:
            self._kept.popitem(last=False)
        return made


class Computing:
    """The cells of one group, whoever asks for them and in whatever order; each comes out the same."""

    def __init__(self, protocol: Protocol, dims: int, most_neighbors: int) -> None:
        self.protocol, self.dims, self.most_neighbors = protocol, dims, most_neighbors
        self._grounds: dict[Background, Ground] = {}
        self._nodes: Recent[Nodes] = Recent(_NODES)
        self._graphs: Recent[CsrGraph] = Recent(_GRAPHS)
        self._models: Recent[Model] = Recent(_MODELS)
        self._scores: Recent[tuple[Scores, Planes]] = Recent(_SCORE_BYTES, lambda kept: kept[0].nbytes)

    def result(self, cell: Cell) -> Result:
        clock = time.perf_counter()
        scores, reached = self._fused(cell) if cell.kind == "fusion" else self._scored(cell)
        planes = np.zeros((len(scores), len(COLUMNS)), np.int64)
        planes[:, len(FIGURES) :] = reached
        truth, novel = self.protocol.truth, self.protocol.tests_are_novel
        for plane, values in enumerate(scores):
            planes[plane, : len(FIGURES)] = hits(values, truth, novel)
        return Result(planes, time.perf_counter() - clock)

    def _scored(self, cell: Cell) -> tuple[Scores, Planes]:
        """Scores of a logistic regression or of a diffusion (every iteration), and how far labels have come."""
        key = (cell.n, cell.draw, cell.background, encode(cell.options))
        return self._scores.get(key, lambda: self._classified(cell) if cell.background is None else self._diffused(cell))

    def _fused(self, cell: Cell) -> tuple[list[Scores], Planes]:
        """The fusion at every weight, of the iteration that was chosen for the diffusion."""
        logs, _ = self._scored(replace(cell, kind="logreg", background=None, options=cell.options["logreg"]))
        diffused, _ = self._scored(replace(cell, kind="diffusion", options=cell.options["diffusion"]))
        log_p, log_q = logs[0], log_of_scores(diffused[cell.options["iteration"]])
        return [fuse(log_p, log_q, weight) for weight in WEIGHTS], np.zeros((len(WEIGHTS), 2), np.int64)

    def _classified(self, cell: Cell) -> tuple[Scores, Planes]:
        model = self._model(cell.n, cell.draw, cell.options)
        return model.log_probabilities(self.protocol.data.test[self.protocol.tests])[None], np.zeros((1, 2), np.int64)

    def _model(self, n: int, draw: int, options: Json) -> Model:
        """The logistic regression of a draw, on raw descriptors of its seeds; the number of the draw seeds its batches."""

        def learn() -> Model:
            rows = np.concatenate([self.protocol.base, self.protocol.drawn(n, draw)])
            samples = Samples.of(self.protocol.columns(rows))
            return train(self.protocol.data.train[rows], samples, len(self.protocol.classes), Options(**options, seed=draw))

        return self._models.get((n, draw, encode(options)), learn)

    def _diffused(self, cell: Cell) -> tuple[Scores, Planes]:
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
            # Every row is computed, not only those that test points look at, so that what labels have reached is all of it.
            width = min(COLS_PER_BATCH, classes)
            diffusion = Diffusion(
                stream=stream,
                seeds=seeds,
                variant=variant,
                prior=p,
                iterations=len(scores) - 1,
                width=width,
                neighbors=neighbors,
                every_row=True,
            )
            for result in diffusion.results():
                scores[result.iteration][:, diffusion.columns(result.batch)] = result.scores(neighbors)
                reached[result.iteration, 0] += result.nonzero
        return scores, reached

    def _graph(self, cell: Cell) -> tuple[Nodes, CsrGraph]:
        background: Any = cell.background
        ground = self.ground(background)
        drawn = (cell.n, cell.draw) if ground.draws_matter else None
        k, weighting = cell.options["k"], weighting_of(cell.options)
        nodes = self._nodes.get((background, drawn), lambda: ground.joined(self.protocol.drawn(cell.n, cell.draw)))

        def symmetrised() -> CsrGraph:
            neighbors, similarities = nodes.lists
            # Lists are by falling similarity: those of fewer neighbours are the beginning of them.
            return graph_of(np.ascontiguousarray(neighbors[:, :k]), np.ascontiguousarray(similarities[:, :k]), weighting)

        return nodes, self._graphs.get((background, drawn, k, weighting), symmetrised)

    def ground(self, background: Background) -> Ground:
        if background not in self._grounds:
            self._grounds[background] = Ground.make(self.protocol, background, self.dims, self.most_neighbors)
        return self._grounds[background]

    def labels(self, nodes: Nodes, drawn: Ids) -> Ids:
        """The column of each seed among the nodes, UNLABELLED for the background."""
        seeds = np.isin(nodes.rows, np.concatenate([self.protocol.base, drawn]))
        return np.where(seeds, self.protocol.columns(nodes.rows), UNLABELLED)

    def _prior(self, cell: Cell, nodes: Nodes, labels: Ids) -> NDArray[np.float64] | None:
        """How frequent classes are: among the seeds, or as a logistic regression sees all nodes (paper, supplement)."""
        if cell.options.get("prior") == "seeds":
            return np.bincount(labels[labels != UNLABELLED], minlength=len(self.protocol.classes)).astype(np.float64)
        if cell.options.get("prior") == "logreg":
            model = self._model(cell.n, cell.draw, {})
            # Mean probabilities, and not counts of the most likely class: no class may have the prior 0.
            logs = model.log_probabilities(self.protocol.data.train[nodes.rows])
            return np.asarray(np.exp(logs.astype(np.float64)).mean(axis=0))
        return None


Keyed = tuple[str, Cell]
"""A cell, and the digest that it is known by."""


@dataclass
class Groups:
    """Computes cells, in whatever order; those of one group are best asked for one after the other."""

    config: Config
    protocols: dict[Group, Protocol]
    _computing: dict[Group, Computing] = field(default_factory=dict)

    def result(self, unit: Keyed) -> Result:
        return self._of(unit[1].group).result(unit[1])

    def _of(self, group: Group) -> Computing:
        """What computes the cells of a group; that of the group before is let go with all that it made."""
        if group not in self._computing:
            self._computing.clear()
            self._computing[group] = Computing(self.protocols[group], self.config.dims, self.config.most_neighbors)
        return self._computing[group]


@dataclass(frozen=True)
class Cells:
    """An experiment that can be sent. `threads` are those that products of matrices have where it comes from: how they are
    rounded depends on it.
    """

    config: Config
    prints: Json
    threads: int

    @classmethod
    def of(cls, config: Config, prints: Json) -> Cells:
        files = {role: str(Path(file).absolute()) for role, file in config.files.items()}
        threads = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        return cls(replace(config, files=files), prints, max(threads, default=1))

    @contextmanager
    def opened(self) -> Iterator[Callable[[Keyed, Advance], Result]]:
        data = Data.read(self.config)
        for role in DATA:
            if data.prints[role] != self.prints[role]:
                raise Stale(
                    f"{self.config.files[role]}: a worker finds another file there. All need the same at the same path."
                )
        groups = Groups(self.config, {group: Protocol.of(data, self.config, group) for group in self.config.groups})
        # The threads of a library can only be chosen once it is loaded.
        if any(method.kind == "logreg" for method in self.config.methods):
            with suppress(MissingExtra):
                load_torch()

        def compute(unit: Keyed, _: Advance) -> Result:
            with threadpool_limits(self.threads):
                return groups.result(unit)

        yield compute
