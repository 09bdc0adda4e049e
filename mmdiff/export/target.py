"""The file that an export writes: it gets its name when it is whole and on the disk; an interrupted one leaves nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mmdiff.formats.errors import BadOption, DiskFull
from mmdiff.formats.store.store import Store

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def check_place(file: Path, store: Store) -> None:
    """Refuses a place where a file cannot or must not be."""
    if file.is_dir():
        raise BadOption(f"{file}: a folder. Name the file to write.")
    if not file.parent.is_dir():
        raise BadOption(f"{file}: there is no folder {file.parent}. Make it first, or choose another.")
    if file.resolve().is_relative_to(store.path.resolve()):
        raise BadOption(f"{file}: lies in the store {store.path}, which is no place for other files. Choose another folder.")


@contextmanager
def whole_file(file: Path) -> Iterator[BinaryIO]:
    """A stream into FILE.part, which becomes FILE at the end. A symlink is followed, as `cp` would."""
    final = file.resolve()
    unfinished = final.with_name(final.name + ".part")
    try:
        with unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(final)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFull(f"{file}: the disk is full, and nothing was exported. Make room, or choose another disk.") from error
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
