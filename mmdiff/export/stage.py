"""`mmdiff export`: an artifact as a file that other tools read. The kind of artifact decides which files there are."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmdiff.evaluation.scores import Scores
from mmdiff.export.graphs import Task
from mmdiff.export.reading import ORDERS, Order, Selection, arrays_of
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption, Parameter, call, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.kinds import Exports, Kinds, kind_of
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.parameters import flag
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.staleness import commands, reasons_stale, stale_artifacts


@dataclass(frozen=True)
class Outcome:
    """The file that was written. `notes` say what is stale."""

    artifact: str
    file: str
    format: str
    rows: int
    bytes: int
    seconds: float
    notes: list[str] = field(default_factory=list)

    def summary(self) -> Json:
        """The outcome as plain values."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


@explaining
def export(
    store: Store,
    name: str,
    file: Path,
    array: str | None = None,
    progress: Progress = silent,
    order: Order = "user",
    *,
    format_: str | None = None,
    self_loops: bool = True,
    projection: Any = None,
    kinds: Kinds,
) -> Outcome:
    """Writes an artifact, or one array of it, to `file`, which is replaced when the new one is complete.

    `order` is that of rows and node numbers: "user", the rows as they were imported, or "internal", as they are stored.
    `format_` is the name of a format for other libraries; None takes what the ending stands for.
    """
    clock = time.perf_counter()
    one_of("order", order, ORDERS)
    artifact = store.open_artifact(name)
    exports = kind_of(artifact, kinds).exports
    ending = file.suffix.lower()
    chosen = {"self_loops": flag("self_loops", self_loops), "projection": projection}
    given = [key for key, untouched in (("self_loops", True), ("projection", None)) if chosen[key] is not untouched]
    named = _named_format(name, file, exports, format_, given)
    if named is not None:
        _refuse_parts(named, array, order)
        check_place(file, store)
        with whole_file(file) as stream:
            task = Task(store, artifact, ending, **chosen)
            rows = exports.formats[named].writer(task, stream, progress)
        notes, seconds = _notes(store, artifact) + _smaller(store, name) + task.notes, time.perf_counter() - clock
        return Outcome(name, str(file), named, rows, file.stat().st_size, seconds, notes)
    selection = Selection(artifact, _arrays(artifact, exports, ending, array, order), order)
    check_place(file, store)
    with whole_file(file) as stream:
        if ending in exports.tables:
            exports.tables[ending](store, artifact, stream, progress)
        else:
            exports.writers[ending](selection, stream, progress)
    counted = [found for found in (exports.counted, exports.main) if found is not None and found in selection.arrays]
    shape = selection.shape([*counted, *selection.arrays][0])
    # Iterations of scores follow each other; the rows are those of each.
    rows, size = shape[1] if len(shape) == 3 else shape[0], file.stat().st_size
    notes = _notes(store, artifact)
    return Outcome(name, str(file), ending.removeprefix("."), rows, size, time.perf_counter() - clock, notes)


def _named_format(name: str, file: Path, exports: Exports, wanted: str | None, given: list[str]) -> str | None:
    """The format of another library to write, if it is one; refuses endings and parameters that do not go with it."""
    ending = file.suffix.lower()
    known = {format_: ", ".join(found.endings) for format_, found in exports.formats.items()}
    if wanted is not None and wanted not in known:
        listing = ", ".join(f"{format_} ({endings})" for format_, endings in known.items())
        possible = f"Choose from {listing}." if known else "Leave it out."
        raise BadOption(Parameter("format_", wanted), f": {name} cannot be written in this format. {possible}")
    if wanted is not None and ending not in exports.formats[wanted].endings:
        raise BadOption(f"{file}: {wanted} is written to {known[wanted]}. Choose a file with such an ending.")
    native = [*exports.writers, *exports.tables]
    if wanted is None and ending not in native:
        wanted = next((format_ for format_, found in exports.formats.items() if ending in found.endings), None)
        if wanted is None:
            others = [each for found in exports.formats.values() for each in found.endings]
            endings = ", ".join(dict.fromkeys([*native, *others]))
            raise BadOption(f"{file}: {name} can be exported to {endings}. Choose a file with one of these endings.")
    for key in given:
        if wanted is None or key not in exports.formats[wanted].takes:
            able = [format_ for format_, found in exports.formats.items() if key in found.takes]
            where = f"It goes with the formats {', '.join(able)}." if able else f"No format of {name} does. Leave it out."
            shown = Parameter(key, False) if key == "self_loops" else Parameter(key)
            raise BadOption(shown, f": {wanted or ending} has no use for it. {where}")
    return wanted


def _smaller(store: Store, name: str) -> list[str]:
    """What to say about lists of the background where there are those of all nodes."""
    if name != "knn/BB" or store.id("knn/W0") is None:
        return []
    return ["knn/BB has the rows of the background only. Export knn/W0 for those that were appended and the seeds as well."]


def _refuse_parts(named: str, array: str | None, order: Order) -> None:
    if array is not None:
        raise BadOption(Parameter("array", array), f": {named} is no single array. Leave it out, or export to .npy.")
    if order != "user":
        raise BadOption(Parameter("order", order), f": {named} is written in your order of rows only. Leave it out.")


def _notes(store: Store, artifact: Artifact) -> list[str]:
    reasons = reasons_stale(store, artifact)
    if not reasons:
        return []
    # A changed file of the user makes an artifact stale, but nothing else in the store.
    again = commands(store, stale_artifacts(store, artifact)) or [artifact.run["command"]]
    return [f"{artifact.name} is stale: {'; '.join(reasons)}. To make it anew, run: {'; then '.join(again)}"]


def _arrays(artifact: Artifact, exports: Exports, ending: str, wanted: str | None, order: Order) -> list[str]:
    """The array that the user names, else all arrays for an archive and the main one for other files."""
    present = arrays_of(artifact, order)
    if not present:
        # A PCA that does not reduce, for example.
        shown = call("inspect", artifact.name)
        raise BadOption(f"{artifact.name} has no arrays, so there is nothing to export. See what it is with ", shown, ".")
    listing = ", ".join(present)
    if wanted is not None:
        if wanted not in present:
            raise BadOption(Parameter("array", wanted), f": {artifact.name} has no such array. It has: {listing}.")
        if ending in exports.tables or ending == ".safetensors":
            raise BadOption(
                Parameter("array", wanted), f": a {ending} file of {artifact.name} is no array. Export it to .npy instead."
            )
        return [wanted]
    if ending in (".npz", ".safetensors"):
        return present
    if exports.main is None and len(present) > 1:
        raise BadOption(f"{artifact.name} has several arrays. Choose one with ", Parameter("array"), f": {listing}.")
    if artifact.manifest.kind == "scores":
        Scores.of(artifact)
    return [exports.main or present[0]]
