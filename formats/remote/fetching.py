"""Fetching artifacts of a remote store into a local one, with the same bytes and the same ids.

Every chunk is checked against the checksum in the manifest as it arrives; a chunk that does not match is fetched again a few
times, then refused. A fetch is a draft like that of any other run: finished chunks stay when it is interrupted.

`CachedStore` reads a remote store in place. Names, manifests and records of runs are read from the remote store each time; an
artifact is fetched into a local folder, an ordinary store, when its files are first needed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from mmdiff.formats.errors import Corrupt, Locked, Missing, Unreachable
from mmdiff.formats.progress import Advance, Progress
from mmdiff.formats.remote.remote import Published, Remote
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.crc import crc32c, tail
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.files import open_chunk
from mmdiff.formats.store.layouts import require_sound
from mmdiff.formats.store.manifest import Json, Recipe, parse_run
from mmdiff.formats.store.publish import Publication, drafted_bytes, refuse_full_disk
from mmdiff.formats.store.store import Artifact, Store, is_name

# Chunks fetched in parallel, and the size of one request; their product is the memory needed.
PARALLEL_DOWNLOADS = 8
BLOCK_BYTES = 8 << 20

ATTEMPTS = 3
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Fetched:
    """A fetched artifact: the bytes downloaded, and the object that had its name before."""

    artifact: str
    object: str
    bytes: int
    downloaded: int
    seconds: float
    replaced: str | None

    def summary(self) -> Json:
        return {**asdict(self), "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class _Copy(Recipe):
    """The recipe of a fetched artifact. It differs from that of the stage, so that neither continues the draft of the other.

    The artifact is not computed: its chunks are compared with their published checksums, and its inputs are not read.
    """

    reads_inputs = False
    copy_of: str = ""


@explaining
def fetch(remote: Remote, names: Sequence[str], path: Path, progress: Progress) -> list[Fetched]:
    """Fetches artifacts into the store at a path; each is published when it is complete. Those already there are skipped."""
    wanted = _inputs_first([remote.artifact(name) for name in names])
    store = Store(path)
    absent = {published.name for published in wanted if not _is_local(store, published)}
    total = sum(published.manifest.bytes_on_disk for published in wanted if published.name in absent)
    _refuse_full_disk(store, [published for published in wanted if published.name in absent])
    fetched = {}
    with progress("fetching", total, "bytes") as advance:
        for published in wanted:
            name, size = published.name, published.manifest.bytes_on_disk
            if name in absent:
                fetched[name] = _fetch(remote, published, path, advance)
                continue
            fetched[name] = Fetched(name, published.id, size, 0, 0.0, None)
            if store.work.is_dir():
                # A run that was killed after it had named the artifact may have left its work folder.
                with suppress(Locked), Publication(path, [name], f"mmdiff fetch {remote.url} {name}"):
                    pass
    return [fetched[name] for name in names]


def _refuse_full_disk(store: Store, absent: Sequence[Published]) -> None:
    """Refuses artifacts that do not fit the disk together. An object that has lost its name is not downloaded again."""
    new = [published for published in absent if not (store.objects / published.id).is_dir()]
    needed = sum(published.manifest.bytes_on_disk - drafted_bytes(store, published.name) for published in new)
    if new:
        refuse_full_disk(store.path, new[0].name if len(new) == 1 else f"{len(new)} artifacts", needed)


def _inputs_first(wanted: Sequence[Published]) -> list[Published]:
    """Orders artifacts so that their inputs come first: an interrupted fetch leaves no object whose input lacks its name."""
    by_name = {published.name: published for published in wanted}
    ordered: dict[str, Published] = {}
    seen: set[str] = set()

    def visit(published: Published) -> None:
        if published.name not in seen:
            seen.add(published.name)
            for entry in published.manifest.inputs.values():
                if entry.get("artifact") in by_name:
                    visit(by_name[entry["artifact"]])
            ordered[published.name] = published

    for published in wanted:
        visit(published)
    return list(ordered.values())


def with_inputs(remote: Remote, names: Iterable[str]) -> list[str]:
    """Artifacts and those they were made from, directly or not, as far as the remote store still has them."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        for entry in remote.artifact(name).manifest.inputs.values():
            source = entry.get("artifact")
            if source is not None and is_name(source) and source not in found:
                published = remote.find(source)
                if published is not None and published.id == entry["object"]:
                    visit(source)
        found[name] = None

    for name in names:
        visit(name)
    return list(found)


def _is_local(store: Store, published: Published) -> bool:
    """Whether a store has the artifact under its name, checked without reading the data."""
    try:
        if store.id(published.name) != published.id:
            return False
        artifact = store.open_artifact(published.name)
        _ = artifact.run
        for array, entry in artifact.manifest.arrays.items():
            artifact.check_metadata(array)
            for chunk, crc in enumerate(entry.crcs):
                os.close(open_chunk(artifact.folder / array, entry.spec, chunk, crc))
    except Corrupt:
        return False
    return True


def _fetch(remote: Remote, published: Published, path: Path, advance: Advance) -> Fetched:
    start = time.perf_counter()
    name, manifest = published.name, published.manifest
    run = parse_run(remote.run_text(name), f"{remote.url}/{name}/run/zarr.json")
    recipe = _Copy(
        manifest.kind, manifest.schema, manifest.parameters, manifest.inputs, run.get("witness", {}), copy_of=published.id
    )
    with Publication(path, [name], f"mmdiff fetch {remote.url} {name}") as publication:
        before = _object_of(publication.store, name)
        artifact, downloaded = publication.find(recipe), 0
        if artifact is None or artifact.id != published.id:
            artifact, downloaded = _download(remote, published, publication, recipe, run, advance)
        else:
            advance(manifest.bytes_on_disk)
        publication.link({name: artifact})
    replaced = before if before not in (None, artifact.object_name) else None
    seconds = time.perf_counter() - start
    return Fetched(name, published.id, manifest.bytes_on_disk, downloaded, seconds, replaced)


