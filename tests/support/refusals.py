"""A system that refuses one file operation of a run in this process. `injection.py` does that to whole stages, in children."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

# Functions of `os` that fail on a full disk, and all that change files.
TAKE_ROOM = ("open", "write", "pwrite", "posix_fallocate", "mkdir", "symlink")
CHANGING = (*TAKE_ROOM, "fsync", "ftruncate", "rename", "replace", "unlink", "rmdir", "statvfs")


def refusal(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@contextmanager
def refused_at(step: int, names: Sequence[str], code: int) -> Iterator[Callable[[], bool]]:
    """Lets the call number `step` of these functions fail, counted from 0; opening for reading does not count.

    Yields a function that says, at the end, whether there were so many calls.
    """
    calls = itertools.count()

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            changes = call.__name__ != "open" or args[1] & os.O_CREAT
            if changes and next(calls) == step:
                raise refusal(code)
            return call(*args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patched:
        for name in names:
            patched.setattr(os, name, failing(getattr(os, name)))
        yield lambda: next(calls) > step
