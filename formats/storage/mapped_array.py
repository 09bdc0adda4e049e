"""`MappedArray`: an array of an artifact as users of Python get it, checked chunk by chunk as it is read.

It behaves like the datasets of h5py and zarr: indexing gives numpy arrays, and `numpy.asarray` the whole array. Both are views
of the memory map, without a copy, and both check the chunks that they cover before they return. A plain ndarray over the map
could not do that: numpy reads its memory without asking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from mmdiff.formats.storage.mapping import map_of, touch_all


class MappedArray(NDArrayOperatorsMixin):
    """A read-only, memory-mapped array of an artifact.

    `array[10:20]` is a numpy array, a view of the map; `np.asarray(array)` is the whole one. Operators, numpy functions and
    methods of arrays work too, on the whole array. A chunk that is read for the first time is checked against its checksum;
    one that does not match raises `mmdiff.errors.Damaged`.
    """

    __slots__ = ("_values",)

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    @property
    def ndim(self) -> int:
        return self._values.ndim

    @property
    def size(self) -> int:
        return self._values.size

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __contains__(self, value: Any) -> bool:
        return value in np.asarray(self)

    def __getitem__(self, key: Any) -> Any:
        """The selected values: a view for numbers and slices, a copy for lists and masks, as in numpy."""
        flat = map_of(self._values)
        if flat is not None and flat.unchecked:
            if (slices := _as_slices(key)) is not None:
                flat.touch_chunks(flat.chunks_of(self._values[slices]))
            elif self.ndim < 3 and (rows := _row_numbers(key, len(self))) is not None:
                flat.touch_chunks(np.unique(rows // flat.spec.rows_per_chunk).tolist())
            else:
                touch_all(self._values)
        return self._values[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = touch_all(self._values)
        if copy is False and dtype is not None and values.dtype != dtype:
            raise ValueError(f"{values.dtype} cannot be given as {np.dtype(dtype)} without a copy")
        return np.array(values, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        # `at` of numpy writes to read-only arrays too, and a write to the map ends the process.
        written = inputs[:1] if method == "at" else options.get("out", ())
        if any(isinstance(each, MappedArray) for each in written):
            raise ValueError("the array is read-only")
        if isinstance(options.get("where"), MappedArray):
            options["where"] = np.asarray(options["where"])
        plain = [np.asarray(each) if isinstance(each, MappedArray) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __copy__(self) -> MappedArray:
        return MappedArray(self._values)

    def __deepcopy__(self, _: dict[int, Any]) -> NDArray[Any]:
        return np.array(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the checked values: elsewhere there is no map."""
        return np.array, (np.asarray(self),)

    def __getattr__(self, name: str) -> Any:
        """Methods and attributes of arrays, such as `sum` and `astype`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"MappedArray({shape} {self.dtype})"


def _as_slices(key: Any) -> tuple[Any, ...] | None:
    """A key of numbers and slices with a slice for each number, so that it gives a view; None for other keys."""
    parts = key if isinstance(key, tuple) else (key,)
    # True and False are masks, not numbers.
    if not all(
        part is None or part is Ellipsis or (isinstance(part, slice | int | np.integer) and not isinstance(part, bool))
        for part in parts
    ):
        return None
    # -1 is the last one, and the slice -1:0 is empty. Small types of numpy would wrap around.
    return tuple(slice(int(part), int(part) + 1 or None) if isinstance(part, int | np.integer) else part for part in parts)


def _row_numbers(key: Any, length: int) -> NDArray[np.int64] | None:
    """The rows that a list, an array of numbers or a mask selects; None where that is not clear, or not possible."""
    first = key[0] if isinstance(key, tuple) and key else key
    if not isinstance(first, list | np.ndarray):
        return None
    chosen = np.asarray(first)
    if chosen.dtype == bool and chosen.shape == (length,):
        return np.flatnonzero(chosen)
    if chosen.dtype.kind not in "iu" or not chosen.size:
        return None
    rows = np.where(chosen < 0, chosen.astype(np.int64) + length, chosen.astype(np.int64)).reshape(-1)
    return rows if rows.min() >= 0 and rows.max() < length else None
