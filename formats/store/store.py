"""Stores and the artifacts in them, as readers see them. Nothing is trusted on open.

    mmdiff-store/
        zarr.json                             a zarr group, marked as a store
        descriptors/background -> ../objects/descriptors-91c0...
        objects/descriptors-91c0.../          an artifact: a zarr group, never changed once it is here
            zarr.json                         its manifest
            run/zarr.json                     how it came about
            vectors/zarr.json, c.0.0, c.1.0   an array and its chunks
        work/descriptors.background/          a run that is under way, or was interrupted

A name leads to an object, whose own name is the digest of its manifest, which holds the checksum of every chunk. Opening
follows that chain as far as it can without reading the data; `verify.py` follows it to the last byte.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import FILE, FOLDER, BadOption, Corrupt, Missing, Parameter, call, did_you_mean
from mmdiff.formats.progress import Advance
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.crc import TAIL_BYTES, crc32c_of_file, tail
from mmdiff.formats.storage.mapping import map_chunks
from mmdiff.formats.storage.strings import Strings
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
NAMESPACES = ("descriptors", "knn", "graph", "scores", "models", "reports")

# An array up to this size is read through once when it is opened: that takes milliseconds.
CHECKED_ON_OPEN = 16 << 20

_ARTIFACT_NAME = re.compile(rf"({'|'.join(NAMESPACES)})/[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, repr=False)
class Artifact:
    """An immutable artifact of a store: named arrays, mapped when they are asked for, as in `artifact["vectors"]`."""

    name: str
    object_name: str
    manifest: Manifest
    store: Store

    @property
    def id(self) -> str:
        return id_of(self.object_name)

    @cached_property
    def folder(self) -> Path:
        return self.store.folder(self.name, self.object_name)

    @cached_property
    def run(self) -> Json:
        """How the artifact came about: times, memory, versions, the command."""
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

    def __getitem__(self, array: str) -> NDArray[Any]:
        """An array, as `array` returns it."""
        return self.array(array)

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{name} {' x '.join(map(str, entry.spec.shape))} {entry.spec.dtype}"
            for name, entry in self.manifest.arrays.items()
        )
        return f"Artifact({self.name}, kind {self.manifest.kind}: {arrays or 'no arrays'})"

    def spec(self, array: str) -> ArraySpec:
        return self._entry(array).spec

    def array(self, array: str) -> NDArray[Any]:
        """All chunks of an array as one flat, read-only, memory-mapped ndarray."""
        entry = self._entry(array)
        self.check_metadata(array)
        folder = self.folder / array
        return map_chunks(
            entry.spec,
            self._checked_chunks(array, entry),
            lambda chunk: open_chunk(folder, entry.spec, chunk, entry.crcs[chunk]),
        )

    def strings(self, column: str) -> Strings:
        """A column of strings, whose offsets are checked before anybody follows them."""
        offsets, utf8 = self.array(f"{column}_offsets"), self.array(f"{column}_utf8")
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(utf8) or np.any(offsets[1:] < offsets[:-1]):
            raise Corrupt(f"{self.name}, array {column}_offsets: offsets are not monotone. {self.remedy}")
        return Strings(offsets, utf8)

    @property
    def remedy(self) -> str:
        """What to do where the artifact is damaged."""
        return self.store.remedy(self)

    def _entry(self, array: str) -> ArrayEntry:
        if array not in self.manifest.arrays:
            guess = did_you_mean(array, self.manifest.arrays)
            raise Missing(f"{self.name}: there is no array {array!r}. {guess}It has: {', '.join(self.manifest.arrays)}.")
        return self.manifest.arrays[array]

    def check_metadata(self, array: str) -> None:
        """Raises Corrupt unless the array's folder and its zarr.json are what the manifest says."""
        folder = self.folder / array
        if folder.is_symlink() or not folder.is_dir():
            raise Corrupt(f"{self.name}: the folder of array {array} is missing. {self.remedy}")
        if read_file(folder / "zarr.json", self.name) != encode(self.spec(array).zarr_json()):
            raise Corrupt(f"{self.name}, array {array}: zarr.json is not what the manifest says. {self.remedy}")

    def _checked_chunks(self, array: str, entry: ArrayEntry) -> Iterator[int]:
        small = entry.spec.bytes_on_disk <= CHECKED_ON_OPEN
        for chunk, crc in enumerate(entry.crcs):
            try:
                descriptor = open_chunk(self.folder / array, entry.spec, chunk, crc)
                try:
                    if small:
                        check_content(descriptor, entry.spec, chunk, crc)
                    yield descriptor
                finally:
                    os.close(descriptor)
            except Corrupt as error:
                raise Corrupt(f"{self.name}, array {array}: ", *error.parts, f" {self.remedy}") from None


