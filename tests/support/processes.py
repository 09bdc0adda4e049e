"""Child processes of tests that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A child process that does some work, then waits until it is killed."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(write_end, b"ready")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    assert os.read(read_end, 5) == b"ready"
    try:
        yield pid
    finally:
        os.close(read_end)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
