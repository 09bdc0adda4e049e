"""The space of all roles, `models/pca`: a PCA to a few hundred dimensions, then unit length (paper, section 4.1).

The PCA is trained on the background and applied unchanged to seeds and test points. Rows that are narrow already are not
reduced; the artifact then only records their width and whether they are normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import FILE, BadOption, BadRow, Missing, Parameter, WidthMismatch, call
from mmdiff.formats.sources.base import Source
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing.rows import as_float32, examine, refuse_bad
from mmdiff.runtime.progress import Progress

NAME = "models/pca"
SCHEMA = 1
DEFAULT_DIMS = 256

# Rows that the covariance of a larger source is estimated from, in runs of consecutive rows spread evenly over it.
SAMPLE_ROWS = 1 << 17
_RUN_ROWS = 64
_BLOCK_ROWS = 1 << 13


@dataclass(frozen=True)
class Reduction:
    """A trained PCA. `explained_variance` is each component's share of the total variance."""

    mean: NDArray[np.float32]
    components: NDArray[np.float32]
    explained_variance: NDArray[np.float32]

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        centred: NDArray[np.float32] = rows - self.mean
        return centred @ self.components.T


def train(source: Source, dims: int, progress: Progress) -> Reduction:
    """Trains a PCA on the covariance of the rows, or of a sample of them."""
    if source.rows < dims:
        raise BadOption(
            f"{source.name}: a PCA to {dims} dimensions needs as many rows, but there are {source.rows}. Keep all "
            f"{source.width} dimensions with ",
            Parameter("dims", source.width),
            ", or use at most ",
            Parameter("dims", source.rows),
            ".",
        )
    origin = np.zeros(source.width)
    total = np.zeros(source.width)
    products = np.zeros((source.width, source.width))
    count = 0
    with progress("training the PCA", min(source.rows, SAMPLE_ROWS), "rows") as advance:
        for rows in _sample(source):
            if count == 0:
                # Sums are taken around a point near the mean: descriptors far from zero would lose digits otherwise.
                origin = rows.mean(axis=0, dtype=np.float64)
            # In float64, because squares of float32 overflow above 1e19 and vanish below 1e-23.
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
    """Components with their largest entry positive: an eigenvector is only defined up to its sign."""
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    return np.ascontiguousarray(components * np.sign(largest)[:, None], np.float32)


def _sample(source: Source) -> Iterator[NDArray[np.float32]]:
    """All rows in blocks, or SAMPLE_ROWS of them in evenly spread runs."""
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


@dataclass(frozen=True)
class Space:
    """The width of rows before and after the PCA, whether they are normalised, and the PCA (None: no reduction)."""

    width: int
    dims: int
    normalize: bool
    reduction: Reduction | None

    @classmethod
    def of(cls, artifact: Artifact) -> Space:
        """The space of a `models/pca`."""
        facts = artifact.manifest.facts
        reduction = None
        if facts["reduces"]:
            reduction = Reduction(*(artifact.array(name) for name in ("mean", "components", "explained_variance")))
        return cls(facts["width"], facts["dims"], artifact.manifest.parameters["normalize"], reduction)

    @classmethod
    def make(cls, source: Source, dims: int, normalize: bool, progress: Progress) -> Space:
        """The space of a source: trains a PCA where rows are wider than `dims`."""
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
        """Rows as they are stored; float32 rows may be changed in place. `where` gives the location of a row for messages."""
        values = as_float32(rows)
        refuse_bad(rows, examine(values, self.normalize and self.reduction is None), where)
        if self.reduction is not None:
            values = self.reduction.apply(values)
            if self.normalize:
                condition = examine(values, True)
                if condition.any():
                    row = where(int(condition.argmax()))
                    raise BadRow(f"{row}: equals the mean of all rows, so it is zero after the PCA. Remove the row.")
        return values


def recipe(source: Json, dims: int, normalize: bool, on_bad: str, state: Json) -> Recipe:
    parameters = {"dims": dims, "normalize": normalize, "on_bad": on_bad}
    return Recipe("pca", SCHEMA, parameters, {"source": source}, state)


def open_for(store: Store, source: Source, dims: int | None, normalize: bool, role: str) -> Artifact:
    """The space that a source is projected into, refused where rows or parameters do not fit it."""
    if store.id(NAME) is None:
        alone = (" If there is no background, add ", Parameter("no_background", True), ".") if role == "seeds" else ()
        raise Missing(
            f"{source.name}: cannot import {role} yet: all roles share the space that is made from the background "
            f"({NAME}), and there is none. Run first: ",
            call("add", FILE, role="background"),
            ".",
            *alone,
        )
    artifact = store.open_artifact(NAME)
    space = Space.of(artifact)
    if source.width != space.width:
        raise WidthMismatch(
            f"{source.name}: rows of {source.width} values, but {NAME} is for rows of {space.width}. "
            "Import descriptors of the same network, or use another store."
        )
    if dims is not None and min(dims, source.width) != space.dims:
        raise BadOption(Parameter("dims", dims), f": {NAME} has {space.dims} dimensions for all roles. Leave it out.")
    if not normalize and space.normalize:
        unchanged = Parameter("normalize", False)
        raise BadOption(unchanged, f": {NAME} normalises all roles. Leave it out, or import the background with it.")
    return artifact