@dataclass(frozen=True)
class Store:
    """A folder of artifacts."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store at a path: one that has been published to, or one whose first run was interrupted."""
        marker = path / "zarr.json"
        if not marker.exists():
            if (path / "objects").is_dir():
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
        check_mark(read_file(marker, str(path)), str(path))
        return cls(path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def work(self) -> Path:
        return self.path / "work"

    def names(self) -> list[str]:
        """Every artifact, in the order in which the stages make them."""
        return [
            f"{space}/{entry.name}"
            for space in NAMESPACES
            if (self.path / space).is_dir()
            for entry in sorted((self.path / space).iterdir())
            if entry.is_symlink() and is_name(f"{space}/{entry.name}")
        ]

    def object_name(self, name: str) -> str | None:
        """The folder in `objects/` that a name leads to."""
        link = self.path / check_name(name, self.names)
        if not link.is_symlink():
            return None
        target = link.readlink()
        if target.parent != Path("../objects") or not is_object_name(target.name):
            raise Corrupt(f"{name}: leads to {target}, not to an object of the store. Remove the link and rebuild.")
        return target.name

    def id(self, name: str) -> str | None:
        """What identifies the artifact that a name leads to now."""
        found = self.object_name(name)
        return None if found is None else id_of(found)

    def open_artifact(self, name: str) -> Artifact:
        """The artifact of that name, its manifest checked against the digest it is known by."""
        found = self.object_name(name)
        if found is None:
            raise missing_artifact(name, str(self), self.names(), "nothing yet")
        return self.open_object(name, found)

    def open_object(self, name: str, object_name: str) -> Artifact:
        folder = self.objects / object_name
        if folder.is_symlink() or not folder.is_dir():
            raise Corrupt(f"{name}: its object folder objects/{object_name} is missing. Rebuild the artifact.")
        text = read_file(folder / "zarr.json", name)
        manifest = Manifest.parse(text, f"{name} (zarr.json)")
        if object_id(manifest.kind, text) != id_of(object_name):
            raise Corrupt(f"{name}: the manifest zarr.json was changed after it was published. Rebuild the artifact.")
        return Artifact(name, object_name, manifest, self)

    def bring(self, names: Sequence[str]) -> None:
        """Has the files of artifacts on this machine, where they are already if the store is a folder."""

    def folder(self, name: str, object_name: str) -> Path:  # noqa: ARG002
        """Where the files of an artifact are."""
        return self.objects / object_name

    def run_text(self, name: str, object_name: str) -> bytes:
        """The record of the run that made an artifact, as it was written."""
        return read_file(self.objects / object_name / "run" / "zarr.json", name)

    def remedy(self, artifact: Artifact) -> str:
        """The command that makes an artifact anew, where its record still tells."""
        try:
            return f"Run again: {artifact.run['command']}"
        except (Corrupt, KeyError):
            return "Run again the command that made it."


def check_mark(text: bytes, where: str) -> None:
    """Raises Corrupt unless the `zarr.json` of a folder says that it is a store that we can read."""
    mark = attributes(text, f"{where}/zarr.json").get("mmdiff_store")
    schema = mark.get("schema") if isinstance(mark, dict) else None
    if schema != STORE_SCHEMA:
        raise Corrupt(
            f"{where}: a store of schema {schema}; this mmdiff reads schema {STORE_SCHEMA}. Use the version that wrote it."
        )


def is_name(name: str) -> bool:
    return _ARTIFACT_NAME.fullmatch(name) is not None


def check_name(name: str, known: Callable[[], Iterable[str]] = tuple) -> str:
    """Refuses what cannot be a name, and suggests the nearest of the known ones."""
    if not is_name(name):
        raise BadOption(
            f"{name!r} is no name of an artifact. {did_you_mean(name, known())}Names look like descriptors/background; ",
            call("inspect"),
            " lists them.",
        )
    return name


def missing_artifact(name: str, store: str, names: Sequence[str], none: str) -> Missing:
    """The error for a name that a store does not have; `none` is said of a store without names."""
    return Missing(f"{name}: not in the store {store}. {did_you_mean(name, names)}It holds: {', '.join(names) or none}.")


def open_chunk(folder: Path, spec: ArraySpec, chunk: int, crc: int) -> int:
    """A descriptor of a chunk file whose size and checksum bytes are those of the manifest."""
    file = spec.chunk_file(chunk)
    try:
        descriptor = os.open(folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened ({error.strerror})"
        raise Corrupt(f"chunk {file} {problem}.") from None
    status = os.fstat(descriptor)
    problem = ""
    try:
        if not stat.S_ISREG(status.st_mode):
            problem = "is not a plain file"
        elif status.st_size != spec.file_bytes:
            problem = f"has {status.st_size:,} bytes instead of {spec.file_bytes:,}"
        elif os.pread(descriptor, TAIL_BYTES, spec.chunk_bytes) != tail(crc):
            problem = "is not the chunk that was published (another checksum)"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    if problem:
        os.close(descriptor)
        raise Corrupt(f"chunk {file} {problem}.")
    return descriptor


def check_content(descriptor: int, spec: ArraySpec, chunk: int, crc: int, advance: Advance = lambda _: None) -> None:
    """Raises Corrupt unless an open chunk file holds what was published, to the last byte."""
    try:
        found = crc32c_of_file(descriptor, spec.chunk_bytes, advance)
    except OSError as error:
        raise Corrupt(f"chunk {spec.chunk_file(chunk)} cannot be read ({error.strerror}).") from None
    if found != crc:
        raise Corrupt(f"chunk {spec.chunk_file(chunk)} does not match its checksum.")


def read_file(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Corrupt(f"{where}: cannot read {path} ({error.strerror}). Rebuild the artifact.") from None
