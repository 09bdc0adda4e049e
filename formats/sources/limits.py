"""Limits on foreign files: how much memory a file of some size may ask for, and one type of error for all that libraries raise.

Compression lets a few bytes stand for gigabytes. What must be in memory at once (a chunk, a row group, an archive, a column)
may take `most_bytes` of the bytes that store it; real embeddings, labels and graphs are far from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmdiff.formats.errors import MmdiffError, UnreadableSource

FREE_BYTES = 64 << 20
EXPANSION = 100

_SHOWN = 200


def most_bytes(stored: int) -> int:
    """The bytes of memory that `stored` bytes of a file may expand to."""
    return FREE_BYTES + EXPANSION * stored


@contextmanager
def readable(name: str, what: str) -> Iterator[None]:
    """Turns whatever a library raises on damaged input into UnreadableSource; `what` is the format."""
    try:
        yield
    except MmdiffError:
        raise
    except Exception as error:
        raise UnreadableSource(f"{name}: not readable as {what} ({reason(error)}). Copy or write it again.") from error


def reason(error: BaseException) -> str:
    """The text of a library's error on one line of bounded length, or its type where it has none."""
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
