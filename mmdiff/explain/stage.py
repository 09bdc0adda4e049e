"""`mmdiff explain`: the paths on which labels reach a test point or a row of the collection (paper, "Qualitative results").

All ids and roles are the user's; nodes of the graph are translated by `Nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path as FilePath

import numpy as np

from mmdiff.diffusion.problem import Problem, read_problem
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.evaluation.scores import Scores, full_name, missing_scores
from mmdiff.explain.nodes import Images, Name, Nodes, find_row, plain
from mmdiff.explain.paths import Path, Question, Spreading, find_paths
from mmdiff.explain.points import CollectionRows, Points, TestPoints
from mmdiff.formats.errors import FILE, BadOption, Missing, Parameter, Stale, call
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.fingerprint import fingerprint
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.ids import Ids
from mmdiff.runtime.parameters import text
from mmdiff.runtime.staleness import require_current

_SHOWN = 5


@dataclass(frozen=True)
class Request:
    """Parameters of an explanation of a test point, or of a row of the collection (`id`), by the user's id.

    Without `chosen`, the true and the predicted class are explained. `labels` is the diffusion's file.
    """

    test: str | None = None
    id: str | None = None
    chosen: str | None = None
    scores: str = "diffusion"
    labels: str | None = None
    images: str | None = None


@explaining
def explain(store: Store, request: Request) -> Json:
    """The explanation of one point as plain values."""
    if (request.test is None) == (request.id is None):
        raise BadOption(
            "nothing to explain, or two things. Give either ",
            Parameter("test"),
            ", the id of a test point, or ",
            Parameter("id_"),
            ", the id of a row of the collection.",
        )
    images = None if request.images is None else Images.of(text("images", request.images))
    explainer = Explainer(store, request.scores, request.labels, of_collection=request.test is None)
    if request.test is not None:
        row = find_row(explainer.ids, Parameter("test", request.test), "test point")
    else:
        row = find_row(explainer.ids, Parameter("id_", request.id), "row of the collection")
    column = None if request.chosen is None else explainer.column(request.chosen)
    found = explainer.explain([row], column)[0]
    if images is not None:
        add_images(found, images)
    return {"scores": explainer.name, "object": explainer.artifact.id, **found}


def point_of(found: Json) -> Json:
    """The point that an explanation is about."""
    point: Json = found["test"] if "test" in found else found["row"]
    return point


def add_images(found: Json, images: Images) -> None:
    """Adds to the point and to each step the file or URL of its image, None where there is none."""
    for step in [point_of(found), *(step for path in found["paths"] for step in path["steps"])]:
        step["image"] = images.find(Name(step["role"], step["id"]))


class Explainer:
    """Finds the paths of a diffusion of a store, to its test points or to the rows of the collection."""

    def __init__(self, store: Store, name: str, labels: str | None = None, of_collection: bool = False) -> None:
        self.artifact = _diffusion(store, name, of_collection)
        self.name, self.classes = self.artifact.name, Classes.of(self.artifact)
        parameters = self.artifact.manifest.parameters
        problem = _problem(store, self.artifact, labels)
        self.iterations = int(parameters["iterations"])
        self.variant = Variant(**{key: parameters[key] for key in vars(Variant())})
        if self.variant.coupled and parameters.get("eta_applied") != "once":
            raise BadOption(
                Parameter("scores", name),
                f": made by a version that applied eta a second time to report it, so these scores have no paths. "
                f"{self.artifact.remedy}",
            )
        prior = np.array(parameters["prior"]) if "prior" in parameters else np.full(len(self.classes), 1 / len(self.classes))
        self.points = self._points(store, problem, of_collection)
        self.nodes = Nodes(store, problem.graph.order)
        self.spreading = Spreading(
            problem.graph, _seeds_of(problem, self.classes), self.variant, prior, self.iterations, self.points.neighbors
        )

    def _points(self, store: Store, problem: Problem, of_collection: bool) -> Points:
        if of_collection:
            return CollectionRows(store, self.artifact, problem)
        if problem.neighbors is None:
            raise missing_scores(store, self.name, self.artifact.run["command"])
        return TestPoints(store, Scores.of(self.artifact), problem.neighbors)

    @property
    def ids(self) -> Ids | range:
        """The ids of the points."""
        return self.points.ids

    def column(self, wanted: str) -> int:
        """The column of a class, by its name or number."""
        column = self.classes.find(wanted)
        if column is not None:
            return column
        titles = [self.classes.title(index) for index in range(len(self.classes))]
        near = get_close_matches(wanted, titles, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {len(titles)}: {', '.join(titles[:_SHOWN])}, ..."
        raise BadOption(Parameter("class_", wanted), f": {self.name} has no such class. {hint}")

    def explain(self, rows: Sequence[int], column: int | None = None) -> list[Json]:
        """The true classes, the predicted class and the paths of some points; with `column`, only that class's paths."""
        predicted = self.points.predicted(rows)
        asked = [[column] if column is not None else self._classes_of(row, p) for row, p in zip(rows, predicted, strict=True)]
        questions = [Question(row, own) for row, columns in zip(rows, asked, strict=True) for own in columns]
        paths = find_paths(self.spreading, questions) if questions else {}
        return [
            {
                "iterations": self.iterations,
                "test" if self.points.role == "test" else "row": self._point(row, predicted[place]),
                "paths": [self._path(row, own, predicted[place], paths[Question(row, own)]) for own in asked[place]],
                "notes": self.points.notes(row, predicted[place]),
            }
            for place, row in enumerate(rows)
        ]

    def _classes_of(self, row: int, predicted: int) -> list[int]:
        """The true classes, then the predicted one if it is another."""
        return [column for column in dict.fromkeys([*self.points.true(row), predicted]) if column != UNLABELLED]

    def _point(self, row: int, predicted: int) -> Json:
        title = None if predicted == UNLABELLED else self.classes.title(predicted)
        identity = plain(self.points.ids, row)
        return {"role": self.points.role, "id": identity, "labels": self.points.titles(row), "predicted": title}

    def _path(self, row: int, column: int, predicted: int, path: Path | None) -> Json:
        score, rank = self.points.standing(row, column)
        return {
            "class": self.classes.title(column),
            "true": column in self.points.true(row),
            "predicted": column == predicted,
            "score": score,
            "rank": rank,
            "own_label": None if path is None else round(path.own, 6),
            "steps": []
            if path is None
            else [{**vars(self.nodes.name(s.node)), "iteration": s.iteration, "share": round(s.share, 6)} for s in path.steps],
        }


