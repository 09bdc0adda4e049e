"""Guarded reading of small files: the metadata of a store, and recipes, checkpoints and notes of its drafts.

A named pipe in place of a file would block, a device or a huge sparse file would fill the memory, and a link could lead out of
the store. So only regular files of bounded size are read, and no link is followed. `sources/text.py` reads the files of users.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

# A manifest needs about ten bytes for each chunk of 64 MiB; the results of a large experiment take some megabytes.
MOST_BYTES = 256 << 20

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_inside(root: Path, path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes below the folder `root`.

    Neither the file nor a folder on the way may be a link. Raises OSError, whose `strerror` says what is wrong.
    """
    *folders, name = path.relative_to(root).parts
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            child = _open_at(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, parent, path)
            os.close(parent)
            parent = child
        descriptor = _open_at(name, _FLAGS, parent, path)
    finally:
        os.close(parent)
    return _content(descriptor, path, most)


def read_json(path: Path) -> Any:
    """The content of a JSON file in the draft of a run, which must not be a link; None if it cannot be read."""
    try:
        return json.loads(read_inside(path.parent, path))
    except (OSError, ValueError, RecursionError):
        return None


def _open_at(name: str, flags: int, parent: int, path: Path) -> int:
    """Opens an entry of an open folder, which must not be a link."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        # A link to a folder is "not a directory" for O_DIRECTORY with O_NOFOLLOW.
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
            raise OSError(errno.ELOOP, f"{name} is a link", str(path)) from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def _content(descriptor: int, path: Path, most: int) -> bytes:
    """The content of an open file, which is closed. It may grow meanwhile: no more than `most` bytes are read."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes; at most {most:,} are read", str(path))
        pieces, left = [], most
        while piece := os.read(descriptor, min(left, max(4096, status.st_size))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)
