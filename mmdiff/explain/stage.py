"""`mmdiff explain`: the paths on which labels reach a test point (paper, "Qualitative results").

All ids and roles are the user's; nodes of the graph are translated by `Nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.problem import Problem, read_problem
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.evaluation.metrics import predictions, ranks_by_label
from mmdiff.evaluation.scores import Scores, Truth, full_name, missing_scores, open_scores, open_truth
from mmdiff.explain.nodes import Images, Name, Nodes, find_row, plain, role_ids
from mmdiff.explain.paths import Path, Question, Spreading, find_paths
from mmdiff.formats.errors import FILE, BadLabels, BadOption, Missing, Parameter, Stale, call
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.fingerprint import fingerprint
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.runtime.parameters import text

_SHOWN = 5


@dataclass(frozen=True)
class Request:
    """Parameters of an explanation. Without `chosen`, the true and the predicted class. `labels` is the diffusion's file."""

    test: str
    chosen: str | None = None
    scores: str = "diffusion"
    labels: str | None = None
    images: str | None = None


@explaining
def explain(store: Store, request: Request) -> Json:
    """The explanation of one test point as plain values."""
    images = None if request.images is None else Images.of(text("images", request.images))
    explainer = Explainer(store, request.scores, request.labels)
    row = find_row(explainer.ids, request.test)
    column = None if request.chosen is None else explainer.column(request.chosen)
    found = explainer.explain([row], column)[0]
    if images is not None:
        add_images(found, images)
    return {"scores": explainer.scores.name, "object": explainer.scores.artifact.id, **found}


def add_images(found: Json, images: Images) -> None:
    """Adds to the test point and to each step the file or URL of its image, None where there is none."""
    for step in [found["test"], *(step for path in found["paths"] for step in path["steps"])]:
        step["image"] = images.find(Name(step["role"], step["id"]))


