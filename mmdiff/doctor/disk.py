"""Checks of the store and its disk: free space, filesystem, and the speed of writing and reading."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mmdiff.doctor.checks import Check, Verdict
from mmdiff.formats.errors import Corrupt, DiskError, Missing
from mmdiff.formats.storage.seam import free_bytes
from mmdiff.formats.store.store import Store
from mmdiff.runtime.progress import Advance, Progress

MEASURED_BYTES = 256 << 20
_PIECE_BYTES = 16 << 20
# Each measurement ends after this time, so that slow disks take no longer.
_PATIENCE_SECONDS = 1.5

_LITTLE_ROOM = 10 << 30
_SLOW_BYTES_PER_SECOND = 200e6
_IN_MEMORY = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse")


@dataclass(frozen=True)
class Speed:
    """Sequential speed in bytes per second."""

    write: float
    read: float


def check_disk(path: Path, progress: Progress) -> Iterator[Check]:
    """Checks of a store at `path`, existing or not."""
    path = path.resolve()
    yield _check_store(path)
    yield check_room(free_bytes(path))
    yield from check_filesystem(filesystem_of(path, Path("/proc/mounts").read_text()))
    yield _check_speed(path, progress)


def check_room(free: int) -> Check:
    if free >= _LITTLE_ROOM:
        return Check("store", "free_space", {"bytes": free})
    advice = "A million descriptors of 256 dimensions take 1 GiB, plus their graph. Free some space, or use another disk."
    return Check("store", "free_space", {"bytes": free}, Verdict.WORTH_KNOWING, advice)


def check_filesystem(kind: str | None) -> Iterator[Check]:
    if kind is None:
        return
    verdict, advice = Verdict.OK, ""
    if kind in _IN_MEMORY:
        verdict, advice = Verdict.WORTH_KNOWING, "It takes memory, and is lost at a restart. Put the store on a disk."
    elif kind in _NETWORK:
        verdict, advice = Verdict.WORTH_KNOWING, "Diffusion is as slow as the network. Put the store on a local SSD."
    yield Check("store", "filesystem", {"type": kind}, verdict, advice)


def filesystem_of(path: Path, mounts: str) -> str | None:
    """The type of the filesystem of a path, from the text of /proc/mounts; the last of equal mounts is on top."""
    found: tuple[int, str | None] = (-1, None)
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        mount = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point))
        if path.is_relative_to(mount) and len(mount.parts) >= found[0]:
            found = (len(mount.parts), kind)
    return found[1]


def measure(folder: Path, advance: Advance) -> Speed:
    """Writes an unnamed file as the store does, syncing every piece; drops it from the cache; reads it."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written, writing = _write(file, advance)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read, reading = _read(file, written, advance)
    return Speed(written / writing, read / reading)


def _write(file: BinaryIO, advance: Advance) -> tuple[int, float]:
    random = np.random.default_rng()
    done, seconds = 0, 0.0
    while done < MEASURED_BYTES and seconds < _PATIENCE_SECONDS:
        # Random bytes, since some disks compress.
        piece = random.bytes(_PIECE_BYTES)
        start = time.perf_counter()
        file.write(piece)
        os.fdatasync(file.fileno())
        seconds += time.perf_counter() - start
        done += len(piece)
        advance(len(piece))
    return done, seconds


def _read(file: BinaryIO, size: int, advance: Advance) -> tuple[int, float]:
    piece = np.empty(_PIECE_BYTES, np.uint8)
    file.seek(0)
    done, seconds = 0, 0.0
    while done < size and seconds < _PATIENCE_SECONDS:
        start = time.perf_counter()
        count = os.readv(file.fileno(), [piece.data])
        seconds += time.perf_counter() - start
        done += count
        advance(count)
    return done, seconds


def _check_store(path: Path) -> Check:
    try:
        artifacts = len(Store.open(path).names())
    except Missing:
        return Check("store", "folder", {"path": str(path), "artifacts": None})
    except (Corrupt, DiskError) as error:
        return Check("store", "folder", {"path": str(path), "artifacts": None}, Verdict.PROBLEM, str(error))
    return Check("store", "folder", {"path": str(path), "artifacts": artifacts})


def _check_speed(path: Path, progress: Progress) -> Check:
    # Beside the store, since nothing but artifacts belongs in it; within it if it is a mount point.
    folder = path if path.is_mount() else path.parent
    while not folder.exists():
        folder = folder.parent
    unknown = {"read_bytes_per_second": None, "write_bytes_per_second": None}
    if free_bytes(folder) < 2 * MEASURED_BYTES:
        return Check("store", "speed", unknown, Verdict.WORTH_KNOWING, "Too little free space to measure. Free some first.")
    try:
        with progress("measuring the disk", 2 * MEASURED_BYTES, "bytes") as advance:
            speed = measure(folder, advance)
    except OSError as error:
        advice = f"Cannot write in {folder} ({error.strerror}). Make it writable, or put the store elsewhere."
        return Check("store", "speed", unknown, Verdict.PROBLEM, advice)
    facts = {"read_bytes_per_second": round(speed.read), "write_bytes_per_second": round(speed.write)}
    if speed.read >= _SLOW_BYTES_PER_SECOND:
        return Check("store", "speed", facts)
    advice = "Diffusion reads the graph once for every iteration and batch. Put the store on an SSD."
    return Check("store", "speed", facts, Verdict.WORTH_KNOWING, advice)
