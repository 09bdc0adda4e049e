"""Commands know how much disk they will need, and refuse to start where there is less."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.building.memory_model import W0, Sizes, disk_for_background, disk_for_patch, least_disk, peak_disk
from mmdiff.cli import app
from mmdiff.formats.errors import DiskFull
from mmdiff.formats.store.publish import Publication
from mmdiff.runtime.find_or_make import refuse_forecast
from tests.support.nasty_options import World
from tests.support.stores import MEMORY, recipe, tree

FREE = 1000


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield World(Path(folder))


@pytest.mark.parametrize(
    "command",
    [
        "import {folder}/seeds.npy --role background",
        "build-graph --k 5",
        "diffuse --iterations 7",
        "diffuse --iterations 2 --eta row",
        "logreg --iterations 30",
        "experiment run {folder}/config.toml",
    ],
)
def test_run_that_needs_more_disk_than_is_free_is_refused_before_it_starts(
    world: World, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(world.store)
    free = 100 if command.startswith(("logreg", "import")) else FREE
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: free)
    words = command.format(folder=world.folder).split()
    outcome = CliRunner().invoke(app, [*words, "--store", str(world.store)])
    assert outcome.exit_code == 1, outcome.output
    assert "bytes of disk are needed, but the disk of" in outcome.stderr
    assert f"has {free:,} free. Make room (mmdiff gc may help), or put the store on another disk with --store FOLDER." in (
        outcome.stderr
    )
    assert tree(world.store) == before


@pytest.mark.parametrize("command", ["build-graph --k 5", "diffuse --iterations 7"])
def test_plan_of_a_run_that_does_not_fit_the_disk_says_so(world: World, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ["plan", *command.split(), "--store", str(world.store)]
    assert json.loads(CliRunner().invoke(app, [*plan, "--json"]).stdout)["notes"] == []
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: FREE)
    outcome = CliRunner().invoke(app, plan)
    assert outcome.exit_code == 0, outcome.output
    assert f"{FREE} B free" in outcome.stdout
    told = rf"mmdiff: the disk of {world.store} is too small: .* about [\d,]+ bytes, and 1,000 are free\. Make room, or .*\.\n"
    assert re.fullmatch(told, outcome.stderr)


@pytest.fixture
def large(tmp_path: Path) -> mmdiff.Store:
    """A store whose graph takes more than 60,000 bytes of disk, and its lists 80,000."""
    store = mmdiff.open(tmp_path / "store", create=True)
    draw = np.random.default_rng(0)
    store.add(draw.normal(size=(2000, 16)))
    store.add(draw.normal(size=(5, 16)), role="test")
    return store


def test_new_test_points_need_no_disk_for_a_graph_that_stays(large: mmdiff.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    large.build_graph(k=5)
    large.add(np.random.default_rng(1).normal(size=(6, 16)), role="test")
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: 50_000)
    made = large.build_graph(k=5)
    assert [name for name, stage in made.items() if not stage["reused"]] == ["knn/test"]
    with pytest.raises(DiskFull, match="knn/W0: about"):
        large.build_graph(k=5, transductive=True)


def test_graph_is_forecast_with_the_lists_that_it_is_made_of(large: mmdiff.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists of the seeds fit, and those of the test points, but not the graph that follows."""
    large.build_graph(k=5)
    large.add(np.random.default_rng(1).normal(size=(3, 16)), role="seeds", labels=[0, 1, 2])
    before = tree(large.path)
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: 60_000)
    with pytest.raises(DiskFull, match="knn/W0: about 64,"):
        large.build_graph(k=5)
    assert tree(large.path) == before


def test_import_that_does_not_fit_leaves_no_store_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: FREE)
    with pytest.raises(DiskFull, match="descriptors/background: about 12,800 bytes of disk are needed"):
        mmdiff.open(tmp_path / "store", create=True).add(np.eye(100, 32) + 1)
    assert not (tmp_path / "store").exists()


def test_bytes_that_an_interrupted_run_has_written_are_not_needed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publication(tmp_path / "store", ["graph/W"], "a test") as publication:
        publication.draft("graph/W", recipe()).values("indptr", np.zeros(5000, np.int64))
        monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: FREE)
        refuse_forecast(publication, "graph/W", 40_000)
        with pytest.raises(DiskFull, match="graph/W: about"):
            refuse_forecast(publication, "graph/W", 400_000)


def test_least_disk_is_below_the_usual_one_and_its_peak_counts_what_earlier_stages_leave() -> None:
    sizes = Sizes(1_000_000, 256, "float32", 30)
    cells, lists, *_ = least_disk(sizes, 0, weighted=False).values()
    assert peak_disk([cells, lists]) <= disk_for_background(sizes, 0)
    assert peak_disk([(5, 7), (3, 10), (1, 1)]) == 15
    assert peak_disk([]) == 0


def test_hundred_million_nodes_need_more_than_a_small_disk() -> None:
    sizes = Sizes(100_000_000, 256, "float16", 30, points=1_000_000)
    needed = peak_disk(least_disk(sizes, 1_000_000, weighted=True).values())
    assert 100e9 < needed < 400e9


def test_patch_is_forecast_by_the_points_and_never_beyond_all_lists() -> None:
    few, many = (Sizes(10_000_000, 256, "float16", 30, points=points) for points in (1_000, 10_000_000))
    row = 30 * 8 + 4
    assert disk_for_patch(few) == 31_000 * row
    assert disk_for_patch(many) == 20_000_000 * row
    assert least_disk(few, 0, weighted=False)[W0] == (1_000 * row, 1_000 * row)
    assert disk_for_patch(Sizes(10_000_000, 256, "float16", 30)) == 0
    # Seeds alone have lists, and none that they could enter.
    assert disk_for_patch(Sizes(0, 256, "float16", 30, points=500)) == 500 * row


def test_usual_patch_of_points_like_the_background_is_close_to_its_forecast(large: mmdiff.Store) -> None:
    large.add(np.random.default_rng(1).normal(size=(40, 16)), role="seeds", labels=np.arange(40) % 3)
    made = large.build_graph(k=5)
    forecast = disk_for_patch(Sizes(2000, 16, "float32", 5, points=40))
    assert forecast / 2 < made["knn/W0"]["facts"]["rows"] * (5 * 8 + 4) < 2 * forecast
