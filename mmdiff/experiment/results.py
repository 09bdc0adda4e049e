"""Experiment results: the grid of cells, what the validation group chooses, and means and deviations over draws.

On the validation group every candidate of every method is computed, and one is chosen for each background and n, with its
iteration or fusion weight; on the test group only that one is computed (paper, section 4.1). Cells come in an order in which
those that share graphs and models follow each other: group by group, n by n, draw by draw. Fusions come last for each n, since
they combine the choices for other methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """A candidate of a setting and one of its steps: an iteration of a diffusion, a weight of a fusion (by index)."""

    candidate: int
    step: int


@dataclass(frozen=True)
class Series:
    """The results of one candidate for all draws. `options` are complete, including those of a fusion's parts.

    `tests` are the numbers of test points: all, and those of novel classes.
    """

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
    def accuracies(self) -> NDArray[np.float64]:
        """(draws, steps, FIGURES)."""
        counts = np.stack([result.counts[:, : len(FIGURES)] for result in self.results])
        return np.asarray(counts / np.repeat(self.tests, 2), np.float64)

    @property
    def steps(self) -> list[int] | list[float]:
        """The weights of a fusion, the iterations of a diffusion, 0 for a logistic regression."""
        return list(WEIGHTS) if self.setting.kind == "fusion" else list(range(len(self.results[0].counts)))

    def line(self, choice: Choice, first_cell: int) -> Json:
        """The series as plain values for the facts of the artifact; `plane` is the index of its best step."""
        accuracies = self.accuracies
        mean = accuracies.mean(axis=0)
        # The standard deviation of a sample; a single draw has none.
        std = accuracies.std(axis=0, ddof=1) if len(accuracies) > 1 else np.zeros_like(mean)
        reached = np.stack([result.counts[:, len(FIGURES) :] for result in self.results])
        line: Json = {
            "group": self.group,
            "n": self.n,
            "background": None if self.background is None else str(self.background),
            "method": self.setting.method,
            "kind": self.setting.kind,
            "variant": self.setting.shown,
            "options": self.options,
            "chosen": choice.candidate == self.candidate,
            "planes": self.steps,
            "plane": choice.step if choice.candidate == self.candidate else best_step(self),
            "mean": {figure: _rounded(mean[:, i]) for i, figure in enumerate(FIGURES)},
            "std": {figure: _rounded(std[:, i]) for i, figure in enumerate(FIGURES)},
            "first_cell": first_cell,
        }
        if self.setting.kind == "diffusion":
            line["nonzero"] = _rounded((reached[..., 0] / reached[..., 1]).mean(axis=0))
        return line


def choose(candidates: Sequence[Series]) -> Choice:
    """The candidate and step of the highest mean top-5 accuracy over all classes; then of top-1; then the first."""
    found = [
        (top5, top1, -series.candidate, -step)
        for series in candidates
        for step, (top1, top5) in enumerate(series.accuracies.mean(axis=0)[:, :2].tolist())
    ]
    *_, candidate, step = max(found)
    return Choice(-candidate, -step)


def best_step(series: Series) -> int:
    """The step that would be chosen without other candidates."""
    return choose([series]).step


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(float(value), 6) for value in values]


Compute = Callable[[Sequence[Cell]], list[tuple[str, Result]]]
"""Finds or computes independent cells; returns their keys and results in the same order."""


class Case(NamedTuple):
    """A choice is made for each case: n, a background, and the indices of a method and of one of its settings."""

    n: int
    background: Background | None
    method: int
    setting: int


class _Candidate(NamedTuple):
    """A candidate of a setting in a case, with its complete options."""

    case: Case
    setting: Setting
    number: int
    options: Json


@dataclass
class Grid:
    """All cells of an experiment, and the choices made so far. `tests` are the numbers of test points of each group."""

    config: Config
    tests: dict[Group, tuple[int, int]]
    compute: Compute
    choices: dict[Case, Choice] = field(default_factory=dict)

    def series(self) -> Iterator[tuple[Series, Choice]]:
        """All series, each with the choice for its case."""
        for group in self.config.groups:
            for n in self.config.ns:
                for fusions in (False, True):
                    yield from self._series_of(group, n, fusions)

    @property
    def cells(self) -> int:
        """The number of cells."""
        total = 0
        for group in self.config.groups:
            for _, _, setting in self._settings():
                candidates = len(setting.candidates) if group == "validation" else 1
                total += candidates * len(self._backgrounds(setting))
        return total * len(self.config.ns) * self.config.draws

    def _series_of(self, group: Group, n: int, fusions: bool) -> Iterator[tuple[Series, Choice]]:
        """The series of all fusions, or of all other methods, for one n. Cells are ordered by draw, which share graphs."""
        candidates = list(self._candidates(group, n, fusions))
        cells = [
            Cell(group, n, draw, candidate.case.background, candidate.setting.kind, candidate.options)
            for draw in range(self.config.draws)
            for candidate in candidates
        ]
        found = self.compute(cells)
        made = []
        for place, candidate in enumerate(candidates):
            keys, results = zip(*found[place :: len(candidates)], strict=True)
            made.append(
                Series(
                    group=group,
                    n=n,
                    background=candidate.case.background,
                    setting=candidate.setting,
                    candidate=candidate.number,
                    options=candidate.options,
                    results=results,
                    keys=keys,
                    tests=self.tests[group],
                )
            )
        if group == "validation":
            for case in dict.fromkeys(candidate.case for candidate in candidates):
                self.choices[case] = choose(
                    [s for s, candidate in zip(made, candidates, strict=True) if candidate.case == case]
                )
        for series, candidate in zip(made, candidates, strict=True):
            yield series, self.choices[candidate.case]

    def _candidates(self, group: Group, n: int, fusions: bool) -> Iterator[_Candidate]:
        """All candidates on the validation group, the chosen ones on the test group."""
        for background in (None, *self.config.backgrounds):
            for method, number, setting in self._settings():
                if (setting.kind == "fusion") != fusions or background not in self._backgrounds(setting):
                    continue
                case = Case(n, background, method, number)
                every = range(len(setting.candidates)) if group == "validation" else [self.choices[case].candidate]
                for candidate in every:
                    yield _Candidate(case, setting, candidate, self._options(case, setting, candidate))

    def _settings(self) -> Iterator[tuple[int, int, Setting]]:
        for method, given in enumerate(self.config.methods):
            for number, setting in enumerate(given.settings):
                yield method, number, setting

    def _backgrounds(self, setting: Setting) -> tuple[Background | None, ...]:
        return self.config.backgrounds if setting.has_background else (None,)

    def _options(self, case: Case, setting: Setting, candidate: int) -> Json:
        """Complete options; for a fusion those chosen for its parts, and the iteration chosen for its diffusion."""
        if setting.kind != "fusion":
            return setting.candidates[candidate]
        names = [other.name for other in self.config.methods]
        of = self.config.methods[case.method].of or ("", "")
        parts: Json = {}
        iteration = 0
        for name, background in zip(of, (None, case.background), strict=True):
            number = names.index(name)
            choice = self.choices[Case(case.n, background, number, 0)]
            part = self.config.methods[number]
            parts[part.kind] = part.settings[0].candidates[choice.candidate]
            iteration = choice.step
        return {**parts, "iteration": iteration}


def what_experiment(artifact: Artifact) -> str:
    """One line on experiment results: cells, methods, n and draws."""
    parameters = artifact.manifest.parameters
    counts = {"cell": artifact.spec("keys").shape[0], "method": len(parameters["methods"]), "draw": parameters["draws"]}
    cells, methods, draws = (f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
    return f"{cells}, {methods}, n = {', '.join(map(str, parameters['n']))}, {draws}"


def experiment_statistics(artifact: Artifact) -> Json:
    """The best method for each n on the last group, by mean top-5 accuracy over all classes."""
    lines = [line for line in artifact.manifest.facts["lines"] if line["chosen"]]
    found: Json = {}
    for n in artifact.manifest.parameters["n"]:
        candidates = [line for line in lines if line["n"] == n and line["group"] == lines[-1]["group"]]
        best = max(candidates, key=_top5)
        background = f" ({best['background']})" if best["background"] else ""
        found[f"best_at_n_{n}"] = {f"{best['method']}{background}": _top5(best)}
    return found


def _top5(line: Json) -> float:
    return float(line["mean"]["top5"][line["plane"]])
