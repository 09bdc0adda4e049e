"""pyarrow, where it is needed, and columns of strings for it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from mmdiff.formats.errors import MissingExtra
from mmdiff.formats.strings import Strings


def arrow(needed_for: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("pyarrow", "files", needed_for) from error


def strings_column(pa: Any, values: Strings) -> Any:
    """Strings as an arrow column, without a copy of each."""
    offsets = pa.py_buffer(values.offsets.astype(np.int32))
    return pa.StringArray.from_buffers(len(values), offsets, pa.py_buffer(values.utf8))
