"""The cost of checking on touch: whole commands with all checks against the same commands without any, in turn.

`diffuse` over generated lists, W in the page cache (warm) and not (cold), and `build-graph` from descriptors. "Without" is the
same program in which chunks are not compared with their checksums and columns and indices are not compared with their bounds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import stores
from benchmarks.knn import PROGRAM
from benchmarks.large import large_store
from benchmarks.measure import Figure, Watched, evict, watch

# Runs of a few seconds vary by more than what is measured: they are repeated more often than long ones.
ROUNDS = 3
ROUNDS_OF_SHORT_RUNS = 8
SHORT_RUN = 8.0

# Numba caches the kernels of the two programs apart; the product's own check of columns is left out by compiling it without.
_WITHOUT = """
import os, tempfile
os.environ["NUMBA_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "mmdiff-unchecked-kernels")
import inspect
from mmdiff.kernels import spmm
check = "bad |= np.uint32(column >= count)"
source = inspect.getsource(spmm._unpack_edges.py_func)
assert check in source
unchecked = dict(vars(spmm))
exec("from __future__ import annotations\\n" + source.replace("@exact_kernel", "").replace(check, "pass"), unchecked)
import numba
spmm._unpack_edges = numba.njit(nogil=True, error_model="numpy")(unchecked["_unpack_edges"])
from mmdiff.formats.storage.mapping import FlatMap
from mmdiff.formats.store.store import Artifact
from mmdiff.graph.graph import CsrGraph
FlatMap._check = lambda self, chunk: None
CsrGraph.refuse_bad_rows = lambda *given: None
Artifact.index_array = lambda self, array, *given, **named: self.array(array)
from mmdiff.cli import main
main()
"""
_WITH = "from mmdiff.cli import main; main()"

_DIFFUSIONS: dict[str, tuple[str, ...]] = {
    "": (),
    " --plain, 96 classes": ("--plain", "--classes", ",".join(map(str, range(96)))),
}


def figures(folder: Path, sizes: Sequence[int] = (1_000_000, 10_000_000), rows: int = 200_000) -> list[Figure]:
    """All commands with and without checks."""
    found: list[Figure] = []
    for nodes in sizes:
        store, _ = large_store(folder / f"lists-{nodes}", nodes)
        for title, options in _DIFFUSIONS.items():
            for state in ("warm", "cold"):
                what = f"diffuse{title}, T = 3, {nodes / 1e6:g}M nodes, {state}"
                command = ["diffuse", "--iterations", "3", *options, "--store", str(store)]
                found.append(_in_turn(f"checking_{len(found)}", what, command, _without_scores(store, state == "cold")))
        shutil.rmtree(folder / f"lists-{nodes}")
    imported, built = stores.imported(folder, rows), folder / "built"

    def anew() -> None:
        shutil.rmtree(built, ignore_errors=True)
        shutil.copytree(imported, built, symlinks=True)

    what = f"build-graph, {rows:,} rows, with seeds and test points"
    return [*found, _in_turn(f"checking_{len(found)}", what, ["build-graph", "--store", str(built)], anew)]


def _in_turn(key: str, what: str, command: Sequence[str], prepare: Callable[[], None]) -> Figure:
    """The best of several runs of either program; each goes first as often as the other."""
    seconds: dict[str, list[float]] = {_WITH: [], _WITHOUT: []}
    turn, rounds = 0, ROUNDS
    while turn <= rounds:
        for program in sorted(seconds, reverse=bool(turn % 2)):
            prepare()
            watched: Watched = watch([sys.executable, "-c", program, *command, "--json"])
            # The first round compiles kernels.
            if turn:
                seconds[program].append(watched.seconds)
                rounds = ROUNDS if watched.seconds > SHORT_RUN else ROUNDS_OF_SHORT_RUNS
        turn += 1
    return Figure(key, what, min(seconds[_WITH]), "without checks", min(seconds[_WITHOUT]), "s", more_is_better=False)


def _without_scores(store: Path, cold: bool) -> Callable[[], None]:
    def prepare() -> None:
        shutil.rmtree(store / "scores", ignore_errors=True)
        subprocess.run([PROGRAM, "gc", "--store", store], check=True, stdout=subprocess.DEVNULL)
        if cold:
            evict(store)

    return prepare
