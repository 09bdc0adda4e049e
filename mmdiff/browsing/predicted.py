"""Predictions for a page of rows, read from its best classes and a calibration that was found before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmdiff.browsing.rows import Place
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.prediction.calibration import Calibration
from mmdiff.prediction.rows import margins_of, second_confidences, shares_of
from mmdiff.prediction.sources import best_of

NAME = "scores/diffusion"

NOTHING: Json = {"label": None, "confidence": None, "margin": None, "second": None, "second_confidence": None}


class Predicted:
    """The scores of a diffusion over the graph as it is. They may be of labels that have changed since."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self.classes = artifact, Classes.of(artifact)
        self._arrays = {name: artifact[name] for name in ("top_classes", "top_scores", "scores") if name in artifact}

    @classmethod
    def of(cls, store: Store) -> Predicted | None:
        """Those of the store; None where there are none for the graph that it has now."""
        if store.id(NAME) is None:
            return None
        artifact = store.open_artifact(NAME)
        manifest = artifact.manifest
        fits = manifest.kind == "scores" and manifest.parameters.get("method") == "diffusion"
        return cls(artifact) if fits and manifest.inputs["W"]["object"] == store.id(GRAPH) else None

    def of_rows(self, places: Sequence[Place], collection: int, calibration: Calibration | None) -> list[Json]:
        """The best two classes of each row, with margin and confidences; nothing for rows that the scores do not have."""
        found = []
        for place in places:
            best = self._best(place, collection)
            found.append(dict(NOTHING) if best is None else self._shown(best, calibration))
        return found

    def _best(self, place: Place, collection: int) -> TopClasses | None:
        if place.test:
            scores = self._arrays.get("scores")
            if scores is None or place.row >= scores.shape[1]:
                return None
            return best_of(np.asarray(scores[-1, place.row], np.float32)[None], "diffusion")
        top = self._arrays.get("top_classes")
        if top is None or len(top) != collection or place.row >= collection:
            return None
        rows = slice(place.row, place.row + 1)
        return TopClasses(top[rows], self._arrays["top_scores"][rows])

    def _shown(self, best: TopClasses, calibration: Calibration | None) -> Json:
        shares, columns = shares_of(best.scores), best.classes[0].tolist()
        margin = margins_of(shares)
        if not 0 <= columns[0] < len(self.classes):
            return dict(NOTHING)
        found = dict(NOTHING) | {"label": self.classes.title(columns[0]), "margin": _rounded(margin[0])}
        second = columns[1] if len(columns) > 1 and 0 <= columns[1] < len(self.classes) else UNLABELLED
        if second != UNLABELLED:
            found["second"] = self.classes.title(second)
        if calibration is not None:
            confidence = calibration.confidence(margin)
            found["confidence"] = _rounded(confidence[0])
            if second != UNLABELLED:
                found["second_confidence"] = _rounded(second_confidences(confidence, shares)[0])
        return found


def _rounded(value: float) -> float:
    return round(float(value), 6)
