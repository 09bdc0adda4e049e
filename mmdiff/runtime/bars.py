"""Progress on stderr: a bar with rate and time left on a terminal, else a line now and then while work takes long.

Work goes on where stderr cannot be written, for example because its reader or its terminal is gone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from mmdiff import text
from mmdiff.runtime.progress import Advance

# Without a terminal: seconds until the first line, and how much longer each next one waits.
_FIRST_LINE_SECONDS = 10.0
_BACK_OFF = 1.5
_MOST_SECONDS = 300.0


@contextmanager
def show_progress(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A progress display for one piece of work; see `runtime.progress.Progress`."""
    with (_bar if sys.stderr.isatty() else _lines)(text.printable(what), total, unit, _Display(sys.stderr)) as advance:
        yield advance


class _Display:
    """A stream that drops what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, shown: str) -> None:
        with suppress(OSError):
            self._stream.write(shown)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def _bar(what: str, total: int, unit: str, display: _Display) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units per second."""

        def render(self, task: Task) -> Text:
            return Text(_rate(task.finished_speed or task.speed or 0, unit))

    class Description(ProgressColumn):
        """The work as plain text: a file name is never markup. It is cut where the terminal is narrow."""

        def render(self, task: Task) -> Text:
            return Text(task.description, overflow="ellipsis", no_wrap=True)

    bar = Progress(
        Description(),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:3.0f} %"),
        Rate(),
        TimeRemainingColumn(),
        console=Console(file=cast(TextIO, display)),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def _lines(what: str, total: int, unit: str, display: _Display) -> Iterator[Advance]:
    """One line after ten seconds, then less and less often, so that a log shows that work goes on."""
    done, began = 0, time.monotonic()
    wait, due = _FIRST_LINE_SECONDS, began + _FIRST_LINE_SECONDS

    def advance(count: int) -> None:
        nonlocal done, wait, due
        done += count
        now = time.monotonic()
        if now >= due:
            wait = min(_BACK_OFF * wait, _MOST_SECONDS)
            due = now + wait
            rate = done / (now - began)
            left = f", {text.duration((total - done) / rate)} left" if rate and done < total else ""
            share = f"{100 * done / total:.0f} %, " if total else ""
            display.write(f"mmdiff: {what}: {share}{_rate(rate, unit)}{left}\n")
            display.flush()

    yield advance


def _rate(speed: float, unit: str) -> str:
    if unit == "bytes":
        return f"{text.size(speed)}/s"
    return f"{speed:,.0f} {unit}/s" if speed >= 10 else f"{speed:.2g} {unit}/s"
