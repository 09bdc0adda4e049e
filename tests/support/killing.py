"""Kills a stage (an import, building a graph, a diffusion) at every step that changes the disk, and checks the store.

`python -m tests.support.killing SCENARIO MOMENT DIR [EVERY]`, in an interpreter of its own with BLAS on one thread, which makes
forking safe. Prints the number of kills by system call.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.building.stage import Request as BuildRequest
from mmdiff.building.stage import build_graph
from mmdiff.diffusion.io import checkpoint
from mmdiff.diffusion.stage import Request as DiffuseRequest
from mmdiff.diffusion.stage import diffuse
from mmdiff.formats.errors import Missing
from mmdiff.formats.store.store import Store
from mmdiff.graph.import_graph import Request as GraphRequest
from mmdiff.graph.import_graph import import_graph
from mmdiff.importing.stage import import_descriptors
from mmdiff.knn import background
from mmdiff.knn.cells import partition
from mmdiff.logreg.stage import Request as LogregRequest
from mmdiff.logreg.stage import logreg
from mmdiff.runtime import find_or_make as runs
from tests.support.graphs import pieces_of, some_lists
from tests.support.stores import SMALL_CHUNKS, chunk_inodes, chunks_of, full_seeds, make_inputs, problems, tree

CHANGES = [
    *("open", "write", "pwrite", "posix_fallocate", "ftruncate", "truncate", "fsync"),
    *("rename", "replace", "link", "symlink", "mkdir", "unlink", "rmdir"),
]


class Killer:
    """Counts the calls that change the disk, and kills the process at one of them.

    `before`: nothing of the call has happened; `after`: all of it has; `torn`: half of the bytes were written.
    """

    def __init__(self, moment: str, at: int, told: int) -> None:
        self.moment, self.at, self.told = moment, at, told
        self.count = 0
        self.lock = threading.Lock()

    def wrap(self, name: str) -> None:
        call: Callable[..., Any] = getattr(os, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **kwargs)
            if self.moment == "torn" and name not in ("write", "pwrite"):
                return call(*args, **kwargs)
            with self.lock:
                last = self.count == self.at
                self.count += 1
                if last:
                    self.die(name, call, args, kwargs)
            return call(*args, **kwargs)

        setattr(os, name, counted)

    def die(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        raw_write(self.told, name.encode())
        if self.moment == "after":
            call(*args, **kwargs)
        elif self.moment == "torn":
            descriptor, data, *where = args
            call(descriptor, memoryview(data).cast("B")[: memoryview(data).nbytes // 2], *where)
        os.kill(os.getpid(), signal.SIGKILL)


raw_write = os.write


def perform(store: Path, request: Any) -> None:
    if isinstance(request, GraphRequest):
        # Small blocks and ranges of rows, so that a small graph has several.
        with pieces_of(500, 2000):
            import_graph(store, request)
    elif isinstance(request, BuildRequest):
        with pieces_of(500, 2000):
            build_graph(store, request)
    elif isinstance(request, DiffuseRequest):
        diffuse(store, request)
    elif isinstance(request, LogregRequest):
        logreg(store, request)
    else:
        import_descriptors(store, request)


def run(store: Path, request: Any, killer: Callable[[int], Killer] | None = None) -> str | None:
    """Runs the stage in a child process; returns the call at which it was killed, None if it finished."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if killer is not None:
                made = killer(write_end)
                for name in CHANGES:
                    made.wrap(name)
            perform(store, request)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write_end)
    call = os.read(read_end, 100).decode()
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return call
    assert status == 0, "the import failed"
    return None


def look(store: Path, allowed: dict[str, set[str]]) -> None:
    """Asserts that every name refers to an intact artifact, the old one or the new one."""
    try:
        opened = Store.open(store)
    except Missing:
        return
    for name in opened.names():
        assert opened.id(name) in allowed[name], f"{name} is neither the old artifact nor the new one"
    found = problems(opened)
    assert not found, found


def main(scenario: str, moment: str, folder: Path, every: int) -> None:
    inputs = make_inputs(folder / "inputs")
    # There are hundreds of children: imports and compilation in the parent save them the time.
    setattr(runs, "version", functools.cache(metadata.version))  # noqa: B010
    seeds = full_seeds(inputs, no_background=True, keep_raw=True)
    np.save(folder / "lists.npy", some_lists(400, 10).neighbors.astype(np.int64).astype(np.int32))
    built_from = [inputs.request(), inputs.request("seeds", "others.npy")]
    np.save(folder / "few.npy", np.load(inputs.folder / "vectors.npy")[:300] + 1)
    spread_over = [*built_from, inputs.request("test", str(folder / "few.npy")), BuildRequest(k=5, index="flat")]
    predictions = folder / "predictions.parquet"
    scenarios: dict[str, tuple[list[Any], Any]] = {
        "seeds": ([], seeds),
        "background": ([], inputs.request(keep_raw=True)),
        "replaced": ([inputs.request()], inputs.request(name="others.npy")),
        "graph": ([], GraphRequest(folder / "lists.npy")),
        "logreg": ([*built_from, inputs.request("test")], LogregRequest(iterations=3, device="cpu")),
        "build": (built_from, BuildRequest(k=5, index="cells", recall=0.99)),
        # Several batches, with a checkpoint of S after each of their iterations.
        "diffuse": (spread_over, DiffuseRequest(iterations=3, cols_per_batch=3, predict_nodes=predictions)),
        "coupled": (spread_over, DiffuseRequest(iterations=2, cols_per_batch=3, eta="row", predict_nodes=predictions)),
    }
    first, request = scenarios[scenario]
    start, reference, store = folder / "start", folder / "reference", folder / "store"
    allowed: dict[str, set[str]] = {}

    def note(path: Path) -> None:
        opened = Store.open(path)
        for name in opened.names():
            allowed.setdefault(name, set()).add(opened.open_artifact(name).id)

    if first:
        for before in first:
            perform(start, before)
        note(start)
        shutil.copytree(start, reference, symlinks=True)
    perform(reference, request)
    note(reference)
    expected = tree(reference, with_runs=False)
    gc.freeze()
    kills: Counter[str] = Counter()
    for step in itertools.count(0, every):
        shutil.rmtree(store, ignore_errors=True)
        if first:
            shutil.copytree(start, store, symlinks=True)
        call = run(store, request, lambda told, step=step: Killer(moment, step, told))  # type: ignore[misc]
        if call is None:
            break
        kills[call] += 1
        where = f"killed {moment} {call}, step {step}"
        look(store, allowed)
        finished = chunk_inodes(store)
        run(store, request)
        assert tree(store, with_runs=False) == expected, f"{where}: the store differs from that of an undisturbed import"
        assert finished <= chunk_inodes(store), f"{where}: a chunk that was finished was written again"
    assert tree(store, with_runs=False) == expected
    sys.stdout.write(json.dumps(kills) + "\n")


if __name__ == "__main__":
    partition.CELL_ROWS, background.BLOCK_ROWS = 100, 256
    checkpoint.CHECKPOINT_SECONDS = 0
    with chunks_of(SMALL_CHUNKS):
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)
