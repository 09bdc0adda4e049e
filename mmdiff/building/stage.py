"""`mmdiff build-graph`: from descriptors to the symmetrised graph W (paper, sections 3.2 and 3.5).

descriptors/background -> models/cells -> knn/BB          off-line: independent of the seeds
knn/BB + descriptors/{appended,seeds} -> knn/W0           on-line: a patch over knn/BB
all nodes + descriptors/test -> knn/test
knn/BB patched by knn/W0 -> graph/W

Each stage is made once and found again as long as its inputs and parameters are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.building.appended import notes_on_appended
from mmdiff.building.memory_model import (
    GRAPH,
    TEST,
    W0,
    Sizes,
    Stage,
    for_background,
    for_cells,
    for_graph,
    for_points,
    least_disk,
    peak_disk,
    refuse_little_memory,
)
from mmdiff.formats.errors import FILE, BadOption, Damaged, Missing, Parameter, Stale, WidthMismatch, call, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.lists import MOST_NODES, ArrayLists, Lists, PatchedLists
from mmdiff.graph.symmetrise import symmetrise
from mmdiff.graph.weights import EdgeWeights, Weighting, choose, parameters
from mmdiff.importing.merging import merge_appended
from mmdiff.kernels.constants import NONE
from mmdiff.knn import background as bb
from mmdiff.knn.cells import order as cell_order
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.completion import Background, Nodes, write_test, write_W0
from mmdiff.knn.faiss_index.factory import index_bytes
from mmdiff.knn.faiss_index.gpu import require_gpu
from mmdiff.knn.search.devices import Comparing, device_for
from mmdiff.knn.targets import left_to_cpu, missed_targets
from mmdiff.labels.collection import APPENDED, BACKGROUND, appended_rows, has_leftover, remove_leftover, rows_of
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.find_or_make import input_of, make
from mmdiff.runtime.parameters import flag, number, random_seed, text, whole
from mmdiff.runtime.progress import Progress, silent

SCHEMA = 1
# `knn/W0` where it is a patch over `knn/BB`.
PATCH_SCHEMA = 2
ROLES = ("background", "appended", "seeds", "test")

# Roles whose rows join the background.
_JOINING = ("appended", "seeds")

# Up to this many multiply-adds the search is exhaustive: it takes about ten seconds.
FLAT = 5 * 10**11

# Characters of a factory string; Faiss itself takes any number.
_LONGEST_FACTORY = 200


@dataclass(frozen=True)
class Request:
    """Parameters of the graph."""

    k: int = 30
    recall: float = 0.95
    index: str = "auto"
    device: Literal["auto", "cpu", "gpu"] = "auto"
    memory: int = 8 << 30
    seed: int = 0
    edge_weights: EdgeWeights = "constant"
    sigma: float | None = None
    lambda_: float | None = None
    transductive: bool = False
    merge_appended: bool = False
    command: str = "mmdiff build-graph"

    @property
    def joining(self) -> tuple[str, ...]:
        """The roles whose rows join the background as nodes."""
        return (*_JOINING, "test") if self.transductive else _JOINING


@dataclass
class Outcome:
    """The artifacts of the graph, the seconds of those that were made now, and notes on rows that were appended."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> Json:
        return {
            name: {
                "object": artifact.id,
                "reused": name not in self.seconds,
                "seconds": round(self.seconds.get(name, 0.0), 3),
                "bytes": artifact.manifest.bytes_on_disk,
                "facts": artifact.manifest.facts,
                "warnings": [*missed_targets(artifact), *left_to_cpu(artifact), *(self.notes if name == GRAPH else [])],
            }
            for name, artifact in self.artifacts.items()
        }


