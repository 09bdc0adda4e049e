"""Edge weights: constant, Gaussian, meaningful neighbours (paper, table 1; supplement "Details of the parametric evaluation").

Weights come from the similarities of the lists. Rows have unit length, so the squared distance of two is 2 - 2s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE

Formula = Literal["gaussian", "meaningful"]
EdgeWeights = Literal["constant", "gaussian", "meaningful"]
Dtype = Literal["float32", "float16"]

# The least that the weight of a nearest neighbour may be: rows of smaller ones could not be normalised in float32.
_LEAST_WEIGHT = 1e-30


@dataclass(frozen=True)
class Weighting:
    """How similarities become weights, and what they are stored as. `parameter` is the formula's sigma or lambda."""

    formula: Formula
    parameter: float
    dtype: Dtype = "float32"

    def of(self, neighbors: NDArray[np.uint32], similarities: NDArray[np.float32]) -> NDArray[np.float32]:
        """The weight of every entry of some lists; that of NONE is of no importance."""
        given = neighbors != NONE
        squares = np.maximum(2 - 2 * np.where(given, similarities, np.float32(1)), np.float32(0))
        if self.formula == "gaussian":
            gaussian: NDArray[np.float32] = np.exp(squares / np.float32(-(self.parameter**2)))
            return gaussian
        return self._meaningful(np.sqrt(squares), given)

    def _meaningful(self, distances: NDArray[np.float32], given: NDArray[np.bool_]) -> NDArray[np.float32]:
        """s (1 - e^(-lambda s))^k, where s falls linearly from 1 at the nearest neighbour to 0 at the farthest."""
        farthest = np.max(distances, axis=1, keepdims=True, where=given, initial=0)
        nearest = np.minimum(np.min(distances, axis=1, keepdims=True, where=given, initial=np.inf), farthest)
        span = farthest - nearest
        s = np.where(span > 0, (farthest - distances) / np.where(span > 0, span, np.float32(1)), np.float32(1))
        s = np.maximum(s, np.float32(0))
        weights: NDArray[np.float32] = s * (-np.expm1(np.float32(-self.parameter) * s)) ** np.float32(distances.shape[1])
        return weights

    def check(self, k: int) -> None:
        """Refuses a lambda with which even the nearest of k neighbours would have no weight to speak of."""
        if self.formula == "meaningful" and k * math.log(-math.expm1(-self.parameter)) < math.log(_LEAST_WEIGHT):
            least = math.ceil(-100 * math.log1p(-(_LEAST_WEIGHT ** (1 / k)))) / 100
            raise BadOption(f"--lambda {self.parameter:g}: all weights would vanish with k = {k}. Use {least:g} or more.")


def choose(edge_weights: EdgeWeights, sigma: float | None, lambda_: float | None) -> Weighting | None:
    """The weighting that options name; None is the constant one, for which nothing needs to be stored."""
    given = {"sigma": sigma, "lambda": lambda_}
    wanted = {"constant": None, "gaussian": "sigma", "meaningful": "lambda"}[edge_weights]
    for option, value in given.items():
        if value is not None and option != wanted:
            raise BadOption(f"--{option} does not go with --edge-weights {edge_weights}. Leave it out.")
    if edge_weights == "constant":
        return None
    parameter = given[str(wanted)]
    if parameter is None:
        raise BadOption(
            f"--edge-weights {edge_weights} needs --{wanted}. Give it, for example --{wanted} {_EXAMPLES[edge_weights]}."
        )
    if not (math.isfinite(parameter) and parameter > 0):
        raise BadOption(f"--{wanted} {parameter:g}: a positive number is needed, for example {_EXAMPLES[edge_weights]}.")
    return Weighting(edge_weights, parameter)


def parameters(weighting: Weighting | None) -> Json:
    """The weighting as the manifest tells it."""
    if weighting is None:
        return {"edge_weights": "constant"}
    name = "sigma" if weighting.formula == "gaussian" else "lambda"
    return {"edge_weights": weighting.formula, name: weighting.parameter, "weights_dtype": weighting.dtype}


_EXAMPLES = {"gaussian": 0.5, "meaningful": 5}
