"""A clock that runs backwards, a minute with every look at it, for a process whose PYTHONPATH has this folder.

File times still follow the system's clock, so what a process has just written looks as if it came from the future.
"""

from __future__ import annotations

import datetime
import itertools
import time
from typing import Any

_now = time.time_ns()
_looks = itertools.count(1)


def _time_ns() -> int:
    return _now - next(_looks) * 60 * 10**9


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(time.time(), tz)


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
datetime.datetime = _Datetime  # type: ignore[misc]
