"""Work units on a Dask cluster whose workers share the store's folder (`docs/cluster.md`).

Only a small `Work` and the unit are sent. Workers map their inputs from the store; this process holds the locks and keeps the
results. A killed worker loses its unit, which the scheduler gives to another.
"""

from __future__ import annotations

import gc
import logging
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import mmdiff
from mmdiff.formats.errors import BadOption, ClusterError, InputError, Parameter
from mmdiff.formats.extras import load
from mmdiff.runtime.executor import Executor, LocalExecutor, Result, Unit, Work
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import cores
from mmdiff.runtime.worker import check_worker, do

# Units submitted per worker: one in work and one waiting, so that workers never wait for this process.
_PER_WORKER = 2
# A unit is given up after this many workers were lost on it, one after the other.
_MOST_LOST = 3
_CONNECT_SECONDS = 10
# A cluster may be without any worker for this long: killed workers come back.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.5


@contextmanager
def executor_on(dask: str | None, needed: Path) -> Iterator[Executor]:
    """The executor for an address or local:N, or this process for None. All workers must see the path that is needed."""
    # A path that is missing here too is for the stage to report.
    if dask is None or not needed.exists():
        yield LocalExecutor()
        return
    distributed = load("distributed", Parameter("dask"))
    # A client that found no scheduler is closed when it is garbage-collected. If that happens while the same thread makes
    # another client, it waits forever for a lock that the other one holds.
    gc.collect()
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        address: Any = dask
        if dask.partition(":")[0] == "local":
            address = stack.enter_context(_local_cluster(distributed, _count(dask)))
        try:
            client = stack.enter_context(distributed.Client(address, timeout=_CONNECT_SECONDS))
        except (OSError, ValueError, RuntimeError, TypeError, KeyError):
            raise BadOption(
                Parameter("dask", dask),
                ": no scheduler answers there. Start one with `dask scheduler`, and give the address that it prints; or "
                "local:2, for two workers on this machine.",
            ) from None
        yield DaskExecutor(distributed, client, dask, needed)


def _count(dask: str) -> int:
    found = re.fullmatch(r"local:([0-9]{1,3})", dask)
    if found is None or int(found[1]) == 0:
        raise BadOption(
            Parameter("dask", dask), ": not a number of workers. Write it like local:2, or give the address of a scheduler."
        )
    return int(found[1])


@contextmanager
def _local_cluster(distributed: ModuleType, count: int) -> Iterator[Any]:
    """Worker processes on this machine, which end with this process, however that ends."""
    import dask

    threads = str(max(1, cores() // count))
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    loopback = "127.0.0.1:0"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": _MOST_LOST - 1}),
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            # Dask counts mapped pages as memory, and would restart workers that read a large file.
            memory_limit=0,
            # No dashboard; the port that Dask opens in its place is reachable from this machine only.
            scheduler_kwargs={"dashboard": False, "dashboard_address": loopback},
            worker_dashboard_address=loopback,
            silence_logs=logging.CRITICAL,
            env=variables,
            preload=[_PRELOAD],
        ) as cluster,
    ):
        yield cluster


# Ctrl-C reaches all processes of a terminal; workers ignore it, since this process ends them.
_PRELOAD = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Dask's logs: errors are reported as ours."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "tornado", "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


