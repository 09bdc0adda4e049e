"""Cells of an experiment's grid: one method with its complete options, one background, one draw of n seeds per novel class.

The key of a cell is a digest of everything that its result depends on, so a cell computed before is found again, in an
interrupted run as in other experiment results of the store.
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

# Increased when the same options give other results, so that old cells are not reused.
_VERSION = 1

DATA = ("train", "train_labels", "test", "test_labels")
"""The roles of the data files that results depend on."""

TOPS = (1, 5)
FIGURES = ("top1", "top5", "novel_top1", "novel_top5")
"""Hits counted after each step: among all test points, and among those of novel classes."""

COLUMNS = (*FIGURES, "nonzero", "entries")
"""Counts after each step: the hits, and for a diffusion the non-zero entries and all entries of L."""

Counts = NDArray[np.int64]
"""(steps, COLUMNS). The steps of a diffusion are its iterations, those of a fusion its weights; a regression has one."""


@dataclass(frozen=True)
class Cell:
    """One computation. `background` is None for methods that do not use one."""

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
    """The counts of a cell after each step, and the seconds it took."""

    counts: Counts
    seconds: float

    def to_json(self) -> Json:
        return {"planes": self.counts.tolist(), "seconds": round(self.seconds, 4)}

    @classmethod
    def from_json(cls, document: Json) -> Result:
        return cls(np.array(document["planes"], np.int64).reshape(-1, len(COLUMNS)), float(document["seconds"]))


def hits(scores: NDArray[Any], truth: NDArray[np.int64], novel: NDArray[np.bool_]) -> list[int]:
    """FIGURES of the scores after one step. Ties count against the method."""
    ranks = ranks_of(scores, truth[:, None])
    return [int((some <= k).sum()) for some in (ranks, ranks[novel]) for k in TOPS]
