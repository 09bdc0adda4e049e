"""Every stage on a small problem, for tests that disturb it: faults, kills and power loss.

Thresholds are lowered, so that a small problem has several chunks, blocks, batches, checkpoints and spill files.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mmdiff.auditing.stage import Request as AuditRequest
from mmdiff.auditing.stage import audit
from mmdiff.building.stage import Request as BuildRequest
from mmdiff.building.stage import build_graph
from mmdiff.diffusion import prepared as diffusion_prepared
from mmdiff.diffusion.io import checkpoint
from mmdiff.diffusion.stage import Request as DiffuseRequest
from mmdiff.diffusion.stage import diffuse
from mmdiff.experiment.stage import run_experiment
from mmdiff.formats.errors import Missing
from mmdiff.formats.remote.fetching import fetch
from mmdiff.formats.remote.remote import Remote
from mmdiff.formats.sources.columns.label_files import label_table
from mmdiff.formats.store.gc import collect
from mmdiff.formats.store.store import Store
from mmdiff.graph.import_graph import Request as GraphRequest
from mmdiff.graph.import_graph import import_graph
from mmdiff.importing.appending import append_descriptors
from mmdiff.importing.stage import Request as ImportRequest
from mmdiff.importing.stage import import_descriptors
from mmdiff.knn import background
from mmdiff.knn.cells import partition
from mmdiff.labelling import stage as labelling_stage
from mmdiff.labelling.stage import record_labels
from mmdiff.logreg.stage import Request as LogregRequest
from mmdiff.logreg.stage import logreg
from mmdiff.runtime import find_or_make
from mmdiff.runtime.progress import Advance, silent
from tests.support.graphs import pieces_of, some_lists
from tests.support.remotes import upload
from tests.support.small_experiments import DIFFUSION, small_config, write_config
from tests.support.stores import (
    SMALL_CHUNKS,
    Inputs,
    chunks_of,
    full_seeds,
    make_inputs,
    problems,
    tree,
)

Act = Callable[[Path], Any]


@dataclass(frozen=True)
class Stage:
    """A stage: `before` makes the store that it starts from, `act` runs it, `files` are what it writes beside the store.

    With `keeps_chunks` a run that continues a killed one does not write finished chunks again.
    """

    act: Act
    before: tuple[Act, ...] = ()
    files: tuple[Path, ...] = ()
    keeps_chunks: bool = True


class Rehearsal:
    """A stage that has run once undisturbed: the store it starts from, and the one that it must make in the end."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.start, self.reference, self.store = folder / "start", folder / "reference", folder / "store"
        self._allowed: dict[str, set[str]] = {}
        for act in stage.before:
            act(self.start)
        if stage.before:
            self._note(self.start)
            shutil.copytree(self.start, self.reference, symlinks=True)
        stage.act(self.reference)
        self._note(self.reference)
        self.expected = self._found(self.reference)
        self.names = Store.open(self.reference).names()

    def reset(self) -> None:
        """Makes the store what it is before the stage."""
        shutil.rmtree(self.store, ignore_errors=True)
        if self.stage.before:
            shutil.copytree(self.start, self.store, symlinks=True)
        for file in self.stage.files:
            file.unlink(missing_ok=True)

    def act(self) -> None:
        self.stage.act(self.store)

    def check_intact(self) -> None:
        """Asserts that every name refers to an intact artifact, the old one or the new one, and that `verify` is content."""
        try:
            opened = Store.open(self.store)
        except Missing:
            return
        for name in opened.names():
            assert opened.id(name) in self._allowed.get(name, ()), f"{name} is neither the old artifact nor the new one"
        found = problems(opened)
        assert not found, f"verify finds {found}"

    def check_published(self) -> None:
        """Asserts that the names lead to what the undisturbed stage made."""
        opened, reference = Store.open(self.store), Store.open(self.reference)
        assert opened.names() == self.names
        assert [opened.id(name) for name in self.names] == [reference.id(name) for name in self.names]

    def check_finished(self, duplicates: bool = False) -> None:
        """Asserts that store and files are those of the undisturbed stage, byte by byte; records of runs differ.

        With `duplicates` an object may lie there twice, the second time as NAME.1.
        """
        found = self._found(self.store)
        if duplicates:
            found = {key: value for key, value in found.items() if not re.match(r"objects/[^/]*\.\d+(/|$)", key)}
        differing = sorted(key for key in {*found, *self.expected} if found.get(key) != self.expected.get(key))
        shown = f"{', '.join(differing[:8])} and {len(differing) - 8} more" if len(differing) > 8 else ", ".join(differing)
        assert not differing, f"these differ from those of an undisturbed run: {shown}"

    def _found(self, store: Path) -> dict[str, bytes | str]:
        files = {file.name: file.read_bytes() for file in self.stage.files if file.exists()}
        return {**tree(store, with_runs=False), **files}

    def _note(self, path: Path) -> None:
        opened = Store.open(path)
        for name in opened.names():
            self._allowed.setdefault(name, set()).add(opened.open_artifact(name).id)


