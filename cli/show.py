"""Showing things: results on stdout, everything else on stderr; tables that fit the terminal, JSON, ages, histograms.

Class names, ids and paths are data: they are printed as they are, never read as markup, and control characters are escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

import typer

from mmdiff.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BLOCKS = " ▁▂▃▄▅▆▇█"

# Columns of text between two columns of a table, and the fewest that a folded column may have.
_PADDING = 2
_NARROWEST = 24


def survive_any_encoding() -> None:
    """Writes characters that the output cannot encode as escapes, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def open_closed_streams() -> None:
    """Opens the null device for standard streams that are closed, so that no file of a store takes their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


class OutputError(Exception):
    """Stdout cannot be written, for example because its disk is full."""


class OutputClosed(Exception):
    """The reader of stdout has seen enough, as in `mmdiff inspect | head`."""


@contextmanager
def _output() -> Iterator[None]:
    """Tells errors of stdout from those of other files and pipes."""
    try:
        yield
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OutputError(error.strerror) from None


def finish_output() -> None:
    """Writes what is left, so that errors are found now and not when the interpreter ends."""
    with _output():
        if sys.stdout is not None:
            sys.stdout.flush()


def discard_output() -> None:
    """Sends the rest of stdout to the null device."""
    _discard(sys.stdout)


def finish_notes() -> None:
    """Drops notes that could not be written: the interpreter would try again when it ends, and change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def result(text: str) -> None:
    """A line of the result, on stdout."""
    with _output():
        typer.echo(text)


class Output:
    """Stdout for bytes, as a stream."""

    def write(self, data: bytes) -> int:
        with _output():
            sys.stdout.flush()
            return sys.stdout.buffer.write(data)


def note(text: str) -> None:
    """Something the user should know, on stderr. Without a reader there the command goes on."""
    with suppress(OSError):
        typer.echo(f"mmdiff: {text}", err=True)


def as_json(document: Any) -> None:
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    result(json.dumps(document, indent=2, ensure_ascii=not unicode))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: Sequence[int] = (), header: bool = True
) -> None:
    """A table without lines on stdout; `right` are the numbers of columns that are aligned to the right.

    Where the terminal is too narrow, the widest column is folded; where that leaves it too little, each row becomes a block of
    lines.
    """
    from rich.table import Table

    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [
        max([len(column) if header else 0, *(row[number].cell_len for row in cells)]) for number, column in enumerate(columns)
    ]
    total, widest = sum(widths) + _PADDING * len(columns), widths.index(max(widths))
    console = _console(total)
    if console.width < total and console.width < total - widths[widest] + _NARROWEST:
        with _output():
            _blocks(console, columns, cells)
        return
    made = Table(box=None, show_header=header, header_style="dim", padding=(0, _PADDING, 0, 0))
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if number in right else "left"
        made.add_column(column, overflow="fold", justify=justify, no_wrap=number != widest)
    for row in cells:
        made.add_row(*row)
    with _output():
        console.print(made)


def styled(text: str, style: str) -> Text:
    """A cell in a colour or weight, on terminals that have them."""
    from rich.text import Text

    return Text(printable(text), style)


def _text(cell: str | Text) -> Text:
    return styled(cell, "") if isinstance(cell, str) else cell


def _blocks(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """Rows one below the other: the first cell, and under it each other one with its column's name."""
    from rich.padding import Padding
    from rich.text import Text

    for first, *rest in rows:
        console.print(first, soft_wrap=True)
        for column, cell in zip(columns[1:], rest, strict=True):
            if cell.plain:
                console.print(Padding(Text.assemble((f"{column}: ".lstrip(": "), "dim"), cell), (0, 0, 0, 4), expand=False))


def _console(width: int) -> Console:
    """The terminal, or COLUMNS, at its width; elsewhere as wide as the table."""
    from rich.console import Console

    fixed = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else width
    console = Console(width=fixed, highlight=False)
    # By itself it exits with code 1 when the reader has seen enough.
    console.on_broken_pipe = _broken_pipe  # type: ignore[method-assign]
    return console


def _broken_pipe() -> NoReturn:
    raise BrokenPipeError


def age(moment: str) -> str:
    """The time since an ISO moment, in words."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now" if seconds < 10 else f"{int(seconds)} s ago"


def shape(dimensions: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in dimensions)


def histogram(counts: Sequence[int]) -> str:
    """Counts as a row of blocks, the largest full; a count that is not zero is visible."""
    largest = max(counts, default=0) or 1
    return "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // largest)] for count in counts)
