"""`--dask`: the same bytes whoever computes them and whichever worker is killed; and what can go wrong, said in words."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.building.stage import Request as Build
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.diffusion.stage import Request, diffuse
from mmdiff.experiment.stage import run_experiment
from mmdiff.formats.errors import ClusterError
from mmdiff.formats.store.store import Store
from mmdiff.runtime.dask import executor_on
from mmdiff.runtime.executor import Executor
from mmdiff.runtime.progress import Advance, Progress, silent
from tests.diffusion.test_diffuse_shortcuts import large
from tests.diffusion.test_diffuse_store import import_rows, import_seeds
from tests.knn.test_knn import clustered
from tests.support.paths import ROOT
from tests.support.small_experiments import DIFFUSION, FUSION, LOGREG, small_config, write_config
from tests.support.stores import problems, tree

BACKGROUND, CLASSES = 3000, 9


@dataclass(frozen=True)
class Workers:
    """Two workers that all tests share. Those that are killed come back."""

    address: str
    pids: Callable[[], set[int]]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with executor_on("local:2", ROOT):
        client = import_module("distributed").default_client()
        yield Workers(client.scheduler.address, lambda: set(client.run(os.getpid).values()))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    import_rows(folder, "background", clustered(BACKGROUND, 16, 10))
    import_seeds(folder, np.arange(60) % CLASSES)
    import_rows(folder, "test", clustered(200, 16, 10, 2))
    return folder / "store"


@pytest.fixture(scope="module")
def built(imported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = copy(imported, tmp_path_factory.mktemp("built") / "store")
    build_graph(store, Build(k=10, index="flat"))
    return store


def copy(store: Path, to: Path) -> Path:
    return Path(shutil.copytree(store, to, symlinks=True))


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """What a user is told, in one line, whose command is refused."""
    outcome = run(*arguments)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("mmdiff: ")
    assert outcome.stderr.count("\n") == 1
    return str(outcome.stderr)


def same(store: Path, folder: Path, workers: Workers, *command: object) -> None:
    """A command leaves the same bytes with workers as without."""
    stores = [copy(store, folder / name) if store.exists() else folder / name for name in ("here", "there")]
    for path, dask in zip(stores, ([], ["--dask", workers.address]), strict=True):
        outcome = run(*command, *dask, "--store", path)
        assert outcome.exit_code == 0, outcome.output
    here, there = (tree(path, with_runs=False) for path in stores)
    assert here == there
    assert not problems(Store.open(stores[1]))
    assert not (stores[1] / "work").exists()


@pytest.mark.parametrize("index", ["cells", "flat", "IVF8,Flat"])
def test_workers_build_the_same_graph(imported: Path, quick_folder: Path, workers: Workers, index: str) -> None:
    same(imported, quick_folder, workers, "build-graph", "--k", 10, "--index", index, "--recall", 0.99)


@pytest.mark.parametrize(
    "options", [(), ("--gamma", 1.2, "--plain"), ("--cols-per-batch", "auto", "--normalize-graph", "symmetric")], ids=str
)
def test_workers_compute_the_same_scores(
    built: Path, quick_folder: Path, workers: Workers, options: tuple[object, ...]
) -> None:
    width = () if "--cols-per-batch" in options else ("--cols-per-batch", 2)
    same(built, quick_folder, workers, "diffuse", "--iterations", 3, *width, *options)


def test_workers_predict_the_same_classes_of_nodes(built: Path, quick_folder: Path, workers: Workers) -> None:
    file = quick_folder / "predicted.parquet"
    same(built, quick_folder, workers, "diffuse", "--cols-per-batch", 2, "--predict-nodes", file)


def test_workers_compute_the_same_experiment(quick_folder: Path, workers: Workers) -> None:
    config = small_config(methods=[DIFFUSION, LOGREG, FUSION], n=[1], backgrounds=["in-domain"])
    path = write_config(quick_folder, config)
    same(quick_folder / "none", quick_folder, workers, "experiment", "run", path)


def killing(workers: Workers, what: str) -> tuple[Progress, set[int]]:
    """A progress bar that kills a worker when something has first moved, and who was killed."""
    killed: set[int] = set()

    @contextmanager
    def progress(title: str, total: int, unit: str) -> Iterator[Advance]:
        del total, unit

        def advance(count: int) -> None:
            if title.startswith(what) and count and not killed:
                killed.add(min(workers.pids()))
                os.kill(min(killed), signal.SIGKILL)

        yield advance

    return progress, killed


@pytest.mark.parametrize("command", ["build-graph", "diffuse", "experiment run"])
def test_a_worker_that_is_killed_changes_nothing(
    imported: Path, built: Path, quick_folder: Path, workers: Workers, command: str
) -> None:
    config = write_config(quick_folder, small_config(n=[1], backgrounds=["none"]))
    asked = Request(iterations=3, cols_per_batch=1, predict_nodes=quick_folder / "p.parquet")

    def perform(store: Path, progress: Progress = silent, executor: Executor | None = None) -> None:
        if command == "build-graph":
            build_graph(store, Build(k=10, index="cells", recall=0.99), progress, executor)
        elif command == "diffuse":
            diffuse(store, asked, progress, executor=executor)
        else:
            run_experiment(store, config, "a test", progress, executor)

    start = {"build-graph": imported, "diffuse": built}.get(command)
    stores = [quick_folder / name for name in ("here", "there")]
    for store in stores if start is not None else ():
        copy(Path(str(start)), store)
    perform(stores[0])
    progress, killed = killing(workers, {"build-graph": "searching", "diffuse": "diffusing"}.get(command, "experiment"))
    with executor_on(workers.address, ROOT) as executor:
        perform(stores[1], progress, executor)
    assert killed
    assert not killed & workers.pids()
    here, there = (tree(store, with_runs=False) for store in stores)
    assert here == there


@dataclass(frozen=True)
class Deadly:
    """Squares numbers. The third kills who does it, as long as that has happened less than so often."""

    folder: Path
    times: int

    @contextmanager
    def opened(self) -> Iterator[Callable[[int, Advance], int]]:
        def square(number: int, advance: Advance) -> int:
            deaths = len(list(self.folder.iterdir()))
            if number == 3 and deaths < self.times:
                (self.folder / str(deaths)).touch()
                # Dask takes a worker that ends while it starts for one that cannot be started.
                time.sleep(min(1, deaths))
                os.kill(os.getpid(), signal.SIGKILL)
            advance(2)
            return number**2

        yield square


def test_a_unit_is_done_again_until_it_has_killed_three_workers(tmp_path: Path, workers: Workers) -> None:
    with executor_on(workers.address, ROOT) as units:
        counted: list[int] = []
        once = Deadly(tmp_path / "once", 1)
        once.folder.mkdir()
        found = dict(units.each(lambda _: 0, lambda: once, range(8), advance=counted.append))
        assert found == {number: number**2 for number in range(8)}
        assert sum(counted) == 16
        always = Deadly(tmp_path / "always", 100)
        always.folder.mkdir()
        with pytest.raises(ClusterError, match="3 workers were lost on one unit, one after the other, the last of them tcp://"):
            dict(units.each(lambda _: 0, lambda: always, [3]))
        assert len(list(always.folder.iterdir())) == 3


def test_the_bar_counts_what_all_workers_do(built: Path, quick_folder: Path, workers: Workers) -> None:
    totals: list[int] = []
    moved: list[int] = []

    @contextmanager
    def progress(what: str, total: int, unit: str) -> Iterator[Advance]:
        del what, unit
        totals.append(total)
        yield moved.append

    with executor_on(workers.address, ROOT) as units:
        diffuse(copy(built, quick_folder / "store"), Request(iterations=3, cols_per_batch=2), progress, executor=units)
    assert len(totals) == 1
    assert sum(moved) == totals[0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_is_continued_and_its_workers_end_with_it(quick_folder: Path, how: signal.Signals) -> None:
    store = large(quick_folder / "folder", 30_000, 1_000, 24) / "store"
    other = copy(store, quick_folder / "other")
    options = ["diffuse", "--iterations", "4", "--cols-per-batch", "2", "--json"]
    start = [sys.executable, "-c", "from mmdiff.cli import main; main()", *options, "--dask", "local:2"]
    process = subprocess.Popen(
        [*start, "--store", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (store / "work" / "scores.diffusion" / "checkpoint").exists() and process.poll() is None:
        time.sleep(0.005)
    # Ctrl-C in a terminal reaches the workers too.
    os.killpg(process.pid, how) if how == signal.SIGINT else process.kill()
    output, messages = process.communicate()
    assert output == ""
    assert process.returncode == (130 if how == signal.SIGINT else -how), messages
    if how == signal.SIGINT:
        assert messages.splitlines()[-1].startswith("mmdiff: interrupted. What is finished is kept")
    assert "Traceback" not in messages
    for _ in itertools.takewhile(lambda _: session(process.pid), range(1000)):
        time.sleep(0.01)
    assert not session(process.pid)
    assert "scores/diffusion" not in Store.open(store).names()
    found = [json.loads(run(*options, "--store", path).stdout) for path in (store, other)]
    assert found[0]["object"] == found[1]["object"]
    read = [sum(step["bytes"] for step in each["steps"]) for each in found]
    assert read[0] < read[1]
    assert tree(store, with_runs=False) == tree(other, with_runs=False)


def session(leader: int) -> list[int]:
    """The processes that are left of a session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(process.name))
    return found


