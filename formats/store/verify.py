"""Verification of every byte of a store, by the chain of digests, and of the content (index ranges, offsets).

A name refers to an object, the name of the object is the digest of its manifest, and the manifest holds the metadata of each
array and the checksum of each chunk. So flipped bits, exchanged chunks, missing files and surplus files are all found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.progress import Advance
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.crc import crc32c_of_file, tail
from mmdiff.formats.store.checked_files import identity_of, remember_checked
from mmdiff.formats.store.kinds import Kinds, problems_of_content
from mmdiff.formats.store.store import (
    NAMESPACE_JSON,
    NAMESPACES,
    STORE_JSON,
    Artifact,
    Store,
    check_content,
    is_name,
    open_chunk,
)


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


def bytes_to_read(store: Store, names: Iterable[str]) -> int:
    """The bytes that `verify` reads; artifacts with an unreadable manifest are not counted."""
    total = 0
    for name in names:
        with suppress(Corrupt):
            total += store.open_artifact(name).manifest.bytes_on_disk
    return total


def verify(store: Store, names: Iterable[str], kinds: Kinds, advance: Advance = lambda _: None) -> Iterator[Problem]:
    """Checks the files and the content of artifacts; `advance` reports the bytes read."""
    for name in names:
        try:
            artifact = store.open_artifact(name)
        except Corrupt as error:
            yield Problem(name, None, None, str(error), "Remove the name and run again the command that made it.")
            continue
        damaged = False
        for problem in problems_of_files(artifact, advance):
            damaged = True
            yield problem
        if not damaged:
            # Every byte has been checked just now.
            for array, what in problems_of_content(artifact.checked("none"), kinds):
                yield Problem(name, array, None, what, artifact.remedy)


def verify_frame(store: Store) -> Iterator[Problem]:
    """Checks the metadata of the store and of its folders, and finds files that do not belong there."""
    for folder, text in (
        (store.path, STORE_JSON),
        *((store.path / space, NAMESPACE_JSON) for space in (*NAMESPACES, "objects")),
    ):
        # An interrupted run may leave an empty folder.
        used = folder.is_dir() and any(entry.name != "work" for entry in folder.iterdir())
        if used and (not (folder / "zarr.json").is_file() or (folder / "zarr.json").read_bytes() != text):
            remedy = f"Write this into it: {text.decode()}"
            yield Problem(_relative(store, folder), None, None, "zarr.json is missing or was changed", remedy)
    for space in NAMESPACES:
        for path in sorted((store.path / space).glob("*")):
            named = path.is_symlink() and is_name(_relative(store, path))
            if not named and path.name != "zarr.json":
                yield Problem(_relative(store, path), None, None, "not an artifact of mmdiff", "Move it elsewhere.")


def problems_of_files(artifact: Artifact, advance: Advance = lambda _: None) -> Iterator[Problem]:
    """Problems of the files of an artifact; of the bad chunks of an array, the first is named."""
    try:
        _ = artifact.run
    except Corrupt as error:
        yield Problem(artifact.name, None, None, str(error), artifact.remedy)
    expected = {"zarr.json", "run", *artifact.manifest.arrays}
    yield from _surplus(artifact, artifact.folder, expected, None)
    yield from _surplus(artifact, artifact.folder / "run", {"zarr.json"}, None)
    for array, entry in artifact.manifest.arrays.items():
        folder = artifact.folder / array
        bad: list[tuple[str, str]] = []
        try:
            artifact.check_metadata(array)
        except Corrupt as error:
            yield Problem(artifact.name, array, None, str(error), artifact.remedy)
            continue
        for chunk, crc in enumerate(entry.crcs):
            problem = _problem_of_chunk(folder, entry.spec, chunk, crc, advance)
            if problem:
                bad.append((entry.spec.chunk_file(chunk), problem))
        if bad:
            others = f" ({len(bad)} chunks of this array are bad)" if len(bad) > 1 else ""
            yield Problem(artifact.name, array, bad[0][0], bad[0][1] + others, artifact.remedy)
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


def _problem_of_chunk(folder: Path, spec: ArraySpec, chunk: int, crc: int, advance: Advance) -> str | None:
    try:
        descriptor = open_chunk(folder, spec, chunk, crc)
        try:
            identity = identity_of(os.fstat(descriptor))
            check_content(descriptor, spec, chunk, crc, advance)
            remember_checked(folder.absolute() / spec.chunk_file(chunk), identity, crc)
        finally:
            os.close(descriptor)
    except Corrupt as error:
        return str(error)
    return None


def _surplus(artifact: Artifact, folder: Path, expected: set[str], array: str | None) -> Iterator[Problem]:
    surplus = sorted(path.name for path in folder.glob("*") if path.name not in expected)
    if surplus:
        others = f" and {len(surplus) - 1} more" if len(surplus) > 1 else ""
        what = f"{surplus[0]}{others} should not be here"
        yield Problem(artifact.name, array, None, what, f"Move {'them' if others else 'it'} out of {folder}")


def _relative(store: Store, path: Path) -> str:
    return str(path.relative_to(store.path))
