"""Verification of every byte of a store, by the chain of digests, and of the content (index ranges, offsets).

A name refers to an object, the name of the object is the digest of its manifest, and the manifest holds the metadata of each
array and the checksum of each chunk. So flipped bits, exchanged chunks, missing files and surplus files are all found.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import Corrupt, DiskError, StoreError
from mmdiff.formats.progress import Advance
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.crc import crc32c_of_file, tail
from mmdiff.formats.store.checked_files import identity_of, remember_checked
from mmdiff.formats.store.files import check_chunk, entries, read_file
from mmdiff.formats.store.kinds import Kinds, problems_of_content, problems_of_name
from mmdiff.formats.store.manifest import is_object_name
from mmdiff.formats.store.store import (
    NAMESPACE_JSON,
    NAMESPACES,
    STORE_JSON,
    Artifact,
    Store,
    is_name,
)

_FOLDER, _LINK = "a folder", "a link"
_ELSEWHERE = "Move it elsewhere."
_AGAIN = "It may be intact: verify again afterwards."
_UNUSABLE = (Corrupt, DiskError)

# The rows appended to a background go with it.
_REMOVED = "descriptors/appended"


@dataclass(frozen=True)
class Problem:
    """A difference from what was published, and how to repair it."""

    artifact: str
    array: str | None
    chunk: str | None
    what: str
    remedy: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DraftStore(Store):
    """A store in which a finished draft is opened like an artifact, to be checked before it is published."""

    draft: Path

    def folder(self, name: str, object_name: str) -> Path:  # noqa: ARG002
        return self.draft


def bytes_to_read(store: Store, names: Iterable[str]) -> int:
    """The bytes that `verify` reads; artifacts with an unreadable manifest are not counted."""
    total = 0
    for name in names:
        with suppress(*_UNUSABLE):
            total += store.open_artifact(name, possible=False).manifest.bytes_on_disk
    return total


def verify(store: Store, names: Iterable[str], kinds: Kinds, advance: Advance = lambda _: None) -> Iterator[Problem]:
    """Checks the files and the content of artifacts; `advance` reports the bytes read."""
    for name in names:
        try:
            artifact = store.open_artifact(name, possible=False)
        except _UNUSABLE as error:
            yield Problem(
                name, None, None, str(error), _remedy(error, "Remove the name and run again the command that made it.")
            )
            continue
        damaged = False
        for problem in problems_of_files(artifact, advance):
            damaged = True
            yield problem
        if not damaged:
            # Every byte has been checked just now.
            misplaced = problems_of_name(name, artifact.manifest.kind)
            for array, what in misplaced or problems_of_content(artifact.checked("none"), kinds):
                yield Problem(name, array or None, None, what, artifact.remedy)


def verify_frame(store: Store) -> Iterator[Problem]:
    """Checks the folders of the store and their metadata, finds files that do not belong there, and names that are lost."""
    if _is_used(store.path):
        yield from _problems_of_group(store, store.path, STORE_JSON)
    for name in (*NAMESPACES, "objects", "work"):
        folder = store.path / name
        found = _entry(folder)
        if found not in (_FOLDER, None):
            remedy = "Replace it by the folder that it leads to." if found == _LINK else _ELSEWHERE
            yield Problem(name, None, None, f"{found}, not a folder", remedy)
        elif found:
            yield from _problems_of_folder(store, folder)
    yield from problems_of_names(store)
    known = {"zarr.json", *NAMESPACES, "objects", "work", "lost+found"}
    for path in entries(store.path):
        if path.name not in known and not _holds_names(path):
            yield Problem(path.name, None, None, "not a part of the store", _ELSEWHERE)


def problems_of_names(store: Store) -> Iterator[Problem]:
    """Names that are lost: their folder has another name, or they are gone although artifacts made from them are here.

    A name is lost if the store has its object and an artifact that was made from it, but not the name. Names that nothing was
    made from leave no such trace. Only one name is removed by a run: that of rows which were appended to a background, after
    the background was replaced.
    """
    for path in entries(store.path):
        if path.name not in (*NAMESPACES, "objects", "work") and _holds_names(path):
            remedy = f"Give the folder its name back, one of {', '.join(NAMESPACES)}, or move it elsewhere."
            yield Problem(path.name, None, None, "a folder of names that a store does not have", remedy)
    reported = set()
    for name in store.names():
        with suppress(*_UNUSABLE):
            for entry in store.open_artifact(name, possible=False).manifest.inputs.values():
                lost, identity = entry.get("artifact"), entry.get("object")
                if lost is None or lost in reported or not is_name(lost) or os.path.lexists(store.path / lost):
                    continue
                for folder in sorted(store.objects.glob(f"{identity}*")):
                    if lost == _REMOVED and _was_replaced(store, folder.name):
                        break
                    reported.add(lost)
                    what = f"the name is missing, and {name} was made from its object {folder.name}"
                    remedy = f"Make the link again: ln -s ../objects/{folder.name} {store.path / lost}"
                    yield Problem(lost, None, None, what, f"{remedy}, or remove the names of what was made from it.")
                    break


def _was_replaced(store: Store, object_name: str) -> bool:
    """Whether an object was made from an artifact whose name refers to another one now."""
    with suppress(*_UNUSABLE):
        entries_of = store.open_object(_REMOVED, object_name, possible=False).manifest.inputs.values()
        made_from = [(entry["artifact"], entry["object"]) for entry in entries_of if "artifact" in entry]
        return any(is_name(name) and store.id(name) not in (None, identity) for name, identity in made_from)
    return False


def problems_of_files(artifact: Artifact, advance: Advance = lambda _: None) -> Iterator[Problem]:
    """Problems of the files of an artifact; of the bad chunks of an array, the first is named."""
    try:
        _ = artifact.run
    except _UNUSABLE as error:
        yield Problem(artifact.name, None, None, str(error), _remedy(error, artifact.remedy))
    expected = {"zarr.json", "run", *artifact.manifest.arrays}
    yield from _surplus(artifact, artifact.folder, expected, None)
    yield from _surplus(artifact, artifact.folder / "run", {"zarr.json"}, None)
    for array, entry in artifact.manifest.arrays.items():
        folder = artifact.folder / array
        bad: list[tuple[str, StoreError]] = []
        try:
            artifact.check_metadata(array)
        except _UNUSABLE as error:
            yield Problem(artifact.name, array, None, str(error), _remedy(error, artifact.remedy))
            continue
        for chunk, crc in enumerate(entry.crcs):
            problem = _problem_of_chunk(folder, entry.spec, chunk, crc, advance)
            if problem:
                bad.append((entry.spec.chunk_file(chunk), problem))
        if bad:
            others = f" ({len(bad)} chunks of this array are bad)" if len(bad) > 1 else ""
            yield Problem(artifact.name, array, bad[0][0], f"{bad[0][1]}{others}", _remedy(bad[0][1], artifact.remedy))
        files = {"zarr.json", *(entry.spec.chunk_file(chunk) for chunk in range(entry.spec.chunks))}
        yield from _surplus(artifact, folder, files, array)


def crc_of_complete_chunk(path: Path, spec: ArraySpec) -> int | None:
    """The checksum of a complete chunk file that matches it; None for any other file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != spec.file_bytes:
            return None
        crc = crc32c_of_file(descriptor, spec.chunk_bytes)
        return crc if crc is not None and os.read(descriptor, 5) == tail(crc) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _problem_of_chunk(folder: Path, spec: ArraySpec, chunk: int, crc: int, advance: Advance) -> StoreError | None:
    try:
        identity = identity_of(check_chunk(folder, spec, chunk, crc, advance))
        remember_checked(folder.absolute() / spec.chunk_file(chunk), identity, crc)
    except _UNUSABLE as error:
        return error
    return None


