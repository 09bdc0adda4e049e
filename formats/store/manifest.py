"""Manifests: the content of an artifact (attributes of its group) and the record of its run (attributes of its subgroup `run`).

The manifest holds nothing that differs between two runs over the same input. So its bytes, and their digest, which names the
object folder, are the same for an undisturbed run and for one that was killed and continued. Times, memory, versions and paths
are in the record of the run. With the checksums of all chunks, the digest covers every byte of an artifact.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NoReturn

from mmdiff.formats.errors import BadResult, Corrupt, call, shortened
from mmdiff.formats.storage.arrays import ArraySpec

Json = dict[str, Any]

_ARRAY_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FIELDS = {"kind": str, "schema": int, "parameters": dict, "inputs": dict, "facts": dict, "arrays": dict}
_KIND = re.compile(r"[a-z]+")
_DIGEST = re.compile(r"[0-9a-f]{24}")
_OBJECT_ID = re.compile(rf"{_KIND.pattern}-{_DIGEST.pattern}")
_OBJECT_NAME = re.compile(rf"{_OBJECT_ID.pattern}(\.\d+)?")
_INPUT_NAME = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9_-]*")
_CRC = re.compile(r"[0-9a-f]{8}")

# Entries of the record of a run that are read, where they are there.
_RUN: dict[str, type | tuple[type, ...]] = {
    "command": str,
    "started": str,
    "seconds": (int, float),
    "peak_memory": int,
    "versions": dict,
    "witness": dict,
}


class Record(Json):
    """A JSON object of an artifact. Reading an entry that it lacks is Corrupt rather than a KeyError."""

    where = ""

    @classmethod
    def of(cls, document: Json, where: str) -> Record:
        record = cls(document)
        record.where = where
        return record

    def __missing__(self, key: str) -> NoReturn:
        raise Corrupt(f"{self.where}: there is no {key!r} in it. Rebuild the artifact.")


@dataclass(frozen=True)
class ArrayEntry:
    """An array of an artifact, with the checksum of each of its chunks."""

    spec: ArraySpec
    crcs: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the content of an artifact, known before it is made.

    `inputs` identifies each input: {"artifact": name, "object": id} or {"source": name, "bytes": ..., "digest": ...}.
    `source_fingerprints` (paths, sizes and modification times) cover the parts of source files that the digest did not sample.
    They are recorded with the run and not in the manifest: the same bytes in another file are the same artifact.
    """

    reads_inputs: ClassVar[bool] = True

    kind: str
    schema: int
    parameters: Json
    inputs: Json
    source_fingerprints: Json = field(default_factory=dict)

    @property
    def object_ids(self) -> set[str]:
        """The ids of the artifacts among the inputs."""
        return {entry["object"] for entry in self.inputs.values() if "object" in entry}

    def to_json(self) -> Json:
        document = dict(vars(self))
        return {"witness": document.pop("source_fingerprints"), **document}


@dataclass(frozen=True)
class Manifest:
    """The content of an artifact: its recipe, its arrays, and `facts` found while making it."""

    kind: str
    schema: int
    parameters: Json
    inputs: Json
    facts: Json
    arrays: Mapping[str, ArrayEntry]

    def zarr_json(self) -> bytes:
        document = {
            **vars(self),
            "arrays": {
                name: {**entry.spec.to_json(), "crc32c": [f"{crc:08x}" for crc in entry.crcs]}
                for name, entry in self.arrays.items()
            },
        }
        with finite_figures(f"{self.kind}, its facts"):
            return group_json({"mmdiff": document})

    @classmethod
    def parse(cls, text: bytes, where: str) -> Manifest:
        document = attributes(text, where).get("mmdiff")
        if not isinstance(document, dict) or {key: type(value) for key, value in document.items()} != _FIELDS:
            raise Corrupt(f"{where}: not a manifest of mmdiff. Rebuild the artifact.")
        if not _KIND.fullmatch(document["kind"]) or document["schema"] < 1:
            found = f"kind {shortened(document['kind'])}, schema {document['schema']}"
            raise Corrupt(f"{where}: {found} is not a kind of artifact. Rebuild the artifact.")
        for name, entry in document["inputs"].items():
            if not _is_input(entry):
                raise Corrupt(
                    f"{where}: the input {shortened(name)} is neither an artifact nor a source. Rebuild the artifact."
                )
        arrays = {name: _array_entry(name, entry, where) for name, entry in document["arrays"].items()}
        records = {key: Record.of(document[key], f"{where}, {key}") for key in ("parameters", "facts")}
        return cls(**{**document, **records, "arrays": arrays})

    @property
    def bytes_on_disk(self) -> int:
        return sum(entry.spec.bytes_on_disk for entry in self.arrays.values())

    def follows(self, recipe: Recipe) -> bool:
        """Whether this is the manifest of an artifact made by the recipe."""
        return all(getattr(self, key) == getattr(recipe, key) for key in ("kind", "schema", "parameters", "inputs"))


