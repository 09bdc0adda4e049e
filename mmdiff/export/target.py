"""The file that an export or a report writes: a regular file, which gets its name when it is complete and on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mmdiff.formats.errors import BadOption, MmdiffError
from mmdiff.formats.storage.disk_errors import disk_error
from mmdiff.formats.store.store import Store

_OTHER_THAN_FILES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_place(file: Path, store: Store | None = None) -> None:
    """Refuses a target that cannot or must not be written: call it before computing anything.

    A symbolic link stands for the file that it leads to.
    """
    final = file.resolve()
    if not file.parent.is_dir():
        raise BadOption(f"{file}: there is no folder {file.parent}. Make it first, or choose another.")
    if not final.parent.is_dir():
        raise BadOption(f"{file}: a link to {final}, where there is no folder {final.parent}. Make it first.")
    if final.exists():
        kind = stat.S_IFMT(final.stat().st_mode)
        if kind != stat.S_IFREG:
            raise BadOption(f"{file}: {_OTHER_THAN_FILES[kind]}, which cannot be replaced by a file. Name a file to write.")
        if not os.access(final, os.W_OK):
            raise BadOption(f"{file}: write-protected. Make it writable, or name another file.")
    if not os.access(final.parent, os.W_OK | os.X_OK):
        raise BadOption(f"{file}: no permission to write in {final.parent}. Choose another folder.")
    if store is not None and final.is_relative_to(store.path.resolve()):
        raise BadOption(f"{file}: lies in the store {store.path}, which is no place for other files. Choose another folder.")


def remove_file(file: Path) -> None:
    """Removes a file that has served, if it is there."""
    file.unlink(missing_ok=True)


@contextmanager
def whole_file(file: Path) -> Iterator[BinaryIO]:
    """A stream into FILE.part, which becomes FILE at the end; an interrupted export leaves nothing. Links are followed."""
    final = file.resolve()
    unfinished = final.with_name(final.name + ".part")
    try:
        with unfinished.open("w+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(final)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, MmdiffError):
            raise disk_error(error, file, "write the file", "Nothing was written: run the same command again.") from error
        raise
