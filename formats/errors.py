"""All errors of mmdiff, as one tree. A message is a sentence that ends in what to do.

MmdiffError
  x InputError (ValueError)       the user's file or parameter
      - UnreadableSource          a file or array that cannot be read: truncated, pickled, of an unknown dtype
      - BadRow                    NaN, Inf or all zero
      - WidthMismatch             rows of different widths
      - CountMismatch             labels or ids whose number is not that of the rows
      - DuplicateIds              one id for two rows
      - BadLabels                 labels or class names that contradict each other
      - BadOption                 a parameter with an impossible value
      - MissingExtra (ImportError)  an optional dependency; the message is the line that installs it
  x StoreError (OSError)          the store on disk
      - Missing                   no such store or artifact (yet)
      - Corrupt                   damaged, or not written by mmdiff
          - Damaged               data that differs from what was published, found while it was in use
      - Stale                     made from inputs that have changed since
      - Locked                    another run is writing it
      - DiskFull                  not enough disk space
      - DiskError                 a disk that fails, or refuses to write: read-only, no permission, a limit
      - BadResult                 a result that verification would call bad; it is not published
      - Unreachable               a remote store that does not answer or refuses access
      - ReadOnly                  an attempt to write to a remote store
  x ClusterError (RuntimeError)   Dask workers that are lost, or cannot do their work

Each error is also the builtin in brackets, so that callers may catch either.

A message is made of parts: text, `Parameter` and `Call`. In Python they read `k=0` and `store.build_graph(k=30)`; the command
line spells the same parts `--k 0` and `mmdiff build-graph --k 30`. Code outside `cli/` never spells an option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any


class Placeholder(str):
    """A value that the user fills in, such as FILE; it is written without the quotes of a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


FILE = Placeholder("FILE")
FOLDER = Placeholder("FOLDER")
_NO_VALUE = Placeholder("")


# Characters of a value that a message shows.
_MOST_SHOWN = 80


def shortened(value: Any, spell: Callable[[Any], str] = repr) -> str:
    """A value as a message shows it: of a long one only the beginning, and its length."""
    # Python refuses to print whole numbers of more than 4,300 digits.
    if isinstance(value, int) and value.bit_length() > 4 * _MOST_SHOWN:
        return f"(a number of about {int(value.bit_length() * 0.30103) + 1:,} digits)"
    try:
        shown = spell(value)
    except RecursionError:
        return "nested too deeply to be shown"
    return shown if len(shown) <= 2 * _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}... ({len(shown):,} characters)"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the public API in a message, with the value it has or should have; without a value, only its name."""

    name: str
    value: Any = _NO_VALUE

    @property
    def has_value(self) -> bool:
        return self.value is not _NO_VALUE

    def __str__(self) -> str:
        return f"{self.name}={shortened(self.value)}" if self.has_value else self.name

    def __reduce__(self) -> tuple[type[Parameter], tuple[Any, ...]]:
        """Leaves `_NO_VALUE` out: unpickled, it would be another object and so look like a value."""
        return Parameter, (self.name, self.value) if self.has_value else (self.name,)


@dataclass(frozen=True)
class Call:
    """A call of a `Store` method, as advice in a message. The command line shows the corresponding command."""

    method: str
    arguments: tuple[Any, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [*map(repr, self.arguments), *(str(Parameter(name, value)) for name, value in self.parameters.items())]
        return f"store.{self.method}({', '.join(given)})"


def call(method: str, *arguments: Any, **parameters: Any) -> Call:
    """`call("add", FILE, role="test")` reads `store.add(FILE, role='test')`, or `mmdiff import FILE --role test`."""
    return Call(method, arguments, parameters)


Part = str | Parameter | Call


class MmdiffError(Exception):
    """Base of all errors of mmdiff."""

    exit_code = 2

    def __init__(self, *parts: Part) -> None:
        # OSError would read several arguments as an error number, its text and a file name.
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    def __reduce__(self) -> tuple[type[MmdiffError], tuple[Any, ...]]:
        """Keeps the parts when the error is sent to another process."""
        return type(self), self.parts

    def __str__(self) -> str:
        return self.spelled(str)

    def spelled(self, spell: Callable[[Parameter | Call], str]) -> str:
        """The message, with parameters and calls written as `spell` writes them."""
        return "".join(part if isinstance(part, str) else spell(part) for part in self.parts)

    @property
    def parameter(self) -> str | None:
        """The name of the parameter that the message begins with; None if it begins with text."""
        return self.parts[0].name if self.parts and isinstance(self.parts[0], Parameter) else None

    @property
    def value(self) -> Any:
        """The value of the parameter that the message begins with."""
        first = self.parts[0] if self.parts else None
        return first.value if isinstance(first, Parameter) and first.has_value else None


class InputError(MmdiffError, ValueError):
    """A problem with the user's file or parameter."""


class UnreadableSource(InputError):
    """A file or array that cannot be read."""


class BadRow(InputError):
    """A row with NaN, Inf, or nothing but zeros."""


class WidthMismatch(InputError):
    """Rows of different widths."""


class CountMismatch(InputError):
    """Labels or ids whose number is not that of the rows."""


class DuplicateIds(InputError):
    """One id for two rows."""


class BadLabels(InputError):
    """Labels or class names that contradict each other."""


class BadOption(InputError):
    """A parameter with an impossible value."""


class MissingExtra(InputError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, purpose: Part) -> None:
        super().__init__(purpose, f" needs {package}, which is not installed. Run: pip install 'mmdiff[{extra}]'")
        self._given = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, Part]]:
        return MissingExtra, self._given


class StoreError(MmdiffError, OSError):
    """A problem with the store on disk."""


class Missing(StoreError):
    """No such store or artifact (yet)."""


class Corrupt(StoreError):
    """Damaged, or not written by mmdiff."""

    exit_code = 1


class Damaged(Corrupt):
    """Data of an artifact that differs from what was published. What a run computed so far is not kept."""


class Stale(StoreError):
    """Made from inputs that have changed since."""


class Locked(StoreError):
    """Another run is writing it."""


class DiskFull(StoreError):
    """Not enough disk space."""

    exit_code = 1


class DiskError(StoreError):
    """A disk that fails, or refuses to write: an I/O error, a read-only file system, no permission, a limit."""

    exit_code = 1


class BadResult(StoreError):
    """A result that verification would call bad. It is not published."""

    exit_code = 1


class Unreachable(StoreError):
    """A remote store that does not answer or refuses access."""


class ReadOnly(StoreError):
    """An attempt to write to a remote store."""


class ClusterError(MmdiffError, RuntimeError):
    """Dask workers that are lost, or cannot do their work. Finished work is kept."""


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """The sentence "Did you mean X? " for the nearest of the choices, in upper or lower case; empty where none is near."""
    spelled = {choice.lower(): choice for choice in choices}
    near = get_close_matches(value.lower(), spelled, 1)
    return f"Did you mean {spelled[near[0]]}? " if near else ""


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuses a value that is not among the choices, and suggests the nearest one."""
    if value not in choices:
        guess = did_you_mean(str(value), choices)
        raise BadOption(Parameter(name, value), f": not one of the choices. {guess}Choose from {', '.join(choices)}.")
