"""The options of a diffusion, declared once: name, type, default, valid values and documentation (paper, sections 3.3, 3.4).

`mmdiff.diffuse`, the stage, its plan, experiment configs and the command line all read this declaration. A new option is one
new field here. The module imports no array library, so that the command line can build its help from it quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from mmdiff.formats.errors import BadOption, Parameter, one_of, shortened
from mmdiff.runtime.parameters import MOST, as_flag, as_number, as_whole

Eta = Literal["column", "row", "none", "prior", "sinkhorn"]
Normalization = Literal["row", "symmetric"]
Precision = Literal["float32", "bfloat16"]
KeptScores = Literal["all", "last"]

ETAS: tuple[Eta, ...] = get_args(Eta)

MOST_ITERATIONS = 10_000
"""Iterations of a diffusion; labels are spread over the whole graph long before."""

AUTO = "auto"
MOST_AUTO_ITERATIONS = 10
"""Iterations that are tried where a store chooses their number."""

COLS_PER_BATCH = 96
"""Columns of a batch unless the user asks for another number; the product sums as many in registers."""


class Domain(NamedTuple):
    """Valid values. `read` returns a raw value in the option's own type, or None if it is not valid."""

    read: Callable[[Any], Any]
    expected: str
    hint: str = ""


class Option(NamedTuple):
    """One declared option. `choices` are those of a Literal type; other types have a `domain`.

    `auto` says what the value AUTO means; a store replaces it by one of the valid values before it diffuses.
    """

    name: str
    type: Any
    default: Any
    doc: str
    choices: tuple[str, ...]
    domain: Domain | None
    metavar: str | None
    default_doc: str | None
    in_experiments: bool
    auto: str | None

    @property
    def expected(self) -> str:
        return f"one of {', '.join(self.choices)}" if self.domain is None else self.domain.expected


def option(
    default: Any,
    doc: str,
    domain: Domain | None = None,
    metavar: str | None = None,
    default_doc: str | None = None,
    in_experiments: bool = False,
    auto: str | None = None,
) -> Any:
    """Declares a field. `default_doc` describes a default of None; `in_experiments` offers the option in experiment configs."""
    metadata = {
        "doc": doc,
        "domain": domain,
        "metavar": metavar,
        "default_doc": default_doc,
        "in_experiments": in_experiments,
        "auto": auto,
    }
    return field(default=default, metadata=metadata)


def _whole(least: int, most: int) -> Domain:
    return Domain(lambda raw: as_whole(raw, least, most), f"a whole number from {least:,} to {most:,}")


def _number(least: float, most: float, hint: str = "") -> Domain:
    return Domain(lambda raw: as_number(raw, least, most), f"a number from {least:g} to {most:g}", hint)


def _columns(raw: Any) -> int | str | None:
    return "auto" if isinstance(raw, str) and raw == "auto" else as_whole(raw, 1, MOST)


def _prior(raw: Any) -> Any:
    """A name or a file, or numbers, whose shape is checked when the number of classes is known."""
    if isinstance(raw, str):
        return raw if raw and "\0" not in raw else None
    return raw if hasattr(raw, "__len__") and not isinstance(raw, bytes) else None


FLAG = Domain(as_flag, "true or false")


