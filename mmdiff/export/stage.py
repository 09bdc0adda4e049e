"""`mmdiff export`: from an artifact to a file that other tools read. What can be written depends on the artifact's kind."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.kinds import Exports, Kinds, kind_of
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Outcome:
    """What an export came to."""

    artifact: str
    file: str
    format: str
    rows: int
    bytes: int
    seconds: float

    def summary(self) -> Json:
        """The outcome as plain values."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


def export(
    store: Store, name: str, file: Path, array: str | None = None, progress: Progress = silent, *, kinds: Kinds
) -> Outcome:
    """Writes an artifact, or one array of it, to `file`, which is replaced when the new one is whole."""
    clock = time.perf_counter()
    artifact = store.open_artifact(name)
    exports = kind_of(artifact, kinds).exports
    ending = file.suffix.lower()
    if ending not in exports.writers and ending not in exports.tables:
        endings = ", ".join([*exports.writers, *exports.tables])
        raise BadOption(f"{file}: {name} can be exported to {endings}. Choose a file with one of these endings.")
    arrays = _arrays(artifact, exports, ending, array)
    check_place(file, store)
    with whole_file(file) as stream:
        if ending in exports.tables:
            exports.tables[ending](store, artifact, stream, progress)
        else:
            exports.writers[ending](artifact, arrays, stream, progress)
    counted = next((name for name in (exports.counted, exports.main) if name in arrays), arrays[0])
    rows, size = artifact.spec(counted).length, file.stat().st_size
    return Outcome(name, str(file), ending.removeprefix("."), rows, size, time.perf_counter() - clock)


def _arrays(artifact: Artifact, exports: Exports, ending: str, wanted: str | None) -> list[str]:
    """The array that was asked for, else what the format takes: all of them in an archive, the main one in other files."""
    present = list(artifact.manifest.arrays)
    listing = ", ".join(present)
    if wanted is not None:
        if wanted not in present:
            raise BadOption(f"--array {wanted}: {artifact.name} has no such array. It has: {listing}.")
        if ending in exports.tables or ending == ".safetensors":
            raise BadOption(f"--array {wanted}: a {ending} file of {artifact.name} is no array. Export it to .npy instead.")
        return [wanted]
    if ending in (".npz", ".safetensors"):
        return present
    if exports.main is None and len(present) > 1:
        raise BadOption(f"{artifact.name} has several arrays. Choose one with --array: {listing}.")
    return [exports.main or present[0]]
