"""Generated descriptors have the requested intrinsic dimension, cluster sizes and noise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.generate import Surface, generate
from tests.support.paths import ROOT


def made(folder: Path, rows: int, surface: Surface, clusters: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    generate(folder / "rows.npy", rows, seed, clusters, surface)
    values: np.ndarray = np.load(folder / "rows.npy")
    return values.astype(np.float64)


@pytest.mark.parametrize("intrinsic", [2, 7])
def test_a_small_piece_of_the_surface_has_the_intrinsic_dimension(tmp_path: Path, intrinsic: int) -> None:
    surface = Surface(intrinsic=intrinsic, spread=1e-4, noise=0)
    rows = made(tmp_path, 2000, surface, np.zeros(2000, np.int64))
    strengths = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    assert strengths[intrinsic - 1] > 100 * strengths[intrinsic]


def test_noise_has_the_requested_deviation_in_every_dimension(tmp_path: Path) -> None:
    rows = made(tmp_path, 5000, Surface(dims=20, spread=0, noise=0.3), np.zeros(5000, np.int64))
    np.testing.assert_allclose(rows.std(axis=0), 0.3, rtol=0.1)


@pytest.mark.parametrize("sizes", [0.0, 1.0])
def test_cluster_sizes_have_the_requested_deviation(tmp_path: Path, sizes: float) -> None:
    surface = Surface(dims=8, intrinsic=4, clusters=200, sizes=sizes, spread=0, noise=0)
    _, counts = np.unique(made(tmp_path, 100_000, surface).round(4), axis=0, return_counts=True)
    assert len(counts) > 190
    assert abs(np.log(counts).std() - sizes) < 0.2


def test_another_seed_gives_other_points_of_the_same_surface(tmp_path: Path) -> None:
    surface = Surface(clusters=3, spread=1e-3, noise=0)
    one, other = (made(tmp_path, 3, surface, np.arange(3), seed) for seed in (0, 1))
    distances = np.linalg.norm(one[:, None] - other[None], axis=2)
    assert (distances > 0).all()
    assert (distances.argmin(axis=1) == np.arange(3)).all()


def test_command_writes_the_same_as_the_function(tmp_path: Path) -> None:
    command = ["-m", "benchmarks.generate", str(tmp_path / "file.npy"), "70000", "--dims", "8", "--sizes", "1", "--seed", "3"]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    expected = made(tmp_path, 70_000, Surface(dims=8, sizes=1), seed=3)
    # Matrix products are rounded differently with another number of threads, which earlier tests may have limited.
    np.testing.assert_allclose(np.load(tmp_path / "file.npy"), expected, rtol=0, atol=1e-5)