@pytest.mark.parametrize("dask", ["local:0", "local:x", "local", "local:-1", "local:2.5"])
def test_numbers_of_workers_that_are_none_are_refused(built: Path, dask: str) -> None:
    message = refused("diffuse", "--store", built, "--dask", dask)
    assert f"--dask {dask}: not a number of workers. Write it like local:2" in message


@pytest.mark.parametrize("dask", ["tcp://127.0.0.1:1", "nosuch://there:8786", "tcp://", ""])
def test_an_address_where_nobody_answers_is_refused(built: Path, dask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.runtime.dask._CONNECT_SECONDS", 1)
    assert f"--dask {dask}: no scheduler answers there. Start one" in refused("build-graph", "--store", built, "--dask", dask)


def test_workers_that_cannot_see_the_store_are_refused(built: Path, workers: Workers) -> None:
    descriptor = os.open(built.parent, os.O_RDONLY)
    try:
        # A path that is another in every process.
        store = Path(f"/proc/self/fd/{descriptor}/{built.name}")
        message = refused("diffuse", "--store", store, "--dask", workers.address)
    finally:
        os.close(descriptor)
    assert f"cannot see {store}. All workers need it at the same path: mount it there." in message


def test_without_distributed_the_line_that_installs_it_is_shown(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    message = refused("diffuse", "--store", built, "--dask", "local:2")
    assert "--dask needs distributed, which is not installed. Run: pip install 'mmdiff[dask]'" in message


@pytest.mark.parametrize("eta", ["row", "sinkhorn"])
def test_classes_that_are_coupled_are_not_left_to_workers(built: Path, workers: Workers, eta: str) -> None:
    message = refused("diffuse", "--eta", eta, "--store", built, "--dask", workers.address)
    assert f"--dask with --eta {eta}: the operator needs all classes of a node" in message


def refused_for_two(*arguments: object) -> str:
    """What a user is told when both workers are there: one that another test has killed may still be on its way back."""
    deadline = time.monotonic() + 60
    while "for each of 2 workers" not in (message := refused(*arguments)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return message


def test_workers_share_the_memory(built: Path, workers: Workers) -> None:
    message = refused_for_two("diffuse", "--memory", "100M", "--store", built, "--dask", workers.address)
    assert "--memory 100M, 50M for each of 2 workers: 1 column of 3,060 nodes needs" in message
    options = ["--memory", "100M", "--cols-per-batch", 9]
    message = refused_for_two("diffuse", *options, "--store", built, "--dask", workers.address)
    assert "--memory 100M, 50M for each of 2 workers: 9 columns of 3,060 nodes need" in message
    message = refused("build-graph", "--k", 5, "--memory", "300M", "--store", built, "--dask", workers.address)
    assert "--memory 300M: at least 4" in message


def test_a_store_or_a_config_that_is_not_there_is_missed_by_the_command_itself(tmp_path: Path) -> None:
    assert "no store here" in refused("diffuse", "--store", tmp_path / "none", "--dask", "local:2")
    assert "no such file" in refused("experiment", "run", tmp_path / "none.toml", "--dask", "local:2")