@explaining
def build_graph(path: Path, request: Request, progress: Progress = silent, executor: Executor | None = None) -> Outcome:
    """Builds the missing and stale parts of the graph over all imported rows. `executor` searches the background."""
    store = Store.open(path)
    request, weighting = checked(request)
    roles = open_roles(store)
    _refuse_bad_roles(store, request, roles)
    merged = [BACKGROUND, APPENDED] if request.merge_appended else [APPENDED] if has_leftover(store) else []
    with Publication(path, [*merged, cell_order.NAME, bb.NAME, W0, TEST, GRAPH], request.command) as publication:
        outcome = Outcome()
        if request.merge_appended:
            made = merge_appended(publication, request.command, progress)
            roles = open_roles(store)
            if made is not None:
                outcome.artifacts[BACKGROUND] = made.artifact
                outcome.seconds |= {} if made.seconds is None else {BACKGROUND: made.seconds}
        if merged:
            remove_leftover(publication)
        stages = _Stages(publication, request, roles, progress, executor or LocalExecutor(), outcome)
        background = stages.background() if "background" in roles else None
        nodes = stages.nodes(background)
        if len(nodes.points):
            stages.completed(nodes)
        if "test" in roles:
            stages.test(nodes)
        stages.graph(nodes, weighting)
        if not len(nodes.points):
            # The graph has no lists over those of the background any more.
            publication.remove_name(W0)
        outcome.notes = notes_on_appended(roles, outcome.artifacts)
        return outcome


def open_roles(store: Store) -> dict[str, Artifact]:
    """The descriptors of a store by role, in the order of the nodes; appended rows of another background are none."""
    found = {"appended": appended_rows(store)}
    for role in ("background", "seeds", "test"):
        found[role] = store.open_artifact(name) if store.id(name := f"descriptors/{role}") is not None else None
    return {role: artifact for role in ROLES if (artifact := found[role]) is not None}


