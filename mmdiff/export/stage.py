"""`mmdiff export`: an artifact as a file that other tools read. The kind of artifact decides which files there are."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mmdiff.evaluation.scores import Scores
from mmdiff.export.reading import ORDERS, Order, Selection, arrays_of
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption, Parameter, call, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.kinds import Exports, Kinds, kind_of
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
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
    kinds: Kinds,
) -> Outcome:
    """Writes an artifact, or one array of it, to `file`, which is replaced when the new one is complete.

    `order` is that of rows and node numbers: "user", the rows as they were imported, or "internal", as they are stored.
    """
    clock = time.perf_counter()
    one_of("order", order, ORDERS)
    artifact = store.open_artifact(name)
    exports = kind_of(artifact, kinds).exports
    ending = file.suffix.lower()
    if ending not in exports.writers and ending not in exports.tables:
        endings = ", ".join([*exports.writers, *exports.tables])
        raise BadOption(f"{file}: {name} can be exported to {endings}. Choose a file with one of these endings.")
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
