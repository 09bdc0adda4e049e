"""`mmdiff evaluate`: the accuracy of scores among the best k, for all scores of a store or for some (paper, section 4.1).

Stale scores are refused. Points without labels are left out. Points of a class without seeds count as misses: no method could
find them, and leaving them out would flatter all methods.

Novel classes are given as a file with one class per line, or as a list. A class is a number or a name, as the seeds or the test
points have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import (
    accuracies,
    by_class,
    checked_top,
    margins,
    novel_ranks,
    predictions,
    ranks_by_label,
    worst_classes,
)
from mmdiff.evaluation.scores import TEST, Scores, Truth, full_name, missing_scores, open_scores, open_truth
from mmdiff.formats.errors import FILE, BadLabels, BadOption, Parameter, Stale, UnreadableSource, call
from mmdiff.formats.sources.spec import exists, is_file
from mmdiff.formats.sources.text import LIST_BYTES, read_lines
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.runtime.progress import Progress, silent

Place = tuple[str | Parameter, ...]
"""Where a user's class was written, as the beginning of a message."""


def read_classes(text: str) -> list[tuple[str, Place]]:
    """The classes that the user lists, each with its place."""
    path, given = Path(text), Parameter("novel", text)
    if is_file(text):
        try:
            lines = read_lines(path, LIST_BYTES)
        except UnreadableSource as error:
            raise UnreadableSource(*error.parts, " Write one class number or name per line.") from None
        found: list[tuple[str, Place]] = [(line, (f"{text}, line {number}",)) for number, line in enumerate(lines, 1) if line]
    elif path.suffix == ".txt" or exists(path) or "/" in text:
        raise BadOption(given, ": no such file. Name a file with one class per line, or list classes: 3,17,21.")
    else:
        found = [(part.strip(), (given,)) for part in text.split(",") if part.strip()]
    if not found:
        raise BadOption(given, ": no classes in it. Write one class number or name per line.")
    return found


def find_classes(wanted: Sequence[tuple[str, Place]], tables: Sequence[Classes]) -> list[NDArray[np.bool_]]:
    """A mask for each table of its classes that are wanted; every wanted class must be in one of the tables."""
    found = [np.zeros(len(table), bool) for table in tables]
    for word, where in wanted:
        places = [table.find(word) for table in tables]
        if all(place is None for place in places):
            raise BadLabels(
                *where,
                f": class {word!r} is neither among those of the seeds nor among those of the test points. "
                "Use class numbers or names as they were imported, or a file with one per line.",
            )
        for marks, place in zip(found, places, strict=True):
            if place is not None:
                marks[place] = True
    return found


WORST = 5


@dataclass(frozen=True)
class Request:
    """Parameters of an evaluation. Without names, all scores of test points are evaluated."""

    names: Sequence[str] = ()
    tops: Iterable[int] = (1, 5)
    novel: str | None = None
    per_class: bool = False


@explaining
def evaluate(store: Store, request: Request, progress: Progress = silent) -> Json:
    """The evaluations of scores as plain values, under `scores`, and notes on them."""
    tops = checked_top(request.tops)
    wanted = None if request.novel is None else read_classes(request.novel)
    opened, left_out = _open(store, request)
    compared = [Comparison.of(scores, _truth(store, scores), tops, wanted) for scores in opened]
    evaluations = evaluate_all(compared, request.per_class, progress)
    notes = dict.fromkeys(note for evaluation in evaluations for note in _notes(evaluation, tops))
    return {"scores": evaluations, "notes": [*notes, *left_out]}


def evaluate_all(compared: Sequence[Comparison], per_class: bool, progress: Progress) -> list[Json]:
    """The evaluations of several scores."""
    with progress("evaluating", sum(len(one.scores.iterations) for one in compared), "iterations") as advance:
        return [one.evaluate(per_class, advance) for one in compared]


def useless_tops(tops: Sequence[int], classes: int) -> list[str]:
    """A note for each k that is not below the number of classes."""
    return [f"top {k} says little: there are only {classes} classes." for k in tops if k >= classes]