class DaskExecutor:
    """Does work units on the workers of a cluster."""

    def __init__(self, distributed: ModuleType, client: Any, dask: str, needed: Path) -> None:
        self._distributed, self._client, self._needed = distributed, client, needed
        self._dask = Parameter("dask", dask)
        self._topic = f"mmdiff-{uuid.uuid4().hex}"
        self._works: list[Any] = []
        self._refuse_unfit()

    @property
    def workers(self) -> int:
        return max(1, len(self._addresses()))

    def each(
        self,
        here: Callable[[Unit], Result],  # noqa: ARG002
        there: Callable[[], Work[Unit, Result]],
        units: Sequence[Unit],
        threads: int | None = None,  # noqa: ARG002
        advance: Advance = lambda _: None,
    ) -> Iterator[tuple[Unit, Result]]:
        if not units:
            return
        work = there()
        with _UnitProgress(self._client, f"{self._topic}-{uuid.uuid4().hex}", advance) as progress:
            waiting, submitted = deque(enumerate(units)), dict[Any, tuple[int, Unit]]()
            try:
                while waiting or submitted:
                    while waiting and len(submitted) < _PER_WORKER * self.workers:
                        number, unit = waiting.popleft()
                        submitted[self._submit(work, unit, (progress.topic, number))] = number, unit
                    for future in self._finished(list(submitted), progress):
                        number, unit = submitted.pop(future)
                        result, count = self._result(future)
                        progress.update(number, count)
                        yield unit, result
            finally:
                with suppress(Exception):
                    self._client.cancel(list(submitted))

    def _submit(self, work: Any, unit: Any, topic: tuple[str, int]) -> Any:
        known = [each is work for each in self._works]
        if not any(known):
            self._works.append(work)
            known.append(True)
        token = f"{self._topic}-{known.index(True)}"
        # With `pure`, Dask would return one result for equal units.
        return self._client.submit(do, token, work, unit, self._needed, self._sharing(), topic, pure=False)

    def _sharing(self) -> int:
        """Workers on the machine that has most of them."""
        return max(Counter(urlsplit(address).hostname for address in self._addresses()).values(), default=1)

    def _addresses(self) -> list[str]:
        with self._connected():
            return list(self._client.nthreads())

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Reports a scheduler that is gone."""
        try:
            yield
        except (self._distributed.CancelledError, self._distributed.comm.CommClosedError, TimeoutError):
            raise ClusterError(
                self._dask,
                ": the scheduler is gone, or has dropped the work. Start it again, and run the same command again: finished "
                "work is kept.",
            ) from None

    def _finished(self, futures: list[Any], progress: _UnitProgress) -> list[Any]:
        """Futures that are done; waits for the first."""
        seen = time.monotonic()
        while True:
            with self._connected(), suppress(TimeoutError):
                return list(self._distributed.wait(futures, _POLL_SECONDS, "FIRST_COMPLETED").done)
            progress.show()
            if self._addresses():
                seen = time.monotonic()
            elif time.monotonic() - seen > _PATIENCE_SECONDS:
                raise ClusterError(self._dask, ": all workers are gone. Start some, and run the same command again.")

    def _result(self, future: Any) -> Any:
        try:
            with self._connected():
                return future.result()
        except self._distributed.KilledWorker as error:
            raise ClusterError(
                self._dask,
                f": {error.allowed_failures + 1} workers were lost on one unit, one after the other, the last of them "
                f"{error.last_worker.address}. If memory ran out there, lower ",
                Parameter("memory"),
                " or use fewer workers, and run the same command again.",
            ) from None
        except InputError as error:
            # The worker lacks something that this machine has; finished work is kept all the same.
            raise ClusterError(self._dask, ": a worker refuses: ", *error.parts) from None

    def _refuse_unfit(self) -> None:
        """Refuses workers of another version of mmdiff, or without the path that is needed."""
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError:
            raise BadOption(self._dask, f": no workers there. Start some with `dask worker {self._dask.value}`.") from None
        for address, found in self._client.run(check_worker, self._needed, on_error="return").items():
            if isinstance(found, ImportError):
                raise BadOption(self._dask, f": the worker {address} has no mmdiff. Install it there.")
            if isinstance(found, Exception):
                raise BadOption(self._dask, f": {found}")
            if found != mmdiff.__version__:
                raise BadOption(
                    self._dask,
                    f": the worker {address} has mmdiff {found}, this is {mmdiff.__version__}. Install the same everywhere.",
                )


class _UnitProgress:
    """Progress within units that workers report. A repeated unit starts again, but the total never decreases."""

    def __init__(self, client: Any, topic: str, advance: Advance) -> None:
        self.topic = topic
        self._client, self._advance = client, advance
        self._reported: dict[int, int] = {}
        self._shown: Counter[int] = Counter()

    def __enter__(self) -> _UnitProgress:
        self._client.subscribe_topic(self.topic, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._client.unsubscribe_topic(self.topic)

    def _receive(self, event: tuple[float, tuple[int, int]]) -> None:
        number, count = event[1]
        self._reported[number] = count

    def show(self) -> None:
        """Advances the bar to what was reported, on the calling thread."""
        for number, count in list(self._reported.items()):
            self.update(number, count)

    def update(self, number: int, count: int) -> None:
        more = count - self._shown[number]
        if more > 0:
            self._shown[number] = count
            self._advance(more)