@contextmanager
def small_thresholds() -> Iterator[None]:
    """Lowers the thresholds; versions of packages are looked up once, since there are thousands of runs."""
    before = partition.CELL_ROWS, background.BLOCK_ROWS, checkpoint.CHECKPOINT_SECONDS
    partition.CELL_ROWS, background.BLOCK_ROWS, checkpoint.CHECKPOINT_SECONDS = 20, 256, 0
    setattr(find_or_make, "version", functools.cache(metadata.version))  # noqa: B010
    try:
        with chunks_of(SMALL_CHUNKS):
            yield
    finally:
        setattr(find_or_make, "version", metadata.version)  # noqa: B010
        partition.CELL_ROWS, background.BLOCK_ROWS, checkpoint.CHECKPOINT_SECONDS = before


def stages(folder: Path) -> dict[str, Stage]:
    """All stages, by name, with their input files in `folder`."""
    inputs = make_inputs(folder / "inputs")
    np.save(folder / "lists.npy", some_lists(400, 10).neighbors.astype(np.int64).astype(np.int32))
    np.save(folder / "few.npy", np.load(inputs.folder / "vectors.npy")[:300] + 1)
    predictions = folder / "predictions.parquet"
    config = write_config(folder, small_config(n=[1], draws=1, backgrounds=["none"], methods=[DIFFUSION]))
    imported = importing(inputs.request()), importing(inputs.request("seeds", "others.npy"))
    tests = importing(inputs.request("test", str(folder / "few.npy")))
    build = building(BuildRequest(k=5, index="cells", recall=0.99))
    flat = building(BuildRequest(k=5, index="flat"))
    scored = (*imported, tests, flat)
    few, more = inputs.request(name=str(folder / "few.npy")), inputs.request(name="others.npy")
    merging = BuildRequest(k=5, index="flat", merge_appended=True)
    return {
        "import-seeds": Stage(importing(full_seeds(inputs, no_background=True, keep_raw=True))),
        "import-background": Stage(importing(inputs.request(keep_raw=True))),
        "import-again": Stage(importing(inputs.request(name="others.npy")), imported[:1]),
        "append": Stage(appending(more), (imported[0], appending(few))),
        "merge-appended": Stage(building(merging), (imported[0], flat, appending(more), flat)),
        "label": Stage(_label, (importing(inputs.request()), _label_first)),
        "import-graph": Stage(functools.partial(_import_graph, GraphRequest(folder / "lists.npy"))),
        "build-graph": Stage(build, imported),
        "completion": Stage(flat, (imported[0], flat, imported[1], tests)),
        "diffuse": Stage(
            diffusing(DiffuseRequest(iterations=3, cols_per_batch=3, predict_nodes=predictions)), scored, (predictions,)
        ),
        "diffuse-coupled": Stage(
            diffusing(DiffuseRequest(iterations=2, cols_per_batch=3, eta="row", predict_nodes=predictions)),
            scored,
            (predictions,),
        ),
        "diffuse-spilled": Stage(diffusing(DiffuseRequest(iterations=3, cols_per_batch=3, plain=True), spills=True), scored),
        # The held-out scores of labels, and all audits.
        "audit": Stage(_audit, (importing(inputs.request()), flat, _label_first, _label_more)),
        "logreg": Stage(functools.partial(_logreg, LogregRequest(iterations=3, device="cpu")), (*imported, tests)),
        "experiment": Stage(functools.partial(_experiment, config)),
        "gc": Stage(_collect, (*imported, functools.partial(_make_garbage, inputs)), keeps_chunks=False),
        "fetch": Stage(functools.partial(_fetch, _published(folder, imported))),
    }


