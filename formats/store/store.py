"""Stores and their artifacts, for reading. Everything is checked before it is used.

    mmdiff-store/
        zarr.json                             a zarr group, marked as a store
        descriptors/background -> ../objects/descriptors-91c0...
        objects/descriptors-91c0.../          an artifact: a zarr group, never changed once it is here
            zarr.json                         its manifest
            run/zarr.json                     the record of the run that made it
            vectors/zarr.json, c.0.0, c.1.0   an array and its chunks
        work/descriptors.background/          the draft of a run in progress, or of an interrupted one

A name refers to an object, the name of the object is the digest of its manifest, and the manifest holds the checksum of every
chunk. Opening follows this chain without reading arrays; a chunk is checked when it is first touched, and `verify.py` reads
every byte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import FILE, FOLDER, BadOption, Corrupt, Damaged, DiskError, Missing, Parameter, call, did_you_mean
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.disk_errors import explained
from mmdiff.formats.storage.mapped_array import MappedArray
from mmdiff.formats.storage.mapping import Origin, map_chunks, touch_all
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.checked_files import Identity, identity_of, note_use, remember_checked, was_checked
from mmdiff.formats.store.files import entries, open_chunk, read_file
from mmdiff.formats.store.layouts import require_possible
from mmdiff.formats.store.manifest import (
    ArrayEntry,
    Json,
    Manifest,
    attributes,
    encode,
    group_json,
    id_of,
    is_object_name,
    object_id,
    parse_run,
)

STORE_SCHEMA = 1
STORE_JSON = group_json({"mmdiff_store": {"schema": STORE_SCHEMA}})
NAMESPACE_JSON = group_json({})
NAMESPACES = ("descriptors", "labels", "knn", "graph", "scores", "folds", "audit", "models", "reports")

Checks = Literal["touched", "all", "none"]
"""When the chunks of an artifact are checked: as they are touched, all of them when it is opened, or never."""

CHECKS: tuple[Checks, ...] = ("touched", "all", "none")

# Bytes of indices that are checked at a time; the masks of the check take up to as much again.
_CHECKED_BYTES = 1 << 20

_LONGEST_NAME = 200
_ARTIFACT_NAME = re.compile(rf"({'|'.join(NAMESPACES)})/[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, repr=False)
class Artifact:
    """An immutable artifact of a store: named arrays, mapped when they are asked for, as in `artifact["vectors"]`.

    A chunk is checked against its checksum when it is first touched, unless `checks` is "none".
    """

    name: str
    object_name: str
    manifest: Manifest
    store: Store
    checks: Checks = "touched"

    @property
    def id(self) -> str:
        return id_of(self.object_name)

    @cached_property
    def folder(self) -> Path:
        return self.store.folder(self.name, self.object_name)

    @cached_property
    def run(self) -> Json:
        """The record of the run that made the artifact: times, memory, versions, the command."""
        return parse_run(self.store.run_text(self.name, self.object_name), f"{self.name} (run/zarr.json)")

    @property
    def facts(self) -> Json:
        """Facts that were found while the artifact was made, such as the number of classes."""
        return self.manifest.facts

    def __contains__(self, array: str) -> bool:
        return array in self.manifest.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.arrays)

    def keys(self) -> KeysView[str]:
        """The names of the arrays."""
        return self.manifest.arrays.keys()

    def __getitem__(self, array: str) -> MappedArray:
        """An array, memory-mapped; its chunks are checked as they are read."""
        return MappedArray(self.mapped(array))

    def checked(self, checks: Checks) -> Artifact:
        """The same artifact with other checks; "all" checks all arrays now."""
        if checks == "all":
            for array in self:
                self.array(array)
        return replace(self, checks=checks)

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{name} {' x '.join(map(str, entry.spec.shape))} {entry.spec.dtype}"
            for name, entry in self.manifest.arrays.items()
        )
        return f"Artifact({self.name}, kind {self.manifest.kind}: {arrays or 'no arrays'})"

    def spec(self, array: str) -> ArraySpec:
        return self._entry(array).spec

    def array(self, array: str) -> NDArray[Any]:
        """All chunks of an array as one flat, read-only, memory-mapped ndarray, every chunk checked."""
        return touch_all(self.mapped(array))

    def mapped(self, array: str) -> NDArray[Any]:
        """The same without reading it. Code that reads rows of it calls `mapping.touch` first."""
        entry, folder = self._entry(array), self.folder.absolute() / array
        self.check_metadata(array)
        files = [folder / entry.spec.chunk_file(chunk) for chunk in range(entry.spec.chunks)]
        identities: list[Identity] = []
        checked: set[int] = set()

        def opened() -> Iterator[int]:
            for chunk, crc in enumerate(entry.crcs):
                try:
                    descriptor = open_chunk(folder, entry.spec, chunk, crc)
                except Corrupt as error:
                    raise Corrupt(f"{self.name}, array {array}: ", *error.parts, f" {self.remedy}") from None
                try:
                    identities.append(_identity(descriptor, files[chunk]))
                    if was_checked(files[chunk], identities[chunk], crc):
                        checked.add(chunk)
                        note_use(files[chunk], identities[chunk])
                    yield descriptor
                finally:
                    os.close(descriptor)

        def remember(chunk: int) -> None:
            remember_checked(files[chunk], identities[chunk], entry.crcs[chunk])
            note_use(files[chunk], identities[chunk])

        origin = Origin(
            name=f"{self.name}, array {array}",
            remedy=lambda: self.remedy,
            path=lambda chunk: files[chunk],
            crcs=None if self.checks == "none" else entry.crcs,
            checked=checked,
            remember=remember,
        )

        def open_again(chunk: int) -> int:
            descriptor = open_chunk(folder, entry.spec, chunk, entry.crcs[chunk])
            try:
                if _identity(descriptor, files[chunk]) != identities[chunk]:
                    raise Corrupt(f"{files[chunk]}: not the file that was mapped. {self.remedy}")
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

        return map_chunks(entry.spec, opened(), open_again, origin)

    def index_array(self, array: str, below: int, none: int | None = None) -> NDArray[Any]:
        """An array of indices, each of them checked to be at least 0 and less than `below`, or to be `none`."""
        values = self.array(array)
        step = max(1, _CHECKED_BYTES * len(values) // max(1, values.nbytes))
        for start in range(0, len(values), step):
            block = values[start : start + step]
            wrong = (block < 0) | (block >= below)
            if none is not None:
                wrong &= block != none
            if wrong.any():
                place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                also = "" if none is None else f", nor {none}"
                problem = f"row {start + int(place[0])}: {block[place]} is not from 0 to {below - 1}{also}"
                raise Damaged(f"{self.name}, array {array}, {problem}. {self.remedy}")
        return values

    def require_shape(self, array: str, shape: tuple[int, ...]) -> None:
        """Raises Damaged unless an array has the shape that other artifacts give it."""
        if self.spec(array).shape != shape:
            raise Damaged(f"{self.name}, array {array}: of shape {self.spec(array).shape}; expected {shape}. {self.remedy}")

    def strings(self, column: str) -> Strings:
        """A column of strings, with its offsets checked."""
        offsets, utf8 = self.array(f"{column}_offsets"), self.array(f"{column}_utf8")
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(utf8) or np.any(offsets[1:] < offsets[:-1]):
            raise Corrupt(f"{self.name}, array {column}_offsets: offsets are not monotone. {self.remedy}")
        return Strings(offsets, utf8)

    @property
    def remedy(self) -> str:
        """The sentence that says how to replace the artifact if it is damaged."""
        return self.store.remedy(self)

    def _entry(self, array: str) -> ArrayEntry:
        if array not in self.manifest.arrays:
            guess = did_you_mean(array, self.manifest.arrays)
            raise Missing(f"{self.name}: there is no array {array!r}. {guess}It has: {', '.join(self.manifest.arrays)}.")
        return self.manifest.arrays[array]

    def check_metadata(self, array: str) -> None:
        """Raises Corrupt unless the folder of an array exists and its zarr.json agrees with the manifest."""
        folder = self.folder / array
        if folder.is_symlink() or not folder.is_dir():
            raise Corrupt(f"{self.name}: the folder of array {array} is missing. {self.remedy}")
        if read_file(folder / "zarr.json", self.name, self.store.path) != _array_json(self.spec(array)):
            raise Corrupt(f"{self.name}, array {array}: zarr.json is not what the manifest says. {self.remedy}")


def _identity(descriptor: int, file: Path) -> Identity:
    with explained(file, "read the file"):
        return identity_of(os.fstat(descriptor))


@lru_cache(maxsize=4096)
def _array_json(spec: ArraySpec) -> bytes:
    """The zarr.json of an array, which every stage compares each time that it opens an artifact."""
    return encode(spec.zarr_json())


@dataclass(frozen=True)
class Store:
    """A folder of artifacts."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store at a path; its first run may still be in progress."""
        marker = path / "zarr.json"
        with explained(path, "open the store"):
            # The marker is made before the objects and removed after them: without it, there are none before and after a look.
            has_objects = (path / "objects").is_dir()
            if not marker.exists():
                if has_objects and (path / "objects").is_dir():
                    remedy = f"Write this into it: {STORE_JSON.decode()}"
                    raise Corrupt(f"{path}: a store that has lost its {marker.name}. {remedy}")
                if (path / "work").is_dir():
                    return cls(path)
                raise Missing(
                    f"{path}: no store here. Make one with ",
                    call("add", FILE, role="background"),
                    ", or name yours with ",
                    Parameter("store", FOLDER),
                    ".",
                )
        check_mark(read_file(marker, str(path), path), str(path))
        return cls(path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def work(self) -> Path:
        return self.path / "work"

    def work_folder(self, name: str) -> Path:
        """The folder in which runs that make an artifact of this name keep their lock and their draft."""
        return self.work / name.replace("/", ".")

    def check_folders(self) -> None:
        """Raises Corrupt if a folder of the store is a link: a run would then write or remove files elsewhere."""
        for folder in (self.path / name for name in (*NAMESPACES, "objects", "work")):
            if folder.is_symlink():
                raise Corrupt(f"{folder}: a link, not a folder. Replace it by the folder that it leads to.")

    def names(self) -> list[str]:
        """The names of all artifacts, in the order of the stages."""
        return [
            f"{space}/{entry.name}"
            for space in NAMESPACES
            if not (self.path / space).is_symlink()
            for entry in entries(self.path / space)
            if entry.is_symlink() and is_name(f"{space}/{entry.name}")
        ]

    def object_name(self, name: str) -> str | None:
        """The folder in `objects/` that a name refers to; None if the store does not have the name."""
        link = self.path / check_name(name, self.names)
        if link.parent.is_symlink():
            raise Corrupt(f"{name}: {link.parent} is a link, not a folder. Replace it by the folder that it leads to.")
        if not link.is_symlink():
            return None
        target = link.readlink()
        if target.parent != Path("../objects") or not is_object_name(target.name):
            raise Corrupt(f"{name}: refers to {target}, not to an object of the store. Remove the link and rebuild.")
        return target.name

    def id(self, name: str) -> str | None:
        """The id of the artifact that a name refers to; None if the store does not have the name."""
        found = self.object_name(name)
        return None if found is None else id_of(found)

    def open_artifact(self, name: str, *, possible: bool = True) -> Artifact:
        """The artifact of a name, with its manifest checked against its id and its kind, as `open_object` does."""
        found = self.object_name(name)
        if found is None:
            raise missing_artifact(name, str(self), self.names(), "nothing yet")
        return self.open_object(name, found, possible=possible)

    def open_object(self, name: str, object_name: str, *, possible: bool = True) -> Artifact:
        """The artifact in an object folder; `name` is used in messages.

        Dtypes, shapes and facts that its kind cannot have are refused, unless `possible` is false: `verify` lists them.
        """
        folder = self.objects / object_name
        if folder.is_symlink() or not folder.is_dir():
            raise Corrupt(f"{name}: its object folder objects/{object_name} is missing. Rebuild the artifact.")
        text = read_file(folder / "zarr.json", name, self.path)
        manifest = Manifest.parse(text, f"{name} (zarr.json)")
        if object_id(manifest.kind, text) != id_of(object_name):
            raise Corrupt(f"{name}: the manifest zarr.json was changed after it was published. Rebuild the artifact.")
        return self._checked(Artifact(name, object_name, manifest, self), possible)

    def _checked(self, artifact: Artifact, possible: bool) -> Artifact:
        if possible:
            require_possible(artifact)
        return artifact

    def ensure_local(self, names: Sequence[str]) -> None:
        """Fetches the files of artifacts where they are not on this machine; a folder has them."""

    def folder(self, name: str, object_name: str) -> Path:  # noqa: ARG002
        """The folder with the files of an artifact."""
        return self.objects / object_name

    def run_text(self, name: str, object_name: str) -> bytes:
        """The bytes of the record of the run that made an artifact."""
        return read_file(self.objects / object_name / "run" / "zarr.json", name, self.path)

    def remedy(self, artifact: Artifact) -> str:
        """The command that makes an artifact again, if its record can be read."""
        try:
            return f"Run again: {artifact.run['command']}"
        except (Corrupt, DiskError, KeyError):
            return "Run again the command that made it."


def check_mark(text: bytes, where: str) -> None:
    """Raises Corrupt unless the `zarr.json` of a folder marks a store of this schema."""
    mark = attributes(text, f"{where}/zarr.json").get("mmdiff_store")
    schema = mark.get("schema") if isinstance(mark, dict) else None
    if schema != STORE_SCHEMA:
        raise Corrupt(
            f"{where}: a store of schema {schema}; this mmdiff reads schema {STORE_SCHEMA}. Use the version that wrote it."
        )


def is_name(name: str) -> bool:
    # File systems take names of 255 bytes, and names of work folders are longer than those of artifacts.
    return len(name) <= _LONGEST_NAME and _ARTIFACT_NAME.fullmatch(name) is not None


def check_name(name: str, known: Callable[[], Iterable[str]] = tuple) -> str:
    """Refuses a malformed name, and suggests the nearest known one."""
    if not is_name(name):
        raise BadOption(
            f"{name!r} is not the name of an artifact. {did_you_mean(name, known())}Names look like descriptors/background; ",
            call("inspect"),
            " lists them.",
        )
    return name


def missing_artifact(name: str, store: str, names: Sequence[str], none: str) -> Missing:
    """The error for a name that a store does not have; `none` describes a store without names."""
    return Missing(f"{name}: not in the store {store}. {did_you_mean(name, names)}It holds: {', '.join(names) or none}.")
