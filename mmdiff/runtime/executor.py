"""Executors: the independent work units of a stage, done by this process or by the workers of a cluster (`dask.py`).

A stage says how to do a unit here, and how a worker can do the same. It receives the result of every unit and keeps it, so its
loop over units is written once.
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
    """The work of a stage for workers. It is sent to them, so it is small, and opens its inputs itself."""

    def opened(self) -> AbstractContextManager[Callable[[UnitIn, Advance], ResultOut]]:
        """The function that does a unit and reports its progress within it; opened once by each worker."""


class Executor(Protocol):
    """Does the work units of a stage."""

    @property
    def workers(self) -> int:
        """Workers that do units at the same time, each with all the memory that a stage takes."""

    def each(
        self,
        here: Callable[[Unit], Result],
        there: Callable[[], Work[Unit, Result]],
        units: Sequence[Unit],
        threads: int | None = None,
        advance: Advance = lambda _: None,
    ) -> Iterator[tuple[Unit, Result]]:
        """Yields units with their results, in any order.

        This process calls `here` in `threads` threads; None means one unit after the other, each on all cores. Workers call
        the work that `there` returns; `advance` gets their progress within units.
        """


class LocalExecutor:
    """Does all units in this process."""

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
