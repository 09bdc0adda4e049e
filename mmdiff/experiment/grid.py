"""The grid as a whole, in an order in which what is shared is near: group by group, n by n, draw by draw, then fusions.

On the validation group every candidate of every method is computed, and one of them is chosen for each background and n, with
its iteration or fusion weight. On the test group only that one is computed. Fusions come last, since they are made of the
choices for the other methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mmdiff.experiment.cells import Cell, Result
from mmdiff.experiment.config import Background, Config, Group
from mmdiff.experiment.methods import Setting
from mmdiff.experiment.series import Choice, Series, choose
from mmdiff.formats.manifest import Json

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
