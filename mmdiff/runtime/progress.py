"""Progress callbacks, independent of how progress is displayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmdiff.formats.progress import Advance, Progress

__all__ = ["Advance", "Progress", "silent"]


@contextmanager
def silent(what: str, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG001
    """Shows nothing."""
    yield lambda _: None
