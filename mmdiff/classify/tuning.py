"""`mmdiff logreg --tune`: the learning rate, batch size and L2 that do best on seeds that were held out (paper, section 4.1).

A class of one seed cannot hold one out; it is learned all the same, so the classes of the others are told from it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classify.logreg import Options, train
from mmdiff.classify.sampling import Samples
from mmdiff.evaluation.ranks import ranks_of
from mmdiff.formats.errors import BadLabels
from mmdiff.formats.manifest import Json
from mmdiff.progress import Progress, silent

LRS = (1.0, 5.0)
BATCH_SIZES = (128, 512)
WEIGHT_DECAYS = (1e-4, 3e-4, 1e-3, 3e-3)
HELD_OUT = 0.2


@dataclass(frozen=True)
class Tuned:
    """The options that did best, and what all of them did: accuracies are means over classes, as training is balanced."""

    options: Options
    tried: list[Json]
    held_out: int


def tune(descriptors: NDArray[Any], samples: Samples, classes: int, options: Options, progress: Progress = silent) -> Tuned:
    """Tries the grid. Best is the highest top-5, then top-1 accuracy, then the largest L2 and what was tried first."""
    kept, out = samples.held_out(HELD_OUT, options.seed)
    if not len(out):
        raise BadLabels(
            "--tune: no class has two seeds, so none can be held out. Import more seeds, or give --lr, --batch-size and "
            "--weight-decay."
        )
    grid = [
        replace(options, lr=lr, batch_size=size, weight_decay=decay)
        for decay, lr, size in product(sorted(WEIGHT_DECAYS, reverse=True), LRS, BATCH_SIZES)
    ]
    tried: list[Json] = []
    held = descriptors[out.rows]
    with progress("tuning", len(grid) * options.iterations, "batches") as advance:
        for candidate in grid:
            model = train(descriptors, kept, classes, candidate, advance)
            ranks = ranks_of(model.log_probabilities(held), out.classes[:, None])
            tops = {f"top{k}": round(_mean_over_classes(ranks <= k, out.classes), 6) for k in (1, 5)}
            tried.append(
                {"lr": candidate.lr, "batch_size": candidate.batch_size, "weight_decay": candidate.weight_decay} | tops
            )
    return Tuned(grid[best_of(tried)], tried, len(out))


def best_of(tried: Sequence[Json]) -> int:
    """The first of those with the highest top-5 accuracy, among them the highest top-1."""
    return max(range(len(tried)), key=lambda i: (tried[i]["top5"], tried[i]["top1"], -i))


def _mean_over_classes(hits: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    counts = np.bincount(labels)
    shares = np.bincount(labels, weights=hits)[counts > 0] / counts[counts > 0]
    return float(shares.mean())