@dataclass(frozen=True)
class Comparison:
    """Scores and the true classes of their points. `points` counts them, under the key `kind`.

    `novel` marks the labels that are of novel classes.
    """

    scores: Scores
    truth: Truth
    tops: list[int]
    points: Json
    novel: NDArray[np.bool_] | None = None
    kind: str = "test"

    @classmethod
    def of(
        cls,
        scores: Scores,
        truth: Truth,
        tops: list[int],
        wanted: Sequence[tuple[str, Place]] | None,
        kind: str = "test",
        counts: Json | None = None,
    ) -> Comparison:
        """With the classes that are wanted as novel, by `read_classes`; `counts` are added to those of the points."""
        points = _points(truth, scores.classes) | (counts or {})
        if wanted is None:
            return cls(scores, truth, tops, points, kind=kind)
        columns, own = find_classes(wanted, (scores.classes, truth.classes))
        # The entry appended to the classes is the one that index -1, no label, finds.
        novel = np.append(own, False)[truth.own]
        return cls(scores, truth, tops, points | {"novel": _novel(novel, columns, own, truth)}, novel, kind)

    def evaluate(self, per_class: bool, advance: Any) -> Json:
        iterations: list[Json] = []
        ranks = np.empty((0, 0), np.int32)
        for iteration, scores in zip(self.scores.iterations, self.scores.values, strict=True):
            ranks = ranks_by_label(scores, self.truth.labels)
            iterations.append({"iteration": iteration if self.scores.has_iterations else None, **self.accuracies(ranks)})
            advance(1)
        labelled = self.truth.labelled
        predicted, margin = predictions(self.scores.after())
        right = (self.truth.labels == predicted[:, None]).any(axis=1) & (predicted != UNLABELLED)
        found: Json = {
            "artifact": self.scores.name,
            "object": self.scores.artifact.id,
            "method": self.scores.method,
            self.kind: self.points,
            "iterations": iterations,
            "undecided": int((predicted[labelled] == UNLABELLED).sum()),
            "margin": margins(margin[labelled], right[labelled]),
            "worst": [self._named(entry) for entry in self._worst(predicted)],
        }
        if self.scores.method == "fusion":
            facts = self.scores.artifact.manifest.facts
            found |= {"weight": facts["weight"], "weight_chosen_on": facts.get("weight_chosen_on")}
        if per_class:
            found["per_class"] = self._per_class(ranks)
        return found

    def accuracies(self, ranks: NDArray[np.int32]) -> Json:
        """The accuracies of one iteration, from the ranks of all labels."""
        groups = {"all": ranks.min(axis=1)[self.truth.labelled]}
        if self.novel is not None:
            groups["novel"] = novel_ranks(ranks, self.novel)
        found: Json = {}
        for group, of_group in groups.items():
            by_top = accuracies(of_group, self.tops)
            found[group] = None if by_top is None else {top: accuracy.to_json() for top, accuracy in by_top.items()}
        return found

    def _worst(self, predicted: NDArray[np.int64]) -> list[Json]:
        return worst_classes(predicted, self.truth.labels, len(self.scores.classes), WORST)

    def _named(self, entry: Json) -> Json:
        """An entry with the names of its classes instead of their columns."""
        title = self.scores.classes.title
        taken = [
            mistake | {"class": None if mistake["class"] is None else title(mistake["class"])} for mistake in entry["taken_for"]
        ]
        return entry | {"class": title(entry["class"]), "taken_for": taken}

    def _per_class(self, ranks: NDArray[np.int32]) -> list[Json]:
        """All classes of the scores, then those of test points only; accuracies are None for classes without test points."""
        classes, truth = self.scores.classes, self.truth
        _, shares = by_class(ranks, truth.labels, len(classes), self.tops)
        counts = np.bincount(truth.own[truth.own != UNLABELLED], minlength=len(truth.classes))
        found = []
        for column in range(len(classes)):
            points = int(counts[truth.columns == column].sum())
            entry: Json = {"class": classes.title(column), "number": _number(classes, column), "points": points}
            entry |= {top: round(float(values[column]), 6) if points else None for top, values in shares.items()}
            found.append(entry | {"seeds": bool(truth.seeded[column])})
        for index in np.flatnonzero((truth.columns == UNLABELLED) & (counts > 0)).tolist():
            entry = {"class": truth.classes.title(index), "number": _number(truth.classes, index), "points": int(counts[index])}
            found.append(entry | dict.fromkeys(shares, 0.0) | {"seeds": False})
        return found


