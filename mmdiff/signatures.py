"""Signatures of public functions that take declared options: the parameters and their documentation come from the dataclass."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from mmdiff.diffusion.options import Option, declared_options

Function = TypeVar("Function", bound=Callable[..., Any])


def with_diffusion_options(function: Function) -> Function:
    """Replaces `**options` in the signature by the diffusion options, and documents them at the end of `Args`."""
    return _with_options(function, [each._replace(auto=None) for each in declared_options().values()])


def with_store_options(function: Function) -> Function:
    """The same for a method of stores, which choose values for options that are "auto"."""
    return _with_options(function, list(declared_options().values()))


def _with_options(function: Function, declared: list[Option]) -> Function:
    own = list(inspect.signature(function).parameters.values())
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=each.type if each.auto is None else each.type | Literal["auto"],
        )
        for each in declared
    ]
    function.__signature__ = inspect.Signature([*own[:-1], *options])  # type: ignore[attr-defined]
    head, returns, rest = inspect.cleandoc(function.__doc__ or "").partition("\nReturns:")
    function.__doc__ = f"{head.rstrip()}\n{_documented(declared)}\n{returns}{rest}"
    return function


def _documented(declared: list[Option]) -> str:
    lines = []
    for each in declared:
        choices = f" One of {', '.join(each.choices)}." if each.choices else ""
        described = " ".join(filter(None, (f"{each.name}: {each.doc}{choices}", each.auto)))
        lines += textwrap.wrap(described, 120, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)
