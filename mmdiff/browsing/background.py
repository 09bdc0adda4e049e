"""The process that computes for the page: diffusion, held-out scores, predictions in figures, suggestions.

It reads jobs from stdin and writes what it finds to stdout, a line each. Ctrl-C (SIGINT) ends a job as it ends a command, and
the process waits for the next one; when the page goes away, stdin ends, and so does the process, wherever it is. Both leave
the store sound, since everything goes through the publication that commands use.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.browsing.messages import line_of, message_of, parts_to_json
from mmdiff.browsing.predicted import NAME as SCORES
from mmdiff.diffusion.prepared import Request as DiffusionRequest
from mmdiff.diffusion.problem import open_graph
from mmdiff.diffusion.stage import diffuse
from mmdiff.evaluation.metrics import SEED, bootstrap_interval
from mmdiff.formats.errors import BadOption, DiskError, Missing, MmdiffError, Part
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.store.gc import discard
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED
from mmdiff.labels.label_set import find_label_set
from mmdiff.labels.rows_by_id import RowsById
from mmdiff.prediction.rows import BLOCK_ROWS, margins_of, shares_of
from mmdiff.prediction.stage import Predictions, prepare
from mmdiff.prediction.stage import Request as PredictRequest
from mmdiff.runtime.threads import limit_cores
from mmdiff.suggestion.stage import Request as SuggestRequest
from mmdiff.suggestion.stage import suggest_columns
from mmdiff.validation.evaluation import request_of
from mmdiff.validation.held_out import full_name

CONFIDENT = 0.9
"""The confidence above which predictions are counted."""

# Figures of progress are sent so often.
_SECONDS = 0.2

# The page answers first.
_NICENESS = 5

Tell = Callable[[Json], None]


class Rounds:
    """The work of one store: `run` does a job, and tells what it finds as it goes."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        # Objects that this page made, or has replaced.
        self._ours: list[str] = []
        self._stage = ""

    def run(self, job: Json) -> None:
        """Spreads the labels, judges the result on held-out labels, and suggests rows to label next."""
        path = Path(job["store"])
        limit_cores(job["threads"])
        store = Store.open(path)
        labelled = len(find_label_set(store, open_graph(store)).rows) if job["spread"] else 0
        if labelled:
            self._spread(path, job, labelled)
        for by, count in job["suggest"].items():
            self._suggest(path, job, by, count)
        self._tidy(store, job)

    def _spread(self, path: Path, job: Json, labelled: int) -> None:
        self._enter("diffusing")
        store = Store.open(path)
        outcome = diffuse(path, _request(store, job), self._progress)
        self._note(outcome.artifact, reused=outcome.reused)
        self._tell({"scores": outcome.artifact.id})
        self._enter("evaluating")
        before = store.object_name(full_name(SCORES))
        request = PredictRequest(rows="collection", memory=job["memory"], command=job["evaluate"])
        predictions = prepare(store, request, self._progress)
        name = full_name(SCORES)
        if store.object_name(name) not in (None, before):
            self._note(store.open_artifact(name), reused=False)
        calibration = predictions.calibration
        self._tell(
            {
                "judged": outcome.artifact.id,
                "labelled": labelled,
                "margins": calibration.margins.tolist(),
                "confidences": calibration.confidences.tolist(),
                "accuracy": _accuracy(store, predictions),
                **_figures(predictions),
            }
        )

    def _suggest(self, path: Path, job: Json, by: str, count: int) -> None:
        self._enter("suggesting")
        clock = time.monotonic()
        request = SuggestRequest(count, by, memory=job["memory"])  # type: ignore[arg-type]
        try:
            columns, _ = suggest_columns(path, request, self._progress)
        except (Missing, BadOption) as error:
            # There is nothing to suggest, or not in this way.
            self._tell({"suggestions": [], "by": by, "asked": count, "seconds": 0.0, "note": parts_to_json(error.parts)})
            return
        values = {column.name: list(column.values) for column in columns}
        ids = values.pop("id")
        rows = RowsById.of(Store.open(path)).find(column_of(ids, "suggestions").values).tolist() if ids else []
        kept = ("rank", "reaches", "gain", "nearest", "nearest_label", "similarity")
        entries = [{"row": row, **{name: values[name][place] for name in kept}} for place, row in enumerate(rows) if row >= 0]
        seconds = time.monotonic() - clock
        self._tell({"suggestions": entries, "by": by, "asked": count, "seconds": seconds, "note": None})

    def _tidy(self, store: Store, job: Json) -> None:
        """Removes what this page made and has replaced: one diffusion for each label would fill the disk."""
        named = {store.object_name(name) for name in store.names()}
        self._ours = list(dict.fromkeys([*self._ours, *job["replaced"]]))
        old = [name for name in self._ours if name not in named]
        # Another run is writing, or the disk refuses: the next round tries again, or the garbage collection.
        with suppress(MmdiffError):
            discard(store, old)
        self._ours = [name for name in self._ours if (store.objects / name).exists()]

    def _note(self, artifact: Artifact, *, reused: bool) -> None:
        if not reused:
            self._ours.append(artifact.object_name)

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._tell({"stage": stage, "done": None})

    @contextmanager
    def _progress(self, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:  # noqa: ARG002
        done, clock = 0, time.monotonic()

        def advance(count: int) -> None:
            nonlocal done, clock
            done += count
            if total and time.monotonic() - clock > _SECONDS:
                clock = time.monotonic()
                self._tell({"stage": self._stage, "done": round(min(1.0, max(0.0, done / total)), 3)})

        yield advance


def _request(store: Store, job: Json) -> DiffusionRequest:
    """The diffusion of the store with its options, over all classes and for all rows; without one, with the defaults."""
    plain = DiffusionRequest(predict_nodes=True, memory=job["memory"], command=job["diffuse"])
    if store.id(SCORES) is None:
        return plain
    made = store.open_artifact(SCORES)
    parameters = made.manifest.parameters
    if parameters.get("method") != "diffusion":
        return plain
    # Classes come with their labels, and a prior was one for the classes there were.
    asked = request_of(made, job["memory"], made.run["command"] if parameters.get("predict_nodes") else job["diffuse"])
    return replace(asked, predict_nodes=True, classes=None, prior=plain.prior, keep_scores=parameters.get("keep_scores", "all"))


def _accuracy(store: Store, predictions: Predictions) -> Json | None:
    """The accuracy on held-out labels, with its interval; None where no label could be held out."""
    if not len(predictions.held_out) or store.id(full_name(SCORES)) is None:
        return None
    facts = store.open_artifact(full_name(SCORES)).manifest.facts
    at = facts["planes"].index(predictions.source.iteration)
    top1, rows = facts["curve"][at]["top1"], int(facts["rows"])
    low, high = bootstrap_interval(round(top1 * rows), rows, SEED)
    return {"top1": top1, "low": round(low, 6), "high": round(high, 6), "rows": rows}


def _figures(predictions: Predictions) -> Json:
    """The rows that labels have reached, the predictions of each class, and the share of those that are confident."""
    source, calibration = predictions.source, predictions.calibration
    counts = np.zeros(len(source.classes), np.int64)
    rows = reached = open_rows = confident = 0
    for part in source.parts:
        for start in range(0, part.rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, part.rows)
            best, left = part.best(start, stop), np.ones(stop - start, bool)
            first = best.classes[:, 0]
            rows, reached = rows + len(first), reached + int((first != UNLABELLED).sum())
            left[part.given.of(start, stop)[0]] = False
            open_rows += int(left.sum())
            left &= first != UNLABELLED
            counts += np.bincount(first[left], minlength=len(counts))
            confident += int((calibration.confidence(margins_of(shares_of(best.scores[left]))) >= CONFIDENT).sum())
    titles = {source.classes.title(place): int(count) for place, count in enumerate(counts.tolist())}
    share = round(confident / open_rows, 6) if open_rows else None
    return {
        "coverage": {"reached": reached, "rows": rows},
        "predicted": titles,
        "confident": None if share is None else {"share": share, "at": CONFIDENT},
    }


class _Jobs:
    """The lines of stdin. The process ends where they do."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._lines.put(line)
        # The page is gone. Drafts are left as by a killed command.
        os._exit(0)

    def next(self) -> Json:
        return message_of(self._lines.get())


def main() -> None:
    """Does one job after the other until stdin ends."""
    working = False

    def interrupted(*_: Any) -> None:
        if working:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    with suppress(OSError):
        os.nice(_NICENESS)
    out, jobs, number = sys.stdout.buffer, _Jobs(), 0

    def tell(message: Json) -> None:
        out.write(line_of({"job": number, **message}))
        out.flush()

    rounds = Rounds(tell)
    while True:
        job = jobs.next()
        number = job["job"]
        try:
            working = True
            rounds.run(job)
            working = False
            tell({"ended": "finished"})
        except KeyboardInterrupt:
            working = False
            tell({"ended": "interrupted"})
        except MmdiffError as error:
            working = False
            tell({"ended": type(error).__name__, "error": parts_to_json(error.parts)})
        except (OSError, MemoryError, RuntimeError) as error:
            working = False
            tell({"ended": DiskError.__name__, "error": parts_to_json(_reason(error))})


def _reason(error: Exception) -> tuple[Part, ...]:
    if isinstance(error, MemoryError):
        return ("The machine, or a limit on this process, grants no more memory. Free some, or allow less.",)
    return (f"The system refuses ({error}). Check the disk and the limits of this process.",)
