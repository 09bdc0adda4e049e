"""Opening the files of a store for reading: chunks and metadata, each checked to be the file that was published.

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


def check_content(descriptor: int, spec: ArraySpec, chunk: int, crc: int, advance: Advance = lambda _: None) -> None:
    """Raises Corrupt unless the content of an open chunk file matches its checksum."""
    try:
        found = crc32c_of_file(descriptor, spec.chunk_bytes, advance)
    except OSError as error:
        raise Corrupt(f"chunk {spec.chunk_file(chunk)} cannot be read ({error.strerror}).") from None
    if found != crc:
        raise Corrupt(f"chunk {spec.chunk_file(chunk)} does not match its checksum.")


def read_file(path: Path, where: str, root: Path) -> bytes:
    """The bytes of a metadata file of the store at `root`; links are not followed."""
    try:
        return read_inside(root, path)
    except OSError as error:
        if error.errno not in _NOT_THE_FILE:
            raise _refused(error, path) from error
        raise Corrupt(f"{where}: cannot read {path} ({error.strerror}). Rebuild the artifact.") from None


def _refused(error: OSError, path: Path) -> StoreError:
    """The error for a file that the system refuses to read."""
    return disk_error(error, path, "read the file", "Then run this again.")
