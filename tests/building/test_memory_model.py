"""The memory model of build-graph predicts what a run holds, and a run keeps to its limit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.measure import anonymous_bytes
from mmdiff.building.memory_model import (
    PROCESS_BYTES,
    Sizes,
    Stage,
    disk_for_background,
    for_background,
    for_cells,
    for_graph,
)
from mmdiff.building.stage import Request, build_graph
from mmdiff.cli import app
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import Request as Import
from mmdiff.importing.stage import import_descriptors
from mmdiff.knn.cells import order as cells
from mmdiff.knn.faiss_index.factory import index_bytes
from mmdiff.runtime.progress import silent
from mmdiff.runtime.threads import cores
from tests.knn.test_knn import clustered
from tests.support.paths import DOCS
from tests.support.stores import tree

ROWS, WIDTH, K = 30_000, 32, 40
MIB = 1 << 20
PROGRAM = Path(sys.executable).parent / "mmdiff"
SIZES = Sizes(ROWS, WIDTH, "float32", K)


def least_memory(sizes: Sizes) -> int:
    """The least memory that a graph of the background alone can be built with."""
    return max(stage(sizes).least for stage in (for_cells, for_background, for_graph))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", clustered(ROWS, WIDTH))
    import_descriptors(tmp_path / "store", Import([str(tmp_path / "rows.npy")], "background"))
    return tmp_path / "store"


def build(store: Path, memory: int) -> tuple[int, dict[str, str]]:
    """Builds in a process of its own; returns its peak anonymous memory and the objects it made."""
    options = ["--k", str(K), "--index", "cells", "--memory", str(memory), "--store", str(store), "--json"]
    most = 0
    with subprocess.Popen([PROGRAM, "build-graph", *options], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
            time.sleep(0.01)
        output, _ = process.communicate()
    assert process.returncode == 0
    return most, {name: stage["object"] for name, stage in json.loads(output).items()}


def test_the_least_memory_is_kept_to_and_gives_the_same_bytes(store: Path) -> None:
    held_of_much, expected = build(store, 8 << 30)
    for name in ("models/cells", "knn/BB", "graph/W"):
        (store / name).unlink()
    assert CliRunner().invoke(app, ["gc", "--store", str(store)]).exit_code == 0
    least = least_memory(SIZES)
    held, objects = build(store, least)
    assert objects == expected
    assert held <= least <= 5 * held
    stages = [stage(SIZES) for stage in (for_cells, for_background, for_graph)]
    assert held_of_much <= max(stage.fixed + cores() * stage.thread for stage in stages)


def held_by_cells(folder: Path, rows: int, width: int) -> int:
    """The peak bytes of Python and numpy objects while cells are made."""
    vectors = np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32)
    recipe = Recipe("cells", cells.SCHEMA, {"seed": 0, "cell_rows": 60}, {})
    with Publication(folder, [cells.NAME], "test") as publication:
        draft = publication.draft(cells.NAME, recipe)
        tracemalloc.start()
        try:
            facts = cells.make(draft, vectors, 1, silent)
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        publication.link({cells.NAME: publication.publish(draft, facts, {"command": "test"})})
    return held


def test_what_a_stage_holds_for_each_row_is_what_was_estimated(tmp_path: Path) -> None:
    # A first run loads the kernels, which hold memory too.
    held_by_cells(tmp_path / "small", 5000, 4)
    rows, width = 1_000_000, 4
    held = held_by_cells(tmp_path / "store", rows, width)
    estimated = for_cells(Sizes(rows, width, "float32", 5)).least - PROCESS_BYTES
    assert held <= estimated <= 2 * held


def test_the_disk_that_is_needed_is_what_lies_there_at_the_end_and_more(store: Path) -> None:
    outcome = build_graph(store, Request(k=K, index="cells"))
    found = sum(outcome.artifacts[name].manifest.bytes_on_disk for name in ("models/cells", "knn/BB"))
    passes = len(outcome.artifacts["knn/BB"].manifest.facts["recall_by_pass"]) - 1
    scratch = min(passes, 1) * outcome.artifacts["knn/BB"].manifest.bytes_on_disk
    assert found + scratch <= disk_for_background(SIZES, passes) <= 1.1 * (found + scratch)


def test_too_little_memory_is_refused_before_anything_is_made(store: Path) -> None:
    before = tree(store)
    outcome = CliRunner().invoke(app, ["build-graph", "--k", str(K), "--memory", "200M", "--store", str(store)])
    least = -(-least_memory(SIZES) // MIB)
    assert outcome.exit_code == 2
    assert f"--memory 200M: at least {least}M is needed for 30,000 nodes" in outcome.stderr
    assert tree(store) == before


def test_only_what_is_still_to_be_made_has_to_fit(store: Path) -> None:
    build_graph(store, Request(k=K))
    assert build_graph(store, Request(k=K, memory=1)).seconds == {}
    assert "graph/W" in Store.open(store).names()


def test_an_index_that_is_held_in_memory_counts(store: Path) -> None:
    assert index_bytes(ROWS, WIDTH, "Flat") == 2 * ROWS * 4 * WIDTH
    assert index_bytes(ROWS, WIDTH, "IVF16,PQ8") < index_bytes(ROWS, WIDTH, "IVF16,Flat") < index_bytes(ROWS, WIDTH, "HNSW32")
    arguments = ["build-graph", "--index", "HNSW4096", "--memory", "1G", "--store", str(store)]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2
    assert "--memory 1,024M" in outcome.stderr
    assert "knn/BB" in outcome.stderr


def test_needs_grow_with_all_that_is_stored() -> None:
    base = Sizes(10**6, 64, "float16", 20)
    for larger in (Sizes(10**7, 64, "float16", 20), Sizes(10**6, 256, "float16", 20), Sizes(10**6, 64, "float16", 100)):
        assert disk_for_background(larger, 1) > disk_for_background(base, 1)
        assert least_memory(larger) >= least_memory(base)
    assert disk_for_background(base, 2) == disk_for_background(base, 1) > disk_for_background(base, 0)


def test_the_table_of_the_page_on_graphs_is_what_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.building.memory_model.cores", lambda: 2)
    page = (DOCS / "graph.md").read_text()
    for rows, dtype in ((10**6, "float32"), (10**7, "float16"), (10**8, "float16")):
        sizes = Sizes(rows, 256, dtype, 30)
        memory, disk = least_memory(sizes), disk_for_background(sizes, 1)
        assert f"| {rows:,}, {dtype} | {-(-memory // MIB):,}M | {disk / 1e9:.1f} GB |" in page


def test_fewer_threads_work_where_memory_is_little() -> None:
    stage = Stage(100, 10)
    assert stage.threads(10**9) == cores()
    assert stage.threads(115) == 1
    assert stage.least == 110
