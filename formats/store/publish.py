"""Publishing: artifacts are drafted in `work/`, moved to `objects/` when they are complete, and then get their names.

A draft belongs to a recipe, and to the files that its inputs were when it was started. A killed run leaves its draft, and a run
with the same recipe continues it: chunks that match their checksum are not made again. A draft of another recipe is removed.
So is one whose inputs have other stamps now: the killed run may have read them while they were damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from mmdiff.formats.errors import (
    FOLDER,
    BadOption,
    BadResult,
    Corrupt,
    Damaged,
    DiskError,
    DiskFull,
    InputError,
    Locked,
    Parameter,
    Part,
    call,
)
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.metadata import read_json
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.checked_files import CheckedInputs, input_stamps
from mmdiff.formats.store.files import entries
from mmdiff.formats.store.manifest import (
    ArrayEntry,
    Json,
    Manifest,
    Recipe,
    encode,
    finite_figures,
    object_id,
    object_names,
    run_json,
)
from mmdiff.formats.store.store import NAMESPACE_JSON, STORE_JSON, Artifact, Store, check_name
from mmdiff.formats.store.verify import DraftStore, problems_of_files

Check = Callable[[Artifact], None]
"""Raises BadResult for a finished draft with bad content."""

# Drafts of versions that did not check every chunk they read (1), or had no stamps of their inputs (2), are not continued.
_DRAFT_VERSION = 3


class Draft:
    """An artifact that is being made; see `Publication.draft`."""

    def __init__(self, folder: Path, name: str, recipe: Recipe, stamps: Json, means: Json | None = None) -> None:
        self.name = name
        self.recipe = recipe
        self.writers: dict[str, ArrayWriter] = {}
        self.checkpoint = folder / "checkpoint"
        self._object = folder / "object"
        # On disk before the first chunk: making the folder of the object syncs the folder of this note.
        described = {**recipe.to_json(), "draft": _DRAFT_VERSION, "stamps": stamps} | ({"means": means} if means else {})
        note = folder / "recipe.json"
        if read_json(note) != json.loads(encode(described)) or self._object.is_symlink():
            if self.checkpoint.exists():
                seam.remove_file(self.checkpoint)
            if os.path.lexists(self._object):
                seam.remove_folder(self._object)
            seam.write_file(note, encode(described))
        seam.make_folder(self._object)

    def array(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        rows_per_chunk: int | None = None,
        continued: Artifact | None = None,
    ) -> ArrayWriter:
        """Declares an array that may begin with the rows of `continued`, and finds the chunks that an interrupted run wrote."""
        writer = ArrayWriter(self.folder_of(name), ArraySpec.fit(shape, dtype, rows_per_chunk))
        if continued is not None:
            writer.share(continued)
        needed = sum(len(array.missing) * array.spec.file_bytes for array in [*self.writers.values(), writer])
        free = seam.free_bytes(self._object)
        if needed > free:
            raise DiskFull(
                f"{self.name}, array {name}: {needed:,} bytes are still to be written, but the disk has {free:,} free. "
                "Free some space, or put the store on another disk with ",
                Parameter("store", FOLDER),
                ".",
            )
        self.writers[name] = writer
        return writer

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str, rows_per_chunk: int | None = None) -> ArrayWriter:
        """A temporary array that is not part of the artifact; it is removed on publication."""
        return ArrayWriter(self._object / name, ArraySpec.fit(shape, dtype, rows_per_chunk))

    def drop(self, scratch: str) -> None:
        """Removes a temporary array."""
        if (self._object / scratch).exists():
            seam.remove_folder(self._object / scratch)

    def has(self, scratch: str) -> bool:
        """Whether a temporary array exists, from this run or from the one that it continues."""
        return (self._object / scratch).is_dir()

    def note(self, note: Json) -> None:
        """Writes the checkpoint, what a later run needs to continue this one, for good: what it replaces may be dropped."""
        with finite_figures(self.name):
            text = encode(note)
        seam.write_file(self.checkpoint, text)
        seam.sync_folder(self.checkpoint.parent)

    @property
    def noted(self) -> Json:
        """The checkpoint of this run, or of the one that it continues."""
        found = read_json(self.checkpoint)
        return found if isinstance(found, dict) else {}

    def save_part(self, part: str, document: Json) -> None:
        """Saves a finished part of the work for a run that continues this one; it is removed on publication."""
        with finite_figures(self.name):
            text = encode(document)
        seam.write_file(self._object / f"{part}.json", text)

    def saved_part(self, part: str) -> Json | None:
        """A part saved by this run, or by the one that it continues."""
        found = read_json(self._object / f"{part}.json")
        return found if isinstance(found, dict) else None

    def adopt(self, scratch: ArrayWriter, name: str) -> None:
        """Makes a temporary array, complete or adopted before, an array of the artifact."""
        self.writers[name] = scratch.moved_to(self._object / name)

    def values(self, name: str, values: NDArray[Any]) -> None:
        """Writes an array from memory."""
        self.array(name, values.shape, values.dtype.name).fill(values)

    def strings(self, column: str, strings: Strings) -> None:
        """Writes a column of strings as its two arrays."""
        self.values(f"{column}_offsets", strings.offsets)
        self.values(f"{column}_utf8", strings.utf8)

    def folder_of(self, array: str) -> Path:
        """The folder of an array in the draft."""
        return self._object / array

    @property
    def has_chunks(self) -> bool:
        """Whether the draft holds a finished chunk, a saved part or a checkpoint."""
        chunks = (path for path in self._object.rglob("c.*") if path.suffix != ".part")
        return self.checkpoint.exists() or any(chunks) or any(self._object.glob("*.json"))

    def manifest(self, facts: Json) -> Manifest:
        for name, writer in self.writers.items():
            for chunk in writer.missing:
                raise Corrupt(
                    f"{self.name}, array {name}: chunk {writer.spec.chunk_file(chunk)} cannot be read back, or has changed on "
                    "the disk since it was written. Check the disk, then run the same command again."
                )
        arrays = {
            name: ArrayEntry(writer.spec, tuple(writer.crcs[chunk] for chunk in range(writer.spec.chunks)))
            for name, writer in self.writers.items()
        }
        return Manifest(self.recipe.kind, self.recipe.schema, self.recipe.parameters, self.recipe.inputs, facts, arrays)

    def id(self, facts: Json) -> str:
        """The id that the artifact will have. All chunks must be written."""
        return object_id(self.recipe.kind, self.manifest(facts).zarr_json())

    def publish(self, store: Store, facts: Json, run: Json, check: Check) -> str:
        """Moves the finished artifact to the objects, with its manifest written last; returns the name of its folder.

        It is checked before, where no other run finds it.
        """
        for path in self._object.iterdir():
            if path.name not in self.writers:
                seam.remove_folder(path) if path.is_dir() else seam.remove_file(path)
        for writer in self.writers.values():
            writer.finish()
        seam.make_folder(self._object / "run")
        seam.write_file(self._object / "run" / "zarr.json", run_json(run))
        seam.sync_folder(self._object / "run")
        seam.write_file(self._object / "zarr.json", self.manifest(facts).zarr_json())
        seam.sync_folder(self._object)
        check(Artifact(self.name, self.id(facts), self.manifest(facts), DraftStore(store.path, self._object)))
        seam.make_folder(store.objects)
        return next(name for name in object_names(self.id(facts)) if seam.move_folder(self._object, store.objects / name))


class Publication:
    """The exclusive right to publish under some names. Readers never wait for it."""

    def __init__(self, path: Path, names: Sequence[str], command: str) -> None:
        self.store = Store(path)
        self.names = [check_name(name) for name in names]
        self._holder = encode({"pid": os.getpid(), "host": os.uname().nodename, "command": command})
        self._locks: list[int] = []
        self._drafts: dict[str, Draft] = {}
        self._unnamed: dict[str, Path] = {}
        self._done: set[str] = set()

    def __enter__(self) -> Self:
        _refuse_other_folders(self.store.path)
        self._inputs = CheckedInputs(self.store.objects)
        try:
            self._add_lock(
                seam.lock_folder(self.store.path, exclusive=False), f"{self.store.path}: ", call("gc"), " is running."
            )
            for name in self.names:
                lock = self.store.work_folder(name) / "lock"
                if lock.parent.is_symlink():
                    raise Corrupt(f"{lock.parent}: a link where the draft of {name} should be. Remove it.")
                self._add_lock(seam.open_lock(lock), f"{name}: {_holder_of(lock)} is writing it.")
                seam.describe_lock(lock, self._locks[-1], self._holder)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            locked = self.names[: max(0, len(self._locks) - 1)]
            useless = [name for name in locked if not self._worth_keeping(name, error)]
            for name in useless:
                self._invalidate(name)
            if isinstance(error, InputError):
                for name, folder in self._unnamed.items():
                    seam.move_folder(folder, self.store.work_folder(name) / "object")
            for name in useless:
                self._remove_work(name)
            seam.remove_empty_folder(self.store.work)
            self._remove_unused_store()
        except OSError:
            # The first error says more. The next run, or gc, removes what is left.
            if error is None:
                raise
        finally:
            self._inputs.end()
            self._release()

    def find(self, recipe: Recipe) -> Artifact | None:
        """An object made by the same recipe before, named or not, whose bytes are all intact."""
        for folder in sorted(self.store.objects.glob(f"{recipe.kind}-*")):
            with suppress(Corrupt, DiskError):
                artifact = self.store.open_object(f"objects/{folder.name}", folder.name)
                same = artifact.manifest.follows(recipe) and artifact.run.get("witness") == recipe.source_fingerprints
                if same and not any(problems_of_files(artifact)):
                    return artifact
        return None

    def draft(self, name: str, recipe: Recipe, means: Json | None = None) -> Draft:
        """Starts an artifact, or continues the draft of an interrupted run with the same recipe and the same input files.

        `means` are what is not in the recipe, but must be the same in a run that continues the draft, such as the device.
        """
        # Stamps first: an input that this process has checked before, and that changes in between, is refused.
        stamps = input_stamps(self.store.objects, recipe) if recipe.reads_inputs else {}
        self._inputs.refuse_changed(recipe.object_ids)
        self._drafts[name] = Draft(self.store.work_folder(name), name, recipe, stamps, means)
        return self._drafts[name]

    def publish(self, draft: Draft, facts: Json, run: Json, check: Check = lambda _: None) -> Artifact:
        """Makes a finished draft an object, without a name yet. `check` may refuse it."""
        self._inputs.refuse_changed(draft.recipe.object_ids)
        self._make_groups(self.store.objects, self.store.work_folder(draft.name))
        object_name = draft.publish(self.store, facts, {**run, "witness": draft.recipe.source_fingerprints}, check)
        self._unnamed[draft.name] = self.store.objects / object_name
        return self.store.open_object(draft.name, object_name, possible=False)

    def link(self, artifacts: Mapping[str, Artifact]) -> None:
        """Gives objects their names; from now on readers find them."""
        for name, artifact in artifacts.items():
            link, target = self.store.path / name, f"../objects/{artifact.folder.name}"
            if not link.is_symlink() or str(link.readlink()) != target:
                if link.exists() and not link.is_symlink():
                    raise Corrupt(f"{link}: a file or folder where the name of an artifact should be. Move it elsewhere.")
                self._make_groups(link.parent, self.store.work_folder(name))
                seam.point(link, target, self.store.work_folder(name))
            self._unnamed.pop(name, None)
            self._done.add(name)

    def remove_name(self, name: str) -> None:
        """Takes a name away; its object stays until garbage is collected."""
        seam.remove_link(self.store.path / name)

    def _worth_keeping(self, name: str, error: BaseException | None) -> bool:
        """Whether the work folder of a name holds a draft that a later run can continue.

        A draft of bad input or with bad content is removed, since it cannot be continued, and so is one whose input was found
        damaged or has changed: nothing that came of it is kept. A draft that this run did not open is left alone.
        """
        if name in self._done:
            return False
        if name not in self._drafts:
            return (self.store.work_folder(name) / "object").exists()
        if error is None or isinstance(error, InputError | BadResult | Damaged):
            return False
        draft = self._drafts[name]
        return draft.has_chunks and not any(self._inputs.changed(draft.recipe.object_ids))

    def _make_groups(self, namespace: Path, scratch: Path) -> None:
        """Writes the zarr group metadata of the store and of one of its folders."""
        for folder, text in ((self.store.path, STORE_JSON), (namespace, NAMESPACE_JSON)):
            if not (folder / "zarr.json").exists():
                seam.place_file(folder / "zarr.json", text, scratch)

    def _remove_unused_store(self) -> None:
        """Removes a store to which nothing was published, unless another run is writing to it."""
        unused = {entry.name for entry in entries(self.store.path)} <= {"zarr.json", "objects"} and not any(
            entry.is_dir() for entry in entries(self.store.objects)
        )
        if unused and self._locks and seam.make_exclusive(self._locks[0]):
            for folder in (self.store.objects, self.store.path):
                seam.remove_file(folder / "zarr.json")
                seam.remove_empty_folder(folder)

    def _add_lock(self, lock: int | None, *problem: Part) -> None:
        if lock is None:
            raise Locked(*problem, " Wait for it to end, then run this again.")
        self._locks.append(lock)

    def _release(self) -> None:
        for lock in reversed(self._locks):
            os.close(lock)
        self._locks.clear()

    def _invalidate(self, name: str) -> None:
        """Removes the recipe of a draft, for good: without it no run continues what may be left of the draft."""
        note = self.store.work_folder(name) / "recipe.json"
        if note.exists():
            # What fails here fails again when the rest is removed.
            with suppress(OSError):
                seam.remove_file(note)
                seam.sync_folder(note.parent)

    def _remove_work(self, name: str) -> None:
        folder = self.store.work_folder(name)
        for path in entries(folder):
            if path.is_dir():
                seam.remove_folder(path)
            elif path.name != "lock":
                seam.remove_file(path)
        seam.remove_file(folder / "lock")
        seam.remove_empty_folder(folder)


def drafted_bytes(store: Store, name: str) -> int:
    """Bytes of the draft that an interrupted run has left. The next run continues it, or removes it first."""
    draft = store.work_folder(name) / "object"
    return sum(path.lstat().st_size for path in draft.rglob("*") if path.is_file())


def refuse_full_disk(path: Path, what: str, needed: int) -> None:
    """Refuses work that needs more bytes than the disk of the store has free."""
    free = seam.free_bytes(path)
    if needed > free:
        raise DiskFull(
            f"{what}: about {needed:,} bytes of disk are needed, but the disk of {path} has {free:,} free. Make room (",
            call("gc"),
            " may help), or put the store on another disk with ",
            Parameter("store", FOLDER),
            ".",
        )


def _refuse_other_folders(path: Path) -> None:
    """Refuses a path that is a file, or a folder with files other than those of a store."""
    if path.exists() and not path.is_dir():
        raise BadOption(f"{path}: a file, not a folder. Name another place with ", Parameter("store", FOLDER), ".")
    # Listed once: another run may be making the store at the same time.
    names = {entry.name for entry in entries(path)}
    if "zarr.json" in names:
        Store.open(path).check_folders()
    elif names - {"work"}:
        raise BadOption(
            f"{path}: a folder with other files in it, not a store. Name a new folder with ", Parameter("store", FOLDER), "."
        )


def _holder_of(lock: Path) -> str:
    holder = read_json(lock)
    if not isinstance(holder, dict):
        return "another run"
    return f"process {holder.get('pid')} on {holder.get('host')} ({holder.get('command')})"
