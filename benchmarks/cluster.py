"""`--dask` with two workers on this machine, against one process: the same bytes, also where a worker is killed at its work."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

from benchmarks import stores
from benchmarks.knn import PROGRAM
from benchmarks.measure import watch
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.runtime.dask import executor_on

ROWS = 1_000_000
_COMMANDS = {
    "build-graph": ["build-graph", "--memory", "4G"],
    "diffuse": ["diffuse", "--plain", "--iterations", "4", "--cols-per-batch", "32", "--memory", "4G"],
}
# Seconds of work after which a worker is killed.
_WORKED = 10.0


def figures(folder: Path, rows: int = ROWS) -> Json:
    """Seconds of each command in one process, with two workers, and with one of them killed; all give the same objects."""
    before = stores.imported(folder, rows)
    found: dict[str, Json] = {}
    for command, arguments in _COMMANDS.items():
        seconds, objects = {}, {}
        for how in ("one process", "two workers", "one killed"):
            store = Path(shutil.copytree(before, folder / "store", symlinks=True))
            with _workers(folder, how) as options:
                seconds[how] = watch([PROGRAM, *arguments, *options, "--store", store, "--json"]).seconds
            objects[how] = _objects(store)
            shutil.move(store, folder / how)
        if any(own != objects["one process"] for own in objects.values()):
            raise RuntimeError(f"{command}: not the same objects: {objects}")
        found[command] = {"seconds": seconds, "objects": objects["one process"]}
        before = Path(shutil.move(folder / "one process", folder / command))
        for how in ("two workers", "one killed"):
            shutil.rmtree(folder / how)
    return {"rows": rows, "commands": found}


def _objects(store: Path) -> Json:
    """The id of each artifact, which is a digest of its manifest with the checksums of all chunks."""
    opened = Store.open(store)
    return {name: opened.open_artifact(name).id for name in opened.names()}


@contextmanager
def _workers(folder: Path, how: str) -> Iterator[list[str]]:
    """None, or two workers and the option that leads to them."""
    if how == "one process":
        yield []
        return
    with executor_on("local:2", folder):
        client = import_module("distributed").default_client()
        with _killing(lambda: set(client.run(os.getpid).values())) if how == "one killed" else nullcontext():
            yield ["--dask", client.scheduler.address]


@contextmanager
def _killing(pids: Callable[[], set[int]]) -> Iterator[None]:
    """Kills the first process that has worked for some time."""
    ended, killed = threading.Event(), list[int]()
    before = {pid: _worked(pid) for pid in pids()}

    def look() -> None:
        while not killed and not ended.wait(0.05):
            for pid in [pid for pid in before if _worked(pid) - before[pid] > _WORKED][:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if not killed:
        raise RuntimeError("no worker has worked long enough to be killed")


def _worked(pid: int) -> float:
    """Seconds of the processor that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
