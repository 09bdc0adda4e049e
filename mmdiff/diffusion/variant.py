"""The variants of the diffusion that the paper compares (sections 3.3 and 3.4): one iteration from the state S to L.

P <- alpha W S + (1 - alpha) Y      Zhou et al.; W S without alpha
S <- eta(P)                         row and sinkhorn only: they couple the classes
S <- Gamma(S)                       entries to the power r, then columns normalised
S <- Y in the rows of the seeds     Zhu et al., with reset_seeds

L_t is reported after each iteration. `row` and `sinkhorn` are part of the state, so L_t = S_t for t >= 1, as in the paper's
L_{t+1} = eta(W L_t); L_0 = eta(Y), so that all iterations are normalised alike. `column`, `prior` and `none` are factors of
columns, which commute with W: the state is not normalised, and L_t = eta(S_t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.options import DiffusionOptions, Eta, Normalization, Precision, checked
from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.sources.text import read_values
from mmdiff.formats.store.manifest import Json

SINKHORN_ROUNDS = 5


@dataclass(frozen=True)
class Variant:
    """The options that decide one iteration of S, and L. Their declaration is `DiffusionOptions`."""

    eta: Eta = DiffusionOptions.eta
    gamma: float | None = DiffusionOptions.gamma
    alpha: float | None = DiffusionOptions.alpha
    reset_seeds: bool = DiffusionOptions.reset_seeds
    normalize_graph: Normalization = DiffusionOptions.normalize_graph
    dtype: Precision = DiffusionOptions.dtype

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, checked(name, value))

    @classmethod
    def of(cls, options: DiffusionOptions) -> Variant:
        return cls(**{each.name: getattr(options, each.name) for each in fields(cls)})

    @property
    def coupled(self) -> bool:
        """Whether the operator needs all classes of a row at once."""
        return self.eta in ("row", "sinkhorn")

    @property
    def linear(self) -> bool:
        """Whether S is a polynomial of W times Y: columns are independent, and their sums are known without computing them."""
        return not self.coupled and self.gamma is None

    @property
    def takes_prior(self) -> bool:
        return self.eta in ("prior", "sinkhorn")

    @property
    def itemsize(self) -> int:
        """Bytes of a stored entry of S."""
        return 4 if self.dtype == "float32" else 2

    @property
    def stored_dtype(self) -> str:
        """The array type that stores S: float32, or the bits of bfloat16."""
        return "float32" if self.dtype == "float32" else "uint16"

    def parameters(self) -> Json:
        return dict(vars(self))


def given_prior(prior: Any, seeds: Seeds) -> tuple[NDArray[np.float64] | None, Any]:
    """One value for each class, and the prior as messages show it; None where none is given."""
    if prior is None:
        return None, None
    if not isinstance(prior, str):
        try:
            return np.asarray(prior, np.float64), None
        except (ValueError, TypeError, OverflowError):
            raise BadOption(Parameter("prior"), ": not numbers. Give one number for each class, in their order.") from None
    if prior == "uniform":
        return np.ones(seeds.classes), prior
    if prior == "seeds":
        return seeds.per_class().astype(np.float64), prior
    return read_values(Path(prior)), prior


def class_prior(
    variant: Variant, given: NDArray[np.float64] | None, name: Any, power: float | None, classes: int
) -> NDArray[np.float64]:
    """The prior p of each class, raised to a power and normalised; uniform where none is given. `name` is for messages."""
    if not variant.takes_prior:
        for option, value in (("prior", given), ("prior_power", power)):
            if value is not None:
                raise BadOption(
                    Parameter(option),
                    ": ",
                    Parameter("eta", variant.eta),
                    " has no prior. Use it with ",
                    Parameter("eta", "prior"),
                    " or ",
                    Parameter("eta", "sinkhorn"),
                    ".",
                )
        return np.full(classes, 1 / classes)
    prior = np.ones(classes) if given is None else given
    told = Parameter("prior") if name is None else Parameter("prior", name)
    if prior.shape != (classes,):
        raise BadOption(told, f": {prior.size} values for {classes} classes. Give one for each class, in their order.")
    bad = ~np.isfinite(prior) | (prior < 0)
    if bad.any():
        at = int(bad.argmax())
        raise BadOption(told, f", class {at}: {prior[at]:g}. A prior is finite and not negative.")
    with np.errstate(divide="ignore", over="ignore"):
        raised = prior / max(float(prior.max()), np.finfo(float).tiny)
        raised = raised if power is None else raised**power
        total = raised.sum()
    if not (math.isfinite(total) and total > 0):
        problem = "all zero" if not prior.any() else f"not finite when raised to {power:g}"
        raise BadOption(
            told, f": {problem}. Give at least one class a prior above 0, or choose another ", Parameter("prior_power"), "."
        )
    return np.asarray(raised / total, np.float64)
