"""What `mmdiff inspect` tells of scores, without asking what is right."""

from __future__ import annotations

import numpy as np

from mmdiff.classes import UNLABELLED, Classes
from mmdiff.distribution import distribution
from mmdiff.evaluation.ranks import predictions
from mmdiff.formats.manifest import Json
from mmdiff.formats.store import Artifact

# Statistics of values are taken on this many rows, spread evenly: enough for every digit that is shown.
_SAMPLE_ROWS = 1 << 16


def what_scores(artifact: Artifact) -> str:
    facts, method = artifact.manifest.facts, artifact.manifest.parameters["method"]
    parts = [method]
    if "scores" in artifact:
        parts.append(f"{facts['tests']:,} test points x {facts['classes']:,} classes")
    if method == "diffusion":
        parts.append(f"{artifact.manifest.parameters['iterations']} iterations")
    if method == "fusion":
        parts.append(f"weight {facts['weight']:g}")
    if "top_classes" in artifact:
        parts.append(f"predictions of {artifact.spec('top_classes').shape[0]:,} nodes")
    return ", ".join(parts)


def score_statistics(artifact: Artifact) -> Json:
    """Of the last iteration: how sure the method is, and of which classes it finds most and fewest."""
    if "scores" not in artifact or 0 in artifact.spec("scores").shape:
        return {}
    plane = artifact.array("scores")[-1]
    classes = Classes.of(artifact)
    best, margins = predictions(plane[:: -(-len(plane) // _SAMPLE_ROWS)])
    found: Json = {"undecided": round(float((best == UNLABELLED).mean()), 6)}
    finite = margins[np.isfinite(margins)]
    if len(finite):
        found["margin_of_best_over_second"] = distribution(finite)
    counts = np.bincount(best[best != UNLABELLED], minlength=len(classes))
    order = np.argsort(-counts, kind="stable")
    found["points_per_predicted_class"] = distribution(counts)
    found["predicted_most"] = {classes.title(int(c)): int(counts[c]) for c in order[:3]}
    found["classes_never_predicted"] = int((counts == 0).sum())
    return found