def importing(request: ImportRequest) -> Act:
    return lambda store: import_descriptors(store, request)


def appending(request: ImportRequest) -> Act:
    return lambda store: append_descriptors(store, request)


def building(request: BuildRequest) -> Act:
    def act(store: Path) -> None:
        # Small blocks and ranges of rows, so that a small graph has several.
        with pieces_of(500, 2000):
            build_graph(store, request)

    return act


def diffusing(request: DiffuseRequest, spills: bool = False) -> Act:
    """A diffusion; `spills` makes it use spill files, as where only one matrix S fits in memory."""

    def act(store: Path) -> None:
        footprint = getattr(diffusion_prepared, "footprint")  # noqa: B009
        if spills:
            setattr(diffusion_prepared, "footprint", lambda *limits: replace(footprint(*limits), spills=True))  # noqa: B010
        try:
            diffuse(store, request)
        finally:
            setattr(diffusion_prepared, "footprint", footprint)  # noqa: B010

    return act


def _label_first(store: Path) -> None:
    _label(store, {3: "cat", 5: "dog"}, 1_000_000_000)


def _label(
    store: Path, labels: Mapping[int, Any] = MappingProxyType({3: None, 7: ["dog", "fox"]}), now: int = 1_100_000_000
) -> None:
    """Records labels at a time that is the same in every run."""
    clock = getattr(labelling_stage, "_now")  # noqa: B009
    setattr(labelling_stage, "_now", lambda: now)  # noqa: B010
    try:
        record_labels(store, label_table(labels, "labels"), "python", "a test")
    finally:
        setattr(labelling_stage, "_now", clock)  # noqa: B010


def _label_more(store: Path) -> None:
    _label(store, {row: ("cat", "dog", "fox")[row % 3] for row in range(20, 50)}, 1_050_000_000)


def _audit(store: Path) -> None:
    audit(store, AuditRequest())


def _import_graph(request: GraphRequest, store: Path) -> None:
    with pieces_of(500, 2000):
        import_graph(store, request)


def _logreg(request: LogregRequest, store: Path) -> None:
    logreg(store, request)


def _experiment(config: Path, store: Path) -> None:
    run_experiment(store, config, "mmdiff experiment run")


def _collect(store: Path) -> None:
    collect(Store.open(store))


def _make_garbage(inputs: Inputs, store: Path) -> None:
    """Replaces an artifact, and interrupts the replacement of another one."""
    import_descriptors(store, inputs.request(name="others.npy"))
    try:
        import_descriptors(store, inputs.request("test", "others.npy"), _interrupted)
    except KeyboardInterrupt:
        return
    raise AssertionError("the import was not interrupted")


@contextmanager
def _interrupted(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A progress bar that interrupts an import when it first advances."""
    del total, unit

    def advance(count: int) -> None:
        if what.startswith("importing") and count:
            raise KeyboardInterrupt

    yield advance


def _published(folder: Path, acts: tuple[Act, ...]) -> str:
    """Makes a store and uploads it to a file system in memory; returns its URL."""
    for act in acts:
        act(folder / "published")
    return upload(folder / "published", f"memory://mmdiff-{os.getpid()}-{folder.name}")


def _fetch(url: str, store: Path) -> None:
    remote = Remote.open(url)
    fetch(remote, remote.names, store, silent)
