"""`mmdiff predict`: a class with a calibrated confidence for each row of the collection, then for each test point.

The best classes of the rows of the collection are those that the scores hold; of the scores of a test point as many count. The
confidences are calibrated on `folds/NAME`, the scores of labelled rows whose own label was not used; where it is missing or
stale it is made first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.scores import full_name
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption, Parameter, Placeholder, call, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.prediction.calibration import Calibration
from mmdiff.prediction.class_shift import Evidence, HeldOutPredictions, PredictionCounts
from mmdiff.prediction.held_out import Making, held_out
from mmdiff.prediction.rows import Block, Tally, has_string_ids
from mmdiff.prediction.sources import ROWS, Rows, Source, read_source
from mmdiff.prediction.writing import WRITERS, ArrowBlocks, Form, Opening, writer_of
from mmdiff.runtime.parameters import number, text
from mmdiff.runtime.progress import Progress, silent
from mmdiff.text import count

# Bytes of a row of the table in memory, beside its id.
_ROW_BYTES = 64

# With fewer held-out rows, the user is told that confidences are hardly told apart.
_FEW = 50


@dataclass(frozen=True)
class Request:
    """Predictions to make. Those with less than `min_confidence` get no label."""

    scores: str = "diffusion"
    min_confidence: float = 0.0
    rows: Rows = "all"
    memory: int = 8 << 30
    command: str = "mmdiff predict"


class Predictions:
    """All predictions of a request: rows in blocks, and what is known about them when all have been read."""

    def __init__(self, source: Source, held_out: HeldOutPredictions, least: float, progress: Progress) -> None:
        self.source, self.held_out, self.least, self._progress = source, held_out, least, progress
        self.form = Form(source.classes, source.iteration, has_string_ids(source.parts))
        self._tally = Tally()

    @cached_property
    def evidence(self) -> Evidence:
        """The held-out rows, weighted where classes have very different numbers of labels."""
        if self.held_out.alike or not len(self.held_out):
            return self.held_out.unweighted()
        counts = PredictionCounts(len(self.held_out.labels_per_class))
        for part in self.source.parts:
            part.count(counts)
        return self.held_out.weighted(counts)

    @cached_property
    def calibration(self) -> Calibration:
        return self.evidence.calibration(self.source.score_classes)

    def blocks(self) -> Iterator[Block]:
        """All rows: the collection, then the test points."""
        with self._progress("predicting", self.source.rows, "rows") as advance:
            for part in self.source.parts:
                for block in part.blocks(self.calibration, self.form.string_ids):
                    shown = block.with_min_confidence(self.least)
                    self._tally.add(shown)
                    yield shown
                    advance(len(shown))

    def summary(self) -> Json:
        """Counts of the rows, the expected precision, and what held-out rows say."""
        tally = self._tally
        predicted = tally.rows - tally.given
        return {
            "scores": self.source.scores.name,
            "rows": tally.rows,
            "given": tally.given,
            "labelled": tally.labelled,
            "unlabelled": predicted - tally.labelled,
            "unreached": tally.unreached,
            "min_confidence": self.least,
            "labelled_share": _rounded(tally.labelled / predicted if predicted else None),
            "expected_precision": _rounded(tally.expected_precision),
            "highest_confidence": _rounded(self.calibration.highest),
            "held_out": self._judged(),
            "notes": self._notes(),
        }

    def _judged(self) -> Json:
        """The held-out rows, each with the confidence that others give it: how many get a label, and the share that is right.

        Shares are those of the rows to predict: they take the weights of the rows.
        """
        evidence, rows = self.evidence, len(self.held_out)
        labelled = evidence.confidences(self.source.score_classes) >= self.least
        right, weights = self.held_out.right, evidence.weights[:rows]
        return {
            "rows": rows,
            "accuracy": _mean(right, weights),
            "labelled": int(labelled.sum()),
            "precision": _mean(right[labelled], weights[labelled]),
        }

    def _notes(self) -> list[str]:
        rows, highest = len(self.held_out), self.calibration.highest
        notes = []
        if not rows:
            notes.append(
                "no label could be held out, so that every confidence is that of a guess among "
                f"{self.source.score_classes:,} classes, {highest:.4g}. Label at least two rows of a class."
            )
        elif rows < _FEW:
            notes.append(
                f"confidences rest on {count(rows, 'held-out label')}: they stay near their accuracy, and none is above "
                f"{highest:.3f}. More labels tell rows apart."
            )
        if rows and self.held_out.unknown:
            unknown = count(self.held_out.unknown, "class", "classes")
            notes.append(
                f"no label can be held out of {unknown} with far fewer labels than the others: predictions of such classes "
                "count as wrong in the confidences. Label at least two rows of each."
            )
        if self.least > highest:
            notes.append(
                f"no prediction reaches a confidence of {self.least:g}: the held-out labels support at most {highest:.3f}."
            )
        return notes


@explaining
def predict(path: Path, request: Request, target: Path | IO[bytes], progress: Progress = silent) -> Json:
    """Writes the predictions to a file, which is replaced once the new one is complete, or as CSV to a stream."""
    clock = time.perf_counter()
    request, store = _checked(request), Store.open(path)
    if not isinstance(target, Path):
        predictions = prepare(store, request, progress)
        _write(predictions, target, WRITERS[".csv"])
        return {"file": None, "seconds": round(time.perf_counter() - clock, 3), **predictions.summary()}
    opening = writer_of(target)
    check_place(target, store)
    predictions = prepare(store, request, progress)
    with whole_file(target) as stream:
        _write(predictions, stream, opening)
    written = {"file": str(target), "bytes": target.stat().st_size, "seconds": round(time.perf_counter() - clock, 3)}
    return written | predictions.summary()


@explaining
def predict_table(path: Path, request: Request, progress: Progress = silent) -> Any:
    """The predictions as an Arrow table in memory, with the summary as JSON in the metadata of its schema."""
    request, store = _checked(request), Store.open(path)
    predictions = prepare(store, request, progress)
    source = predictions.source
    needed = sum(_ROW_BYTES * part.rows + _id_bytes(part.ids) for part in source.parts)
    if needed > request.memory:
        raise BadOption(
            Parameter("memory", request.memory),
            f": a table of {source.rows:,} rows takes about {needed:,} bytes. Allow more, or write it to a file: ",
            call("predict", Placeholder("FILE.parquet")),
        )
    blocks = ArrowBlocks(predictions.form, "a table of predictions")
    table = blocks.table(predictions.blocks())
    return table.replace_schema_metadata({"mmdiff": json.dumps(predictions.summary())})


def prepare(store: Store, request: Request, progress: Progress) -> Predictions:
    """Reads and checks the scores, and the held-out rows that the confidences rest on."""
    source = read_source(store, full_name(request.scores), request.rows)
    known = held_out(Making(store, request.memory, request.command, progress), source)
    return Predictions(source, known, request.min_confidence, progress)


def _write(predictions: Predictions, stream: IO[bytes], opening: Opening) -> None:
    with opening(stream, predictions.form) as writer:
        for block in predictions.blocks():
            writer.write(block)


def _checked(request: Request) -> Request:
    one_of("rows", request.rows, ROWS)
    least = number("min_confidence", request.min_confidence, 0, 1, "For example 0.9.")
    return replace(request, min_confidence=least, scores=text("scores", request.scores))


def _id_bytes(ids: Any) -> int:
    return 4 * len(ids.offsets) + len(ids.utf8) if isinstance(ids, Strings) else 8 * len(ids)


def _mean(right: NDArray[np.bool_], weights: NDArray[np.float64]) -> float | None:
    return _rounded(float(weights[right].sum() / weights.sum())) if weights.sum() else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
