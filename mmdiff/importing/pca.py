"""PCA to a few hundred dimensions, as the paper applies it before the search (section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption
from mmdiff.formats.sources.base import Source
from mmdiff.importing.rows import as_float32, examine, refuse_bad
from mmdiff.progress import Progress

# Of a larger source, this many rows are enough for the covariance; they are taken in runs spread evenly over it.
SAMPLE_ROWS = 1 << 17
_RUN_ROWS = 64
_BLOCK_ROWS = 1 << 13


@dataclass(frozen=True)
class Reduction:
    """A trained PCA. `explained_variance` is the share of each component in the variance of all dimensions."""

    mean: NDArray[np.float32]
    components: NDArray[np.float32]
    explained_variance: NDArray[np.float32]

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        centred: NDArray[np.float32] = rows - self.mean
        return centred @ self.components.T


def train(source: Source, dims: int, progress: Progress) -> Reduction:
    """PCA of the rows, or of a sample of them, from their covariance."""
    if source.rows < dims:
        raise BadOption(
            f"{source.name}: a PCA to {dims} dimensions needs as many rows, but there are {source.rows}. "
            f"Keep all {source.width} dimensions with --dims {source.width}, or use at most --dims {source.rows}."
        )
    origin = np.zeros(source.width)
    total = np.zeros(source.width)
    products = np.zeros((source.width, source.width))
    count = 0
    with progress("training the PCA", min(source.rows, SAMPLE_ROWS), "rows") as advance:
        for rows in _sample(source):
            if count == 0:
                # Sums around a value near the mean lose no digits where descriptors are far from zero.
                origin = rows.mean(axis=0, dtype=np.float64)
            # In float64: the squares of float32 overflow from 1e19 on, and vanish below 1e-23.
            centred = rows - origin
            total += centred.sum(axis=0)
            products += centred.T @ centred
            count += len(rows)
            advance(len(rows))
    shift = total / count
    variances, directions = np.linalg.eigh(products / count - np.outer(shift, shift))
    variances = np.clip(variances[::-1], 0, None)
    explained = variances / max(variances.sum(), np.finfo(float).tiny)
    components = _with_fixed_signs(directions[:, ::-1].T[:dims])
    return Reduction((origin + shift).astype(np.float32), components, explained[:dims].astype(np.float32))


def _with_fixed_signs(components: NDArray[np.float64]) -> NDArray[np.float32]:
    """An eigenvector is defined up to its sign; ours have their largest entry positive."""
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    return np.ascontiguousarray(components * np.sign(largest)[:, None], np.float32)


def _sample(source: Source) -> Iterator[NDArray[np.float32]]:
    """Blocks of rows: all of them, or SAMPLE_ROWS in evenly spread runs."""
    starts, length = list(range(0, source.rows, _BLOCK_ROWS)), _BLOCK_ROWS
    if source.rows > SAMPLE_ROWS:
        starts, length = (
            np.linspace(0, source.rows - _RUN_ROWS, SAMPLE_ROWS // _RUN_ROWS).astype(int).tolist(),
            _RUN_ROWS,
        )
    runs_per_block = _BLOCK_ROWS // length
    for first in range(0, len(starts), runs_per_block):
        yield np.concatenate([_good_rows(source, start, length) for start in starts[first : first + runs_per_block]])


def _good_rows(source: Source, start: int, length: int) -> NDArray[np.float32]:
    rows = as_float32(source.read(start, min(start + length, source.rows)))
    refuse_bad(rows, examine(rows, False), lambda row: source.locate(start + row))
    return rows
