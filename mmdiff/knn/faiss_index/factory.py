"""Faiss indexes from the user's factory string, such as IVF4096,Flat (the paper uses IVFFlat, section 3.2).

Faiss holds the rows in memory; the map is read for a training sample, then block by block. Search parameters are tuned to the
cheapest that reach a recall, where cost is the bytes that a search reads, not time: the same rows give the same parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.knn.faiss_index.gpu import (
    MOST_SELECTED,
    OnGpus,
    clustering_on_gpus,
    core,
    gpus,
    load_faiss,
    obstacle,
    out_of_memory,
    reason_of,
    require_gpu,
    to_gpus,
)
from mmdiff.runtime.progress import Progress


@dataclass(frozen=True)
class Trial:
    """A measured pair of parameters: `probes`, and the `factor` of k candidates that are refined."""

    probes: int
    factor: int
    recall: float
    cost: float


def doubling(first: int, last: int) -> list[int]:
    """first, 2 * first, 4 * first, ..., last."""
    values = [first]
    while values[-1] < last:
        values.append(min(2 * values[-1], last))
    return values


def recall_of(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """The share of true neighbours that were found; -1 is no neighbour in either."""
    if not (truth >= 0).any():
        return 1.0
    rows = np.arange(len(truth))[:, None] * (max(int(found.max(initial=0)), int(truth.max())) + 1)
    return float(np.isin((truth + rows)[truth >= 0], (found + rows)[found >= 0]).mean())


def staircase(
    measure: Callable[[int, int], float],
    cost: Callable[[int, int], float],
    probes: Sequence[int],
    factors: Sequence[int],
    recall: float,
) -> tuple[Trial, list[Trial]]:
    """The cheapest trial that reaches the recall, or else the one with the best recall; and all trials.

    Starts with the fewest probes and the most refinement: refines less while the recall is reached, probes more when it is not.
    Recall grows with either, so the skipped pairs are no better.
    """
    trials: list[Trial] = []
    reaching: Trial | None = None
    step, refined = 0, len(factors) - 1
    while step < len(probes) and refined >= 0:
        pair = probes[step], factors[refined]
        if reaching is not None and cost(*pair) >= reaching.cost:
            refined -= 1
            continue
        trials.append(Trial(*pair, measure(*pair), cost(*pair)))
        if trials[-1].recall >= recall:
            reaching = trials[-1]
            refined -= 1
        else:
            step += 1
    return reaching or max(trials, key=lambda trial: (trial.recall, -trial.cost)), trials


Device = Literal["auto", "cpu", "gpu"]
Rows = NDArray[np.float32 | np.float16]

INSTEAD = "Use auto, flat, or a factory string such as IVF4096,Flat."
BLOCK_BYTES = 64 << 20
TRAIN_BYTES = 1 << 30
# Faiss's own bounds on training points per centroid.
MOST_PER_CENTROID = 256
LEAST_PER_CENTROID = 39
LARGEST_K_FACTOR = 64
LARGEST_EF = 8192
# Cost of a byte read at random (refined rows, graph nodes) relative to a sequential one (cells).
SCATTERED = 4
# Faiss accepts these strings but aborts the process when it trains or fills such an index.
FATAL = re.compile(r"(?<![0-9])0+(?![0-9])|HNSW1(?![0-9])")


class FactoryIndex:
    """A Faiss index over the rows of a (mapped) matrix, by inner product; ids are row numbers."""

    def __init__(self, index: Any, on_gpus: OnGpus | None, record: dict[str, Any]) -> None:
        self._index = index
        self._on_gpus = on_gpus
        self._record = record
        self._search: dict[str, int] = {}

    @classmethod
    def build(cls, vectors: Rows, factory: str, device: Device, seed: int, progress: Progress) -> FactoryIndex:
        """Trains an index on a sample of the vectors, fills it, and copies it to the GPUs where they can hold it."""
        faiss = load_faiss()
        if device == "gpu":
            require_gpu()
        rows = len(vectors)
        index = _make(vectors.shape[1], rows, factory)
        with_gpus = device != "cpu" and gpus() > 0
        reason = _refuse(device, factory, obstacle(index, rows)) if with_gpus else ""

        record: dict[str, Any] = {"factory": factory, "stored": factory, "faiss": faiss.__version__, "seed": seed}
        with _refusals(factory):
            record["training"] = _train(index, vectors, seed, with_gpus, progress)
            _fill(index, vectors, progress)
        on_gpus = to_gpus(index) if with_gpus and not reason else None
        if isinstance(on_gpus, str):
            reason, on_gpus = _refuse(device, factory, on_gpus), None
        if reason:
            record["device_reason"] = reason
        return cls(index, on_gpus, record)

    @classmethod
    def from_bytes(cls, values: NDArray[np.uint8], search: dict[str, int]) -> FactoryIndex:
        """A serialised index, searched on the CPU with the given parameters."""
        made = cls(load_faiss().deserialize_index(values), None, {})
        made._set(search)
        return made

    def to_bytes(self) -> NDArray[np.uint8]:
        return np.asarray(load_faiss().serialize_index(self._index))

    @property
    def on_gpus(self) -> bool:
        return self._on_gpus is not None

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Similarities and ids, best first; -1 where the index finds fewer than k."""
        queries = np.ascontiguousarray(queries, np.float32)
        if self._on_gpus is not None:
            return self._on_gpus.search(queries, k)
        similarities, ids = self._index.search(queries, k)
        return similarities, ids

    def tune(self, queries: NDArray[np.float32], truth: NDArray[np.int64], recall: float) -> dict[str, Any]:
        """Sets the cheapest search parameters that reach the recall on these queries, or else those with the best recall.

        Returns the parameters, their recall, whether it was `reached`, and all trials.
        """
        k = truth.shape[1]
        name, probes, factors = self._ladders(k)

        def parameters(probes: int, factor: int) -> dict[str, int]:
            return ({name: probes} if name else {}) | ({"k_factor_rf": factor} if len(factors) > 1 else {})

        def measure(probes: int, factor: int) -> float:
            self._set(parameters(probes, factor))
            return recall_of(self.search(queries, k)[1], truth)

        def cost(probes: int, factor: int) -> float:
            return self._cost(parameters(probes, factor), k)

        best, trials = staircase(measure, cost, probes, factors, recall)
        self._set(parameters(best.probes, best.factor))
        return {
            "parameters": dict(self._search),
            "recall": best.recall,
            "reached": best.recall >= recall,
            "tried": [{**parameters(trial.probes, trial.factor), "recall": trial.recall} for trial in trials],
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """The index as a manifest describes it."""
        placed: dict[str, Any] = (
            {"device": "cpu"} if self._on_gpus is None else {"device": "gpu", "gpu": self._on_gpus.parameters}
        )
        return {**self._record, **placed, "search": dict(self._search)}

    def _set(self, parameters: dict[str, int]) -> None:
        faiss = load_faiss()
        for name, value in parameters.items():
            faiss.ParameterSpace().set_index_parameter(self._index, name, value)
            if self._on_gpus is not None:
                self._on_gpus.set_parameter(name, value)
        self._search = parameters

    def _ladders(self, k: int) -> tuple[str, list[int], list[int]]:
        """The search parameter of this kind of index (or ""), its values, and the refinement factors, cheapest first."""
        faiss = load_faiss()
        space = faiss.ParameterSpace()
        space.initialize(self._index)
        names = {space.parameter_ranges.at(i).name for i in range(space.parameter_ranges.size())}
        rows = int(self._index.ntotal)
        most_refined = min(LARGEST_K_FACTOR, max(1, rows // k)) if "k_factor_rf" in names else 1
        factors = doubling(1, most_refined)
        if "nprobe" in names:
            nlist = int(faiss.extract_index_ivf(self._index).nlist)
            return "nprobe", doubling(1, nlist if self._on_gpus is None else min(nlist, MOST_SELECTED)), factors
        if "efSearch" in names:
            # Faiss never keeps fewer than k candidates.
            return "efSearch", doubling(max(16, k), max(16, k, min(rows, LARGEST_EF))), factors
        return "", [0], factors

    def _cost(self, parameters: dict[str, int], k: int) -> float:
        """The approximate number of bytes that one search reads."""
        faiss = load_faiss()
        row_bytes = 4.0 * self._index.d
        cost = SCATTERED * row_bytes * (parameters.get("efSearch", 0) + k * parameters.get("k_factor_rf", 0))
        if "nprobe" in parameters:
            ivf = faiss.extract_index_ivf(self._index)
            cost += parameters["nprobe"] * ivf.code_size * self._index.ntotal / ivf.nlist
        return float(cost)


def index_bytes(rows: int, width: int, factory: str) -> int:
    """The approximate peak memory of training and filling such an index; refuses strings that Faiss refuses."""
    index = _make(width, rows, factory)
    trained = 0 if index.is_trained else min(rows, _most_trained(index, width)) * 4 * width
    # Faiss grows arrays by copying, so both copies are in memory.
    return trained + 2 * rows * (sum(map(_row_bytes, _components(index))) or 4 * width)


def _row_bytes(part: Any) -> int:
    """The bytes that a component stores per row: the code, the id in a cell, the links of a graph."""
    codes = core(part.refine_index) if hasattr(part, "refine_index") else part
    links = 4 * part.hnsw.nb_neighbors(0) if hasattr(part, "hnsw") else 0
    return int(getattr(codes, "code_size", 0)) + (8 if hasattr(part, "nlist") else 0) + links


def _most_trained(index: Any, width: int) -> int:
    """The largest number of training rows."""
    centroids = MOST_PER_CENTROID
    for part in _components(index):
        centroids = max(centroids, getattr(part, "nlist", 0), part.pq.ksub if hasattr(part, "pq") else 0)
    return min(MOST_PER_CENTROID * centroids, max(TRAIN_BYTES // (4 * width), LEAST_PER_CENTROID * centroids))


def _make(d: int, rows: int, factory: str) -> Any:
    """The empty index."""
    faiss = load_faiss()
    for count, unit in re.findall(r"(?:^|,)IVF([0-9]{1,18})(?![0-9])([kM]?)", factory):
        # Checked before Faiss allocates the cells.
        if (nlist := int(count) * {"": 1, "k": 1 << 10, "M": 1 << 20}[unit]) > rows:
            fewer = max(1, rows // LEAST_PER_CENTROID)
            raise BadOption(
                Parameter("index", factory),
                f": {nlist:,} cells cannot be trained on {rows:,} rows. Use auto, flat, or fewer cells, of "
                f"{LEAST_PER_CENTROID} rows each or more: IVF{fewer}.",
            )
    with _refusals(factory):
        index = faiss.index_factory(d, factory, faiss.METRIC_INNER_PRODUCT)
    if FATAL.search(factory):
        raise BadOption(Parameter("index", factory), f": faiss cannot build it (a count in it is too small). {INSTEAD}")
    return index


@contextmanager
def _refusals(factory: str) -> Iterator[None]:
    """Turns Faiss's errors about a factory string into refusals of the parameter."""
    try:
        yield
    except RuntimeError as error:
        # Checked only now, because a file may have the name of a factory string.
        if _is_file(factory):
            raise BadOption(
                Parameter("index", factory),
                f": this is a file, and mmdiff builds its own index instead of reading one. {INSTEAD}",
            ) from error
        raise BadOption(Parameter("index", factory), f": faiss rejects it ({reason_of(error)}). {INSTEAD}") from error


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # longer than a file name can be
        return False


def _refuse(device: Device, factory: str, reason: str) -> str:
    """The reason why an index stays on the CPU; refused if the user requires a GPU."""
    if reason and device == "gpu":
        raise BadOption(
            Parameter("device", "gpu"),
            " with ",
            Parameter("index", factory),
            f": {reason}. Use ",
            Parameter("device", "auto"),
            ", or another index (IVF4096,PQ32).",
        )
    return reason


def _components(index: Any) -> Iterator[Any]:
    """The index and the indexes it wraps, outermost first."""
    faiss = load_faiss()
    index = core(index)
    yield index
    if isinstance(index, faiss.IndexRefine):
        yield from _components(index.base_index)
    elif isinstance(index, faiss.IndexHNSW):
        yield from _components(index.storage)


def _train(index: Any, vectors: Rows, seed: int, with_gpus: bool, progress: Progress) -> dict[str, Any]:
    """Trains on a sample, on GPUs even if they cannot hold the index itself; returns the number of rows and the device."""
    if index.is_trained:
        return {"rows": 0}
    faiss = load_faiss()
    for part in _components(index):
        clusterings = (getattr(part, "cp", None), part.pq.cp if hasattr(part, "pq") else None)
        for clustering in filter(None, clusterings):
            clustering.seed = seed % (1 << 31)
            # Faiss would print a warning to stderr; the number of rows is in the manifest.
            clustering.min_points_per_centroid = 1
    picked = sample_rows(len(vectors), _most_trained(index, vectors.shape[1]), seed)
    with progress("training the index", len(picked), "rows") as advance:
        sample = np.ascontiguousarray(vectors[picked], np.float32)
        ivf = faiss.try_extract_index_ivf(index)
        device = "cpu"
        if with_gpus and ivf is not None:
            with _unless_out_of_memory(), clustering_on_gpus(ivf):
                index.train(sample)
                device = "gpu"
        if device == "cpu":
            index.train(sample)
        advance(len(picked))
    return {"rows": len(picked), "device": device}


@contextmanager
def _unless_out_of_memory() -> Iterator[None]:
    """Leaves the block silently when GPU memory runs out in it."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise


def sample_rows(rows: int, wanted: int, seed: int) -> NDArray[np.int64]:
    """Ascending row numbers, one at random from each of `wanted` equal stretches: in cell order, close rows are similar."""
    if wanted >= rows:
        return np.arange(rows)
    edges = np.arange(wanted + 1) * rows // wanted
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def _fill(index: Any, vectors: Rows, progress: Progress) -> None:
    block = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    with progress("adding rows to the index", len(vectors), "rows") as advance:
        for start in range(0, len(vectors), block):
            rows = np.ascontiguousarray(vectors[start : start + block], np.float32)
            index.add(rows)
            advance(len(rows))
