"""Which classes are novel: `--novel` names a file with one class a line, or lists them with commas between them.

A class goes by its number or its name, in the table of the seeds or in that of the test points.

`mmdiff evaluate`: how often the test points' classes are among the best k, for all scores of a store or for some.

Scores that no longer follow from what is in the store are refused, points without labels are left out, and points of a class
that no seed has count as misses: nothing is left out that a method could not have got right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import accuracies, by_class, margins, novel_ranks, predictions, ranks_by_label, worst_classes
from mmdiff.evaluation.scores import TEST, Scores, Truth, open_scores, open_truth
from mmdiff.formats.errors import BadLabels, BadOption, Missing, Stale, UnreadableSource
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.runtime.progress import Progress, silent


def read_classes(text: str) -> list[tuple[str, str]]:
    """What the user wrote for each class, and where it stands."""
    path = Path(text)
    if path.is_file():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            raise UnreadableSource(f"--novel {text}: not a text file. Write one class number or name a line.") from None
        found = [(line.strip(), f"{text}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    elif path.suffix == ".txt" or path.is_dir() or "/" in text:
        raise BadOption(f"--novel {text}: no such file. Name a file with one class a line, or list classes: 3,17,21.")
    else:
        found = [(part.strip(), f"--novel {text}") for part in text.split(",") if part.strip()]
    if not found:
        raise BadOption(f"--novel {text}: no classes in it. Write one class number or name a line.")
    return found


def find_classes(wanted: Sequence[tuple[str, str]], tables: Sequence[Classes]) -> list[NDArray[np.bool_]]:
    """For each table which of its classes are meant; every class must be in one of them."""
    found = [np.zeros(len(table), bool) for table in tables]
    for word, where in wanted:
        places = [table.find(word) for table in tables]
        if all(place is None for place in places):
            raise BadLabels(
                f"{where}: class {word!r} is neither among those of the seeds nor among those of the test points. "
                "Use class numbers or names as they were imported, or a file with one a line."
            )
        for marks, place in zip(found, places, strict=True):
            if place is not None:
                marks[place] = True
    return found


WORST = 5
SEED = 0


@dataclass(frozen=True)
class Request:
    """What the user asked for. Without names, all scores that speak of test points."""

    names: Sequence[str] = ()
    tops: Sequence[int] = (1, 5)
    novel: str | None = None
    per_class: bool = False


def evaluate(store: Store, request: Request, progress: Progress = silent) -> Json:
    """The whole report, as plain values."""
    tops = _checked_tops(request.tops)
    wanted = None if request.novel is None else read_classes(request.novel)
    opened, left_out = _open(store, request)
    evaluations = [_evaluation(store, scores, wanted, tops) for scores in opened]
    with progress("evaluating", sum(len(scores.planes) for scores in opened), "planes") as advance:
        reports = [evaluation.report(request.per_class, advance) for evaluation in evaluations]
    notes = dict.fromkeys(note for report in reports for note in _notes(report, tops))
    return {"scores": reports, "notes": [*notes, *left_out]}


def _evaluation(store: Store, scores: Scores, wanted: Sequence[tuple[str, str]] | None, tops: list[int]) -> _Evaluation:
    truth = _truth(store, scores)
    points = _points(truth, scores.classes)
    if wanted is None:
        return _Evaluation(scores, truth, tops, points)
    columns, own = find_classes(wanted, (scores.classes, truth.classes))
    # Behind the classes stands one for points without a label, which is where the index -1 leads.
    novel = np.append(own, False)[truth.own]
    return _Evaluation(scores, truth, tops, points | {"novel": _novel(novel, columns, own, truth)}, novel)


@dataclass(frozen=True)
class _Evaluation:
    """One artifact of scores. `novel` says of each label of each point whether it is novel."""

    scores: Scores
    truth: Truth
    tops: list[int]
    points: Json
    novel: NDArray[np.bool_] | None = None

    def report(self, per_class: bool, advance: Any) -> Json:
        planes: list[Json] = []
        ranks = np.empty((0, 0), np.int32)
        for iteration, plane in zip(self.scores.planes, self.scores.values, strict=True):
            ranks = ranks_by_label(plane, self.truth.labels)
            planes.append({"iteration": iteration if self.scores.has_iterations else None, **self.figures(ranks)})
            advance(1)
        labelled = self.truth.labelled
        predicted, margin = predictions(self.scores.plane())
        right = (self.truth.labels == predicted[:, None]).any(axis=1) & (predicted != UNLABELLED)
        found: Json = {
            "artifact": self.scores.name,
            "object": self.scores.artifact.id,
            "method": self.scores.method,
            "test": self.points,
            "planes": planes,
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

    def figures(self, ranks: NDArray[np.int32]) -> Json:
        """The accuracies of one plane, from the ranks of all labels."""
        groups = {"all": ranks.min(axis=1)[self.truth.labelled]}
        if self.novel is not None:
            groups["novel"] = novel_ranks(ranks, self.novel)
        found: Json = {}
        for group, theirs in groups.items():
            figures = accuracies(theirs, self.tops, SEED)
            found[group] = None if figures is None else {top: figure.to_json() for top, figure in figures.items()}
        return found

    def _worst(self, predicted: NDArray[np.int64]) -> list[Json]:
        return worst_classes(predicted, self.truth.labels, len(self.scores.classes), WORST)

    def _named(self, entry: Json) -> Json:
        """Classes by what they are called."""
        title = self.scores.classes.title
        taken = [
            mistake | {"class": None if mistake["class"] is None else title(mistake["class"])} for mistake in entry["taken_for"]
        ]
        return entry | {"class": title(entry["class"]), "taken_for": taken}

    def _per_class(self, ranks: NDArray[np.int32]) -> list[Json]:
        """Every class of the scores, then those that only test points have; accuracies are None where there are no points."""
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
    """The scores that are named, else all that can be evaluated, and what there is to say of those that cannot."""
    names = list(dict.fromkeys(name if "/" in name else f"scores/{name}" for name in request.names))
    if names:
        return [open_scores(store, name) for name in names], []
    # Scores of nodes only, made before there were test points, are not asked about.
    candidates = [name for name in store.names() if name.startswith("scores/") and "scores" in store.open_artifact(name)]
    if not candidates:
        raise Missing(f"{store.path}: there are no scores of test points. Run first: mmdiff diffuse, or mmdiff logreg")
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
        raise BadLabels(f"{TEST}: no test point has a label to compare with. Import them again with --labels FILE.")
    return truth


def _checked_tops(tops: Sequence[int]) -> list[int]:
    for k in tops:
        if k < 1:
            raise BadOption(f"--top {k}: at least 1 is needed. The paper reports --top 5.")
    return sorted(set(tops))


def _points(truth: Truth, classes: Classes) -> Json:
    """How many test points there are, and which of them say what."""
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
    """What the novel classes come to, those of the scores and those that only test points have."""
    only_in_test = int((own & (truth.columns == UNLABELLED)).sum())
    classes = int(columns.sum()) + only_in_test
    return {
        "classes": classes,
        "points": int(novel.any(axis=1).sum()),
        "classes_without_seeds": only_in_test + int((columns & ~truth.seeded).sum()),
        "classes_without_test_points": classes - len(np.unique(truth.own[novel])),
    }


def _notes(report: Json, tops: Sequence[int]) -> list[str]:
    points, notes = report["test"], []
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
    notes += [f"--top {k} says little: there are only {points['classes']} classes." for k in tops if k >= points["classes"]]
    if report.get("weight_chosen_on"):
        notes.append(f"{report['artifact']}: its weight was chosen on these very test points, so its accuracy flatters it.")
    return notes
