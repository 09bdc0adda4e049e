"""`--dask`: units of work on a Dask cluster whose workers share the store's folder (DESIGN section 6, `docs/cluster.md`).

What is sent is small: a `Work` and the unit. Workers map the rest from the store, and this process, which holds the locks,
keeps what they found. A worker that is killed costs the units it had: the scheduler gives them to others.
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
from mmdiff.runtime.worker import do, look

# One unit in work and one that waits for its end, so that workers do not wait for us.
_PER_WORKER = 2
# A unit on which so many workers are lost, one after the other, is not tried again.
_MOST_LOST = 3
_CONNECT_SECONDS = 10
# How long a cluster may be without any worker: those that were killed come back, or others do.
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


@contextmanager
def executor_on(dask: str | None, needed: Path) -> Iterator[Executor]:
    """Whoever `--dask` names, ADDRESS or local:N; None is this process. All workers must see the path that is needed."""
    # What is not even here is missed by the command itself, in better words.
    if dask is None or not needed.exists():
        yield LocalExecutor()
        return
    distributed = load("distributed", Parameter("dask"))
    # A client that found no scheduler is closed when it is collected as garbage. Were that while another one is being made, in
    # the same thread, it would wait for ever for a lock that the other one holds.
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
                f"--dask {dask}: no scheduler answers there. Start one with `dask scheduler`, and give the address that it "
                "prints; or local:2, for two workers on this machine."
            ) from None
        yield DaskExecutor(distributed, client, dask, needed)


def _count(dask: str) -> int:
    found = re.fullmatch(r"local:([0-9]{1,3})", dask)
    if found is None or int(found[1]) == 0:
        raise BadOption(f"--dask {dask}: not a number of workers. Write it like local:2, or give the address of a scheduler.")
    return int(found[1])


@contextmanager
def _local_cluster(distributed: ModuleType, count: int) -> Iterator[Any]:
    """So many worker processes on this machine, which end with this one, however that ends."""
    import dask

    threads = str(max(1, cores() // count))
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    nowhere = "127.0.0.1:0"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": _MOST_LOST - 1}),
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            # Dask would count mapped pages, and restart workers that only read a large file.
            memory_limit=0,
            # There is no dashboard, and what is opened in its place can only be reached from this machine.
            scheduler_kwargs={"dashboard": False, "dashboard_address": nowhere},
            worker_dashboard_address=nowhere,
            silence_logs=logging.CRITICAL,
            env=variables,
            preload=[_PRELOAD],
        ) as cluster,
    ):
        yield cluster


# Ctrl-C reaches all processes of a terminal; it is this one that ends the workers.
_PRELOAD = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Dask logs: whatever goes wrong is said in our own words."""
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
    """Workers that are there, and see what they need."""

    def __init__(self, distributed: ModuleType, client: Any, dask: str, needed: Path) -> None:
        self._distributed, self._client, self._dask, self._needed = distributed, client, dask, needed
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
        with _Told(self._client, f"{self._topic}-{uuid.uuid4().hex}", advance) as told:
            waiting, flying = deque(enumerate(units)), dict[Any, tuple[int, Unit]]()
            try:
                while waiting or flying:
                    while waiting and len(flying) < _PER_WORKER * self.workers:
                        number, unit = waiting.popleft()
                        flying[self._submit(work, unit, (told.topic, number))] = number, unit
                    for future in self._finished(list(flying), told):
                        number, unit = flying.pop(future)
                        result, count = self._result(future)
                        told.settle(number, count)
                        yield unit, result
            finally:
                with suppress(Exception):
                    self._client.cancel(list(flying))

    def _submit(self, work: Any, unit: Any, ear: tuple[str, int]) -> Any:
        known = [each is work for each in self._works]
        if not any(known):
            self._works.append(work)
            known.append(True)
        token = f"{self._topic}-{known.index(True)}"
        # Units that are alike are none the less done: `pure` would take the result of one for the other.
        return self._client.submit(do, token, work, unit, self._needed, self._neighbours(), ear, pure=False)

    def _neighbours(self) -> int:
        """How many workers share a machine, where they are most."""
        return max(Counter(urlsplit(address).hostname for address in self._addresses()).values(), default=1)

    def _addresses(self) -> list[str]:
        with self._connected():
            return list(self._client.nthreads())

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Says in words that the scheduler is gone."""
        try:
            yield
        except (self._distributed.CancelledError, self._distributed.comm.CommClosedError, TimeoutError):
            raise ClusterError(
                f"--dask {self._dask}: the scheduler is gone, or has dropped our work. Start it anew, and run the same command "
                "again: what is finished is kept."
            ) from None

    def _finished(self, futures: list[Any], told: _Told) -> list[Any]:
        """Those that are done; waits for the first of them."""
        seen = time.monotonic()
        while True:
            with self._connected(), suppress(TimeoutError):
                return list(self._distributed.wait(futures, _LOOK_SECONDS, "FIRST_COMPLETED").done)
            told.show()
            if self._addresses():
                seen = time.monotonic()
            elif time.monotonic() - seen > _PATIENCE_SECONDS:
                raise ClusterError(
                    f"--dask {self._dask}: all workers are gone. See that there are some, and run the same command again."
                )

    def _result(self, future: Any) -> Any:
        try:
            with self._connected():
                return future.result()
        except self._distributed.KilledWorker as error:
            raise ClusterError(
                f"--dask {self._dask}: {error.allowed_failures + 1} workers were lost on one unit, one after the other, the "
                f"last of them {error.last_worker.address}. If memory ran out there, allow for less with --memory or take "
                "fewer workers, and run the same command again."
            ) from None
        except InputError as error:
            # Of a worker that lacks what this machine has. It is no reason to throw away what others have finished.
            raise ClusterError(f"--dask {self._dask}: a worker refuses: {error}") from None

    def _refuse_unfit(self) -> None:
        """Refuses workers that are not of our version, or that do not see what they need."""
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError:
            raise BadOption(f"--dask {self._dask}: no workers there. Start some with `dask worker {self._dask}`.") from None
        for address, found in self._client.run(look, self._needed, on_error="return").items():
            if isinstance(found, ImportError):
                raise BadOption(f"--dask {self._dask}: the worker {address} has no mmdiff. Install it there.")
            if isinstance(found, Exception):
                raise BadOption(f"--dask {self._dask}: {found}")
            if found != mmdiff.__version__:
                raise BadOption(
                    f"--dask {self._dask}: the worker {address} has mmdiff {found}, this is {mmdiff.__version__}. "
                    "Install the same everywhere."
                )


class _Told:
    """What workers tell of the units they have not finished: how far each has come, which is less again when it is repeated."""

    def __init__(self, client: Any, topic: str, advance: Advance) -> None:
        self.topic = topic
        self._client, self._advance = client, advance
        self._heard: dict[int, int] = {}
        self._shown: Counter[int] = Counter()

    def __enter__(self) -> _Told:
        self._client.subscribe_topic(self.topic, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._client.unsubscribe_topic(self.topic)

    def _hear(self, event: tuple[float, tuple[int, int]]) -> None:
        number, count = event[1]
        self._heard[number] = count

    def show(self) -> None:
        """Moves the bar, on the thread of whoever waits."""
        for number, count in list(self._heard.items()):
            self.settle(number, count)

    def settle(self, number: int, count: int) -> None:
        more = count - self._shown[number]
        if more > 0:
            self._shown[number] = count
            self._advance(more)
