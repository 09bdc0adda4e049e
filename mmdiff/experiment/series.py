"""What the cells of all draws come to: means and standard deviations, and the choice that the validation group makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.experiment.cells import FIGURES, Result
from mmdiff.experiment.config import Background, Group
from mmdiff.experiment.methods import Setting
from mmdiff.formats.manifest import Json
from mmdiff.fusion.late import WEIGHTS


@dataclass(frozen=True)
class Choice:
    """A candidate of a setting, and its plane: the iteration of a diffusion, the weight of a fusion (by its place)."""

    candidate: int
    plane: int


@dataclass(frozen=True)
class Series:
    """The results of one candidate for all draws. `options` are complete, those of a fusion's parts included."""

    group: Group
    n: int
    background: Background | None
    setting: Setting
    candidate: int
    options: Json
    results: tuple[Result, ...]
    keys: tuple[str, ...]
    tests: tuple[int, int]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(draws, planes, FIGURES): the accuracies, of all test points and of those of novel classes."""
        counts = np.stack([result.planes[:, : len(FIGURES)] for result in self.results])
        return np.asarray(counts / np.repeat(self.tests, 2), np.float64)

    @property
    def places(self) -> list[int] | list[float]:
        """What its planes are."""
        return list(WEIGHTS) if self.setting.kind == "fusion" else list(range(len(self.results[0].planes)))

    def line(self, choice: Choice, first_cell: int) -> Json:
        """All there is to say of it, as plain values; `plane` is the place of the one that was chosen."""
        shares = self.shares
        mean = shares.mean(axis=0)
        # Of the draws as a sample of all draws; of a single one nothing is known.
        std = shares.std(axis=0, ddof=1) if len(shares) > 1 else np.zeros_like(mean)
        reached = np.stack([result.planes[:, len(FIGURES) :] for result in self.results])
        line: Json = {
            "group": self.group,
            "n": self.n,
            "background": None if self.background is None else str(self.background),
            "method": self.setting.method,
            "kind": self.setting.kind,
            "variant": self.setting.shown,
            "options": self.options,
            "chosen": choice.candidate == self.candidate,
            "planes": self.places,
            "plane": choice.plane if choice.candidate == self.candidate else best_plane(self),
            "mean": {figure: _rounded(mean[:, i]) for i, figure in enumerate(FIGURES)},
            "std": {figure: _rounded(std[:, i]) for i, figure in enumerate(FIGURES)},
            "first_cell": first_cell,
        }
        if self.setting.kind == "diffusion":
            line["nonzero"] = _rounded((reached[..., 0] / reached[..., 1]).mean(axis=0))
        return line


def choose(candidates: Sequence[Series]) -> Choice:
    """The highest top-5 accuracy over all classes, in the mean of all draws; then top-1; then what comes first."""
    found = [
        (top5, top1, -series.candidate, -plane)
        for series in candidates
        for plane, (top1, top5) in enumerate(series.shares.mean(axis=0)[:, :2].tolist())
    ]
    *_, candidate, plane = max(found)
    return Choice(-candidate, -plane)


def best_plane(series: Series) -> int:
    """What would have been chosen if there were no other candidate."""
    return choose([series]).plane


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(float(value), 6) for value in values]
