"""Small stores and inputs for tests, and checks that several tests share."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.storage import arrays
from mmdiff.formats.store.checked_files import input_stamps
from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.manifest import Json, Recipe, encode
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.formats.store.verify import Problem, verify, verify_frame
from mmdiff.importing.stage import Request, import_descriptors
from mmdiff.kinds import KINDS
from mmdiff.runtime.progress import Advance

SMALL_CHUNKS = 8192

# A folder in memory, where fsync costs nothing; None uses the default of tempfile.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

dtypes = st.sampled_from(arrays.DTYPES)
shapes = st.one_of(
    st.tuples(st.integers(0, 3000)),
    st.tuples(st.integers(0, 700), st.sampled_from([1, 2, 3, 7, 8, 13, 48, 257])),
    st.tuples(st.integers(0, 60), st.integers(1, 5), st.integers(1, 5)),
)
chunk_sizes = st.sampled_from([1, 4096, SMALL_CHUNKS, 20_000, 1 << 20])


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    """Makes chunks small, so that small arrays have several. A context manager works under hypothesis, unlike a fixture."""
    before, arrays.CHUNK_BYTES = arrays.CHUNK_BYTES, size
    try:
        yield
    finally:
        arrays.CHUNK_BYTES = before


def values_for(shape: tuple[int, ...], dtype: str, seed: int = 0) -> NDArray[Any]:
    """Random values, so that no two chunks are equal."""
    numbers = np.random.default_rng(seed).integers(0, 120, shape)
    return np.asarray(numbers, dtype)


def recipe(kind: str = "descriptors", **parameters: Any) -> Recipe:
    return Recipe(kind, 1, parameters, {})


def publish(
    path: Path,
    name: str,
    values: Mapping[str, NDArray[Any]],
    of: Recipe | None = None,
    facts: Json | None = None,
    run: Json | None = None,
) -> Artifact:
    """Publishes arrays without checking them. Descriptors get their facts, unless others are given."""
    of = of or recipe()
    if facts is None and of.kind == "descriptors" and "vectors" in values:
        facts = {"rows": len(values["vectors"]), "dropped": {}}
    with Publication(path, [name], "a test") as publication:
        draft = publication.draft(name, of)
        for array, content in values.items():
            draft.values(array, content)
        artifact = publication.publish(draft, facts or {}, run or {"command": "a test"})
        publication.link({name: artifact})
    return Store.open(path).open_artifact(name, possible=False)


def interrupt_growth(path: Path, name: str) -> None:
    """A run that grows an array to ten values, with a checkpoint, and is interrupted by Ctrl-C."""
    with (
        suppress(KeyboardInterrupt),
        Publication(path, [name], "a test") as publication,
        Growth(publication.draft(name, recipe()), {"v": "int32"}) as growth,
    ):
        growth.append("v", np.arange(10, dtype=np.int32))
        growth.checkpoint({"done": 10})
        growth.close()
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Inputs:
    """A user's files: embeddings, labels, class names and ids."""

    folder: Path

    def request(self, role: Any = "background", name: str = "vectors.npy", **more: Any) -> Request:
        options = {"dims": 8} | more
        if role == "seeds":
            options = {"labels": str(self.folder / "labels.npy")} | options
        return Request([str(self.folder / name)], role, **options)


def make_inputs(folder: Path, rows: int = 600, width: int = 12) -> Inputs:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(7)
    np.save(folder / "vectors.npy", draw.standard_normal((rows, width)).astype(np.float32))
    np.save(folder / "others.npy", draw.standard_normal((rows, width)).astype(np.float32))
    np.save(folder / "labels.npy", np.arange(rows) % 5)
    (folder / "classes.txt").write_text("".join(f"class {i}\n" for i in range(5)))
    (folder / "ids.txt").write_text("".join(f"row-{i}\n" for i in range(rows)))
    return Inputs(folder)


def make_store(path: Path, inputs: Inputs) -> Store:
    """A store with a background, and seeds that have labels, class names, ids and raw descriptors."""
    with chunks_of(SMALL_CHUNKS):
        import_descriptors(path, inputs.request())
        import_descriptors(path, full_seeds(inputs))
    return Store.open(path)


def full_seeds(inputs: Inputs, **more: Any) -> Request:
    folder = inputs.folder
    return inputs.request("seeds", ids=str(folder / "ids.txt"), class_names=str(folder / "classes.txt"), **more)


@contextmanager
def interrupted_after_first_chunk(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A progress bar that sends SIGINT when it first advances."""
    del total, unit

    def advance(count: int) -> None:
        if what.startswith("importing") and count:
            os.kill(os.getpid(), signal.SIGINT)

    yield advance


def problems(store: Store) -> list[Problem]:
    return [*verify(store, store.names(), KINDS), *verify_frame(store)]


def tree(path: Path, with_runs: bool = True) -> dict[str, bytes | str]:
    """All entries of a folder for comparison: files by content, links by target."""
    found: dict[str, bytes | str] = {}
    for entry in sorted(path.rglob("*")):
        key = str(entry.relative_to(path))
        if entry.is_symlink():
            found[key] = f"-> {entry.readlink()}"
        elif entry.is_dir():
            found[key] = "folder"
        elif with_runs or not key.endswith("run/zarr.json"):
            found[key] = entry.read_bytes()
    return found


def restamp_drafts(path: Path) -> None:
    """Makes the drafts of a copied store go on as in the original: they get the stamps of the copied inputs."""
    for note in (path / "work").glob("*/recipe.json"):
        described = json.loads(note.read_bytes())
        if described["stamps"]:
            made = Recipe(*(described[key] for key in ("kind", "schema", "parameters", "inputs", "witness")))
            note.write_bytes(encode({**described, "stamps": input_stamps(path / "objects", made)}))


def chunk_inodes(path: Path) -> set[tuple[int, int]]:
    """Inode and modification time of all finished chunk files, without those of scratch arrays."""
    chunks = [file for file in path.rglob("c.*") if file.suffix != ".part" and not file.parent.name.startswith("pass")]
    stats = [file.stat() for file in chunks]
    return {(status.st_ino, status.st_mtime_ns) for status in stats}
