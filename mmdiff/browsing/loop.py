"""The labelling loop: labels are saved at once; after a pause the labels spread again, in a process of its own.

`label` and `undo` change `labels/current` as `mmdiff label` does, and answer when it is on disk. A thread watches the names of
the store: where this page or another program has changed the labels, the rows or the graph since the last results, it waits
for a pause and lets the process compute. Newer labels interrupt it, unless it has not come to an end for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmdiff.browsing.lists import BY, Lists
from mmdiff.browsing.messages import parts_of_json
from mmdiff.browsing.process import Process
from mmdiff.browsing.reading import Reader
from mmdiff.browsing.recording import Recorder
from mmdiff.browsing.rows import TEST, Place
from mmdiff.formats.errors import BadOption, Locked, MmdiffError, Parameter, Part, one_of
from mmdiff.formats.store.manifest import Json
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.labels.collection import APPENDED, BACKGROUND
from mmdiff.labels.journal import NAME as LABELS
from mmdiff.labels.rows_by_id import SEEDS
from mmdiff.prediction.calibration import Calibration

PAUSE = 1.0
"""Seconds without a new label, after which labels spread again."""

# Seconds for which newer labels may keep interrupting: until there are new predictions, and until everything is new.
_PATIENCE, _LONG_PATIENCE = 10.0, 30.0

# Seconds after which names are looked at again, while nothing, and while something happens.
_IDLE, _BUSY = 1.0, 0.1

# Seconds that an interrupted job gets to end.
_TO_END = 5.0

# Seconds after which work that another run held up is tried again.
_AGAIN = 3.0

_INPUTS = (BACKGROUND, APPENDED, SEEDS, TEST, GRAPH, "knn/test", LABELS)

_MOST_BALANCE = 500

Told = Callable[[tuple[Part, ...] | None], str | None]
Inputs = tuple[str | None, ...]


@dataclass(frozen=True)
class Settings:
    """The settings of the process: bytes of memory, threads, and the commands that artifacts record."""

    memory: int
    threads: int
    label: str
    diffuse: str
    evaluate: str


@dataclass
class Results:
    """The results known so far. Each part stays until there is a newer one."""

    accuracy: Json | None = None
    coverage: Json | None = None
    confident: Json | None = None
    predicted: dict[str, int] | None = None
    history: list[Json] = field(default_factory=list)


class LabellingLoop:
    """Labels, and the results that follow them."""

    def __init__(self, reader: Reader, settings: Settings) -> None:
        self._reader, self._settings = reader, settings
        self._path = reader.store.path
        self.recorder = Recorder(reader, settings.label, self._note)
        self._condition = threading.Condition()
        self._process: Process | None = None
        self._stopping = False
        self._job = 0
        # The inputs as they were last seen, those that everything was tried for, and the times that belong to them.
        self._seen: Inputs | None = None
        self._tried: Inputs | None = None
        self._changed = time.monotonic() - PAUSE
        # Since when predictions, and everything, are not those of the inputs; None while they are.
        self._old_scores: float | None = self._changed
        self._old_round: float | None = self._changed
        self._retry: float | None = None
        self._names: tuple[Any, ...] = ()
        self._version = 1
        self._replaced: list[str] = []
        self._lists = Lists()
        self._results = Results()
        self._state = "idle"
        self._stage: str | None = None
        self._done: float | None = None
        self._message: tuple[Part, ...] | None = None
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="labelling loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and the process, wherever they are."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._process is not None:
            self._process.kill()

    def _note(self, before: str | None) -> None:
        """Notes which labels were replaced by the page, and that there are newer ones."""
        with self._condition:
            if before is not None and before != self._reader.store.object_name(LABELS):
                self._replaced.append(before)
            self._condition.notify_all()

    # What the page asks for

    def predicted_counts(self) -> dict[str, int] | None:
        """The rows that are predicted to be of each class."""
        return self._results.predicted

    def suggestions(self, by: str, start: int, count: int) -> Json:
        """A page of the list of rows to label next; one that is not there yet is asked for."""
        one_of("by", by, BY)
        with self._condition:
            if self._lists.want(by, start + count):
                self._condition.notify_all()
            listed = self._lists.get(by)
            old = listed is None or listed.inputs != self._inputs()
            computing = old and self._state != "failed" and self._reader.missing() is None
            if listed is not None and listed.note is not None and not old and by != BY[0]:
                raise BadOption(Parameter("by", by), ": ", *listed.note)
            entries = [] if listed is None else listed.entries[start : start + count]
            total, version = (0, 0) if listed is None else (len(listed.entries), listed.version)
        reader = self._reader
        entries = [entry for entry in entries if reader.has(Place(entry["row"]))]
        shown = reader.describe([Place(entry["row"]) for entry in entries])
        twins = [[each.row for each in reader.duplicates.others(Place(entry["row"])) if not each.test] for entry in entries]
        rows = [row | entry | {"group": others} for row, entry, others in zip(shown, entries, twins, strict=True)]
        return {"total": total, "computing": computing, "version": version, "rows": rows}

    def status(self, told: Told) -> Json:
        """Where everything stands."""
        counts, given = self.recorder.counts(), self._reader.given
        with self._condition:
            self._look()
            results = self._results
            message = self._message
            if message is None and self._state == "idle":
                message = self._reader.missing()
            return {
                "version": self._version,
                **counts,
                "balance": [
                    {"label": label, "given": count} for label, count in given.counts.most_common(_MOST_BALANCE) if count > 0
                ],
                "state": self._state,
                "stage": self._stage,
                "done": self._done,
                "message": told(message),
                "accuracy": results.accuracy,
                "coverage": results.coverage,
                "confident": results.confident,
                "since": round(time.monotonic() - self._since, 1),
                "history": results.history,
            }

    # The thread

    def _inputs(self) -> Inputs:
        return tuple(self._reader.store.object_name(name) for name in _INPUTS)

    def _look(self) -> None:
        """Sees what has changed in the store."""
        names, inputs = self._reader.names(), self._inputs()
        if names != self._names:
            self._names = names
            self._version += 1
        if inputs != self._seen:
            if self._seen is not None:
                self._changed = time.monotonic()
                self._old_scores = self._old_scores or self._changed
                self._old_round = self._old_round or self._changed
                if self._state in ("idle", "failed"):
                    self._enter("waiting")
            self._seen = inputs

    def _enter(self, state: str, stage: str | None = None, done: float | None = None) -> None:
        if state != self._state:
            self._since = time.monotonic()
        if state != "failed":
            self._message = None
        self._state, self._stage, self._done = state, stage, done

    def _watch(self) -> None:
        while not self._stopping:
            try:
                with self._condition:
                    self._look()
                    due = self._is_due()
                if due:
                    self._compute()
                    continue
            except (MmdiffError, OSError) as error:
                if self._process is not None:
                    self._process.kill()
                    self._process = None
                parts = error.parts if isinstance(error, MmdiffError) else (f"The system refuses ({error.strerror}).",)
                with self._condition:
                    self._fail(parts, _AGAIN)
            with self._condition:
                if not self._stopping:
                    self._condition.wait(_BUSY if self._state == "waiting" else _IDLE)

    def _is_due(self) -> bool:
        """Whether there is something to compute, and it is time."""
        now = time.monotonic()
        if self._retry is not None and now >= self._retry:
            self._retry, self._tried = None, None
        failed = self._tried == self._seen and self._state == "failed"
        new = self._tried != self._seen or (bool(self._lists.missing(self._seen)) and not failed)
        if new and self._reader.missing() is not None:
            self._tried = self._seen
            self._enter("idle")
            return False
        if new and now < self._changed + PAUSE:
            return False
        if not new and self._state == "waiting":
            self._enter("idle")
        return new

    def _compute(self) -> None:
        """One job, from beginning to end; what it finds is noted as it comes."""
        with self._condition:
            inputs, spread = self._seen, self._tried != self._seen
            assert inputs is not None
            self._job += 1
            self._tried, self._retry = inputs, None
            replaced, self._replaced = self._replaced, []
            self._enter("running", "starting")
        settings = self._settings
        job = {
            "job": self._job,
            "store": str(self._path.absolute()),
            "memory": settings.memory,
            "threads": settings.threads,
            "diffuse": settings.diffuse,
            "evaluate": settings.evaluate,
            "spread": spread,
            "suggest": self._lists.missing(inputs),
            "replaced": replaced,
        }
        if self._process is None or not self._process.alive:
            self._process = Process()
        self._process.send(job)
        interrupted: float | None = None
        while True:
            message = self._process.next(_BUSY)
            with self._condition:
                if message is None and not self._process.alive:
                    self._lost(inputs)
                    return
                if message is not None and message["job"] == self._job:
                    if "ended" in message:
                        self._end(message, inputs, finished_round=spread)
                        return
                    self._take(message, inputs)
                self._look()
                newer = self._seen != inputs
            if self._stopping:
                self._process.kill()
                return
            if newer and interrupted is None and self._may_interrupt():
                interrupted = time.monotonic()
                self._process.interrupt()
            if interrupted is not None and time.monotonic() > interrupted + _TO_END:
                self._process.kill()

    def _may_interrupt(self) -> bool:
        now = time.monotonic()
        if self._stage == "starting":
            # It may not have come so far that it can be interrupted.
            return False
        if self._stage == "diffusing":
            return self._old_scores is None or now < self._old_scores + _PATIENCE
        return self._old_round is None or now < self._old_round + _LONG_PATIENCE

    def _take(self, message: Json, inputs: Inputs) -> None:
        """Notes a message of a job that goes on."""
        if "stage" in message:
            self._enter("running", message["stage"], message["done"])
            return
        self._version += 1
        results = self._results
        if "scores" in message:
            self._old_scores = None if self._seen == inputs else time.monotonic()
        elif "judged" in message:
            self._reader.calibration = Calibration(np.array(message["margins"]), np.array(message["confidences"]))
            results.accuracy, results.coverage = message["accuracy"], message["coverage"]
            results.confident, results.predicted = message["confident"], message["predicted"]
            self._add_to_history(message["labelled"])
        elif "suggestions" in message:
            note = parts_of_json(message["note"]) if message["note"] else None
            self._lists.put(message["by"], inputs, self._version, message, note)

    def _end(self, message: Json, inputs: Inputs, *, finished_round: bool) -> None:
        """Notes how a job ended."""
        ended = message["ended"]
        self._version += 1
        if ended == "finished":
            if finished_round:
                self._old_round = None if self._seen == inputs else time.monotonic()
            self._enter("idle" if self._seen == inputs else "waiting")
        elif ended == "interrupted" or self._seen != inputs:
            # What failed was the work on inputs that are others now.
            self._tried = None if ended == "interrupted" else self._tried
            self._enter("waiting")
        else:
            self._fail(parts_of_json(message["error"]), _AGAIN if ended == Locked.__name__ else None)

    def _add_to_history(self, labelled: int) -> None:
        results = self._results
        entry = {
            "labelled": labelled,
            "accuracy": None if results.accuracy is None else results.accuracy["top1"],
            "coverage": None if results.coverage is None else results.coverage["reached"] / max(1, results.coverage["rows"]),
        }
        if not results.history or results.history[-1] != entry:
            results.history.append(entry)

    def _lost(self, inputs: Inputs) -> None:
        """The process has ended without a word; one that was killed because of newer labels is started again."""
        assert self._process is not None
        code = self._process.code
        self._process = None
        if self._stopping or self._seen != inputs:
            self._tried = None
            self._enter("waiting")
            return
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._fail((f"The process that computes was ended from outside ({how}). It starts again with the next label.",), None)

    def _fail(self, parts: tuple[Part, ...], again: float | None) -> None:
        self._version += self._message != parts
        self._enter("failed")
        self._message = parts
        self._retry = None if again is None else time.monotonic() + again
