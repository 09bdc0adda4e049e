"""Showing things: results on stdout, everything else on stderr; sizes, durations, tables, bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mmdiff.runtime.progress import Advance

_BLOCKS = " ▁▂▃▄▅▆▇█"


def result(text: str) -> None:
    """A line of the result, on stdout."""
    typer.echo(text)


def note(text: str) -> None:
    """Something the user should know, on stderr."""
    typer.echo(f"mmdiff: {text}", err=True)


def as_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def rich_result(renderable: RenderableType) -> None:
    """A table or a tree on stdout; as wide as it likes to be where nobody looks at it."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False, soft_wrap=False)
    console.print(renderable)


def table(*columns: str, header: bool = True) -> Table:
    """A table without lines, whose cells are never cut off."""
    from rich.table import Table

    made = Table(box=None, show_header=header, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns or ("what", "value"):
        made.add_column(column, overflow="fold")
    return made


def size(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def duration(seconds: float) -> str:
    """Seconds, for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def age(moment: str) -> str:
    """How long ago an ISO time is."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now" if seconds < 10 else f"{int(seconds)} s ago"


def shape(dimensions: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in dimensions)


def histogram(counts: Sequence[int]) -> str:
    """Counts as a row of blocks, the largest full; what is not zero is visible."""
    largest = max(counts, default=0) or 1
    return "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // largest)] for count in counts)


@contextmanager
def progress(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A bar on stderr with rate and time left; silent where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """How fast it goes."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed or 0
            return Text(f"{size(speed)}/s" if unit == "bytes" else f"{speed:,.0f} {unit}/s")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:3.0f} %"),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
