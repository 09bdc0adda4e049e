"""Descriptors that are as hard to search as real ones: clusters in few dimensions, bent into many, with noise.

Points are drawn around cluster centres in a space of `LATENT` dimensions and pushed through a random network of two layers, so
that they lie on a curved surface of that dimension; a little noise in all dimensions is added behind it.

    python -m benchmarks.generate FILE ROWS [SEED]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIMS, LATENT, HIDDEN, CLUSTERS = 256, 32, 512, 5000
SPREAD, NOISE = 0.5, 0.02
_BLOCK_ROWS = 1 << 16


def generate(file: Path, rows: int, seed: int = 0, clusters: NDArray[np.int64] | None = None) -> None:
    """Writes rows of float32 to a `.npy` file, block by block, of the clusters given, or of any.

    The surface is the same for every seed, the points are not.
    """
    fixed = np.random.default_rng(12345)
    centres = fixed.standard_normal((CLUSTERS, LATENT), dtype=np.float32)
    first = fixed.standard_normal((LATENT, HIDDEN), dtype=np.float32) / np.float32(np.sqrt(LATENT))
    second = fixed.standard_normal((HIDDEN, DIMS), dtype=np.float32) / np.float32(np.sqrt(HIDDEN))
    # The network's mean is taken out, so that directions, which is all that is left after normalising, spread evenly.
    mean = (np.maximum(centres @ first, 0) @ second).mean(axis=0)
    draw = np.random.default_rng(seed)
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, DIMS)})
        for start in range(0, rows, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, rows - start)
            own = draw.integers(0, CLUSTERS, count) if clusters is None else clusters[start : start + count]
            points = centres[own] + np.float32(SPREAD) * draw.standard_normal((count, LATENT), dtype=np.float32)
            values = np.maximum(points @ first, 0) @ second - mean
            (values + np.float32(NOISE) * draw.standard_normal((count, DIMS), dtype=np.float32)).tofile(stream)


if __name__ == "__main__":
    generate(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