def object_id(kind: str, manifest: bytes) -> str:
    """The name of the object folder: the kind, for people, and a digest of the manifest."""
    return f"{kind}-{hashlib.blake2b(manifest, digest_size=12).hexdigest()}"


def is_object_name(name: str) -> bool:
    return _OBJECT_NAME.fullmatch(name) is not None


def object_names(identity: str) -> Iterator[str]:
    """The names an object folder may have, in order. A damaged folder keeps its name until it is collected."""
    yield identity
    yield from (f"{identity}.{number}" for number in itertools.count(1))


def id_of(object_name: str) -> str:
    """The id in the name of an object folder; a folder that replaced a damaged one has a number after it."""
    return object_name.partition(".")[0]


def run_json(run: Json) -> bytes:
    """The metadata of the group `run`, with a digest of its own, since the object id does not cover it."""
    with finite_figures("the record of the run"):
        return group_json({"run": run, "digest": _digest(run)})


@contextmanager
def finite_figures(what: str) -> Iterator[None]:
    """JSON has no NaN and no infinity: figures that are not finite come of inputs that are not."""
    try:
        yield
    except ValueError:
        raise BadResult(f"{what}: values that are not finite. An input has some; find it with ", call("verify"), ".") from None


def parse_run(text: bytes, where: str) -> Json:
    found = attributes(text, where)
    run = found.get("run")
    with suppress(ValueError, RecursionError):
        if isinstance(run, dict) and found.get("digest") == _digest(run) and run_json(run) == text and _is_run(run):
            nested = {"witness": Record.of(run["witness"], where)} if "witness" in run else {}
            return Record.of({**run, **nested}, where)
    raise Corrupt(f"{where}: the record of the run is damaged. Rebuild the artifact.")


def group_json(group_attributes: Json) -> bytes:
    return encode({"zarr_format": 3, "node_type": "group", "attributes": group_attributes})


def encode(document: Json) -> bytes:
    """Readable JSON, always the same bytes for the same content.

    A file name that is not UTF-8 has lone surrogates in Python; they are written as JSON escapes.
    """
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def attributes(text: bytes, where: str) -> Json:
    """The attributes of a zarr group."""
    try:
        found = json.loads(text, parse_constant=_finite, parse_float=_finite)["attributes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Corrupt(f"{where}: not the metadata of a zarr group. Rebuild the artifact.")
    return found


def _finite(text: str) -> float:
    """A number of a JSON document. NaN and Infinity are not JSON, though Python reads them."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number


def _is_input(entry: Any) -> bool:
    """Whether an entry identifies an artifact or a source, as `Recipe` describes."""
    match entry:
        case {"artifact": str(name), "object": str(identity), **others}:
            return not others and bool(_INPUT_NAME.fullmatch(name) and _OBJECT_ID.fullmatch(identity))
        case {"source": str(), "bytes": int(size), "files": int(files), "digest": str(digest), **others}:
            return not others and size >= 0 and files >= 0 and _DIGEST.fullmatch(digest) is not None
    return False


def _is_run(run: Json) -> bool:
    """Whether the entries of a record have the types that readers rely on. Raises ValueError for a time that is none."""
    if not all(isinstance(run[key], types) for key, types in _RUN.items() if key in run):
        return False
    if "started" in run:
        datetime.fromisoformat(run["started"])
    sources = run.get("witness", {}).values()
    return all(isinstance(files, list) and all(_is_source_file(file) for file in files) for files in sources)


def _is_source_file(file: Any) -> bool:
    """Whether this is the path, size and modification time of a file."""
    return isinstance(file, list) and [type(value) for value in file] == [str, int, int]


def _digest(document: Json) -> str:
    return hashlib.blake2b(encode(document), digest_size=12).hexdigest()


def _array_entry(name: str, document: Any, where: str) -> ArrayEntry:
    if not _ARRAY_NAME.fullmatch(name) or name == "run":
        raise Corrupt(f"{where}: {shortened(name)} is not a name for an array. Rebuild the artifact.")
    spec = ArraySpec.from_json(document, f"{where}, array {name}")
    found = document.get("crc32c")
    if not isinstance(found, list) or not all(isinstance(crc, str) and _CRC.fullmatch(crc) for crc in found):
        raise Corrupt(f"{where}, array {name}: unreadable checksums. Rebuild the artifact.")
    crcs = tuple(int(crc, 16) for crc in found)
    if len(crcs) != spec.chunks:
        raise Corrupt(f"{where}, array {name}: {len(crcs)} checksums for {spec.chunks} chunks. Rebuild the artifact.")
    return ArrayEntry(spec, crcs)
