"""Signatures of public functions that take declared options: the parameters and their documentation come from the dataclass."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from mmdiff.diffusion.options import declared_options

Function = TypeVar("Function", bound=Callable[..., Any])


def with_diffusion_options(function: Function) -> Function:
    """Replaces `**options` in the signature by the diffusion options, and documents them at the end of `Args`."""
    own = list(inspect.signature(function).parameters.values())
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in declared_options().values()
    ]
    function.__signature__ = inspect.Signature([*own[:-1], *options])  # type: ignore[attr-defined]
    head, returns, rest = inspect.cleandoc(function.__doc__ or "").partition("\nReturns:")
    function.__doc__ = f"{head.rstrip()}\n{_documented()}\n{returns}{rest}"
    return function


def _documented() -> str:
    lines = []
    for each in declared_options().values():
        choices = f" One of {', '.join(each.choices)}." if each.choices else ""
        lines += textwrap.wrap(f"{each.name}: {each.doc}{choices}", 120, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)
