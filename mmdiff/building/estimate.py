"""`mmdiff plan build-graph`: memory, disk and time of building the graph, from the sizes of the store and a timed search."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.building.memory_model import (
    USUAL_VISITS,
    Sizes,
    disk_for_background,
    disk_for_patch,
    for_background,
    for_cells,
    for_graph,
    for_points,
)
from mmdiff.building.stage import FLAT, Request, checked, joining_points, open_roles
from mmdiff.formats.errors import FILE, BadOption, Missing, Parameter, call
from mmdiff.formats.storage import seam
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.order import CENTROIDS_COMPARED
from mmdiff.knn.choice import COMPARED, RANKED, VISITED, possible_searches
from mmdiff.knn.search.devices import Comparing, device_for
from mmdiff.knn.search.flat import search_flat
from mmdiff.knn.search.refine import refine
from mmdiff.runtime.find_or_make import notes_on_disk
from mmdiff.runtime.threads import cores, in_threads

# Rows of the timed search.
_SAMPLE = 1 << 13

# Edges of W for each entry of W0: one, and one back unless the edge is reciprocal, as a quarter is on real descriptors.
_EDGES_PER_ENTRY = 1.8

# Share of a row's neighbours' neighbours that are distinct.
_DISTINCT = 0.35

_ON_GPUS = "Rows are compared on GPUs; the time is that of the processor, so the search will be faster."

# Entries that each core symmetrises per second.
_SYMMETRISED = 12e6


@dataclass(frozen=True)
class GraphPlan:
    """Estimated bytes of memory and disk, seconds, and notes for the user.

    Where the run chooses between two searches (`index`), disk and seconds are those of the more expensive one.
    """

    index: str
    nodes: int
    memory: int
    memory_limit: int
    disk: int
    disk_free: int
    seconds: float
    notes: list[str]

    def summary(self) -> Json:
        return asdict(self)


def plan_build_graph(path: Path, request: Request) -> GraphPlan:
    """Estimates a build from scratch over all imported rows."""
    request, _ = checked(request)
    store = Store.open(path)
    roles = open_roles(store)
    if not roles.keys() & {"background", "seeds"}:
        raise Missing(f"{path}: nothing to build a graph of. Run first: ", call("add", FILE, role="background"))
    if request.index not in ("auto", "flat"):
        raise BadOption(Parameter("index", request.index), ": only auto and flat can be planned. Leave it out.")
    rows = {role: artifact.spec("vectors").shape[0] for role, artifact in roles.items()}
    vectors = next(iter(roles.values()))["vectors"]
    if request.merge_appended:
        rows["background"] = rows.get("background", 0) + rows.pop("appended", 0)
    points, copied = joining_points(request, rows)
    device = device_for(request.device)
    sizes = Sizes(
        nodes=rows.get("background", 0),
        width=vectors.shape[1],
        dtype=vectors.dtype.name,
        k=request.k,
        points=points,
        copied=copied,
        on_gpus=device.on_gpus,
    )
    nodes = sizes.nodes + points
    searches = _searches(request, sizes, device)
    stages = [for_cells(sizes), for_background(sizes), for_points(sizes), for_graph(sizes)]
    memory = max(stage.fixed + stage.threads(request.memory) * stage.thread for stage in stages)
    disk = disk_for_background(sizes, 1 if "cells" in searches else 0) + disk_for_patch(sizes)
    disk += int(4 * _EDGES_PER_ENTRY * request.k * nodes) + 12 * nodes
    speeds = _speeds(np.asarray(vectors[:_SAMPLE]), request.k)
    seconds = max(_seconds(sizes, speeds, search == "flat", rows.get("test", 0)) for search in searches)
    return GraphPlan(
        index=" or ".join(searches),
        nodes=nodes,
        memory=memory,
        memory_limit=request.memory,
        disk=disk,
        disk_free=seam.free_bytes(path),
        seconds=round(seconds, 3),
        notes=[*notes_on_disk(path, "a build from scratch", disk), *([_ON_GPUS] if device.on_gpus else [])],
    )


def _searches(request: Request, sizes: Sizes, device: Comparing) -> tuple[str, ...]:
    """The searches of the background that the run may choose."""
    if request.index == "flat" or sizes.nodes * sizes.nodes * sizes.width <= FLAT * device.times_faster:
        return ("flat",)
    return possible_searches(sizes.nodes)


def _seconds(sizes: Sizes, speeds: tuple[float, float], flat: bool, tests: int) -> float:
    product, visit = speeds
    nodes, others = sizes.nodes, sizes.points + tests
    outside = others * (nodes + sizes.points) * sizes.width / product
    symmetrised = sizes.k * (nodes + sizes.points) / (_SYMMETRISED * cores())
    if flat:
        return nodes * nodes * sizes.width / product + outside + symmetrised
    of_visit = partition.CELL_ROWS * VISITED + RANKED * CENTROIDS_COMPARED
    compared = USUAL_VISITS * of_visit + 4 * partition.first_level(nodes)
    in_cells = nodes * compared * sizes.width / product
    refined = nodes * COMPARED * sizes.k * sizes.k * visit
    measured = 1024 * nodes * sizes.width / product
    return in_cells + refined + measured + min(outside, in_cells) + symmetrised


def _speeds(sample: NDArray[Any], k: int) -> tuple[float, float]:
    """Multiply-adds per second of a search by matrix products, and seconds per candidate that is compared by itself."""
    pieces = np.array_split(np.arange(len(sample)), cores())
    found = []
    clock = time.perf_counter()
    for part in in_threads(lambda rows: search_flat(sample[rows], sample, min(k, len(sample))), pieces):
        found.append(part)
    product = sample.size * len(sample) / max(time.perf_counter() - clock, 1e-9)
    neighbors, similarities = (np.concatenate([part[i] for part in found]) for i in (0, 1))
    clock = time.perf_counter()
    for _ in in_threads(lambda rows: refine(sample, sample[rows], (neighbors[rows], similarities[rows]), neighbors), pieces):
        pass
    return product, (time.perf_counter() - clock) / (len(sample) * _DISTINCT * k * k)