def _object_of(store: Store, name: str) -> str | None:
    try:
        return store.object_name(name)
    except Corrupt:
        return None


def _download(
    remote: Remote, published: Published, publication: Publication, recipe: Recipe, run: Json, advance: Advance
) -> tuple[Artifact, int]:
    """Drafts and publishes the artifact; returns it and the number of bytes downloaded."""
    draft = publication.draft(published.name, recipe)
    downloads = []
    for array, entry in published.manifest.arrays.items():
        writer = draft.array(array, entry.spec.shape, entry.spec.dtype, entry.spec.rows_per_chunk)
        for chunk, crc in enumerate(entry.crcs):
            if writer.crcs.get(chunk) == crc:
                advance(entry.spec.file_bytes)
            else:
                file = f"{published.name}/{array}/{entry.spec.chunk_file(chunk)}"
                downloads.append(_ChunkDownload(remote, file, writer, chunk, crc, advance))
    _download_all(downloads)
    downloaded = sum(download.writer.spec.file_bytes for download in downloads)
    check = partial(require_sound, advice=f"Check the store at {remote.url}, and copy it there again.")
    return publication.publish(draft, published.manifest.facts, run, check), downloaded


def _download_all(downloads: Sequence[_ChunkDownload]) -> None:
    """Downloads chunks in parallel. After the first failure, or Ctrl-C, no more are started."""
    stop = threading.Event()
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS, "fetch") as pool:
        try:
            for done in as_completed([pool.submit(download.run, stop) for download in downloads]):
                done.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _ChunkDownload:
    """The download of one chunk."""

    remote: Remote
    file: str
    writer: ArrayWriter
    chunk: int
    crc: int
    advance: Advance

    def run(self, stop: threading.Event) -> None:
        """Tries a few times, until the chunk is complete and correct, or `stop` is set."""
        attempt = 1
        while True:
            try:
                self._try(stop)
                return
            except Missing as error:
                raise Corrupt(f"{error}: a chunk of the artifact is missing. Copy the store there again.") from None
            except Corrupt as error:
                if attempt == ATTEMPTS:
                    remedy = "Complete chunks are kept. Copy the store there again, then fetch again."
                    raise Corrupt(f"{self.remote.url}/{self.file}: {error}, in {ATTEMPTS} attempts. {remedy}") from None
            except Unreachable:
                if attempt == ATTEMPTS:
                    raise
            if stop.wait(PAUSE_SECONDS * attempt):
                return
            attempt += 1

    def _try(self, stop: threading.Event) -> None:
        spec = self.writer.spec
        part = seam.Part(self.writer.folder / spec.chunk_file(self.chunk))
        arrived = 0
        try:
            for at, piece in self._pieces(spec, stop):
                part.write(piece, at)
                arrived += len(piece)
                self.advance(len(piece))
        except BaseException:
            part.discard()
            self.advance(-arrived)
            raise
        if stop.is_set():
            part.discard()
            return
        part.finish(spec.file_bytes)
        self.writer.crcs[self.chunk] = self.crc

    def _pieces(self, spec: ArraySpec, stop: threading.Event) -> Iterator[tuple[int, bytes]]:
        """The pieces of the file in order, each with its position; raises Corrupt if they are not what was published."""
        at, crc, ending = 0, 0, b""
        while at < spec.file_bytes and not stop.is_set():
            until = min(at + BLOCK_BYTES, spec.file_bytes)
            piece = self.remote.read(self.file, at, until)[: spec.file_bytes - at]
            if len(piece) < until - at:
                raise Corrupt(f"{at + len(piece):,} bytes instead of {spec.file_bytes:,}")
            data = piece[: max(0, spec.chunk_bytes - at)]
            crc, ending = crc32c(data, crc), ending + piece[len(data) :]
            yield at, piece
            at += len(piece)
        if stop.is_set():
            return
        if crc != self.crc:
            raise Corrupt(f"checksum {crc:08x} instead of {self.crc:08x}")
        if ending != tail(self.crc):
            raise Corrupt(f"{ending.hex()} after the data instead of its checksum {tail(self.crc).hex()}")


@dataclass(frozen=True)
class CachedStore(Store):
    """A remote store, whose artifacts are fetched into the folder `path` when they are needed."""

    remote: Remote
    progress: Progress

    def __str__(self) -> str:
        return self.remote.url

    def names(self) -> list[str]:
        return self.remote.names

    def object_name(self, name: str) -> str | None:
        """The folder that holds the local copy of the artifact, or will hold it."""
        published = self.remote.find(name)
        if published is None:
            return None
        local = Store(self.path)
        return local.object_name(name) if local.id(name) == published.id else published.id

    def open_object(self, name: str, object_name: str, *, possible: bool = True) -> Artifact:
        return self._checked(Artifact(name, object_name, self.remote.artifact(name).manifest, self), possible)

    def ensure_local(self, names: Sequence[str]) -> None:
        fetch(self.remote, names, self.path, self.progress)

    def folder(self, name: str, object_name: str) -> Path:  # noqa: ARG002
        """The folder with the files of an artifact, which is fetched first where needed."""
        self.ensure_local([name])
        return Store(self.path).open_artifact(name).folder

    def run_text(self, name: str, object_name: str) -> bytes:  # noqa: ARG002
        return self.remote.run_text(name)

    def remedy(self, artifact: Artifact) -> str:  # noqa: ARG002
        return f"Remove the folder {self.path} and run this again, to fetch the artifact again."
