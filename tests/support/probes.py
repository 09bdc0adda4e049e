"""Stores with every kind of artifact, and probes: the calls that read them, each with what it gives as two digests.

`numbers` are computed values (scores, products, files of arrays); `text` is everything else that is shown, without times.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mmdiff
from mmdiff.formats.store.store import Artifact
from mmdiff.graph import symmetrise
from tests.support.small_experiments import DIFFUSION, LOGREG, run, small_config
from tests.support.stores import chunks_of

CHUNK = 4096
CLASSES = 6

# Values that depend on the machine, the time or the path.
_VOLATILE = ("seconds", "memory", "disk", "free", "age", "finished", "started", "file", "bytes_per_second", "rate", "speed")


@dataclass(frozen=True)
class Found:
    """The result of a probe: digests of computed numbers and of everything else.

    A probe that computes from several artifacts has numbers for each of them: what is stale may be left out.
    """

    numbers: frozenset[str]
    text: str

    @classmethod
    def of(cls, *numbers: str, text: str = "") -> Found:
        return cls(frozenset(numbers), text)


@dataclass(frozen=True)
class Scene:
    """A store to probe, and a folder for files that are written."""

    path: Path
    out: Path

    @property
    def store(self) -> Any:
        return mmdiff.open(self.path, memory="2G")


Call = Callable[[Scene], Found]


@dataclass(frozen=True)
class Probe:
    """A call that reads artifacts. `computes` says that its numbers follow from content that must be checked first.

    `passes` is an artifact whose arrays it passes through as they are.
    """

    name: str
    call: Call
    reads: tuple[str, ...]
    weight: float = 1.0
    computes: bool = False
    passes: str = ""

    def reads_from(self, artifact: str) -> bool:
        return not artifact or any(artifact.startswith(name) for name in self.reads)


@contextmanager
def small_pieces() -> Iterator[None]:
    """Chunks of a page, and blocks of few edges."""
    before: Any = (symmetrise.BLOCK_EDGES,)
    symmetrise.BLOCK_EDGES = 512
    try:
        with chunks_of(CHUNK):
            yield
    finally:
        (symmetrise.BLOCK_EDGES,) = before


def digest(*values: Any) -> str:
    own = hashlib.blake2b(digest_size=8)
    for value in values:
        if isinstance(value, np.ndarray):
            own.update(f"{value.shape} {value.dtype}".encode() + np.ascontiguousarray(value).tobytes())
        else:
            own.update(value if isinstance(value, bytes) else repr(value).encode(errors="backslashreplace"))
    return own.hexdigest()


def steady(value: Any) -> Any:
    """A result without times, sizes of memory and paths."""
    if isinstance(value, dict):
        return {key: steady(inner) for key, inner in value.items() if not any(word in key for word in _VOLATILE)}
    return [steady(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _text(summary: Any) -> Found:
    return Found.of(text=digest(json.dumps(steady(dict(summary)), sort_keys=True, default=str)))


def _accuracies(at: Scene) -> Found:
    found = at.store.evaluate()
    numbers = (digest(entry["artifact"], json.dumps(entry["iterations"])) for entry in found["scores"])
    return Found.of(*numbers, text=_text(found).text)


def _explained(made: Made) -> Call:
    def explain(at: Scene) -> Found:
        found = at.store.explain(id_=made.point) if made.table else at.store.explain(made.point)
        return Found.of(digest(json.dumps(found["paths"], default=str)), text=_text(found).text)

    return explain


def _arrays(artifact: Artifact) -> str:
    return digest(sorted(artifact), *(np.array(artifact[name]) for name in sorted(artifact)))


def _scores(made: Any) -> Found:
    return Found.of(_arrays(made._artifact))


def _diffuse(**options: Any) -> Call:
    return lambda at: _scores(at.store.diffuse(iterations=3, **options))


def _graph(**options: Any) -> Call:
    def build(at: Scene) -> Found:
        store = at.store
        store.build_graph(**options)
        return Found.of(_arrays(store["graph/W"]))

    return build


def _add(at: Scene) -> Found:
    store = at.store
    rows = np.random.default_rng(4).normal(size=(30, 12))
    store.add(rows.astype(np.float32), role="test")
    return Found.of(_arrays(store["descriptors/test"]))


def _product(at: Scene) -> Found:
    graph = mmdiff.Graph.open(at.path)
    columns = np.random.default_rng(3).random((len(graph), 3)).astype(np.float32)
    return Found.of(digest(graph @ columns))


def _matrix(at: Scene) -> Found:
    matrix = mmdiff.Graph.open(at.path).to_scipy()
    return Found.of(digest(matrix.indptr, matrix.indices, matrix.data))


def _inspect(name: str) -> Call:
    return lambda at: _text(at.store.inspect(name))


def _all_arrays(name: str) -> Call:
    return lambda at: Found.of(_arrays(at.store[name]))


def _export(name: str, suffix: str) -> Call:
    def export(at: Scene) -> Found:
        file = at.out / f"file{suffix}"
        file.unlink(missing_ok=True)
        at.store.export(name, file)
        if suffix == ".npz":
            with np.load(file) as members:
                return Found.of(digest(*(np.array(members[key]) for key in sorted(members))))
        return Found.of(digest(file.read_bytes()))

    return export


def _report(at: Scene) -> Found:
    return _text(at.store.report(at.out / "report.html"))


def _predict(at: Scene) -> Found:
    table = at.store.predict()
    return Found.of(digest(*(column.to_pylist() for column in table.columns)))


def _suggest(by: str) -> Call:
    def suggest(at: Scene) -> Found:
        table = at.store.suggest(5, by=by)
        # Predictions are those of scores, which are left out where they are stale.
        parts = ["label", "margin"], [name for name in table.column_names if name not in ("label", "margin")]
        values = [[table[name].to_pylist() for name in part] for part in parts]
        return Found.of(*(digest(part) for part in values if any(value is not None for own in part for value in own)))

    return suggest


def _audit(**options: Any) -> Call:
    def audit(at: Scene) -> Found:
        store = at.store
        found = store.audit(**options)
        parts = [part for part in ("labels", "duplicates", "leaks", "outliers") if part in found]
        tables = {part: store.audit_table(part) for part in parts}
        return Found.of(*(digest(part, *(column.to_pylist() for column in tables[part].columns)) for part in parts))

    return audit


def _label(at: Scene) -> Found:
    store = at.store
    store.label({"row-1": "class 2", "row-2": None})
    return Found.of(digest([(row["id"], row["labels"]) for row in store.labels()["labels"]]))


def _append(at: Scene) -> Found:
    store = at.store
    rows = np.random.default_rng(4).normal(size=(30, 12))
    store.add(rows.astype(np.float32), ids=[f"later-{row}" for row in range(30)], append=True)
    return Found.of(_arrays(store["descriptors/appended"]))


def _plan(command: str, **options: Any) -> Call:
    def plan(at: Scene) -> Found:
        found = steady(dict(at.store.plan(command, **options)))
        return Found.of(text=digest(sorted(str(item) for item in found.items() if isinstance(item[1], (int, str)))))

    return plan


def _verify(at: Scene) -> Found:
    found = at.store.verify()
    return Found.of(text="ok" if found["ok"] else "problems")


VERIFY = Probe("verify", _verify, ("",), 2)


@dataclass(frozen=True)
class Made:
    """A store that was made: the id of a point to explain, and the options of its graph. A table has no test points."""

    point: str
    graph: dict[str, Any]
    table: bool = False


def probes_of(path: Path, made: Made) -> list[Probe]:
    """All probes of a store."""
    store = mmdiff.open(path)
    diffusion = ("graph", "knn/test", "descriptors", "labels")
    graph = ("models/cells", "knn", "graph", "descriptors")
    explained = (*diffusion, "scores/diffusion")
    found = [
        Probe("diffuse", _diffuse(name="probe"), diffusion, 1, True),
        Probe("diffuse sinkhorn", _diffuse(name="probe", eta="sinkhorn", predict_nodes=True), diffusion, 1, True),
        Probe("diffuse plain", _diffuse(name="probe", plain=True, gamma=1.5, normalize_graph="symmetric"), diffusion, 1, True),
        Probe("diffuse alpha", _diffuse(name="probe", alpha=0.8, reset_seeds=True, cols_per_batch=2), diffusion, 1, True),
        Probe("diffuse again", _diffuse(predict_nodes=True), explained),
        Probe("logreg", lambda at: _scores(at.store.logreg(iterations=20, seed=1)), ("descriptors", "labels"), 1, True),
        Probe(
            "fuse",
            lambda at: _scores(at.store.fuse(weight=0.2, name="probe")),
            ("scores/logreg", "scores/diffusion", "descriptors/seeds", "descriptors/test"),
            1,
            True,
        ),
        # Rows that were appended to a background that was forged are those of another one, and no nodes.
        Probe("build-graph again", _graph(k=4, **made.graph), graph, 2, not made.table, "graph/W"),
        Probe("build-graph anew", _graph(k=3), ("models/cells", "descriptors"), 0.3, not made.table),
        Probe("import", _add, ("models/pca", "descriptors"), 1),
        Probe("evaluate", _accuracies, ("scores", "descriptors"), 0.6, True),
        Probe("explain", _explained(made), explained, 1, True),
        Probe("inspect", lambda at: _text(at.store.inspect()), ("",), 0.3),
        Probe("plan diffuse", _plan("diffuse", iterations=3), diffusion, 0.7),
        Probe("plan build_graph", _plan("build_graph", k=4), ("descriptors",), 0.7),
        Probe("report", _report, ("",), 0.05),
        Probe("product", _product, ("graph",), 2, True),
        Probe("to_scipy", _matrix, ("graph",), 1, True),
        Probe("suggest", _suggest("coverage"), diffusion, 1, True),
        Probe("suggest unsure rows", _suggest("mixed"), explained, 1, True),
        Probe("predict", _predict, (*explained, "folds"), 0.5, True),
        Probe("audit", _audit(), (*graph, "labels", "folds", "scores/diffusion", "audit"), 1, True),
        Probe("audit anew", _audit(what="duplicates", above=0.9), graph, 1, True),
    ]
    if made.table:
        found = [probe for probe in found if probe.name != "fuse"]
        found.append(Probe("label", _label, ("labels", "descriptors"), 1, True))
        found.append(Probe("append", _append, ("models/pca", "descriptors"), 1))
    for name in store.names():
        found.append(Probe(f"arrays of {name}", _all_arrays(name), (name,), 1))
        found.append(Probe(f"inspect {name}", _inspect(name), (name,), 1))
        for suffix in (".npy", ".npz", ".csv"):
            found.append(Probe(f"export {name} {suffix}", _export(name, suffix), (name, "descriptors/test"), 0.2))
    return found


def make_stores(folder: Path) -> dict[str, Made]:
    """Stores with all kinds of artifacts in many chunks."""
    makers = {"cells": _make_cells, "weighted": _make_weighted, "table": _make_table}
    with small_pieces():
        for name in makers:
            shutil.rmtree(folder / name, ignore_errors=True)
        return {name: make(folder / name) for name, make in makers.items()}


def _rows(draw: np.random.Generator, rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    centres = np.random.default_rng(5).normal(size=(CLASSES, 12)) * 1.5
    labels = draw.integers(0, CLASSES, rows)
    return (centres[labels] + draw.normal(size=(rows, 12))).astype(np.float32), labels


def _make_cells(path: Path) -> Made:
    """String ids, class names, seeds of their own, cell order, value-free edges, all methods, an experiment."""
    draw, store = np.random.default_rng(1), mmdiff.open(path, create=True, memory="2G")
    for role, rows in (("background", 500), ("seeds", 40), ("test", 150)):
        x, y = _rows(draw, rows)
        labels: Any = {} if role == "background" else {"labels": [f"class {label}" for label in y]}
        store.add(x, role=role, dims=8, ids=[f"{role[0]}-{row}" for row in range(rows)], **labels)
    store.build_graph(k=4)
    store.diffuse(iterations=3, predict_nodes=True)
    store.logreg(iterations=20)
    store.fuse()
    config = small_config(n=[1], draws=1, backgrounds=["none"], methods=[DIFFUSION, LOGREG])
    run(path.parent, config, store=path.name)
    return Made("t-3", {})


def _make_weighted(path: Path) -> Made:
    """Integer ids, labels of the background, up to two a row, float16, raw rows, weighted edges, test points as nodes."""
    draw, store = np.random.default_rng(2), mmdiff.open(path, create=True, memory="2G")
    x, y = _rows(draw, 300)
    labels = np.where(draw.random((300, 2)) < 0.1, np.stack([y, (y + 1) % CLASSES], axis=1), -1)
    store.add(x, dims=8, dtype="float16", ids=np.arange(300) * 3, labels=labels, keep_raw=True)
    x, y = _rows(draw, 60)
    store.add(x, role="test", ids=np.arange(60) + 5000, labels=y, keep_raw=True, dtype="float16")
    weights: dict[str, Any] = {"edge_weights": "gaussian", "sigma": 0.5, "transductive": True}
    store.build_graph(k=4, **weights)
    store.diffuse(iterations=3, predict_nodes=True)
    return Made("5003", weights)


def _make_table(path: Path) -> Made:
    """One table: labels of some rows, labels that came later, rows that were appended, folds, and all audits but leaks."""
    draw, store = np.random.default_rng(3), mmdiff.open(path, create=True, memory="2G")
    x, y = _rows(draw, 340)
    labels: list[Any] = [f"class {label}" if row % 7 == 0 else None for row, label in enumerate(y)]
    ids = [f"row-{row}" for row in range(340)]
    store.add(x[:300], dims=8, ids=ids[:300], labels=labels[:300])
    store.build_graph(k=4)
    store.add(x[300:], ids=ids[300:], labels=labels[300:], append=True)
    store.build_graph(k=4)
    store.label({f"row-{row}": f"class {y[row]}" for row in (3, 5, 8, 330)} | {"row-14": None})
    store.diffuse(iterations=3)
    store.predict()
    store.audit()
    # Objects that no name leads to, such as the graph before the append, are not verified.
    store.gc()
    return Made("row-6", {}, table=True)
