"""Generates descriptors that are as hard to search as real ones: clusters on a curved surface of low dimension, with noise.

Points are drawn around cluster centres in a space of `intrinsic` dimensions and mapped by a random network of two layers, so
that they lie on a curved surface of that dimension; then noise is added in all dimensions. Cluster sizes vary, as class sizes
do in real data.

    python -m benchmarks.generate FILE ROWS [--intrinsic 32] [--sizes 0.5] [--noise 0.02] ...
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_HIDDEN = 512
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class Surface:
    """The surface and the distribution of points on it.

    `sizes` is the standard deviation of the logarithm of cluster sizes: with 0 all are equal, with 0.5 two thirds of them are
    within a factor of 1.65 of the median. `spread` is the standard deviation within a cluster; that of the centres is 1.
    """

    dims: int = 256
    intrinsic: int = 32
    clusters: int = 5000
    sizes: float = 0.5
    spread: float = 0.5
    noise: float = 0.02

    def shares(self) -> NDArray[np.float64]:
        """The cumulative share of points by cluster."""
        sizes = np.exp(self.sizes * np.random.default_rng(54321).standard_normal(self.clusters))
        return np.cumsum(sizes / sizes.sum())


def generate(
    file: Path,
    rows: int,
    seed: int = 0,
    clusters: NDArray[np.int64] | None = None,
    surface: Surface | None = None,
    dtype: str = "<f4",
) -> None:
    """Writes rows to a `.npy` file in blocks. `clusters` gives the cluster of each row; by default it is drawn.

    The seed determines the points; the surface is always the same.
    """
    on = surface or Surface()
    fixed = np.random.default_rng(12345)
    centres = fixed.standard_normal((on.clusters, on.intrinsic), dtype=np.float32)
    first = fixed.standard_normal((on.intrinsic, _HIDDEN), dtype=np.float32) / np.float32(np.sqrt(on.intrinsic))
    second = fixed.standard_normal((_HIDDEN, on.dims), dtype=np.float32) / np.float32(np.sqrt(_HIDDEN))
    # Without the network's mean, directions are spread evenly; normalising leaves only directions.
    mean = (np.maximum(centres @ first, 0) @ second).mean(axis=0)
    draw, shares = np.random.default_rng(seed), on.shares()
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": (rows, on.dims)})
        for start in range(0, rows, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, rows - start)
            chosen = np.searchsorted(shares, draw.random(count)) if clusters is None else clusters[start : start + count]
            points = centres[chosen] + np.float32(on.spread) * draw.standard_normal((count, on.intrinsic), dtype=np.float32)
            values = np.maximum(points @ first, 0) @ second - mean
            values += np.float32(on.noise) * draw.standard_normal((count, on.dims), dtype=np.float32)
            values.astype(dtype, copy=False).tofile(stream)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=Surface.__doc__)
    parser.add_argument("file", type=Path, help="the .npy file")
    parser.add_argument("rows", type=int)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the points")
    for field in fields(Surface):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    file, rows, seed = (given.pop(name) for name in ("file", "rows", "seed"))
    generate(file, rows, seed, surface=Surface(**given))


if __name__ == "__main__":
    main()
