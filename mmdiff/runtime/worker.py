"""What the workers of a cluster do (`cluster.py`): one unit at a time, with what they have opened for its stage."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

import mmdiff
from mmdiff.formats.errors import ClusterError
from mmdiff.runtime.executor import Result, Unit, Work
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import cores, limit_cores, machine_cores

_TELL_SECONDS = 0.5

# Units use all cores that there are for them, whatever Dask takes for the number of threads of a worker.
_one_at_a_time = threading.Lock()
_open: dict[str, tuple[ExitStack, Any]] = {}


def look(needed: Path) -> str:
    """The version of this worker, which sees what it needs."""
    if not needed.exists():
        host = os.uname().nodename
        raise ClusterError(f"a worker on {host} cannot see {needed}. All workers need it at the same path: mount it there.")
    return mmdiff.__version__


def do(token: str, work: Work[Unit, Result], unit: Unit, needed: Path, neighbours: int, ear: tuple[str, int]) -> Any:
    """One unit, on this worker's share of the cores of its machine; returns how far it came in the end, too."""
    from distributed import get_worker

    worker = get_worker()
    with _one_at_a_time:
        look(needed)
        limit_cores(max(1, machine_cores() // neighbours))
        count, clock = 0, time.monotonic()

        def tell(more: int) -> None:
            nonlocal count, clock
            count += more
            if time.monotonic() - clock > _TELL_SECONDS:
                worker.log_event(ear[0], (ear[1], count))
                clock = time.monotonic()

        with threadpool_limits(cores()):
            result = _opened(token, work)(unit, tell)
        return result, count


def _opened(token: str, work: Work[Unit, Result]) -> Callable[[Unit, Advance], Result]:
    """The work of a stage, opened when its first unit comes, and closed when the next stage begins."""
    if token not in _open:
        _close()
        stack = ExitStack()
        _open[token] = stack, stack.enter_context(work.opened())
    function: Callable[[Unit, Advance], Result] = _open[token][1]
    return function


@atexit.register
def _close() -> None:
    for stack, _ in _open.values():
        stack.close()
    _open.clear()