def _diffusion(store: Store, name: str, of_collection: bool) -> Artifact:
    """Current scores of a diffusion."""
    full = full_name(name)
    if store.id(full) is None:
        present = [other for other in store.names() if other.startswith("scores/")]
        if present:
            names = ", ".join(present)
            raise Missing(f"{full}: no such scores in the store {store.path} ({names}). Run first: ", call("diffuse"))
        if of_collection:
            raise Missing(f"{full}: nothing has been diffused yet. Run first: ", call("diffuse", predict_nodes=True))
        raise missing_scores(store, full, call("diffuse"))
    artifact = store.open_artifact(full)
    require_current(store, artifact)
    if artifact.manifest.kind != "scores" or artifact.manifest.parameters["method"] != "diffusion":
        made = artifact.manifest.parameters.get("method", artifact.manifest.kind)
        raise BadOption(Parameter("scores", name), f": made by {made}, which has no paths. Name the scores of a diffusion.")
    if not of_collection and "scores" not in artifact:
        raise missing_scores(store, artifact.name, artifact.run["command"])
    return artifact


def labels_file(artifact: Artifact) -> Json | None:
    """The fingerprint of the user's file that a diffusion took its labels from; None if they are those of the store."""
    given: Json = artifact.manifest.inputs.get("labels", {})
    return given if "source" in given else None


def _problem(store: Store, artifact: Artifact, labels: str | None) -> Problem:
    """The inputs of the diffusion, which must be those that it was run on."""
    given = labels_file(artifact)
    named = Parameter("labels", labels)
    if given is None and labels is not None:
        raise BadOption(named, f": {artifact.name} was made with the labels of the store. Leave it out.")
    if given is not None and labels is None:
        raise BadOption(
            f"{artifact.name} was made with ",
            Parameter("labels", given["source"]),
            ". Name that file here too: ",
            Parameter("labels", FILE),
        )
    if labels is not None:
        path = FilePath(labels.partition("::")[0])
        if not path.is_file():
            raise BadOption(named, f": no such file. Name the one that {artifact.name} was made with.")
        if fingerprint(path.name, [path]) != given:
            raise Stale(named, f": not what {artifact.name} was made with. {artifact.remedy}")
    return read_problem(store, labels, None)


def _seeds_of(problem: Problem, classes: Classes) -> Seeds:
    """The seeds of the classes that were diffused. A node whose labels are all of other classes was no seed."""
    if len(classes) == len(problem.classes):
        return problem.seeds
    chosen = problem.seeds.select(classes.columns_in(problem.classes))
    counts = np.diff(chosen.offsets)
    offsets = np.append(0, np.cumsum(counts[counts > 0])).astype(np.int64)
    return Seeds(chosen.nodes[counts > 0], offsets, chosen.columns, chosen.values[counts > 0], chosen.classes)