@dataclass(frozen=True)
class DiffusionOptions:
    """The options of a diffusion, each checked by itself when an instance is made. Numbers take the type of their option.

    >>> DiffusionOptions(eta="sinkhorn", iterations=3).iterations
    3
    >>> [option.name for option in DiffusionOptions.declared().values() if option.choices]
    ['eta', 'normalize_graph', 'dtype', 'keep_scores']
    """

    iterations: int = option(
        5,
        "Number of diffusion iterations. The paper uses 2 to 7.",
        _whole(0, MOST_ITERATIONS)._replace(hint="The paper uses 2 to 7."),
        metavar="N|auto",
        in_experiments=True,
        auto=f"`auto` takes the best of 1 to {MOST_AUTO_ITERATIONS} on labels that are held out in folds.",
    )
    cols_per_batch: int | Literal["auto"] | None = option(
        None,
        "Number of classes computed at a time; `auto` takes as many as the memory limit allows.",
        Domain(_columns, f"a whole number from 1 to {MOST:,}, or auto"),
        metavar="N|auto",
        default_doc=f"as many as fit, at most {COLS_PER_BATCH} in a matrix",
    )
    eta: Eta = option("column", "Operator that normalises L after each iteration.", in_experiments=True)
    prior: Any = option(
        None,
        "Class prior of the operators `prior` and `sinkhorn`: `uniform`, `seeds` (class frequencies of the seeds), or one "
        "number for each class.",
        Domain(_prior, "uniform, seeds, a file, or one number for each class"),
        metavar="FILE|uniform|seeds",
        default_doc="uniform",
        in_experiments=True,
    )
    prior_power: float | None = option(None, "Power that the prior is raised to.", _number(-1000, 1000), in_experiments=True)
    gamma: float | None = option(
        None,
        "Power that the entries are raised to in each iteration (Gamma of the paper).",
        _number(0.001, 1000, "For example 0.5 or 2."),
        in_experiments=True,
    )
    alpha: float | None = option(
        None,
        "Share of W S in each update; the rest is Y (Zhou et al.).",
        _number(1e-6, 1, "For example 0.8."),
        in_experiments=True,
    )
    reset_seeds: bool = option(
        False, "Reset the seeds to their labels after each iteration (Zhu et al.).", FLAG, in_experiments=True
    )
    normalize_graph: Normalization = option(
        "row", "Normalisation of the graph: D^-1 A (`row`) or D^-1/2 A D^-1/2 (`symmetric`).", in_experiments=True
    )
    dtype: Precision = option("float32", "Type in which S is stored between iterations. `bfloat16` is not exact.")
    plain: bool = option(False, "Disable the exact shortcuts (slower; for verification).", FLAG)
    keep_scores: KeptScores = option("all", "Iterations whose scores are kept.")

    def __post_init__(self) -> None:
        for name in declared_options():
            object.__setattr__(self, name, checked(name, getattr(self, name)))

    @staticmethod
    def declared() -> dict[str, Option]:
        """All options by name, in the order of their declaration, with type, default, choices and documentation.

        >>> DiffusionOptions.declared()["alpha"].doc
        'Share of W S in each update; the rest is Y (Zhou et al.).'
        """
        return declared_options()

    @property
    def kept_iterations(self) -> list[int]:
        """The iterations whose scores are kept."""
        return [self.iterations] if self.keep_scores == "last" else list(range(self.iterations + 1))


@cache
def declared_options() -> dict[str, Option]:
    """All options by name, in the order of their declaration."""
    types = get_type_hints(DiffusionOptions)
    found = {}
    for each in fields(DiffusionOptions):
        literal = get_origin(types[each.name]) is Literal
        choices = get_args(types[each.name]) if literal else ()
        found[each.name] = Option(
            name=each.name, type=types[each.name], default=each.default, choices=choices, **dict(each.metadata)
        )
    return found


def checked(name: str, value: Any) -> Any:
    """The value of an option in its own type; anything else is refused with what is valid."""
    declared = declared_options()[name]
    if declared.domain is None:
        one_of(name, value if isinstance(value, str) else shortened(value), declared.choices)
        return value
    if value is None and declared.default is None:
        return None
    found = declared.domain.read(value)
    if found is None:
        hint = f" {declared.domain.hint}" if declared.domain.hint else ""
        raise BadOption(Parameter(name, value), f": expected {declared.expected}.{hint}")
    return found


def options_of(values: dict[str, Any]) -> DiffusionOptions:
    """The options from keywords; an unknown one is refused with the nearest that is known."""
    known = tuple(declared_options())
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, 1)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise BadOption(Parameter(name), f": no such option. {guess}Choose from {', '.join(known)}.")
    return DiffusionOptions(**values)
