"""The variants of the diffusion that the paper compares (sections 3.3 and 3.4), as one choice, checked as a whole.

P <- alpha W S + (1 - alpha) Y      Zhou et al.; without --alpha simply W S
S <- eta(P)                         only row and sinkhorn, which couple the classes; the others never touch the state
S <- Gamma(S)                       entries to the power R, then columns normalised
S <- Y in the rows of the seeds     Zhu et al., --reset-seeds
L  = eta(S)                         what is reported
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.manifest import Json

Eta = Literal["column", "row", "none", "prior", "sinkhorn"]
Normalization = Literal["row", "symmetric"]
Precision = Literal["float32", "bfloat16"]

ETAS: tuple[Eta, ...] = ("column", "row", "none", "prior", "sinkhorn")
SINKHORN_ROUNDS = 5


@dataclass(frozen=True)
class Variant:
    """What is done to S in each iteration, and how L comes of it."""

    eta: Eta = "column"
    gamma: float | None = None
    alpha: float | None = None
    reset_seeds: bool = False
    normalize_graph: Normalization = "row"
    dtype: Precision = "float32"

    def __post_init__(self) -> None:
        if self.eta not in ETAS:
            raise BadOption(f"--eta {self.eta}: no such operator. Choose from {', '.join(ETAS)}.")
        if self.gamma is not None and not (math.isfinite(self.gamma) and self.gamma > 0):
            raise BadOption(f"--gamma {self.gamma:g}: a power above 0 is needed, for example 0.5 or 2.")
        if self.alpha is not None and not 0 < self.alpha <= 1:
            raise BadOption(f"--alpha {self.alpha:g}: a share above 0 and up to 1 is needed, for example 0.8.")
        if self.normalize_graph not in ("row", "symmetric"):
            raise BadOption(f"--normalize-graph {self.normalize_graph}: choose row or symmetric.")
        if self.dtype not in ("float32", "bfloat16"):
            raise BadOption(f"--dtype {self.dtype}: choose float32 or bfloat16.")

    @property
    def coupled(self) -> bool:
        """Whether the operator needs all classes of a row at once."""
        return self.eta in ("row", "sinkhorn")

    @property
    def linear(self) -> bool:
        """Whether S is a polynomial of W times Y, so that columns are independent and their sums known without them."""
        return not self.coupled and self.gamma is None

    @property
    def takes_prior(self) -> bool:
        return self.eta in ("prior", "sinkhorn")

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def kept_as(self) -> str:
        """The type of arrays that hold S: float32, or the bits of bfloat16."""
        return "float32" if self.dtype == "float32" else "uint16"

    def parameters(self) -> Json:
        return dict(vars(self))


def class_prior(
    variant: Variant, given: NDArray[np.float64] | None, name: str, power: float | None, classes: int
) -> NDArray[np.float64]:
    """The prior p of each class, raised to a power and normalised; uniform where none is given."""
    if not variant.takes_prior:
        for option, value in (("--prior", given), ("--prior-power", power)):
            if value is not None:
                raise BadOption(f"{option}: --eta {variant.eta} has no prior. Use it with --eta prior or --eta sinkhorn.")
        return np.full(classes, 1 / classes)
    prior = np.ones(classes) if given is None else given
    if prior.shape != (classes,):
        raise BadOption(f"--prior {name}: {prior.size} values for {classes} classes. Give one for each class, in their order.")
    bad = ~np.isfinite(prior) | (prior < 0)
    if bad.any():
        at = int(bad.argmax())
        raise BadOption(f"--prior {name}, class {at}: {prior[at]:g}. A prior is finite and not negative.")
    with np.errstate(divide="ignore", over="ignore"):
        raised = prior / max(float(prior.max()), np.finfo(float).tiny)
        raised = raised if power is None else raised**power
        total = raised.sum()
    if not (math.isfinite(total) and total > 0):
        what = "all zero" if not prior.any() else f"not finite when raised to {power:g}"
        raise BadOption(f"--prior {name}: {what}. Give at least one class a prior above 0, or another --prior-power.")
    return np.asarray(raised / total, np.float64)
