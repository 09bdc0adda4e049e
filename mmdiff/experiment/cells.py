"""Cells of the grid: one method with all of its options, on one background, for one draw of n seeds a class of a group.

A cell is known by a digest of all that decides its result, so that it is recognised wherever it was computed before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import ranks_of
from mmdiff.experiment.config import Background, Config, Group
from mmdiff.experiment.methods import Kind
from mmdiff.formats.store.manifest import Json, encode

# A change of what is computed from the same options is a new version: results of the old one are not taken for it.
_VERSION = 1

DATA = ("train", "train_labels", "test", "test_labels")
"""The files that results depend on."""

TOPS = (1, 5)
FIGURES = ("top1", "top5", "novel_top1", "novel_top5")
"""What is counted of each plane: hits among all test points, and among those of novel classes."""

COLUMNS = (*FIGURES, "nonzero", "entries")
"""Of a plane: its hits, and of a diffusion how many of the entries of L are not zero."""

Planes = NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """What is to be computed. `background` is None for methods to which it does not matter."""

    group: Group
    n: int
    draw: int
    background: Background | None
    kind: Kind
    options: Json

    def key(self, config: Config, prints: Json) -> str:
        split = config.groups[self.group]
        out_of_domain = self.background is not None and self.background.kind == "out-of-domain"
        document = {
            "version": _VERSION,
            "data": {role: prints[role]["digest"] for role in DATA},
            "base": list(split.base),
            "novel": list(split.novel),
            "out_of_domain": list(config.out_of_domain) if out_of_domain else [],
            "seed": config.seed,
            "dims": config.dims if self.background is not None else None,
            "n": self.n,
            "draw": self.draw,
            "background": None if self.background is None else str(self.background),
            "kind": self.kind,
            "options": self.options,
        }
        if self.options.get("diffusion", self.options).get("eta") in ("row", "sinkhorn"):
            # Earlier versions applied these operators a second time when they reported L.
            document["eta_applied"] = "once"
        return hashlib.blake2b(encode(document), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Result:
    """What came of a cell: COLUMNS of each plane (iterations of a diffusion, weights of a fusion), and how long it took."""

    planes: Planes
    seconds: float

    def to_json(self) -> Json:
        return {"planes": self.planes.tolist(), "seconds": round(self.seconds, 4)}

    @classmethod
    def from_json(cls, document: Json) -> Result:
        return cls(np.array(document["planes"], np.int64).reshape(-1, len(COLUMNS)), float(document["seconds"]))


def hits(scores: NDArray[Any], truth: NDArray[np.int64], novel: NDArray[np.bool_]) -> list[int]:
    """FIGURES of one plane of scores. Ties count against the method."""
    ranks = ranks_of(scores, truth[:, None])
    return [int((some <= k).sum()) for some in (ranks, ranks[novel]) for k in TOPS]
