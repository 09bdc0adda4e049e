"""Descriptors that are as hard to search as real ones: clusters in few dimensions, bent into many, with noise.

Points are drawn around cluster centres in a space of few (`intrinsic`) dimensions and pushed through a random network of two
layers, so that they lie on a curved surface of that dimension; a little noise in all dimensions is added behind it. Some
clusters are larger than others, as classes are in the wild.

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
    """What the points lie on, and how they are spread over it.

    `sizes` is the deviation of the logarithm of the clusters' sizes: with 0 they are all alike, with 0.5 two thirds of them are
    within a factor of 1.65 of the usual one. `spread` is the deviation of a cluster, where centres have one of 1.
    """

    dims: int = 256
    intrinsic: int = 32
    clusters: int = 5000
    sizes: float = 0.5
    spread: float = 0.5
    noise: float = 0.02

    def shares(self) -> NDArray[np.float64]:
        """Of all points, those of each cluster and the ones before it."""
        sizes = np.exp(self.sizes * np.random.default_rng(54321).standard_normal(self.clusters))
        return np.cumsum(sizes / sizes.sum())


def generate(
    file: Path, rows: int, seed: int = 0, clusters: NDArray[np.int64] | None = None, surface: Surface | None = None
) -> None:
    """Writes rows of float32 to a `.npy` file, block by block, of the clusters given, or of any.

    The surface is the same for every seed, the points are not.
    """
    on = surface or Surface()
    fixed = np.random.default_rng(12345)
    centres = fixed.standard_normal((on.clusters, on.intrinsic), dtype=np.float32)
    first = fixed.standard_normal((on.intrinsic, _HIDDEN), dtype=np.float32) / np.float32(np.sqrt(on.intrinsic))
    second = fixed.standard_normal((_HIDDEN, on.dims), dtype=np.float32) / np.float32(np.sqrt(_HIDDEN))
    # The network's mean is taken out, so that directions, which is all that is left after normalising, spread evenly.
    mean = (np.maximum(centres @ first, 0) @ second).mean(axis=0)
    draw, shares = np.random.default_rng(seed), on.shares()
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, on.dims)})
        for start in range(0, rows, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, rows - start)
            own = np.searchsorted(shares, draw.random(count)) if clusters is None else clusters[start : start + count]
            points = centres[own] + np.float32(on.spread) * draw.standard_normal((count, on.intrinsic), dtype=np.float32)
            values = np.maximum(points @ first, 0) @ second - mean
            (values + np.float32(on.noise) * draw.standard_normal((count, on.dims), dtype=np.float32)).tofile(stream)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=Surface.__doc__)
    parser.add_argument("file", type=Path, help="the .npy file")
    parser.add_argument("rows", type=int)
    parser.add_argument("--seed", type=int, default=0, help="other points of the same surface")
    for field in fields(Surface):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    file, rows, seed = (given.pop(name) for name in ("file", "rows", "seed"))
    generate(file, rows, seed, surface=Surface(**given))


if __name__ == "__main__":
    main()
