"""Progress callbacks, independent of how progress is displayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
Progress = Callable[[str, int, str], AbstractContextManager[Advance]]
"""Called with the name of the work, its total and its unit; gives the function to call with each amount that is done."""


@contextmanager
def silent(what: str, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG001
    """Shows nothing."""
    yield lambda _: None
