"""The results that public calls return: `Scores` of rows for classes, and `Summary`, a dict that prints as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Missing, Parameter
from mmdiff.formats.store.store import Artifact
from mmdiff.labels.classes import UNLABELLED, Classes

_BLOCK_VALUES = 1 << 22


class Summary(dict[str, Any]):
    """The outcome of a call as plain values, which `json.dumps` takes; `str()` of it is text for people.

    >>> print(Summary(artifact="graph/W", facts={"nodes": 1000, "edges": 53214}))
    artifact: graph/W
    facts:
      nodes: 1,000
      edges: 53,214
    """

    def __str__(self) -> str:
        return "\n".join(_lines(self, ""))

    def _repr_html_(self) -> str:
        from mmdiff.notebook import summary_html

        return summary_html(self)


def _lines(value: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            lines += [f"{indent}{key}:", *_lines(inner, indent + "  ")]
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            for entry in inner:
                first, *rest = _lines(entry, indent + "    ")
                lines += [f"{indent}{key}:"] if entry is inner[0] else []
                lines += [f"{indent}  - {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}{key}: {_text(inner)}")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(_text, value)) or "-" if isinstance(value, (list, tuple)) else str(value) or "-"


class ScoreMatrix(NDArray[np.float32]):
    """A float32 array (rows, classes) that remembers which classes its columns are.

    Selecting rows keeps `classes`, so that `mmdiff.evaluate(result.scores[test], y[test])` compares the right columns;
    anything else that changes the columns forgets them.

    >>> scores = ScoreMatrix.of(np.eye(3, dtype=np.float32), np.array([2, 5, 9]))
    >>> scores[[0, 2]].classes
    array([2, 5, 9])
    >>> scores[:, :2].classes is None
    True
    """

    classes: NDArray[Any] | None = None

    @classmethod
    def of(cls, values: NDArray[Any], classes: NDArray[Any]) -> ScoreMatrix:
        """The same values, with the classes of their columns."""
        matrix = np.asarray(values).view(cls)
        matrix.classes = classes
        return matrix

    def __array_finalize__(self, parent: Any) -> None:
        classes = getattr(parent, "classes", None)
        same = classes is not None and self.ndim == 2 and self.shape[1] == len(classes) == parent.shape[-1]
        self.classes = classes if same else None


@dataclass(frozen=True, repr=False)
class Scores:
    """Scores of rows for classes: L of the paper, or what another classifier says.

    Attributes:
        scores: float32 array (rows, classes), after the last iteration.
        classes: what the columns are: class names, or class numbers where classes have no names.
        iterations: the iterations whose scores were kept; empty for methods without iterations.
        summary: what the run that made them reports.

    >>> import numpy as np
    >>> result = Scores(np.array([[0.2, 0.8], [0, 0]], np.float32), np.array(["cat", "dog"]))
    >>> result.predict()
    array(['dog', None], dtype=object)
    """

    scores: NDArray[np.float32]
    classes: NDArray[Any]
    iterations: tuple[int, ...] = ()
    summary: Summary = field(default_factory=Summary)
    _artifact: Artifact | None = None
    _zero_is_unreached: bool = True
    _earlier: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", ScoreMatrix.of(self.scores, self.classes))

    @classmethod
    def _of(cls, artifact: Artifact, summary: Summary) -> Scores:
        """The scores of an artifact; without test points, and of a model, they have no rows."""
        classes = class_titles(Classes.of(artifact))
        diffusion = artifact.manifest.parameters.get("method") == "diffusion"
        values = artifact.array("scores")[-1] if "scores" in artifact else np.empty((0, len(classes)), np.float32)
        kept = tuple(artifact.manifest.facts["planes"]) if diffusion else ()
        return cls(values, classes, kept, summary, artifact, diffusion)

    def at(self, iteration: int) -> NDArray[np.float32]:
        """The scores after one of the `iterations` that were kept.

        Args:
            iteration: its number; 0 is before the first.

        >>> Scores(np.zeros((3, 2), np.float32), np.arange(2), (5,)).at(5).shape
        (3, 2)
        """
        if iteration not in self.iterations:
            known = ", ".join(map(str, self.iterations)) or "none"
            raise BadOption(Parameter("iteration", iteration), f": the scores of this iteration were not kept. Kept: {known}.")
        kept = self._artifact.array("scores") if self._artifact is not None else self._earlier
        return self.scores if kept is None else ScoreMatrix.of(kept[self.iterations.index(iteration)], self.classes)

    def predict(self) -> NDArray[Any]:
        """The best class of each row; -1, or None where classes have names, for rows that no label has reached.

        Of equal scores the class that comes first in `classes` wins.

        >>> Scores(np.array([[0, 3], [0, 0]], np.float32), np.array([10, 20])).predict()
        array([20, -1])
        """
        best = np.empty(len(self.scores), np.int64)
        step = max(1, _BLOCK_VALUES // max(1, self.scores.shape[1]))
        for start in range(0, len(best), step):
            block = self.scores[start : start + step]
            columns = block.argmax(axis=1)
            reached = block.max(axis=1) > 0 if self._zero_is_unreached else np.ones(len(block), bool)
            best[start : start + step] = np.where(reached, columns, UNLABELLED)
        return _named(best, self.classes)

    def predict_background(self) -> NDArray[Any]:
        """The best class of each row of the background, then of those appended to it, of a diffusion with `predict_nodes`.

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(200, 8)) + 6 * np.eye(8)[np.arange(2).repeat(100)]
        >>> y = np.full(200, -1); y[[0, 100]] = [7, 9]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, labels=y), store.build_graph(k=10)
        ...     predicted = store.diffuse(predict_nodes=True).predict_background()
        >>> predicted[[1, 101]]
        array([7, 9])
        """
        if self._artifact is None or "top_classes" not in self._artifact:
            raise Missing(
                "these scores were made without predictions for the background. Diffuse with ",
                Parameter("predict_nodes", True),
                ".",
            )
        best = self._artifact.index_array("top_classes", below=len(self.classes), none=UNLABELLED)[:, 0]
        return _named(best.astype(np.int64), self.classes)

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        name = "" if self._artifact is None else f"{self._artifact.name}, "
        kept = f", iterations {', '.join(map(str, self.iterations))}" if self.iterations else ""
        return f"Scores({name}{len(self.scores):,} rows, {len(self.classes):,} classes{kept})"

    def _repr_html_(self) -> str:
        from mmdiff.notebook import scores_html

        return scores_html(self)


def class_titles(classes: Classes) -> NDArray[Any]:
    """The names of classes, or their numbers where they have none."""
    if classes.names is not None:
        return np.array(classes.names, dtype=np.str_)
    return np.empty(0, np.int64) if classes.numbers is None else np.array(classes.numbers)


def _named(columns: NDArray[np.int64], classes: NDArray[Any]) -> NDArray[Any]:
    """Classes of columns; -1 or None for none."""
    if classes.dtype.kind in "iu":
        return np.asarray(np.append(classes, UNLABELLED)[columns])
    titles = np.empty(len(classes) + 1, object)
    titles[:-1] = classes
    return titles[columns]


class Evaluation(Summary):
    """Accuracies; prints one line for each k, or a table of all scores of a store."""

    def __str__(self) -> str:
        if "scores" not in self:
            return "\n".join(_accuracy_lines(self, f"{self['points']:,} points"))
        lines: list[str] = []
        for found in self["scores"]:
            for step in found["iterations"]:
                iteration = "" if step["iteration"] is None else f", iteration {step['iteration']}"
                title = f"{found['artifact']}{iteration}, {_points(found)}"
                lines += _accuracy_lines(step["all"] or {}, title)
        return "\n".join([*lines, *self["notes"]])

    def _repr_html_(self) -> str:
        from mmdiff.notebook import evaluation_html

        return evaluation_html(self)


def _points(found: dict[str, Any]) -> str:
    """The points of an evaluation, which has test points or held-out rows."""
    if "test" in found:
        return f"{found['test']['labelled']:,} test points"
    return f"{found['held_out']['labelled']:,} held-out rows"


def _accuracy_lines(figures: dict[str, Any], title: str) -> Sequence[str]:
    shown = [
        f"top-{name[3:]} {100 * figure['accuracy']:.1f} % ({100 * figure['low']:.1f} to {100 * figure['high']:.1f})"
        for name, figure in figures.items()
        if name.startswith("top")
    ]
    return [f"{title}: {', '.join(shown) or 'no labelled points'}"]
