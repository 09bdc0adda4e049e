"""Sizes, durations and counts as text for people.

>>> from mmdiff import text
>>> text.size(5 << 20), text.duration(4000), text.count(1, "row"), text.count(2048, "row")
('5.0 MiB', '1 h 06 min', '1 row', '2,048 rows')
"""

from __future__ import annotations

import unicodedata


def size(count: float) -> str:
    """Bytes with a unit.

    Args:
        count: the number of bytes.

    >>> size(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    Args:
        seconds: the time.

    >>> duration(2.34), duration(125)
    ('2.3 s', '2 min 05 s')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun in the right number.

    Args:
        number: how many.
        noun: the noun for one of them.
        plural: the noun for several, where it is not `noun` with an s.

    >>> count(1, "batch", "batches"), count(3, "batch", "batches")
    ('1 batch', '3 batches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(value: object) -> str:
    """Any text on one line: control characters are written as escapes, so that data cannot move the cursor.

    Args:
        value: class name, id or path, as the user gave it.

    >>> printable("bell" + chr(7)) == "bell" + chr(92) + "x07"
    True
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")
        else character
        for character in str(value)
    )


def first_sentence(text: object) -> str:
    """The first sentence of a message: the problem, without the advice.

    Args:
        text: a message, or an error.

    >>> first_sentence(ValueError("x.npy: no such file. Name another one."))
    'x.npy: no such file.'
    """
    return f"{str(text).partition('. ')[0].rstrip('.')}."
