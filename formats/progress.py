"""Types of progress callbacks, independent of how progress is displayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

Advance = Callable[[int], None]
"""Called with the units of work done since the last call; negative where work has to be repeated."""

Progress = Callable[[str, int, str], AbstractContextManager[Advance]]
"""Called with a title, the total and its unit ("importing", 1000, "rows"); yields the function that reports progress."""
