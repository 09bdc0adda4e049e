"""Threads: how many this process may use, and independent work on them. Kernels run without the GIL."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from mmdiff.runtime.memory import Cgroups
from mmdiff.runtime.parameters import MOST_THREADS, whole

Unit = TypeVar("Unit")
Result = TypeVar("Result")

VARIABLE = "NUMBA_NUM_THREADS"

_limit: int | None = None


@dataclass(frozen=True)
class ThreadLimit:
    """A limit on the number of threads, and its source."""

    threads: int
    source: str


def cores() -> int:
    """The number of threads to use: the tightest of all limits."""
    return deciding_limit().threads


def machine_cores() -> int:
    """The cores that this process may use of its machine, whatever the user asks for."""
    return min(limit.threads for limit in _machine_limits(_cpu_quota()))


def limit_cores(most: int | None) -> int | None:
    """Uses at most so many threads from here on, None for as many as allowed; returns the limit before."""
    global _limit
    before, _limit = _limit, most if most is None else whole("threads", most, 1, MOST_THREADS)
    return before


def deciding_limit(cgroups: Cgroups | None = None) -> ThreadLimit:
    """The tightest limit on the number of threads; among equals the one that the user can change most easily."""
    quota = _cpu_quota() if cgroups is None else cgroups.cpu_limit()
    return min((*_user_limits(), *reversed(_machine_limits(quota))), key=lambda limit: limit.threads)


def _user_limits() -> Iterator[ThreadLimit]:
    if _limit is not None:
        yield ThreadLimit(_limit, "threads")
    text = os.environ.get(VARIABLE, "").strip()
    if text.isdigit() and int(text) > 0:
        yield ThreadLimit(int(text), VARIABLE)


def _machine_limits(quota: float | None) -> list[ThreadLimit]:
    limits = [ThreadLimit(os.cpu_count() or 1, "cores of the machine")]
    affinity = len(os.sched_getaffinity(0))
    if affinity < limits[0].threads:
        limits.append(ThreadLimit(affinity, "CPU affinity"))
    # Part of a core is a core for part of the time.
    if quota is not None and math.ceil(quota) < limits[-1].threads:
        limits.append(ThreadLimit(max(1, math.ceil(quota)), "CPU quota of the control group"))
    return limits


@cache
def _cpu_quota() -> float | None:
    return Cgroups().cpu_limit()


def in_threads(function: Callable[[Unit], Result], units: Iterable[Unit], threads: int | None = None) -> Iterator[Result]:
    """The results of work units, in order. After an error or Ctrl-C no further units begin."""
    # Products in kernels call scipy's BLAS. It is loaded now, since only the threads of loaded libraries are limited.
    import scipy.linalg.cython_blas  # noqa: F401

    count = threads or cores()
    # Matrix products within a unit stay on its thread, instead of each using all of them.
    with ThreadPoolExecutor(count) as pool, _libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
        yield from in_order(pool, function, units, 2 * count)


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The loaded libraries with threads of their own. Finding them takes milliseconds; imports may have loaded further ones."""
    del modules
    return ThreadpoolController()


def in_order(
    pool: ThreadPoolExecutor, function: Callable[[Unit], Result], units: Iterable[Unit], ahead: int
) -> Iterator[Result]:
    """The results of work units in an existing pool, in order; at most `ahead` units are begun early, to bound memory."""
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
