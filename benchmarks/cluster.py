"""Two Dask workers on this machine against one process: times, and byte-identical results, also if a worker is killed."""

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
# Processor seconds after which a worker is killed.
_WORKED = 10.0


def figures(folder: Path, rows: int = ROWS) -> Json:
    """Seconds of each command in one process, with two workers, and with one of them killed; fails if objects differ."""
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
    """The id of each artifact: a digest of its manifest, which contains the checksums of all chunks."""
    opened = Store.open(store)
    return {name: opened.open_artifact(name).id for name in opened.names()}


@contextmanager
def _workers(folder: Path, how: str) -> Iterator[list[str]]:
    """Starts two workers unless `how` is one process; yields the options that connect to them."""
    if how == "one process":
        yield []
        return
    with executor_on("local:2", folder):
        client = import_module("distributed").default_client()
        with _killing(lambda: set(client.run(os.getpid).values())) if how == "one killed" else nullcontext():
            yield ["--dask", client.scheduler.address]


@contextmanager
def _killing(pids: Callable[[], set[int]]) -> Iterator[None]:
    """Kills the first process that has used enough processor time."""
    ended, killed = threading.Event(), list[int]()
    before = {pid: _worked(pid) for pid in pids()}

    def watch_and_kill() -> None:
        while not killed and not ended.wait(0.05):
            for pid in [pid for pid in before if _worked(pid) - before[pid] > _WORKED][:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    thread = threading.Thread(target=watch_and_kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if not killed:
        raise RuntimeError("no worker ran long enough to be killed")


def _worked(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
