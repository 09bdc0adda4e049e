"""The record of a run: when, how long, with what versions and how much memory. It is kept beside the artifact it made."""

from __future__ import annotations

import os
import platform
import resource
import time
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

_VERSIONS = ("mmdiff", "numpy", "scipy", "numba", "zarr")


class Run:
    """A run that is under way."""

    def __init__(self, command: str) -> None:
        self.command = command
        self._started = datetime.now(UTC)
        self._clock = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._clock

    def record(self, **more: Any) -> dict[str, Any]:
        """What is known of the run now."""
        return {
            "command": self.command,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "host": platform.node(),
            "cores": len(os.sched_getaffinity(0)),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}},
            **more,
        }
