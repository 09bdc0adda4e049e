"""Mutations of the files of a store, by accident (damage) and on purpose (forgery), and the way back.

Damage leaves some digest wrong: every reader must refuse it, or give what it gave before. A forgery recomputes checksums, the
name of the object and the link to it, so that only the content can be wrong: offsets beyond the end, columns that no node has.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage.arrays import DTYPES, ArraySpec
from mmdiff.formats.storage.crc import crc32c, tail
from mmdiff.formats.store.manifest import encode, object_id, run_json
from mmdiff.formats.store.store import NAMESPACES, Store

# Readers refuse damage or give the same result. A forgery with impossible content never changes a computed number. Any other
# forgery is a store of other content: readers may do with it as they would with any store, but not crash.
DAMAGE, IMPOSSIBLE, OTHER = "damage", "impossible", "other"

Entry = tuple[str, bytes | str]


@dataclass(frozen=True)
class Mutation:
    """A mutation that was carried out: its class, its kind, the name of the artifact, and the paths that it touched."""

    category: str
    how: str
    artifact: str
    where: str
    touched: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.how} of {self.where}"


@dataclass
class Snapshot:
    """All entries of a folder in memory, to restore them after a mutation."""

    root: Path
    entries: dict[Path, Entry] = field(default_factory=dict)
    signatures: dict[Path, tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Snapshot:
        snapshot = cls(root)
        for path in sorted(root.rglob("*")):
            if path.is_symlink():
                snapshot.entries[path] = ("link", str(path.readlink()))
            else:
                snapshot.entries[path] = ("folder", "") if path.is_dir() else ("file", path.read_bytes())
            snapshot.signatures[path] = _signature(os.lstat(path))
        return snapshot

    def content(self, path: Path) -> bytes:
        found = self.entries[path][1]
        assert isinstance(found, bytes)
        return found

    def restore(self, touched: tuple[Path, ...] = ()) -> None:
        """Removes what was added and writes what was changed; `touched` is written in any case.

        Time stamps are too coarse to show two changes within a few milliseconds.
        """
        for path in touched:
            _remove(path)
        found = dict(_walk(self.root))
        for path in found:
            if path not in self.entries and path.parent in {self.root, *self.entries}:
                _remove(path)
        for path, (kind, content) in self.entries.items():
            status = found.get(path)
            same = stat.S_ISDIR(status[0]) if status and kind == "folder" else status == self.signatures[path]
            if same:
                continue
            if status is not None or os.path.lexists(path):
                _remove(path)
            if kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)
            self.signatures[path] = _signature(os.lstat(path))


def _signature(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mode, status.st_size, status.st_mtime_ns


def _walk(folder: Path) -> Iterator[tuple[Path, tuple[int, int, int]]]:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            path = Path(entry.path)
            yield path, _signature(entry.stat(follow_symlinks=False))
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Mutator:
    """Draws and carries out mutations of one store."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.root = snapshot, snapshot.root
        self.away = snapshot.root.with_name("elsewhere")
        self.store = Store.open(snapshot.root)
        self.names = self.store.names()
        self.object_of = {name: str(self.store.object_name(name)) for name in self.names}
        self.name_of = {value: key for key, value in self.object_of.items()}
        self.files = [path for path, (kind, _) in snapshot.entries.items() if kind == "file"]
        self.chunks = [path for path in self.files if path.name.startswith("c.")]
        self.metadata = [path for path in self.files if path.name == "zarr.json"]
        self.folders = [path for path in snapshot.entries if self._is_array(path)]
        self.links = [path for path, (kind, _) in snapshot.entries.items() if kind == "link"]
        self.contents = [
            (name, array)
            for name in self.names
            for array in self.store.open_artifact(name)
            if (self.store.open_artifact(name).manifest.kind, _rule(array)) in IMPOSSIBLE_VALUES
        ]

    def _is_array(self, path: Path) -> bool:
        return self.snapshot.entries[path][0] == "folder" and path.parent.parent.name == "objects"

    def artifact_of(self, path: Path) -> str:
        """The name of the artifact that a path belongs to; "" for the frame of the store."""
        parts = path.relative_to(self.root).parts
        if parts[0] == "objects" and len(parts) > 1:
            return self.name_of.get(parts[1], "")
        return "/".join(parts) if len(parts) == 2 and parts[0] in NAMESPACES and parts[1] != "zarr.json" else ""

    def mutate(self, draw: np.random.Generator) -> Mutation:
        """One mutation; it always changes something."""
        share = draw.random()
        if share < 0.50:
            return self._damage_file(draw, _pick(draw, self.chunks))
        if share < 0.68:
            return self._damage_file(draw, _pick(draw, self.metadata))
        if share < 0.74:
            return self._damage_folder(draw)
        if share < 0.78:
            return self._damage_link(draw)
        return self._forge(draw)

    def _damage_file(self, draw: np.random.Generator, path: Path) -> Mutation:
        others = [other for other in self.chunks if other.parent == path.parent and other != path]
        other = _pick(draw, others if others and draw.random() < 0.5 else self.files)
        given = Given(draw, self.snapshot.content(path), self.snapshot.content(other), path, self.away)
        touched = [path, self.away]
        if draw.random() < 0.25:
            how = _pick(draw, list(REPLACEMENTS))
            path.unlink()
            REPLACEMENTS[how](given)
        else:
            # Metadata is edited as often as all of its other damages together.
            edit = path.name == "zarr.json" and draw.random() < 0.5
            damages = JSON_DAMAGES if edit else CONTENT_DAMAGES
            how = _pick(draw, list(damages))
            changed = damages[how](given)
            if changed == given.content:
                return self._damage_file(draw, path)
            path.write_bytes(changed)
            if how == "swap":
                other.write_bytes(given.content)
                touched.append(other)
        # Records of runs are no part of what an artifact is: one of another artifact is as good as any.
        record = how in ("swap", "copy") and path.parent.name == other.parent.name == "run"
        return Mutation(
            OTHER if record else DAMAGE, how, self.artifact_of(path), str(path.relative_to(self.root)), tuple(touched)
        )

    def _damage_folder(self, draw: np.random.Generator) -> Mutation:
        folder, other = _pick(draw, self.folders), _pick(draw, self.folders)
        how = _pick(draw, ["delete folder", "link folder", "swap folders", "file for folder", "surplus"])
        touched: tuple[Path, ...] = (folder,)
        if how == "surplus":
            (folder / _pick(draw, [".hidden", "c.99", "zarr.json.bak"])).write_bytes(b"x")
        elif how == "delete folder":
            shutil.rmtree(folder)
        elif how == "link folder":
            folder.rename(self.away)
            folder.symlink_to(self.away)
            touched = (folder, self.away)
        elif how == "file for folder":
            shutil.rmtree(folder)
            folder.write_bytes(b"no folder")
        elif self._content_of(other) == self._content_of(folder):
            return self._damage_folder(draw)
        else:
            folder.rename(self.away)
            other.rename(folder)
            self.away.rename(other)
            touched = (folder, other)
        records = how == "swap folders" and folder.name == other.name == "run"
        category = OTHER if records else DAMAGE
        return Mutation(category, how, self.artifact_of(folder), str(folder.relative_to(self.root)), touched)

    def _content_of(self, folder: Path) -> dict[str, Entry]:
        return {path.name: entry for path, entry in self.snapshot.entries.items() if path.parent == folder}

    def _damage_link(self, draw: np.random.Generator) -> Mutation:
        link = _pick(draw, self.links)
        how = _pick(draw, ["unlink", "astray", "folder for name", "file for name", "another object"])
        link.unlink()
        category = DAMAGE
        if how == "astray":
            link.symlink_to(_pick(draw, ["/etc", "../objects", "nowhere", "../objects/graph-" + "0" * 24, "../../..", "."]))
        elif how == "folder for name":
            link.mkdir()
        elif how == "file for name":
            link.write_bytes(b"x")
        elif how == "another object":
            own = self.artifact_of(link)
            link.symlink_to(f"../objects/{self.object_of[_pick(draw, [name for name in self.names if name != own])]}")
        if how != "astray":
            # A store without a name, or with another object under it, is a store too.
            category = OTHER
        return Mutation(category, how, self.artifact_of(link), str(link.relative_to(self.root)), (link,))

    def _forge(self, draw: np.random.Generator) -> Mutation:
        if draw.random() < 0.3:
            return self._forge_shape(draw)
        share = draw.random()
        if share < 0.55 and self.contents:
            name, array = _pick(draw, self.contents)
            return self._forge_content(draw, name, array, IMPOSSIBLE)
        name = _pick(draw, self.names)
        arrays = list(self.store.open_artifact(name))
        if share < 0.7 and arrays:
            return self._forge_content(draw, name, _pick(draw, arrays), OTHER)
        folder = self.store.objects / self.object_of[name]
        if share < 0.8:
            document = json.loads(self.snapshot.content(folder / "run" / "zarr.json"))["attributes"]["run"]
            how = _edit_json(draw, document)
            (folder / "run" / "zarr.json").write_bytes(run_json(document))
            return Mutation(OTHER, "forged run", name, f"{name} run{how}", (folder / "run" / "zarr.json",))
        document = json.loads(self.snapshot.content(folder / "zarr.json"))
        how = _edit_json(draw, document["attributes"]["mmdiff"])
        touched = self._publish(name, document)
        return Mutation(OTHER, "forged manifest", name, f"{name} manifest{how}", touched)

    def _forge_content(self, draw: np.random.Generator, name: str, array: str, category: str) -> Mutation:
        """Writes a value into an array, and makes all checksums and names fit."""
        artifact = self.store.open_artifact(name)
        spec, folder = artifact.spec(array), artifact.folder / array
        chunk = int(draw.integers(spec.chunks)) if spec.chunks else -1
        if chunk < 0:
            return self._forge(draw)
        file = folder / spec.chunk_file(chunk)
        start, stop = spec.rows(chunk)
        content = bytearray(self.snapshot.content(file)[: spec.chunk_bytes])
        values = np.frombuffer(content, spec.dtype)
        place = int(draw.integers((stop - start) * (spec.row_bytes // values.itemsize)))
        if category == IMPOSSIBLE:
            make = IMPOSSIBLE_VALUES[artifact.manifest.kind, _rule(array)]
            whole = np.array(artifact.array(array)).reshape(-1)
            at = start * (spec.row_bytes // values.itemsize) + place
            value = make(draw, _Context(artifact.facts, whole, at, _bound(artifact, array)))
            if value is None:
                return self._forge(draw)
            values[place] = value
        else:
            value = int(draw.integers(1, 256))
            values.view(np.uint8)[place * values.itemsize] ^= value
            if draw.random() < 0.3 and values.dtype.kind == "f":
                value = values[place] = _pick(draw, [np.nan, np.inf, -np.inf, -1.0])
        crc = crc32c(bytes(content))
        file.write_bytes(bytes(content) + tail(crc))
        document = json.loads(self.snapshot.content(artifact.folder / "zarr.json"))
        document["attributes"]["mmdiff"]["arrays"][array]["crc32c"][chunk] = f"{crc:08x}"
        touched = self._publish(name, document)
        where = f"{name} {array}[{start * (spec.row_bytes // values.itemsize) + place}] = {value}"
        return Mutation(category, "forged content", name, where, (file, *touched))

    def _forge_shape(self, draw: np.random.Generator) -> Mutation:
        """Gives an array another dtype or shape, in its own metadata, the manifest and sometimes whatever is of its length."""
        name = _pick(draw, [name for name in self.names if self.store.open_artifact(name).manifest.arrays])
        artifact = self.store.open_artifact(name)
        kind, array = artifact.manifest.kind, _pick(draw, list(artifact))
        before = artifact.spec(array)
        how, spec = _reshaped(draw, before)
        if spec is None or spec == before:
            return self._forge(draw)
        document = json.loads(self.snapshot.content(artifact.folder / "zarr.json"))
        manifest, specs = document["attributes"]["mmdiff"], {array: spec}
        everywhere = how == "rows" and draw.random() < 0.5
        if everywhere:
            # All that counts the same rows follows: such an artifact may be possible, or contradict others only.
            for other in artifact:
                own = artifact.spec(other)
                more = own.length - before.length
                if own.rows_per_chunk and more in (0, 1) and spec.length + more <= own.chunks_per_plane * own.rows_per_chunk:
                    specs[other] = _with_length(own, spec.length + more)
            for fact, value in manifest["facts"].items():
                if value == before.length and type(value) is int:
                    manifest["facts"][fact] = spec.length
        touched: list[Path] = []
        for other, new in specs.items():
            folder, old = artifact.folder / other, artifact.spec(other)
            (folder / "zarr.json").write_bytes(encode(new.zarr_json()))
            kept = [old.chunk_file(chunk) for chunk in range(old.chunks)][: new.chunks]
            surplus = [folder / old.chunk_file(chunk) for chunk in range(old.chunks) if old.chunk_file(chunk) not in kept]
            for path in surplus:
                path.unlink()
            manifest["arrays"][other] |= new.to_json() | {"crc32c": manifest["arrays"][other]["crc32c"][: new.chunks]}
            touched += [folder / "zarr.json", *surplus]
        where = (
            f"{name} {array}: {before.dtype} {before.shape} to {spec.dtype} {spec.shape}{', everywhere' if everywhere else ''}"
        )
        category = IMPOSSIBLE if not everywhere and _is_impossible(kind, array, how, spec) else OTHER
        return Mutation(category, f"forged {how}", name, where, (*touched, *self._publish(name, document)))

    def _publish(self, name: str, document: dict[str, Any]) -> tuple[Path, ...]:
        """Writes a manifest, names the object after its digest, and lets the name lead there."""
        folder, link = self.store.objects / self.object_of[name], self.root / name
        text = encode(document)
        kind = document["attributes"]["mmdiff"].get("kind")
        found = object_id(kind if isinstance(kind, str) and kind.isalpha() and kind.islower() else "x", text)
        (folder / "zarr.json").write_bytes(text)
        if found != folder.name:
            folder.rename(folder.parent / found)
        link.unlink()
        link.symlink_to(f"../objects/{found}")
        return (folder / "zarr.json", link, folder.parent / found) if found != folder.name else (folder / "zarr.json", link)


def _reshaped(draw: np.random.Generator, spec: ArraySpec) -> tuple[str, ArraySpec | None]:
    """Another dtype, number of rows, columns or dimensions for an array whose chunk files stay as they are; None if not so."""
    how = _pick(draw, ["dtype", "dtype", "rows", "rows", "rows", "columns", "dimensions"])
    room = spec.chunks_per_plane * spec.rows_per_chunk
    if how == "dtype":
        same = [dtype for dtype in DTYPES if np.dtype(dtype).itemsize == np.dtype(spec.dtype).itemsize and dtype != spec.dtype]
        return how, replace(spec, dtype=_pick(draw, same)) if same else None
    if how == "rows":
        lengths = [spec.length - 1, spec.length + 1, spec.length // 2, room, spec.length - spec.rows_per_chunk]
        length = int(_pick(draw, lengths))
        return how, _with_length(spec, length) if 0 < length <= room else None
    if how == "columns" and len(spec.shape) == 2 and spec.shape[1] % 2 == 0:
        return how, ArraySpec((spec.shape[0], spec.shape[1] // 2), spec.dtype, spec.rows_per_chunk * 2)
    if how == "dimensions" and len(spec.shape) == 2 and spec.shape[1] > 0:
        return how, ArraySpec((spec.shape[0] * spec.shape[1],), spec.dtype, spec.rows_per_chunk * spec.shape[1])
    if how == "dimensions" and len(spec.shape) == 1 and spec.rows_per_chunk % 2 == 0:
        return how, ArraySpec((spec.shape[0], 1), spec.dtype, spec.rows_per_chunk)
    return how, None


def _with_length(spec: ArraySpec, length: int) -> ArraySpec:
    shape = (spec.shape[0], length, *spec.shape[2:]) if len(spec.shape) == 3 else (length, *spec.shape[1:])
    return replace(spec, shape=shape)


# Where `docs/formats.md` leaves a choice: other dtypes of the same size, and lengths and widths that nothing else determines.
_OTHER_DTYPES = {("descriptors", "raw"): ("uint8", "int8")}
_FREE_LENGTHS = (("descriptors", "dropped_ids"),)
_FREE_WIDTHS = (("descriptors", "vectors"), ("descriptors", "raw"), ("descriptors", "labels"), ("cells", "vectors"))


def _is_impossible(kind: str, array: str, how: str, spec: ArraySpec) -> bool:
    """Whether no artifact of this kind can have the array like this, while all else is as it was."""
    if how == "dtype":
        return spec.dtype not in _OTHER_DTYPES.get((kind, array), ())
    if how == "rows":
        return (kind, array) not in _FREE_LENGTHS
    if (kind, array) == ("descriptors", "labels"):
        return how == "dimensions" and len(spec.shape) == 1
    return how == "dimensions" or (kind, array) not in _FREE_WIDTHS


def _pick(draw: np.random.Generator, choices: list[Any]) -> Any:
    return choices[int(draw.integers(len(choices)))]


class Given(NamedTuple):
    """A file to damage, with its content and that of another file; `away` is a place outside the store."""

    draw: np.random.Generator
    content: bytes
    other: bytes
    path: Path
    away: Path


def _flipped(given: Given) -> bytes:
    changed = bytearray(given.content)
    for _ in range(int(given.draw.choice([1, 1, 1, 2, 8]))):
        changed[int(given.draw.integers(len(changed)))] ^= 1 << int(given.draw.integers(8))
    return bytes(changed)


def _truncated(given: Given) -> bytes:
    size = len(given.content)
    return given.content[: int(_pick(given.draw, [0, 1, size - 1, size - 4, 4096, int(given.draw.integers(size))]))]


def _extended(given: Given) -> bytes:
    return given.content + given.draw.bytes(int(given.draw.choice([1, 4, 4096, 5000])))


def _zeroed(given: Given) -> bytes:
    start = int(given.draw.integers(len(given.content)))
    stop = min(len(given.content), start + int(given.draw.choice([1, 16, 512, 4096])))
    return given.content[:start] + bytes(stop - start) + given.content[stop:]


def _spliced(given: Given) -> bytes:
    start = int(given.draw.integers(len(given.content)))
    part = given.other[start : start + int(given.draw.choice([4, 64, 512, 4096]))]
    return given.content[:start] + part + given.content[start + len(part) :]


def _resealed(given: Given) -> bytes:
    """Other content with a right checksum after it, which is not the one in the manifest."""
    changed = _flipped(given)[:-4]
    return changed + tail(crc32c(changed))


def _shifted(given: Given) -> bytes:
    by = int(given.draw.choice([1, 4, 8, 512]))
    return given.content[by:] + given.content[:by]


def _edited(given: Given) -> bytes:
    document = json.loads(given.content)
    _edit_json(given.draw, document)
    return encode(document)


CONTENT_DAMAGES: dict[str, Callable[[Given], bytes]] = {
    "flip": _flipped,
    "truncate": _truncated,
    "extend": _extended,
    "zero": _zeroed,
    "splice": _spliced,
    "reseal": _resealed,
    "shift": _shifted,
    "swap": lambda given: given.other,
    "copy": lambda given: given.other,
    "random": lambda given: given.draw.bytes(len(given.content)),
}
JSON_DAMAGES: dict[str, Callable[[Given], bytes]] = {"edit": _edited}


def _linked(given: Given) -> None:
    """The same bytes, but behind a link that leads out of the store."""
    given.away.write_bytes(given.content)
    given.path.symlink_to(given.away)


def _sparse(given: Given) -> None:
    given.path.write_bytes(given.content)
    os.truncate(given.path, 1 << 36)


# Functions that put something else in the place of a file.
REPLACEMENTS: dict[str, Callable[[Given], None]] = {
    "delete": lambda given: given.path.unlink(missing_ok=True),
    "fifo": lambda given: os.mkfifo(given.path),
    "folder": lambda given: given.path.mkdir(),
    "link": _linked,
    "device": lambda given: given.path.symlink_to("/dev/zero"),
    "sparse": _sparse,
}

_NASTY: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        5,
        2**31,
        2**32,
        2**63,
        -(2**63),
        10**30,
        0.5,
        1e308,
        "",
        "x",
        "../x",
        "/etc",
        "0",
        "\ud800",
    ),
    *([], {}, [[]], {"a": 5}, [1, 2, 3], "graph/W", "descriptors", "scores", "int64", "float16", [1 << 40, 3]),
)


def _edit_json(draw: np.random.Generator, document: Any) -> str:
    """Replaces, removes or adds one value somewhere in a document; returns the place and the change."""
    place = ""
    while True:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not keys:
            if isinstance(document, dict):
                document["x"] = 1
            else:
                document.append(1)
            return f"{place} gets an entry"
        key = _pick(draw, keys)
        inner = document[key]
        place += f"[{key!r}]"
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.8:
            document = inner
            continue
        share = draw.random()
        if share < 0.2:
            del document[key]
            return f"{place} is removed"
        value = _pick(draw, list(_NASTY))
        if share < 0.4 and isinstance(inner, int):
            value = inner + int(draw.choice([-1, 1, 1000]))
        if isinstance(document, dict) and share > 0.9:
            document[_pick(draw, ["x", "../y", "arrays", "labels"])] = value
            return f"{place} gets a sibling {value!r}"
        if value == inner:
            value = [inner]
        document[key] = value
        return f"{place} = {value!r}"


@dataclass(frozen=True)
class _Context:
    """An array before a forgery, the place of the forged value, and the bound that values must be below."""

    facts: dict[str, Any]
    values: NDArray[Any]
    at: int
    bound: int


def _rule(array: str) -> str:
    return "offsets" if array.endswith("_offsets") else array


def _bound(artifact: Any, array: str) -> int:
    """The number of things that an array counts or points into."""
    kind = artifact.manifest.kind
    if array.endswith("_offsets"):
        return int(artifact.spec(array.replace("_offsets", "_utf8")).shape[0])
    if (kind, array) == ("graph", "indices"):
        return int(artifact.spec("scale").shape[0])
    if (kind, array) == ("graph", "indptr"):
        return int(artifact.spec("indices").shape[0])
    if kind == "graph":
        return int(artifact.spec("order").shape[0])
    if kind == "knn":
        return int(artifact.facts["nodes"])
    if kind == "cells":
        entries = {"children": "centroids", "cell_of": "centroids"}.get(array, "vectors")
        return int(artifact.spec(entries).shape[0])
    if kind == "report":
        return int(artifact.spec("planes").shape[0])
    if "class_numbers" in artifact:
        return int(artifact.spec("class_numbers").shape[0])
    return int(artifact.spec("class_names_offsets").shape[0]) - 1


Forged = Callable[[np.random.Generator, _Context], int | None]


def _beyond(most: int) -> Forged:
    return lambda draw, array: _pick(draw, [array.bound, array.bound + 1, array.bound * 3, most, most // 2])


def _no_column(draw: np.random.Generator, array: _Context) -> int:
    return int(_beyond((1 << 31) - 1)(draw, array) or 0) | (int(array.values[array.at]) & (1 << 31))


def _no_class(draw: np.random.Generator, array: _Context) -> int:
    return int(_pick(draw, [array.bound, array.bound + 7, 2**31 - 1, -2, -(2**31)]))


def _no_offset(draw: np.random.Generator, array: _Context) -> int | None:
    """An offset that goes backwards, is negative or beyond the end; the first and last one MUST be 0 and the end."""
    before = int(array.values[array.at - 1]) if array.at else 0
    wrong = [array.bound + 1, array.bound + 4096, 2**62, -1, -(2**62), -(2**63)]
    return int(_pick(draw, [*wrong, before - 1] if before else wrong))


def _no_permutation(draw: np.random.Generator, array: _Context) -> int | None:
    if draw.random() < 0.5:
        return int(_beyond(2**32 - 1)(draw, array) or 0)
    return int(_pick(draw, [value for value in array.values.tolist() if value != array.values[array.at]]))


IMPOSSIBLE_VALUES: dict[tuple[str, str], Forged] = {
    ("graph", "indices"): _no_column,
    ("graph", "indptr"): _no_offset,
    ("graph", "order"): _no_permutation,
    ("knn", "neighbors"): _beyond(2**32 - 2),
    ("descriptors", "labels"): _no_class,
    ("descriptors", "offsets"): _no_offset,
    ("cells", "order"): _no_permutation,
    ("cells", "cell_of"): _beyond(2**32 - 1),
    ("cells", "children"): _no_offset,
    ("cells", "offsets"): _no_offset,
    ("scores", "top_classes"): _no_class,
    ("scores", "offsets"): _no_offset,
    ("logreg", "offsets"): _no_offset,
    ("report", "offsets"): _no_offset,
}
