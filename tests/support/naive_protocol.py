"""The naive twin of an experiment with plain diffusion: the paper's protocol in float64, with numpy and scipy only.

`docs/results.py --check` compares it with `mmdiff experiment` on all of Tiny ImageNet for some draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Ids = NDArray[np.int64]

_BLOCK_ROWS = 1000


@dataclass(frozen=True)
class NaiveProtocol:
    """The data and classes of one group. Backgrounds are `none`, `in-domain` or `out-of-domain[:SIZE]`."""

    train: NDArray[Any]
    train_labels: Ids
    test: NDArray[Any]
    test_labels: Ids
    base: list[int]
    novel: list[int]
    out_of_domain: list[int]
    seed: int
    dims: int

    def nodes(self, background: str, n: int, draw: int) -> tuple[Ids, Ids, Ids]:
        """The rows of background, base seeds and novel seeds among the training images."""
        drawn = []
        for label in sorted(self.novel):
            rows = np.flatnonzero(self.train_labels == label)
            drawn += np.random.default_rng([self.seed, draw, label]).permutation(rows)[:n].tolist()
        base = np.array([row for row in range(len(self.train)) if self.train_labels[row] in set(self.base)])
        kind, _, size = background.partition(":")
        if kind == "none":
            unlabelled: Any = []
        elif kind == "in-domain":
            chosen = set(drawn)
            unlabelled = [row for row in np.flatnonzero(np.isin(self.train_labels, self.novel)) if row not in chosen]
        else:
            pool = np.random.default_rng(self.seed).permutation(np.flatnonzero(np.isin(self.train_labels, self.out_of_domain)))
            unlabelled = np.sort(pool[: int(size)] if size else pool)
        return np.array(unlabelled, np.int64), base, np.array(drawn)

    def space(self, background: str) -> tuple[Matrix, Matrix]:
        """Mean and components of the PCA, fitted to the background including drawn images, or to the base seeds without one."""
        unlabelled, base, drawn = self.nodes(background, 1, 0)
        sample = {"none": base, "in-domain": np.append(unlabelled, drawn)}.get(background, unlabelled)
        rows = self.train[sample].astype(np.float64)
        mean = rows.mean(axis=0)
        _, directions = np.linalg.eigh((rows - mean).T @ (rows - mean))
        return mean, directions[:, ::-1][:, : self.dims]

    def accuracies(self, background: str, n: int, draw: int, k: int, iterations: int) -> Matrix:
        """Top-1 and top-5 over all test points, then over those of novel classes, after iterations 0..T."""
        unlabelled, base, drawn = self.nodes(background, n, draw)
        rows = np.concatenate([unlabelled, base, drawn])
        mean, components = self.space(background)
        vectors = _unit((self.train[rows].astype(np.float64) - mean) @ components)
        classes = sorted([*self.base, *self.novel])
        tests = np.flatnonzero(np.isin(self.test_labels, classes))
        points = _unit((self.test[tests].astype(np.float64) - mean) @ components)
        W0 = _nearest(vectors, vectors, k)
        both = W0 + W0.T
        W = scipy.sparse.diags_array(1 / both.sum(axis=1)) @ both
        V = _nearest(points, vectors, k)
        L = np.zeros((len(rows), len(classes)))
        for node in range(len(unlabelled), len(rows)):
            L[node, classes.index(self.train_labels[rows[node]])] = 1
        truth = np.searchsorted(classes, self.test_labels[tests])
        novel = np.isin(self.test_labels[tests], self.novel)
        found = []
        for _ in range(iterations + 1):
            # Scores that differ by rounding only count as ties: sums in another order differ in the last digits.
            scores = V @ (L / L.sum(axis=0))
            own = scores[np.arange(len(scores)), truth][:, None]
            ranks = (scores >= own * (1 - 1e-12)).sum(axis=1)
            found.append([(some <= top).mean() for some in (ranks, ranks[novel]) for top in (1, 5)])
            L = W @ L
        return np.array(found)


def _unit(rows: Matrix) -> Matrix:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _nearest(queries: Matrix, vectors: Matrix, k: int) -> Any:
    """A matrix with a one for each of the k vectors with the largest inner products."""
    columns = []
    for start in range(0, len(queries), _BLOCK_ROWS):
        products = queries[start : start + _BLOCK_ROWS] @ vectors.T
        columns.append(np.argpartition(-products, k - 1, axis=1)[:, :k].copy())
    rows = np.repeat(np.arange(len(queries)), k)
    shape = (len(queries), len(vectors))
    return scipy.sparse.csr_array((np.ones(len(rows)), (rows, np.concatenate(columns).reshape(-1))), shape)
