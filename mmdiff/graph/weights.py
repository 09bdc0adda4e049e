"""Edge weights: constant, Gaussian, meaningful neighbours (paper, table 1; supplement "Details of the parametric evaluation").

Weights are functions of the similarities in the lists. Rows have unit length, so two of similarity s have squared distance
2 - 2s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Parameter, one_of
from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.runtime.parameters import number

Formula = Literal["gaussian", "meaningful"]
EdgeWeights = Literal["constant", "gaussian", "meaningful"]
EDGE_WEIGHTS = ("constant", "gaussian", "meaningful")
Dtype = Literal["float32", "float16"]

# The parameter of each choice of weights, and an example of it.
_PARAMETERS = {"constant": "", "gaussian": "sigma", "meaningful": "lambda_"}
_EXAMPLES = {"gaussian": 0.5, "meaningful": 5}

# Valid sigma and lambda: their squares and products are normal numbers in float32. With a sigma at the upper end all weights
# are 1, as constant weights are; that is the limit of the formula, and valid.
_LEAST, _MOST = 1e-9, 1e9

# The smallest weight that a nearest neighbour may have: rows of smaller weights cannot be normalised in float32.
_LEAST_WEIGHT = 1e-30


@dataclass(frozen=True)
class Weighting:
    """The formula from similarities to weights, with its sigma or lambda (`parameter`), and the dtype of stored weights."""

    formula: Formula
    parameter: float
    dtype: Dtype = "float32"

    def of(self, neighbors: NDArray[np.uint32], similarities: NDArray[np.float32]) -> NDArray[np.float32]:
        """The weight of every entry of some lists; that of NONE is undefined. Weights that are not finite are refused."""
        given = neighbors != NONE
        # Similarities that overflow, as those of huge rows that are not normalised, are found in the weights.
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.maximum(2 - 2 * np.where(given, similarities, np.float32(1)), np.float32(0))
            if self.formula == "gaussian":
                weights: NDArray[np.float32] = np.exp(squares / np.float32(-(self.parameter**2)))
            else:
                weights = self._meaningful(np.sqrt(squares), given)
        if not np.isfinite(weights, where=given, out=np.ones_like(given)).all():
            raise BadOption(
                self.told,
                ": some weights are not finite, because distances between rows are too large for float32. "
                "Normalise the rows, or scale them down.",
            )
        return weights

    @property
    def told(self) -> Parameter:
        """The parameter as messages show it."""
        return Parameter(_PARAMETERS[self.formula], self.parameter)

    def refuse_isolation(self) -> None:
        """Refuses weights that are zero, or too small to normalise, between all different nodes: labels could not spread."""
        also = "" if self.formula == "gaussian" else ", or more neighbours"
        raise BadOption(
            self.told, f": all weights between different nodes vanish, so no label could spread. Use a larger one{also}."
        )

    def _meaningful(self, distances: NDArray[np.float32], given: NDArray[np.bool_]) -> NDArray[np.float32]:
        """s (1 - e^(-lambda s))^k, where s decreases linearly from 1 at the nearest neighbour to 0 at the farthest."""
        farthest = np.max(distances, axis=1, keepdims=True, where=given, initial=0)
        nearest = np.minimum(np.min(distances, axis=1, keepdims=True, where=given, initial=np.inf), farthest)
        span = farthest - nearest
        s = np.where(span > 0, (farthest - distances) / np.where(span > 0, span, np.float32(1)), np.float32(1))
        s = np.maximum(s, np.float32(0))
        weights: NDArray[np.float32] = s * (-np.expm1(np.float32(-self.parameter) * s)) ** np.float32(distances.shape[1])
        return weights

    def check(self, k: int) -> None:
        """Refuses a lambda so small that even the nearest of k neighbours has a negligible weight."""
        if self.formula == "meaningful" and k * math.log(-math.expm1(-self.parameter)) < math.log(_LEAST_WEIGHT):
            least = math.ceil(-100 * math.log1p(-(_LEAST_WEIGHT ** (1 / k)))) / 100
            raise BadOption(
                Parameter("lambda_", self.parameter), f": all weights would vanish with k = {k}. Use {least:g} or more."
            )


def choose(edge_weights: EdgeWeights, sigma: float | None, lambda_: float | None) -> Weighting | None:
    """The weighting of the given parameters; None stands for constant weights, which are not stored."""
    one_of("edge_weights", edge_weights, EDGE_WEIGHTS)
    given = {"sigma": sigma, "lambda_": lambda_}
    chosen, wanted = Parameter("edge_weights", edge_weights), _PARAMETERS[edge_weights]
    for name, value in given.items():
        if value is not None and name != wanted:
            raise BadOption(Parameter(name), " does not go with ", chosen, ". Leave it out.")
    if edge_weights == "constant":
        return None
    parameter, example = given[wanted], _EXAMPLES[edge_weights]
    if parameter is None:
        raise BadOption(chosen, " needs ", Parameter(wanted), ". Give it, for example ", Parameter(wanted, example), ".")
    hint = f"Weights of other values are not finite in float32. For example {example}."
    return Weighting(edge_weights, number(wanted, parameter, _LEAST, _MOST, hint))


def parameters(weighting: Weighting | None) -> Json:
    """The weighting as parameters of a manifest."""
    if weighting is None:
        return {"edge_weights": "constant"}
    name = "sigma" if weighting.formula == "gaussian" else "lambda"
    return {"edge_weights": weighting.formula, name: weighting.parameter, "weights_dtype": weighting.dtype}