class _Stages:
    """The stages of one run, in order."""

    def __init__(
        self,
        publication: Publication,
        request: Request,
        roles: dict[str, Artifact],
        progress: Progress,
        executor: Executor,
        outcome: Outcome,
    ) -> None:
        self.publication, self.request, self.roles = publication, request, roles
        self.progress, self.executor = progress, executor
        self.outcome = outcome
        self.device = device_for(request.device)
        self.sizes = _sizes(request, roles, self.device)
        self.memory = _memory(self.sizes, executor.workers)
        self.disk = _stage_disk(request, self.sizes, roles)

    def background(self) -> Background:
        """Off-line: the cell order and the lists of the background."""
        request, descriptors = self.request, self.roles["background"]
        recipe = cell_order.recipe(descriptors, request.seed)

        def make_cells(draft: Draft, threads: int) -> Json:
            return cell_order.make(draft, descriptors.array("vectors"), threads, self.progress, self.device)

        artifact = self._make(cell_order.NAME, recipe, make_cells)
        artifact.require_shape("vectors", descriptors.spec("vectors").shape)
        cells = Cells.of(artifact, self.device)
        index, always = _index(request, descriptors, self.device), request.index == "cells"
        recipe = bb.recipe(artifact, request.k, request.recall, index, request.device, request.seed, always_cells=always)

        def make_lists(draft: Draft, threads: int) -> Json:
            return bb.make(draft, artifact, self._searchers(threads), self.progress)

        lists = self._make(bb.NAME, recipe, make_lists)
        nodes = len(cells.order)
        lists.require_shape("neighbors", (nodes, request.k))
        return Background(cells, (lists.index_array("neighbors", nodes, int(NONE)), lists.array("similarities")))

    def _searchers(self, threads: int) -> bb.Searchers:
        """The threads or workers that search the background; several workers share the memory. GPUs belong to this process."""
        executor = LocalExecutor() if self.device.on_gpus else self.executor
        return bb.Searchers(threads, executor, self.memory[bb.NAME].most_threads(self.request.memory), self.device)

    def nodes(self, background: Background | None) -> Nodes:
        """All nodes: the background, then the points that join it."""
        points = [self.roles[role].array("vectors") for role in self.request.joining if role in self.roles]
        none: NDArray[Any] = np.empty((0, self.sizes.width), np.float32)
        together = np.concatenate(points) if len(points) > 1 else points[0] if points else none
        return Nodes(background, together, self.request.k, self.request.recall, self.request.seed)

    def completed(self, nodes: Nodes) -> None:
        """On-line: the lists of the nodes that join the background, and those of the background that they enter."""
        recipe = self._knn_recipe(W0, SCHEMA if nodes.background is None else PATCH_SCHEMA, *self.request.joining)
        self._make(W0, recipe, lambda draft, threads: write_W0(draft, nodes, threads, self.progress))

    def test(self, nodes: Nodes) -> None:
        """The lists of the test points."""
        test = self.roles["test"].array("vectors")
        recipe = self._knn_recipe(TEST, SCHEMA, *_JOINING, "test")
        self._make(TEST, recipe, lambda draft, threads: write_test(draft, nodes, test, threads, self.progress))

    def graph(self, nodes: Nodes, weighting: Weighting | None) -> None:
        """The symmetrised graph of the lists."""
        recipe = Recipe("graph", SCHEMA, parameters(weighting), self._inputs(W0, bb.NAME, cell_order.NAME))

        def write(draft: Draft, _threads: int) -> Json:
            lists = self._lists(nodes, weighted=weighting is not None)
            facts = symmetrise(lists, draft, self.request.memory, self.progress, weighting)
            if nodes.background is not None:
                draft.values("order", nodes.background.cells.order)
            counts = {role: rows_of(self.roles[role]) if role in self.roles else 0 for role in _JOINING}
            return {**facts, "background": nodes.border, **counts, "test": nodes.count - nodes.border - sum(counts.values())}

        self._make(GRAPH, recipe, write)

    def _lists(self, nodes: Nodes, weighted: bool) -> Lists:
        """The lists of all nodes; their similarities only matter for weights."""
        background, completed = (self.outcome.artifacts.get(name) for name in (bb.NAME, W0))
        if background is not None and completed is not None:
            patched = PatchedLists.of(background, completed, weighted)
            if patched.nodes != nodes.count:
                raise Damaged(f"{W0}: lists of {patched.nodes} nodes; expected {nodes.count}. {completed.remedy}")
            return patched
        lists = completed or self.outcome.artifacts[bb.NAME]
        lists.require_shape("neighbors", (nodes.count, self.request.k))
        return ArrayLists.of(lists, weighted)

    def _knn_recipe(self, name: str, schema: int, *roles: str) -> Recipe:
        request = self.request
        values = {"lists": name, "k": request.k, "recall": request.recall, "seed": request.seed}
        values |= {"transductive": request.transductive}
        descriptors = {role: self.roles[role] for role in roles if role in self.roles}
        inputs = {role: input_of(artifact) for role, artifact in descriptors.items()}
        return Recipe("knn", schema, values, {**inputs, **self._inputs(bb.NAME, cell_order.NAME)})

    def _inputs(self, *names: str) -> Json:
        made = {name: self.outcome.artifacts[name] for name in names if name in self.outcome.artifacts}
        return {name.split("/")[1]: input_of(artifact) for name, artifact in made.items()}

    def _make(self, name: str, recipe: Recipe, fill: Callable[[Draft, int], Json]) -> Artifact:
        """Finds or makes the artifact of one stage; `fill` gets the number of threads that the memory allows."""
        memory, coming = self.request.memory, self._coming(name)

        def refuse_little() -> None:
            # Before the first stage that has to be made, this one and those that it leads to are known to fit.
            refuse_little_memory(memory, [(stage, self.memory[stage]) for stage in coming], self.sizes)

        made = make(
            self.publication,
            name,
            recipe,
            self.request.command,
            lambda draft: fill(draft, self.memory[name].threads(memory)),
            before=refuse_little,
            disk=peak_disk(self.disk[stage] for stage in coming),
            # Cores and GPUs choose other searches: lists of both would be those of neither.
            means={"searches": "gpu"} if self.device.on_gpus else None,
        )
        if made.seconds is not None:
            self.outcome.seconds[name] = made.seconds
        self.outcome.artifacts[name] = made.artifact
        return made.artifact

    def _coming(self, name: str) -> list[str]:
        """This stage and the later ones that have to be made if it has to.

        The lists of test points lead to nothing: the graph only follows them if this run has made the lists of nodes.
        """
        if name == TEST and not self.outcome.seconds.keys() & self.memory.keys():
            return [TEST]
        return list(self.memory)[list(self.memory).index(name) :]


def _index(request: Request, background: Artifact, device: Comparing) -> str:
    """The method that searches the background: flat, cells, or a Faiss factory string."""
    rows, width = background.spec("vectors").shape
    if request.index == "auto":
        return "flat" if rows * rows * width <= FLAT * device.times_faster else "cells"
    return request.index


def _stage_disk(request: Request, sizes: Sizes, roles: dict[str, Artifact]) -> dict[str, tuple[int, int]]:
    """The disk of each stage of a run, at least."""
    tests = roles["test"].spec("vectors").shape[0] if "test" in roles else 0
    return least_disk(sizes, tests, request.edge_weights != "constant")