class Explainer:
    """Finds the paths of a diffusion of a store."""

    def __init__(self, store: Store, name: str, labels: str | None = None) -> None:
        self.scores = _diffusion_scores(store, name)
        self.truth, self.no_truth = _truth(store, self.scores)
        self.ids = role_ids(store, "test", self.scores.tests)
        parameters = self.scores.artifact.manifest.parameters
        problem = _problem(store, self.scores, labels)
        self.iterations = int(parameters["iterations"])
        self.variant = Variant(**{key: parameters[key] for key in vars(Variant())})
        if self.variant.coupled and parameters.get("eta_applied") != "once":
            raise BadOption(
                Parameter("scores", name),
                f": made by a version that applied eta a second time to report it, so these scores have no paths. "
                f"{self.scores.artifact.remedy}",
            )
        classes = len(self.scores.classes)
        prior = np.array(parameters["prior"]) if "prior" in parameters else np.full(classes, 1 / classes)
        if problem.neighbors is None:
            raise missing_scores(store, self.scores.name, self.scores.artifact.run["command"])
        self.nodes = Nodes(store, problem.graph.order)
        self.spreading = Spreading(
            problem.graph, _seeds_of(problem, self.scores.classes), self.variant, prior, self.iterations, problem.neighbors
        )

    def column(self, wanted: str) -> int:
        """The column of a class, by its name or number."""
        classes = self.scores.classes
        column = classes.find(wanted)
        if column is not None:
            return column
        titles = [classes.title(index) for index in range(len(classes))]
        near = get_close_matches(wanted, titles, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {len(titles)}: {', '.join(titles[:_SHOWN])}, ..."
        raise BadOption(Parameter("class_", wanted), f": {self.scores.name} has no such class. {hint}")

    def explain(self, rows: Sequence[int], column: int | None = None) -> list[Json]:
        """The true classes, the predicted class and the paths of some test points; with `column`, only that class's paths."""
        scores = self.scores.after()[list(rows)]
        predicted = predictions(scores)[0].tolist()
        asked = [[column] if column is not None else self._classes_of(row, p) for row, p in zip(rows, predicted, strict=True)]
        questions = [Question(row, own) for row, columns in zip(rows, asked, strict=True) for own in columns]
        paths = find_paths(self.spreading, questions) if questions else {}
        return [
            {
                "iterations": self.iterations,
                "test": self._point(row, predicted[place]),
                "paths": [
                    self._path(row, own, predicted[place], scores[place], paths[Question(row, own)]) for own in asked[place]
                ],
                "notes": self._notes(row, predicted[place]),
            }
            for place, row in enumerate(rows)
        ]

    def _classes_of(self, row: int, predicted: int) -> list[int]:
        """The true classes, then the predicted one if it is another."""
        return [column for column in dict.fromkeys([*self._true(row), predicted]) if column != UNLABELLED]

    def _true(self, row: int) -> list[int]:
        return [] if self.truth is None else [int(label) for label in self.truth.labels[row] if label != UNLABELLED]

    def _point(self, row: int, predicted: int) -> Json:
        labels = [] if self.truth is None else titles_of(self.truth, self.scores.classes, row)
        title = None if predicted == UNLABELLED else self.scores.classes.title(predicted)
        return {"role": "test", "id": plain(self.ids, row), "labels": labels, "predicted": title}

    def _path(self, row: int, column: int, predicted: int, scores: NDArray[np.float32], path: Path | None) -> Json:
        return {
            "class": self.scores.classes.title(column),
            "true": column in self._true(row),
            "predicted": column == predicted,
            "score": float(scores[column]),
            "rank": int(ranks_by_label(scores[None], np.array([[column]]))[0, 0]),
            "own_label": None if path is None else round(path.own, 6),
            "steps": []
            if path is None
            else [{**vars(self.nodes.name(s.node)), "iteration": s.iteration, "share": round(s.share, 6)} for s in path.steps],
        }

    def _notes(self, row: int, predicted: int) -> list[str]:
        notes = []
        if self.no_truth is not None:
            notes.append(self.no_truth)
        elif self.truth is None or not self.truth.labelled[row]:
            notes.append("the test point has no label, so its true class is unknown.")
        elif not self.truth.known[row]:
            own = ", ".join(titles_of(self.truth, self.scores.classes, row))
            notes.append(f"the point's true class ({own}) has no seed, so no path begins there.")
        if predicted == UNLABELLED:
            notes.append("several classes are best, so none is predicted.")
        return notes


def titles_of(truth: Truth, classes: Classes, row: int) -> list[str]:
    """The names of the true classes of a test point, as the seeds have them where they do."""
    pairs = zip(truth.own[row].tolist(), truth.labels[row].tolist(), strict=True)
    return [
        truth.classes.title(own) if column == UNLABELLED else classes.title(column)
        for own, column in pairs
        if own != UNLABELLED
    ]


def _diffusion_scores(store: Store, name: str) -> Scores:
    full = full_name(name)
    if store.id(full) is None:
        present = [other for other in store.names() if other.startswith("scores/")]
        if present:
            names = ", ".join(present)
            raise Missing(f"{full}: no such scores in the store {store.path} ({names}). Run first: ", call("diffuse"))
        raise missing_scores(store, full, call("diffuse"))
    scores = open_scores(store, full)
    if not scores.has_iterations:
        raise BadOption(
            Parameter("scores", name), f": made by {scores.method}, which has no paths. Name the scores of a diffusion."
        )
    return scores


def _truth(store: Store, scores: Scores) -> tuple[Truth | None, str | None]:
    """The labels of the test points, or why they do not fit the scores: paths do not need labels."""
    try:
        return open_truth(store, scores), None
    except BadLabels as error:
        return None, str(error)


def _problem(store: Store, scores: Scores, labels: str | None) -> Problem:
    """The inputs of the diffusion, which must be those that it was run on."""
    given = scores.artifact.manifest.inputs.get("labels")
    named = Parameter("labels", labels)
    if given is None and labels is not None:
        raise BadOption(named, f": {scores.name} was made with the labels of the seeds. Leave it out.")
    if given is not None and labels is None:
        raise BadOption(
            f"{scores.name} was made with ",
            Parameter("labels", given["source"]),
            ". Name that file here too: ",
            Parameter("labels", FILE),
        )
    if labels is not None:
        path = FilePath(labels.partition("::")[0])
        if not path.is_file():
            raise BadOption(named, f": no such file. Name the one that {scores.name} was made with.")
        if fingerprint(path.name, [path]) != given:
            raise Stale(named, f": not what {scores.name} was made with. {scores.artifact.remedy}")
    return read_problem(store, labels, None)


def _seeds_of(problem: Problem, classes: Classes) -> Seeds:
    """The seeds of the classes that were diffused. A node whose labels are all of other classes was no seed."""
    if len(classes) == len(problem.classes):
        return problem.seeds
    chosen = problem.seeds.select(classes.columns_in(problem.classes))
    counts = np.diff(chosen.offsets)
    offsets = np.append(0, np.cumsum(counts[counts > 0])).astype(np.int64)
    return Seeds(chosen.nodes[counts > 0], offsets, chosen.columns, chosen.values[counts > 0], chosen.classes)
