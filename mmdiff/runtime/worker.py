"""The worker side of a Dask cluster (`dask.py`): one work unit at a time, on inputs that stay open for its stage."""

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
from mmdiff.formats.store.checked_files import CheckedInputs
from mmdiff.runtime.executor import Result, Unit, Work
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import cores, limit_cores, machine_cores

_REPORT_SECONDS = 0.5

# A unit uses all cores of its worker, whatever number of threads Dask assumes.
_one_at_a_time = threading.Lock()
_open: dict[str, tuple[ExitStack, Any]] = {}


def check_worker(needed: Path) -> str:
    """The version of mmdiff on this worker; raises an error unless it sees the path that is needed."""
    if not needed.exists():
        host = os.uname().nodename
        raise ClusterError(f"a worker on {host} cannot see {needed}. All workers need it at the same path: mount it there.")
    return mmdiff.__version__


def do(token: str, work: Work[Unit, Result], unit: Unit, needed: Path, sharing: int, topic: tuple[str, int]) -> Any:
    """Does a unit on this worker's share of the cores, when `sharing` workers share a machine; returns the progress too.

    `topic` is the Dask topic that progress is reported on, and the number of the unit there.
    """
    from distributed import get_worker

    worker = get_worker()
    with _one_at_a_time:
        check_worker(needed)
        limit_cores(max(1, machine_cores() // sharing))
        count, clock = 0, time.monotonic()

        def advance(more: int) -> None:
            nonlocal count, clock
            count += more
            if time.monotonic() - clock > _REPORT_SECONDS:
                worker.log_event(topic[0], (topic[1], count))
                clock = time.monotonic()

        with threadpool_limits(cores()):
            result = _opened(token, work)(unit, advance)
        return result, count


def _opened(token: str, work: Work[Unit, Result]) -> Callable[[Unit, Advance], Result]:
    """The work of a stage, opened for its first unit and closed when the next stage begins.

    A unit fails if an input has changed since this worker checked it: the run that publishes the result does not read it.
    """
    if token not in _open:
        _close()
        with ExitStack() as stack:
            inputs = CheckedInputs(Path("/"))
            stack.callback(inputs.end)
            compute = stack.enter_context(work.opened())

            def checked(unit: Unit, advance: Advance) -> Result:
                result = compute(unit, advance)
                inputs.refuse_changed()
                return result

            _open[token] = stack.pop_all(), checked
    function: Callable[[Unit, Advance], Result] = _open[token][1]
    return function


@atexit.register
def _close() -> None:
    for stack, _ in _open.values():
        stack.close()
    _open.clear()
