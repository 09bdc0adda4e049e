"""What `mmdiff inspect` tells of a logistic regression."""

from __future__ import annotations

import numpy as np

from mmdiff.classify.weights import from_safetensors
from mmdiff.distribution import distribution
from mmdiff.formats.manifest import Json
from mmdiff.formats.store import Artifact


def what_logreg(artifact: Artifact) -> str:
    facts = artifact.manifest.facts
    return f"{facts['classes']:,} classes of {facts['width']:,} values, from {facts['samples']:,} seeds"


def logreg_statistics(artifact: Artifact) -> Json:
    """How long the weights of classes are, and their biases."""
    model = from_safetensors(artifact)
    return {"weight_norms": distribution(np.linalg.norm(model.weight, axis=1)), "biases": distribution(model.bias)}
