"""The errors that mmdiff raises, as one public tree (drawn in `mmdiff.formats.errors`); each is also a builtin exception.

>>> import mmdiff
>>> try:
...     mmdiff.open("no-such-folder")
... except mmdiff.errors.Missing as error:
...     print(error)
no-such-folder: no store here. Create it with mmdiff.open(..., create=True), or name another folder.
"""

from mmdiff.formats.errors import (
    BadLabels,
    BadOption,
    BadResult,
    BadRow,
    Call,
    ClusterError,
    Corrupt,
    CountMismatch,
    Damaged,
    DiskError,
    DiskFull,
    DuplicateIds,
    InputError,
    Locked,
    Missing,
    MissingExtra,
    MmdiffError,
    Parameter,
    Placeholder,
    ReadOnly,
    Stale,
    StoreError,
    Unreachable,
    UnreadableSource,
    WidthMismatch,
    one_of,
    shortened,
)

__all__ = [
    "BadLabels",
    "BadOption",
    "BadResult",
    "BadRow",
    "Call",
    "ClusterError",
    "Corrupt",
    "CountMismatch",
    "Damaged",
    "DiskError",
    "DiskFull",
    "DuplicateIds",
    "InputError",
    "Locked",
    "Missing",
    "MissingExtra",
    "MmdiffError",
    "Parameter",
    "Placeholder",
    "ReadOnly",
    "Stale",
    "StoreError",
    "Unreachable",
    "UnreadableSource",
    "WidthMismatch",
    "one_of",
    "shortened",
]
