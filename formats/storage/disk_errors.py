"""Explanations of disk errors: an OSError of a write becomes a sentence with the file, the operation, the reason and advice.

A full disk or an exhausted quota is `DiskFull`; everything else that the system refuses is `DiskError`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from mmdiff.formats.errors import DiskError, DiskFull, MmdiffError, StoreError, call

P = ParamSpec("P")
T = TypeVar("T")

_KEPT = "Finished work is kept: run the same command again afterwards."

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = "The disk or the connection to it is failing: see the system log, and check the disk."
_PERMISSION = "Check the owner and the permissions of the file and of its folder, or use another folder."
_GONE = "Its folder was moved, removed or replaced while it was in use: check the path."
_NO_LOCKS = "A store needs a file system with flock: use a local disk, or mount the network file system with locking."
_ADVICE = {
    errno.EFBIG: "A limit on the size of files is in the way: see `ulimit -f`, and the largest file of the file system.",
    errno.EROFS: "The file system is mounted read-only: mount it for writing, or use another folder.",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.EISDIR: _GONE,
    errno.ELOOP: _GONE,
    errno.EEXIST: _GONE,
    errno.ESTALE: _GONE,
    errno.EXDEV: "It is on another file system than the rest of the store: keep the folders of a store on one.",
    errno.ENAMETOOLONG: "The path is too long for the file system: use a folder with a shorter path.",
    errno.EMFILE: "Too many files are open: raise `ulimit -n`.",
    errno.ENFILE: "Too many files are open on this machine: end other programs.",
    errno.ENOMEM: "The machine is out of memory: end other programs.",
    errno.ENOLCK: _NO_LOCKS,
    errno.EOPNOTSUPP: "The file system cannot do this: use a local disk.",
    errno.ENOSYS: "The file system cannot do this: use a local disk.",
}


def disk_error(error: OSError, path: Path, operation: str, kept: str = _KEPT) -> StoreError:
    """The error of an operation on a file or folder as one of ours; `kept` says what the failure leaves behind."""
    if error.errno in _FULL:
        room = f"{_free(path):,} bytes free" if error.errno == errno.ENOSPC else "the quota is used up"
        return DiskFull(
            f"{path}: cannot {operation}: the disk is full ({room}). Make room (", call("gc"), f" may help). {kept}"
        )
    reason = error.strerror or str(error) or type(error).__name__
    return DiskError(f"{path}: cannot {operation} ({reason}). {_ADVICE.get(error.errno or 0, _FAILING)} {kept}")


@contextmanager
def explained(path: Path, operation: str, kept: str = _KEPT) -> Iterator[None]:
    """Raises the disk errors of the block as `disk_error` explains them."""
    try:
        yield
    except MmdiffError:
        raise
    except OSError as error:
        raise disk_error(error, path, operation, kept) from error


def explaining(work: Callable[P, T]) -> Callable[P, T]:
    """Decorates a stage: an OSError that nothing inside has explained names its file here. Errors of pipes are left alone."""

    @wraps(work)
    def explained_work(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except (MmdiffError, ConnectionError):
            raise
        except OSError as error:
            if error.errno is None:
                raise
            place = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else Path("store")
            raise disk_error(error, place, "read or write it") from error

    return explained_work


def _free(path: Path) -> int:
    """Free bytes of the disk, 0 where the system does not say."""
    with suppress(OSError):
        status = os.statvfs(next(folder for folder in path.parents if folder.exists()))
        return status.f_bavail * status.f_frsize
    return 0
