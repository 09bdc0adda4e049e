"""Which array or column of a file with several is meant: the one that was named, or the only one that fits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.matrix import READABLE_NAMES, is_readable

Arrays = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

COLUMN_NAMES = ("label", "labels", "class", "id")


def choose(name: str, wanted: str | None, present: Collection[str], fitting: Mapping[str, str], what: str) -> str:
    """`fitting` describes those of `present` that would do, `what` says what they are."""
    chosen = next(iter(fitting)) if wanted is None and len(fitting) == 1 else wanted
    if chosen is not None and chosen in present:
        if (copies := sum(key == chosen for key in present)) > 1:
            raise UnreadableSource(f"{name}: {copies} columns are named {chosen!r}. Rename or remove all but one.")
        return chosen
    if not fitting:
        found = f"found {', '.join(present)}" if present else "found nothing at all"
        problem = f"there is not {what}" if wanted is None else f"no {wanted!r}"
        raise UnreadableSource(f"{name}: {problem} in it, {found}. Say what to read, as in {name}::NAME.")
    problem = f"no {wanted!r} in it" if wanted is not None else f"{len(fitting)} candidates for {what}"
    listing = "; ".join(f"{name}::{key}{about}" for key, about in fitting.items())
    raise UnreadableSource(f"{name}: {problem}. Say which to read: {listing}.")


def choose_array(name: str, wanted: str | None, arrays: Arrays) -> str:
    """The matrix to read."""
    fitting = {
        key: f" ({' x '.join(map(str, shape))} {dtype})"
        for key, (shape, dtype) in arrays.items()
        if len(shape) == 2 and is_readable(dtype)
    }
    return choose(name, wanted, arrays, fitting, f"a 2-D array of {READABLE_NAMES}")


def choose_column(name: str, wanted: str | None, columns: Collection[str]) -> str:
    """The labels or ids to read: the only column, or the only one with a telling name."""
    fitting = {key: "" for key in columns if len(columns) == 1 or key.strip().lower() in COLUMN_NAMES}
    return choose(name, wanted, columns, fitting, f"a column named {', '.join(COLUMN_NAMES)}")
