"""Late fusion of rows of the collection, of which scores keep the best few classes; and its weight, chosen on held-out labels.

A class that was not kept counts as one that no label has reached: as half the smallest score of its row (`late.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.top_classes import TopClasses, write_top_classes
from mmdiff.formats.errors import BadLabels, CountMismatch, Parameter
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.fusion.late import WEIGHTS, fuse, hits_by_weight, log_of_scores, probabilities, rows_at_a_time
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.runtime.progress import Progress
from mmdiff.validation.evaluation import options_of, request_of
from mmdiff.validation.held_out import HeldOut
from mmdiff.validation.stage import Scheme, validate_diffusion, validate_logreg

TOPS = (1, 5)


@dataclass(frozen=True)
class KeptClasses:
    """The best classes of each row of the collection in some scores."""

    top: TopClasses
    classes: int

    @classmethod
    def of(cls, artifact: Artifact) -> KeptClasses:
        classes = Classes.of(artifact)
        return cls(TopClasses(labels_of(artifact, classes, "top_classes"), artifact.array("top_scores")), len(classes))

    def __len__(self) -> int:
        return len(self.top.classes)

    def logs(self, start: int, stop: int) -> NDArray[np.float64]:
        """Log-probabilities of rows start..stop-1 for all classes."""
        top, scores = self.top.classes[start:stop], self.top.scores[start:stop]
        rows, places = np.nonzero(top != UNLABELLED)
        values = np.zeros((len(top), self.classes), np.float32)
        values[rows, top[rows, places]] = scores[rows, places]
        return log_of_scores(values)


def write_rows(draft: Draft, first: KeptClasses, second: KeptClasses, weight: float, progress: Progress) -> None:
    """Writes the best classes of the fusion of each row, and their probabilities."""

    def fused(start: int, stop: int) -> NDArray[np.float32]:
        return probabilities(fuse(first.logs(start, stop), second.logs(start, stop), weight))

    with progress("fusing the collection", len(first), "rows") as advance:
        write_top_classes(draft, len(first), first.classes, fused, rows_at_a_time(first.classes), advance)


@dataclass(frozen=True)
class Weighing:
    """Held-out scores of two classifiers for the same labelled rows."""

    logs: tuple[NDArray[np.float64], NDArray[np.float64]]
    labels: NDArray[np.int32]

    @classmethod
    def of(
        cls, store: Store, pair: Sequence[tuple[Artifact, int | None]], memory: int, command: str, progress: Progress
    ) -> Weighing:
        """Makes the held-out scores of two artifacts, each at its iteration, where they are missing."""
        found = [_held_out(store, artifact, memory, command, progress) for artifact, _ in pair]
        if not np.array_equal(found[0].rows, found[1].rows) or not np.array_equal(found[0].fold, found[1].fold):
            raise CountMismatch(
                f"{found[0].artifact.name} and {found[1].artifact.name} hold different rows out. Make both scores again, of "
                "all classes."
            )
        logs = []
        for held_out, (artifact, iteration) in zip(found, pair, strict=True):
            if held_out.method == "diffusion":
                taken = artifact.manifest.parameters["iterations"] if iteration is None else iteration
                logs.append(log_of_scores(held_out.scores[held_out.iterations.index(taken)]))
            else:
                logs.append(np.asarray(held_out.scores[0], np.float64))
        return cls((logs[0], logs[1]), found[0].labels)

    def curve(self) -> list[Json]:
        """The accuracies on the held-out rows at each weight."""
        shares = hits_by_weight(*self.logs, self.labels, TOPS) / len(self.labels)
        return [
            {"weight": weight} | {f"top{k}": round(float(share), 6) for k, share in zip(TOPS, row, strict=True)}
            for weight, row in zip(WEIGHTS, shares, strict=True)
        ]


def _held_out(store: Store, artifact: Artifact, memory: int, command: str, progress: Progress) -> HeldOut:
    method, name = artifact.manifest.parameters["method"], artifact.name.partition("/")[2]
    if method == "diffusion":
        made = validate_diffusion(store.path, request_of(artifact, memory, command), Scheme(), progress)
    elif method == "logreg":
        model = store.open_artifact(artifact.manifest.inputs["model"]["artifact"])
        made = validate_logreg(store.path, options_of(model), Scheme(), name, command, progress)
    else:
        raise BadLabels(
            Parameter("tune", True), f": {artifact.name} is a {method}, whose scores cannot be held out. Give a weight instead."
        )
    return HeldOut.of(made.artifact)
