"""Who does the independent units of a stage: this process, or the workers of a cluster (`cluster.py`).

A stage says what it does with a unit here, and how others can do the same. Whoever does it, the stage hears of every unit that
is done and keeps what came of it; so its loop over units is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import in_threads

Unit = TypeVar("Unit")
Result = TypeVar("Result")
UnitIn = TypeVar("UnitIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)


class Work(Protocol[UnitIn, ResultOut]):
    """What others do with a unit. It is small, since it is sent to them, and opens for itself what it needs."""

    def opened(self) -> AbstractContextManager[Callable[[UnitIn, Advance], ResultOut]]:
        """The function to call for each unit, which tells how far it has come within the unit; made once by each process."""


class Executor(Protocol):
    """Does units of work."""

    @property
    def workers(self) -> int:
        """How many do units at the same time, each with all that a stage holds."""

    def each(
        self,
        here: Callable[[Unit], Result],
        there: Callable[[], Work[Unit, Result]],
        units: Sequence[Unit],
        threads: int | None = None,
        advance: Advance = lambda _: None,
    ) -> Iterator[tuple[Unit, Result]]:
        """Yields units with their results, in any order.

        This process calls `here`, in so many threads at a time, or one after the other where `threads` is None because each
        unit uses all cores itself. Other processes call what `there` makes; `advance` gets their progress within units.
        """


class LocalExecutor:
    """This process does all of them."""

    workers = 1

    def each(
        self,
        here: Callable[[Unit], Result],
        there: Callable[[], Work[Unit, Result]],  # noqa: ARG002
        units: Sequence[Unit],
        threads: int | None = None,
        advance: Advance = lambda _: None,  # noqa: ARG002
    ) -> Iterator[tuple[Unit, Result]]:
        results = map(here, units) if threads is None else in_threads(here, units, threads)
        return zip(units, results, strict=True)
