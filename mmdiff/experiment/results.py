"""What the cells of all draws come to: means and standard deviations, and the choice that the validation group makes.

The grid as a whole, in an order in which what is shared is near: group by group, n by n, draw by draw, then fusions.

On the validation group every candidate of every method is computed, and one of them is chosen for each background and n, with
its iteration or fusion weight. On the test group only that one is computed. Fusions come last, since they are made of the
choices for the other methods.

What `mmdiff inspect` tells of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmdiff.experiment.cells import FIGURES, Cell, Result
from mmdiff.experiment.config import Background, Config, Group
from mmdiff.experiment.methods import Setting
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact
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


Compute = Callable[[Sequence[Cell]], list[tuple[str, Result]]]
"""The keys of cells and their results, found or computed, in the order of the cells; none of them needs another."""

Place = tuple[int, Background | None, int, int]
"""n, the background, and the numbers of a method and of one of its settings."""


@dataclass
class Grid:
    """The experiment under way: what was chosen so far."""

    config: Config
    tests: dict[Group, tuple[int, int]]
    compute: Compute
    choices: dict[Place, Choice] = field(default_factory=dict)

    def series(self) -> Iterator[tuple[Series, Choice]]:
        """All results, each with what the validation group chose there."""
        for group in self.config.groups:
            for n in self.config.ns:
                for fusions in (False, True):
                    yield from self._some(group, n, fusions)

    @property
    def cells(self) -> int:
        """How many cells there are."""
        total = 0
        for group in self.config.groups:
            for _, _, setting in self._settings():
                candidates = len(setting.candidates) if group == "validation" else 1
                total += candidates * len(self._backgrounds(setting))
        return total * len(self.config.ns) * self.config.draws

    def _some(self, group: Group, n: int, fusions: bool) -> Iterator[tuple[Series, Choice]]:
        """The methods that are fusions, or those that are not, for one n; draw by draw, since draws share their graphs."""
        places = [
            (place, setting, background, candidate)
            for background in (None, *self.config.backgrounds)
            for method, number, setting in self._settings()
            if (setting.kind == "fusion") == fusions and background in self._backgrounds(setting)
            for place in [(n, background, method, number)]
            for candidate in self._candidates(group, place, setting)
        ]
        options = [self._options(place, setting, candidate) for place, setting, _, candidate in places]
        cells = [
            Cell(group, n, draw, background, setting.kind, own)
            for draw in range(self.config.draws)
            for (_, setting, background, _), own in zip(places, options, strict=True)
        ]
        found = self.compute(cells)
        made = []
        for number, ((_, setting, background, candidate), own) in enumerate(zip(places, options, strict=True)):
            keys, values = zip(*found[number :: len(places)], strict=True)
            made.append(Series(group, n, background, setting, candidate, own, values, keys, self.tests[group]))
        if group == "validation":
            for wanted in dict.fromkeys(place for place, *_ in places):
                own_series = [series for series, (place, *_) in zip(made, places, strict=True) if place == wanted]
                self.choices[wanted] = choose(own_series)
        for series, (place, *_) in zip(made, places, strict=True):
            yield series, self.choices[place]

    def _settings(self) -> Iterator[tuple[int, int, Setting]]:
        for method, given in enumerate(self.config.methods):
            for number, setting in enumerate(given.settings):
                yield method, number, setting

    def _backgrounds(self, setting: Setting) -> tuple[Background | None, ...]:
        return self.config.backgrounds if setting.has_background else (None,)

    def _candidates(self, group: Group, place: Place, setting: Setting) -> list[int]:
        return list(range(len(setting.candidates))) if group == "validation" else [self.choices[place].candidate]

    def _options(self, place: Place, setting: Setting, candidate: int) -> Json:
        """Complete options; those of a fusion are what was chosen for its parts."""
        if setting.kind != "fusion":
            return setting.candidates[candidate]
        n, background, method, _ = place
        names = [other.name for other in self.config.methods]
        of = self.config.methods[method].of or ("", "")
        parts: Json = {}
        iteration = 0
        for name, where in zip(of, (None, background), strict=True):
            number = names.index(name)
            choice = self.choices[(n, where, number, 0)]
            part = self.config.methods[number]
            parts[part.kind] = part.settings[0].candidates[choice.candidate]
            iteration = choice.plane
        return {**parts, "iteration": iteration}


def what_report(artifact: Artifact) -> str:
    parameters = artifact.manifest.parameters
    cells, ns = artifact.spec("keys").shape[0], ", ".join(map(str, parameters["n"]))
    return f"{cells:,} cells, {len(parameters['methods'])} methods, n = {ns}, {parameters['draws']} draws"


def report_statistics(artifact: Artifact) -> Json:
    """The best method for each n, on the last group: its top-5 accuracy over all classes, in the mean of the draws."""
    lines = [line for line in artifact.manifest.facts["lines"] if line["chosen"]]
    found: Json = {}
    for n in artifact.manifest.parameters["n"]:
        own = [line for line in lines if line["n"] == n and line["group"] == lines[-1]["group"]]
        best = max(own, key=_top5)
        where = f" ({best['background']})" if best["background"] else ""
        found[f"best_at_n_{n}"] = {f"{best['method']}{where}": _top5(best)}
    return found


def _top5(line: Json) -> float:
    return float(line["mean"]["top5"][line["plane"]])
