"""Independent units of work on all cores, in threads: kernels run without the GIL, results come in the order of the work."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

Unit = TypeVar("Unit")
Result = TypeVar("Result")


_limit: int | None = None


def cores() -> int:
    """The cores that this process may use."""
    return min(len(os.sched_getaffinity(0)), _limit or sys.maxsize)


def limit_cores(most: int) -> None:
    """Leaves the other cores to others from here on: to workers on the same machine."""
    global _limit
    _limit = most


def in_threads(function: Callable[[Unit], Result], units: Iterable[Unit], threads: int | None = None) -> Iterator[Result]:
    """The results of some work, in order. What has not begun when one fails, or on Ctrl-C, is not begun any more."""
    count = threads or cores()
    # Matrix products within a unit stay on its core, instead of every unit asking for all of them.
    with ThreadPoolExecutor(count) as pool, threadpool_limits(1, "blas"):
        yield from in_order(pool, function, units, 2 * count)


def in_order(
    pool: ThreadPoolExecutor, function: Callable[[Unit], Result], units: Iterable[Unit], ahead: int
) -> Iterator[Result]:
    """The same in a pool that is there; no more than `ahead` units are begun before their turn, so that memory is bounded."""
    begun: deque[Future[Result]] = deque()
    try:
        for unit in units:
            begun.append(pool.submit(function, unit))
            if len(begun) == ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()
