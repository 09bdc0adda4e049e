"""`mmdiff suggest`: the rows of the collection whose labels would tell the most, best first, each with the reasons.

By coverage, a row is worth what its label would add to the coverage that present labels and earlier suggestions have
(`coverage.py`). By uncertainty, it is worth how unsure its prediction is, times the share of its own reach that no earlier
suggestion covers, so that look-alikes are not asked twice. Mixed, coverage is weighted by how unsure the covered rows are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff import text
from mmdiff.diffusion.io.graph_stream import Stream, stored_bytes
from mmdiff.diffusion.problem import open_graph
from mmdiff.export.columns import WRITERS, arrow_table, ending_of
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption, Parameter, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.labels.classes import UNLABELLED
from mmdiff.labels.label_set import LabelSet, find_label_set
from mmdiff.runtime.parameters import MOST, flag, whole
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.threads import cores
from mmdiff.suggestion.candidates import Given, candidate_rows, in_nodes
from mmdiff.suggestion.coverage import THREAD_BYTES_PER_NODE, Columns, first_gains
from mmdiff.suggestion.greedy import choose
from mmdiff.suggestion.predictions import Predictions, PresentScores, read_scores, unsure
from mmdiff.suggestion.reasons import Chosen, columns_of

By = Literal["coverage", "uncertainty", "mixed"]
BY: tuple[By, ...] = ("coverage", "uncertainty", "mixed")

# Bytes that the search takes for each node, whatever the threads, and those that predictions add.
_NODE_BYTES, _PREDICTED_BYTES = 28, 40

# Labelled rows that are covered between two looks at Ctrl-C.
_COVERED = 256


@dataclass(frozen=True)
class Request:
    """Rows to suggest: `count` in all, or for each predicted class. `candidates` are the user's; None is all rows."""

    count: int
    by: By = "coverage"
    per_class: bool = False
    candidates: Given | None = None
    memory: int = 8 << 30


@explaining
def suggest(store: Store, request: Request, target: Path | IO[bytes], progress: Progress = silent) -> Json:
    """Writes suggestions to a file, which is replaced once the new one is complete, or as CSV to a stream."""
    clock, request = time.perf_counter(), _checked(request)
    if not isinstance(target, Path):
        columns, summary = _suggested(store, request, progress, clock)
        WRITERS[".csv"](columns, summary, target)
        return {"file": None, **summary}
    ending = ending_of(target, "suggestions")
    check_place(target, store)
    columns, summary = _suggested(store, request, progress, clock)
    with whole_file(target) as stream:
        WRITERS[ending](columns, summary, stream)
    return {"file": str(target), "bytes": target.stat().st_size, **summary}


@explaining
def suggest_table(store: Store, request: Request, progress: Progress = silent) -> Any:
    """Suggestions as an Arrow table in memory, with the summary as JSON in the metadata of its schema."""
    clock, request = time.perf_counter(), _checked(request)
    columns, summary = _suggested(store, request, progress, clock)
    return arrow_table(columns, summary, "a table of suggestions")


@explaining
def suggest_columns(path: Path, request: Request, progress: Progress = silent) -> tuple[list[Any], Json]:
    """The columns of such a table, for which no Arrow is needed, and the summary."""
    clock, request, store = time.perf_counter(), _checked(request), Store.open(path)
    return _suggested(store, request, progress, clock)


def _suggested(store: Store, request: Request, progress: Progress, clock: float) -> tuple[list[Any], Json]:
    problem = _Problem.read(store, request)
    found = Search(problem, request, progress)
    chosen = list(found.run())
    columns, notes = columns_of(store, problem.artifact, chosen, problem.labels.used(), problem.scores)
    return columns, {
        "suggestions": len(chosen),
        "by": request.by,
        "per_class": request.per_class,
        "rows": problem.rows,
        "candidates": problem.count,
        "labelled": len(problem.labels.rows),
        "reached": found.reached,
        "reached_with": found.reached + sum(each.reaches for each in chosen),
        "notes": [*problem.notes, *found.notes(chosen), *notes],
        "seconds": round(time.perf_counter() - clock, 3),
    }