def _remedy(error: StoreError, remedy: str) -> str:
    """The remedy for a problem. A file that the system refuses to read may be intact."""
    return _AGAIN if isinstance(error, DiskError) else remedy


def _surplus(artifact: Artifact, folder: Path, expected: set[str], array: str | None) -> Iterator[Problem]:
    surplus = sorted(path.name for path in folder.glob("*") if path.name not in expected)
    if surplus:
        others = f" and {len(surplus) - 1} more" if len(surplus) > 1 else ""
        what = f"{surplus[0]}{others} should not be here"
        yield Problem(artifact.name, array, None, what, f"Move {'them' if others else 'it'} out of {folder}")


def _problems_of_folder(store: Store, folder: Path) -> Iterator[Problem]:
    """Problems of a namespace, of `objects/` or of `work/`."""
    expected, what = {store.work: (_FOLDER, "a draft"), store.objects: (_FOLDER, "an object")}.get(
        folder, (_LINK, "an artifact")
    )
    # An interrupted run may leave an empty folder.
    if folder != store.work and _is_used(folder):
        yield from _problems_of_group(store, folder, NAMESPACE_JSON)
    for path in entries(folder):
        relative = _relative(store, path)
        named = folder == store.work or (is_object_name(path.name) if folder == store.objects else is_name(relative))
        if path.name != "zarr.json" and not (named and _entry(path) in (expected, None)):
            yield Problem(relative, None, None, f"not {what} of mmdiff", _ELSEWHERE)


def _problems_of_group(store: Store, folder: Path, text: bytes) -> Iterator[Problem]:
    intact = False
    try:
        intact = read_file(folder / "zarr.json", "", store.path) == text
    except DiskError as error:
        yield Problem(_relative(store, folder), None, None, str(error), _AGAIN)
        return
    except Corrupt:
        pass
    if not intact:
        remedy = f"Write this into it: {text.decode()}"
        yield Problem(_relative(store, folder), None, None, "zarr.json is missing or was changed", remedy)


def _is_used(folder: Path) -> bool:
    return any(path.name != "work" for path in entries(folder))


def _holds_names(folder: Path) -> bool:
    """Whether a folder holds links to objects."""
    if _entry(folder) != _FOLDER:
        return False
    targets = (path.readlink() for path in entries(folder) if path.is_symlink())
    return any(target.parent == Path("../objects") and is_object_name(target.name) for target in targets)


def _entry(path: Path) -> str | None:
    """The type of a directory entry; None if there is no such entry (any more)."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    return _FOLDER if stat.S_ISDIR(mode) else _LINK if stat.S_ISLNK(mode) else "a file"


def _relative(store: Store, path: Path) -> str:
    return str(path.relative_to(store.path))