def _sizes(request: Request, roles: dict[str, Artifact], device: Comparing) -> Sizes:
    rows = {role: artifact.spec("vectors").shape[0] for role, artifact in roles.items()}
    spec = next(iter(roles.values())).spec("vectors")
    nodes = rows.get("background", 0)
    index = _index(request, roles["background"], device) if nodes else "flat"
    chosen = 0 if index in ("flat", "cells") else index_bytes(nodes, spec.shape[1], index)
    points, copied = joining_points(request, rows)
    return Sizes(
        nodes=nodes,
        width=spec.shape[1],
        dtype=spec.dtype,
        k=request.k,
        points=points,
        copied=copied,
        index_bytes=chosen,
        on_gpus=device.on_gpus,
    )


def joining_points(request: Request, rows: Mapping[str, int]) -> tuple[int, bool]:
    """The number of points that join the background, and whether they are copied: those of several roles are put together."""
    joining = [rows[role] for role in request.joining if role in rows]
    return sum(joining), len(joining) > 1


def _memory(sizes: Sizes, workers: int) -> dict[str, Stage]:
    """The memory of each stage, in order; `workers` search the background."""
    stages = {cell_order.NAME: for_cells, bb.NAME: for_background, W0: for_points, TEST: for_points, GRAPH: for_graph}
    made = {name: stage for name, stage in stages.items() if sizes.nodes or name not in (cell_order.NAME, bb.NAME)}
    memory = {name: stage(sizes) for name, stage in made.items() if sizes.points or name != W0}
    return {name: stage.times(workers) if name == bb.NAME else stage for name, stage in memory.items()}


def checked(request: Request) -> tuple[Request, Weighting | None]:
    """The request with its values in Python's types, and the weighting. Refuses what no store could allow."""
    one_of("device", request.device, ("auto", "cpu", "gpu"))
    request = replace(
        request,
        k=whole("k", request.k, 1, MOST_NODES, "The paper uses 30."),
        recall=number("recall", request.recall, 0.001, 1, "For example 0.95."),
        seed=random_seed(request.seed),
        transductive=flag("transductive", request.transductive),
        merge_appended=flag("merge_appended", request.merge_appended),
    )
    weighting = choose(request.edge_weights, request.sigma, request.lambda_)
    if weighting is not None:
        weighting.check(request.k)
    if len(text("index", request.index)) > _LONGEST_FACTORY:
        raise BadOption(Parameter("index", request.index), ": too long for a factory string. Give auto, flat, or IVF4096,Flat.")
    if Path(request.index).exists():
        raise BadOption(
            Parameter("index", request.index),
            ": a file. mmdiff builds its own index; give auto, flat, or a factory string such as IVF4096,Flat.",
        )
    if request.device == "gpu":
        require_gpu()
    return request, weighting


def _refuse_bad_roles(store: Store, request: Request, roles: dict[str, Artifact]) -> None:
    if not roles.keys() & {"background", "seeds"}:
        raise Missing(f"{store.path}: nothing to build a graph of. Run first: ", call("add", FILE, role="background"))
    if request.transductive and "test" not in roles:
        transductive, test = Parameter("transductive", True), Parameter("role", "test")
        raise BadOption(transductive, ": there are no test points. Import them with ", test, ", or leave it out.")
    widths = {role: artifact.spec("vectors").shape[1] for role, artifact in roles.items()}
    for role, artifact in roles.items():
        if artifact.manifest.inputs["pca"]["object"] != store.id("models/pca"):
            raise Stale(f"descriptors/{role} was made with another models/pca. Run again: {artifact.run['command']}")
        if widths[role] != next(iter(widths.values())):
            raise WidthMismatch(f"descriptors/{role}: rows of {widths[role]} values, unlike other roles. Import it again.")
    nodes = sum(roles[role].spec("vectors").shape[0] for role in roles if role != "test" or request.transductive)
    if request.k > nodes:
        most = Parameter("k", nodes)
        count = "is only 1 node" if nodes == 1 else f"are only {nodes} nodes"
        raise BadOption(Parameter("k", request.k), f": there {count}. Use ", most, " or less.")