@dataclass(frozen=True)
class _Problem:
    """The inputs from the store: the graph, its labels, the candidates among its first `rows` rows, the present scores."""

    artifact: Artifact
    graph: CsrGraph
    rows: int
    labels: LabelSet
    allowed: NDArray[np.bool_]
    scores: PresentScores | None
    predictions: Predictions | None
    notes: list[str]

    @classmethod
    def read(cls, store: Store, request: Request) -> _Problem:
        needs_scores = request.by != "coverage" or request.per_class
        artifact = open_graph(store)
        facts = artifact.manifest.facts
        rows = facts["background"] + facts.get("appended", 0)
        labels = find_label_set(store, artifact)
        scores = read_scores(store, needs_scores)
        allowed, notes = candidate_rows(store, rows, labels, request.candidates)
        predictions = scores.all() if needs_scores and scores is not None else None
        if predictions is not None and (request.per_class or request.by == "uncertainty"):
            # A row that no label has reached has no class, and nothing that could be unsure.
            allowed &= predictions.label != UNLABELLED
        graph = CsrGraph.from_artifact(artifact)
        return cls(artifact, graph, rows, labels, allowed, scores, predictions, [*labels.notes, *notes])

    @property
    def count(self) -> int:
        return int(self.allowed.sum())

    def nodes(self, marked: NDArray[np.bool_]) -> NDArray[np.uint32]:
        """The nodes of marked rows."""
        return np.flatnonzero(in_nodes(self.graph, marked)).astype(np.uint32)

    def labelled_nodes(self) -> NDArray[np.uint32]:
        """The nodes whose labels spread."""
        marked = np.zeros(self.graph.nodes, bool)
        marked[self.labels.used().rows] = True
        return self.nodes(marked)


