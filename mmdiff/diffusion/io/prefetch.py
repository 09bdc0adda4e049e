"""Pages of W that are asked for before their turn: whole stretches where most of them are needed, single ones where few are.

A page fault reads not the page alone but what lies around it, megabytes where the system is set up for that: right for one who
reads on, and for scattered rows a thousand times too much. Whoever asks for pages gets just those, and many at a time.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numba.core import types
from numpy.typing import NDArray

from mmdiff.formats.storage.arrays import PAGE_BYTES
from mmdiff.formats.storage.mapping import MADV_WILLNEED, is_mapped
from mmdiff.kernels.jit import kernel

_SIGNATURE = cast(Any, types.intc)(types.intp, types.intp, types.intc)
_madvise = cast(Any, types.ExternalFunction("madvise", _SIGNATURE))

# Pages between two that are needed which are read on the way: it takes less time than to begin anew.
_GAP = 16


def announce_rows(values: NDArray[Any], indptr: NDArray[np.int64], rows: NDArray[Any]) -> None:
    """Asks for the entries of some rows, which are in order, and does not wait for them."""
    if is_mapped(values):
        _announce(values.__array_interface__["data"][0], values.itemsize, indptr, rows)


def pages_of(values: NDArray[Any], start: int, stop: int) -> int:
    """How many pages the entries start..stop-1 lie in."""
    return (stop * values.itemsize - 1) // PAGE_BYTES - start * values.itemsize // PAGE_BYTES + 1


@kernel
def _announce(address: int, itemsize: int, indptr: NDArray[np.int64], rows: NDArray[Any]) -> None:
    first, last = 0, -1
    for row in rows:
        start, stop = address + indptr[row] * itemsize, address + indptr[row + 1] * itemsize
        if start < stop:
            page, end = start // PAGE_BYTES, (stop - 1) // PAGE_BYTES
            if page > last + 1 + _GAP:
                if first <= last:
                    _madvise(first * PAGE_BYTES, (last + 1 - first) * PAGE_BYTES, MADV_WILLNEED)
                first = page
            last = end
    if first <= last:
        _madvise(first * PAGE_BYTES, (last + 1 - first) * PAGE_BYTES, MADV_WILLNEED)
