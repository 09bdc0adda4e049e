"""Prefetching of pages of W: whole stretches where most pages are needed, single pages where few are.

A page fault reads the pages around it too, up to megabytes, which suits sequential reads and is far too much for scattered
rows. An explicit request reads just the requested pages, many at a time.
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

# The most unneeded pages between two needed ones that are read as well: a longer read is quicker than a second request.
_GAP = 16


def announce_rows(values: NDArray[Any], indptr: NDArray[np.int64], rows: NDArray[Any]) -> None:
    """Requests the pages of some rows (sorted), without waiting for them."""
    if is_mapped(values):
        _announce(values.__array_interface__["data"][0], values.itemsize, indptr, rows)


def pages_of(values: NDArray[Any], start: int, stop: int) -> int:
    """The number of pages that entries start..stop-1 lie in."""
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