class Search:
    """The search for rows: `reached` are the rows that present labels reach, known once it runs."""

    def __init__(self, problem: _Problem, request: Request, progress: Progress) -> None:
        self._problem, self._request, self._progress = problem, request, progress
        self.reached = 0
        self._wanted = self._most = 0
        self._threads = _threads(problem, request)

    def run(self) -> Iterator[Chosen]:
        """The chosen rows, best first."""
        request, graph = self._request, self._problem.graph
        weight = self._weight()
        with self._progress("reading the graph", 2 * graph.edges, "edges") as advance:
            let_go = stored_bytes(graph) > request.memory
            with Stream(graph, let_go=let_go) as stream:
                stream.advance = advance
                bounds = first_gains(stream, weight)
        coverage = np.zeros(graph.nodes, np.float32)
        with ThreadPoolExecutor(self._threads) as pool:
            columns = Columns(graph, pool, self._threads)
            self._cover_labels(columns, coverage)
            yield from self._choose(columns, coverage, bounds, weight)

    def notes(self, chosen: list[Chosen]) -> list[str]:
        """Why there are fewer suggestions than were asked for."""
        if len(chosen) == self._wanted:
            return []
        left = "no other candidate adds anything" if len(chosen) < self._most else "there are no more candidates"
        return [f"{text.count(len(chosen), 'suggestion')} instead of {self._wanted:,}: {left}."]

    def _choose(
        self,
        columns: Columns,
        coverage: NDArray[np.float32],
        bounds: NDArray[np.float32],
        weight: NDArray[np.float32] | None,
    ) -> Iterator[Chosen]:
        problem, request, graph = self._problem, self._request, self._problem.graph
        order = np.empty(0, np.uint32) if graph.order is None else graph.order
        candidates, quota = problem.nodes(problem.allowed), self._quota()
        seen, factor = coverage, None
        if request.by == "uncertainty":
            # The reach of a row is its first bound: what it would cover on its own.
            factor = np.divide(self._unsure(), bounds, out=np.zeros_like(bounds), where=bounds > 0)
            bounds *= factor * np.float32(1 + 1e-5)
            seen = np.zeros_like(coverage)

        def values(nodes: NDArray[np.uint32]) -> NDArray[np.float32]:
            gains = columns.gains(nodes, seen, weight)
            return (gains if factor is None else gains * factor[nodes]).astype(np.float32)

        self._wanted = request.count * (1 if quota is None else len(quota.left))
        self._most = min(problem.count, self._wanted) if quota is None else sum(quota.left.values())
        with self._progress("choosing rows", self._most, "rows") as advance:
            is_open = None if quota is None else quota.is_open
            for place, choice in enumerate(choose(candidates, bounds, order, values, self._threads, is_open), 1):
                node = np.array([choice.node], np.uint32)
                if seen is not coverage:
                    columns.cover(node, seen, problem.rows)
                added = columns.cover(node, coverage, problem.rows)
                if quota is not None:
                    quota.take(choice.node)
                yield Chosen(int(graph.rows_of(node)[0]), added.reached, added.gain)
                advance(1)
                if place == self._most:
                    return

    def _cover_labels(self, columns: Columns, coverage: NDArray[np.float32]) -> None:
        nodes = self._problem.labelled_nodes()
        with self._progress("covering what labels reach", len(nodes), "labels") as advance:
            for start in range(0, len(nodes), _COVERED):
                part = nodes[start : start + _COVERED]
                self.reached += columns.cover(part, coverage, self._problem.rows).reached
                advance(len(part))

    def _weight(self) -> NDArray[np.float32] | None:
        """The weight of each node's coverage; None for all alike."""
        return self._unsure() if self._request.by == "mixed" else None

    def _unsure(self) -> NDArray[np.float32]:
        """The doubt about the prediction of each node: none where it is labelled."""
        problem = self._problem
        assert problem.predictions is not None
        values = np.ones(problem.graph.nodes, np.float32)
        values[: problem.rows] = unsure(problem.predictions)
        values[problem.labels.used().rows] = 0
        return in_nodes(problem.graph, values)

    def _quota(self) -> _Quota | None:
        problem = self._problem
        if not self._request.per_class:
            return None
        assert problem.predictions is not None
        present = np.bincount(problem.predictions.label[problem.allowed])
        left = {int(own): min(self._request.count, int(present[own])) for own in np.flatnonzero(present)}
        return _Quota(left, in_nodes(problem.graph, problem.predictions.label))


@dataclass(frozen=True)
class _Quota:
    """The suggestions that each predicted class still gets; `classes` are those of the first nodes."""

    left: dict[int, int]
    classes: NDArray[np.int32]

    def is_open(self, nodes: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whether the class of each node gets another suggestion."""
        return np.array([self.left[own] > 0 for own in self.classes[nodes].tolist()], bool)

    def take(self, node: int) -> None:
        self.left[int(self.classes[node])] -= 1


def _threads(problem: _Problem, request: Request) -> int:
    """The threads that memory allows; refused where it does not allow one."""
    nodes = problem.graph.nodes
    fixed = nodes * (_NODE_BYTES + (0 if problem.predictions is None else _PREDICTED_BYTES))
    left = (request.memory - fixed) // (THREAD_BYTES_PER_NODE * nodes)
    if left < 1:
        needed = fixed + THREAD_BYTES_PER_NODE * nodes
        raise BadOption(
            Parameter("memory", request.memory),
            f": to suggest among {nodes:,} rows takes about {text.size(needed)}. Allow more.",
        )
    return min(cores(), left)


def _checked(request: Request) -> Request:
    one_of("by", request.by, BY)
    number = whole("n", request.count, 1, MOST, "For example 50.")
    return replace(request, count=number, per_class=flag("per_class", request.per_class))