def _number(classes: Classes, index: int) -> int | None:
    return None if classes.numbers is None else int(classes.numbers[index])


def _open(store: Store, request: Request) -> tuple[list[Scores], list[str]]:
    """The scores that are named, else all that can be evaluated, with notes on those that cannot."""
    names = list(dict.fromkeys(full_name(name) for name in request.names))
    if names:
        return [open_scores(store, name) for name in names], []
    # Scores of nodes only, made before there were test points, are passed over.
    candidates = [name for name in store.names() if name.startswith("scores/") and "scores" in store.open_artifact(name)]
    if not candidates:
        raise missing_scores(store, str(store.path), call("diffuse"))
    opened, left_out, stale = [], [], None
    for name in candidates:
        try:
            opened.append(open_scores(store, name))
        except Stale as error:
            stale = stale or error
            left_out.append(f"left out {error}")
    if stale is not None and not opened:
        raise stale
    return opened, left_out


def _truth(store: Store, scores: Scores) -> Truth:
    truth = open_truth(store, scores)
    if truth is None or not truth.labelled.any():
        raise BadLabels(
            f"{TEST}: no test point has a label to compare with. Import them again with labels: ",
            call("add", FILE, labels=FILE, role="test"),
        )
    return truth


def _points(truth: Truth, classes: Classes) -> Json:
    """Counts of test points and classes."""
    labelled = truth.labelled
    present = truth.columns[np.unique(truth.own[truth.own != UNLABELLED])]
    return {
        "points": len(labelled),
        "labelled": int(labelled.sum()),
        "unlabelled": int((~labelled).sum()),
        "of_classes_without_seeds": int((labelled & ~truth.known).sum()),
        "classes": len(classes),
        "classes_without_seeds": int((~truth.seeded).sum()),
        "classes_without_test_points": len(classes) - len(np.unique(present[present != UNLABELLED])),
    }


def _novel(novel: NDArray[np.bool_], columns: NDArray[np.bool_], own: NDArray[np.bool_], truth: Truth) -> Json:
    """Counts of novel classes and their test points."""
    only_in_test = int((own & (truth.columns == UNLABELLED)).sum())
    classes = int(columns.sum()) + only_in_test
    return {
        "classes": classes,
        "points": int(novel.any(axis=1).sum()),
        "classes_without_seeds": only_in_test + int((columns & ~truth.seeded).sum()),
        "classes_without_test_points": classes - len(np.unique(truth.own[novel])),
    }


def _notes(evaluation: Json, tops: Sequence[int]) -> list[str]:
    points, notes = evaluation["test"], []
    if points["unlabelled"]:
        notes.append(f"{points['unlabelled']:,} of {points['points']:,} test points have no label and are left out.")
    if points["of_classes_without_seeds"]:
        notes.append(
            f"{points['of_classes_without_seeds']:,} of {points['labelled']:,} test points are of classes that no seed has; "
            "they count as misses."
        )
    if points["classes_without_test_points"]:
        notes.append(f"{points['classes_without_test_points']:,} of {points['classes']:,} classes have no test points.")
    if "novel" in points and not points["novel"]["points"]:
        notes.append("no test point is of a novel class, so there is no accuracy on them.")
    notes += useless_tops(tops, points["classes"])
    if evaluation.get("weight_chosen_on"):
        notes.append(
            f"{evaluation['artifact']}: its weight was chosen on these test points, so its accuracy is optimistically biased."
        )
    return notes
