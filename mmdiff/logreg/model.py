"""A logistic regression as the bytes of a safetensors file, which torch, numpy and others load without running any code.

Tensors: `weight` (C, D), `bias` (C), `class_numbers` (C). Metadata is left out: its order would differ from file to file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.extras import load
from mmdiff.formats.store.checks import check_logreg
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact
from mmdiff.inspection.distribution import distribution
from mmdiff.labels.classes import Classes
from mmdiff.logreg.training import Model


def to_safetensors(model: Model, classes: Classes) -> NDArray[np.uint8]:
    """The bytes of the file."""
    numbers = np.arange(len(classes)) if classes.numbers is None else classes.numbers
    tensors = {"weight": model.weight, "bias": model.bias, "class_numbers": np.array(numbers, np.int64)}
    return np.frombuffer(_safetensors().save(tensors), np.uint8)


def from_safetensors(artifact: Artifact) -> Model:
    """The model of an artifact; a file that is not one of its classes and width is refused."""
    for _, what in check_logreg(artifact):
        raise Corrupt(f"{artifact.name}: its array safetensors does not hold a model ({what}). {artifact.remedy}")
    tensors = _safetensors().load(artifact.array("safetensors").tobytes())
    return Model(tensors["weight"], tensors["bias"])


def _safetensors() -> Any:
    return load("safetensors.numpy", "a logistic regression")


def what_logreg(artifact: Artifact) -> str:
    """One line for `inspect`."""
    facts = artifact.manifest.facts
    return f"{facts['classes']:,} classes of {facts['width']:,} values, from {facts['samples']:,} seeds"


def logreg_statistics(artifact: Artifact) -> Json:
    """The lengths of the classes' weights and the biases, for `inspect`."""
    model = from_safetensors(artifact)
    return {"weight_norms": distribution(np.linalg.norm(model.weight, axis=1)), "biases": distribution(model.bias)}
