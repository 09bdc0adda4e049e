"""The files of a store, for reading: chunks and metadata, each checked to be the file that was published, and folders.

What is missing or has changed is `Corrupt`. Where the system refuses to read a file (too many open files, no permission, a
failing disk), the file may be intact: that is a `DiskError`, with the advice for it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from mmdiff.formats.errors import Corrupt, StoreError
from mmdiff.formats.progress import Advance
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.crc import TAIL_BYTES, crc32c_of_file, tail
from mmdiff.formats.storage.disk_errors import disk_error
from mmdiff.formats.storage.metadata import read_inside

_AGAIN = "Then run this again."

# The file is missing, or something else is in its place.
_NOT_THE_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENXIO)


def open_chunk(folder: Path, spec: ArraySpec, chunk: int, crc: int) -> int:
    """Opens a chunk file; raises Corrupt unless its size and checksum bytes agree with the manifest.

    Raises DiskError where the system refuses to open or read it.
    """
    file = spec.chunk_file(chunk)
    try:
        descriptor = os.open(folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NOT_THE_FILE:
            raise _refused(error, folder / file) from error
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened ({error.strerror})"
        raise Corrupt(f"chunk {file} {problem}.") from None
    problem = ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            problem = "is not a regular file"
        elif status.st_size != spec.file_bytes:
            problem = f"has {status.st_size:,} bytes instead of {spec.file_bytes:,}"
        elif os.pread(descriptor, TAIL_BYTES, spec.chunk_bytes) != tail(crc):
            problem = "is not the chunk that was published (another checksum)"
    except OSError as error:
        os.close(descriptor)
        raise _refused(error, folder / file) from error
    if problem:
        os.close(descriptor)
        raise Corrupt(f"chunk {file} {problem}.")
    return descriptor


def check_chunk(folder: Path, spec: ArraySpec, chunk: int, crc: int, advance: Advance = lambda _: None) -> os.stat_result:
    """Reads a chunk file and returns its status; raises Corrupt unless its content matches its checksum, or as `open_chunk`."""
    descriptor = open_chunk(folder, spec, chunk, crc)
    try:
        status = os.fstat(descriptor)
        found = crc32c_of_file(descriptor, spec.chunk_bytes, advance)
    except OSError as error:
        raise _refused(error, folder / spec.chunk_file(chunk)) from error
    finally:
        os.close(descriptor)
    if found != crc:
        raise Corrupt(f"chunk {spec.chunk_file(chunk)} does not match its checksum.")
    return status


def read_file(path: Path, where: str, root: Path) -> bytes:
    """The bytes of a metadata file of the store at `root`; links are not followed."""
    try:
        return read_inside(root, path)
    except OSError as error:
        if error.errno not in _NOT_THE_FILE:
            raise _refused(error, path) from error
        raise Corrupt(f"{where}: cannot read {path} ({error.strerror}). Rebuild the artifact.") from None


def entries(folder: Path) -> list[Path]:
    """The entries of a folder in the order of their names, none if there is no such folder (any more)."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise disk_error(error, folder, "list the folder", _AGAIN) from error


def _refused(error: OSError, path: Path) -> StoreError:
    """The error for a file that the system refuses to read."""
    return disk_error(error, path, "read the file", _AGAIN)
