"""Everything that can go wrong, as one tree; a message is a sentence that ends in what to do.

MmdiffError
  x InputError (ValueError)       the user's file or option
      - UnreadableSource          not the format it says it is: truncated, pickled, of an unknown dtype
      - BadRow                    NaN, Inf or all zero
      - WidthMismatch             rows of another width than the rest
      - CountMismatch             labels or ids that do not match the rows
      - DuplicateIds              one id for two rows
      - BadLabels                 labels or class names that contradict each other
      - BadOption                 an option that cannot be obeyed
      - MissingExtra (ImportError)  an optional dependency; the message is the line that installs it
  x StoreError (OSError)          what lies on disk
      - Missing                   no such store or artifact (yet)
      - Corrupt                   damaged, or not ours
      - Stale                     made from something that has changed since
      - Locked                    another run is writing it
      - DiskFull                  no room for what is to be written
      - Unreachable               a remote store that does not answer, or does not let us in
      - ReadOnly                  a remote store that something was to be written to
  x ClusterError (RuntimeError)   workers of `--dask` that are lost, or that cannot do what is asked of them

Each error is also the builtin in brackets, so that callers may catch either.
"""

from __future__ import annotations


class MmdiffError(Exception):
    """Whatever mmdiff refuses to do, with the reason."""

    exit_code = 2


class InputError(MmdiffError, ValueError):
    """The user's file or option."""


class UnreadableSource(InputError):
    """A file that is not the format it says it is."""


class BadRow(InputError):
    """A row with NaN, Inf, or nothing but zeros."""


class WidthMismatch(InputError):
    """Rows of another width than the rest."""


class CountMismatch(InputError):
    """Labels or ids whose number is not that of the rows."""


class DuplicateIds(InputError):
    """One id for two rows."""


class BadLabels(InputError):
    """Labels or class names that contradict each other."""


class BadOption(InputError):
    """An option that cannot be obeyed."""


class MissingExtra(InputError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, module: str, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs {module}, which is not installed. Run: pip install 'mmdiff[{extra}]'")
        self._given = (module, extra, needed_for)

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str]]:
        """An exception is made anew from its message where it comes from another process; this one has more to be made from."""
        return MissingExtra, self._given


class StoreError(MmdiffError, OSError):
    """What lies on disk."""


class Missing(StoreError):
    """No such store or artifact (yet)."""


class Corrupt(StoreError):
    """Damaged, or not written by mmdiff."""

    exit_code = 1


class Stale(StoreError):
    """Made from something that has changed since."""


class Locked(StoreError):
    """Another run is writing it."""


class DiskFull(StoreError):
    """No room for what is to be written."""

    exit_code = 1


class Unreachable(StoreError):
    """A remote store that does not answer, or does not let us in."""


class ReadOnly(StoreError):
    """A remote store that something was to be written to."""


class ClusterError(MmdiffError, RuntimeError):
    """Workers of `--dask` that are lost, or that cannot do what is asked of them. What is finished is kept."""
