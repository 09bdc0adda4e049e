"""A model as the bytes of a safetensors file, which torch, numpy and others load without running any code.

Tensors `weight` (C, D), `bias` (C) and `class_numbers` (C). There is no metadata, whose order would not be the same each time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import Classes
from mmdiff.classify.logreg import Model
from mmdiff.formats.errors import Corrupt, MissingExtra
from mmdiff.formats.store import Artifact


def to_safetensors(model: Model, classes: Classes) -> NDArray[np.uint8]:
    numbers = np.arange(len(classes)) if classes.numbers is None else classes.numbers
    tensors = {"weight": model.weight, "bias": model.bias, "class_numbers": np.array(numbers, np.int64)}
    return np.frombuffer(_safetensors().save(tensors), np.uint8)


def from_safetensors(artifact: Artifact) -> Model:
    try:
        tensors = _safetensors().load(artifact.array("safetensors").tobytes())
        return Model(tensors["weight"], tensors["bias"])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{artifact.name}: its array safetensors does not hold a model. {artifact.remedy}") from error


def _safetensors() -> Any:
    try:
        return import_module("safetensors.numpy")
    except ImportError as error:
        raise MissingExtra("safetensors", "torch", "a logistic regression") from error
