"""PCA to a few hundred dimensions, as the paper applies it before the search (section 4.1).

The space that all roles live in: reduced by a PCA, of unit length (paper, section 4.1). It is the artifact `models/pca`.

It is made from the background and re-used as it is for seeds and test points. Rows that are narrow already are not reduced; the
artifact then only says how wide they are and whether they are normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, BadRow, Missing, WidthMismatch
from mmdiff.formats.sources.base import Source
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing.rows import as_float32, examine, refuse_bad
from mmdiff.runtime.progress import Progress

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


NAME = "models/pca"
SCHEMA = 1
DEFAULT_DIMS = 256


@dataclass(frozen=True)
class Space:
    """The width of rows before and after, whether they have unit length, and the PCA between."""

    width: int
    dims: int
    normalize: bool
    reduction: Reduction | None

    @classmethod
    def of(cls, artifact: Artifact) -> Space:
        facts = artifact.manifest.facts
        reduction = None
        if facts["reduces"]:
            reduction = Reduction(*(artifact.array(name) for name in ("mean", "components", "explained_variance")))
        return cls(facts["width"], facts["dims"], artifact.manifest.parameters["normalize"], reduction)

    @classmethod
    def make(cls, source: Source, dims: int, normalize: bool, progress: Progress) -> Space:
        """The space for a source: a PCA where it is wider than asked for."""
        if source.width <= dims:
            return cls(source.width, source.width, normalize, None)
        return cls(source.width, dims, normalize, train(source, dims, progress))

    def write(self, draft: Draft) -> None:
        if self.reduction is not None:
            for name, values in vars(self.reduction).items():
                draft.values(name, values)

    def facts(self, rows: int) -> Json:
        if self.reduction is None:
            return {"width": self.width, "dims": self.dims, "reduces": False}
        explained = round(float(self.reduction.explained_variance.sum()), 6)
        return {
            "width": self.width,
            "dims": self.dims,
            "reduces": True,
            "rows_sampled": min(rows, SAMPLE_ROWS),
            "explained_variance": explained,
        }

    def project(self, rows: NDArray[Any], where: Callable[[int], str]) -> NDArray[np.float32]:
        """Rows as they are stored; float32 rows are changed in place. `where` tells the user where a row is."""
        values = as_float32(rows)
        refuse_bad(rows, examine(values, self.normalize and self.reduction is None), where)
        if self.reduction is not None:
            values = self.reduction.apply(values)
            if self.normalize:
                condition = examine(values, True)
                if condition.any():
                    row = where(int(condition.argmax()))
                    raise BadRow(f"{row}: it is the mean of all rows, so after the PCA nothing is left of it. Remove the row.")
        return values


def recipe(source: Json, dims: int, normalize: bool, on_bad: str, witness: Json) -> Recipe:
    parameters = {"dims": dims, "normalize": normalize, "on_bad": on_bad}
    return Recipe("pca", SCHEMA, parameters, {"source": source}, witness)


def open_for(store: Store, source: Source, dims: int | None, normalize: bool, role: str) -> Artifact:
    """The space that rows of this source are brought into; refused where they do not fit it."""
    if store.id(NAME) is None:
        alone = " If there is no background, add --no-background." if role == "seeds" else ""
        raise Missing(
            f"{source.name}: cannot import {role} yet: all roles share the space that is made from the background "
            f"({NAME}), and there is none. Run first: mmdiff import FILE --role background.{alone}"
        )
    artifact = store.open_artifact(NAME)
    space = Space.of(artifact)
    if source.width != space.width:
        raise WidthMismatch(
            f"{source.name}: rows of {source.width} values, but {NAME} is for rows of {space.width}. "
            "Import descriptors of the same network, or start another store with --store."
        )
    if dims is not None and min(dims, source.width) != space.dims:
        raise BadOption(f"--dims {dims}: {NAME} has {space.dims} dimensions for all roles. Leave the option out.")
    if not normalize and space.normalize:
        raise BadOption(f"--no-normalize: {NAME} normalises all roles. Leave the option out, or import the background so.")
    return artifact
