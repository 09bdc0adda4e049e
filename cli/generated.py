"""Command-line options generated from the declaration of the diffusion options (`mmdiff.DiffusionOptions`)."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, get_args

import typer

from mmdiff import DiffusionOptions

Command = Callable[..., None]


def with_diffusion_options(command: Command) -> Command:
    """Adds the diffusion options in front of a command's own; the command receives them as the dictionary `options`."""
    own = inspect.signature(command, eval_str=True).parameters
    generated = [_parameter(declared) for declared in DiffusionOptions.declared().values()]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        options = {
            declared.name: _value(declared, values.pop(declared.name)) for declared in DiffusionOptions.declared().values()
        }
        command(options=options, **values)

    only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, parameter in own.items() if name != "options"]
    parameters = [*generated, *only]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _parameter(declared: Any) -> inspect.Parameter:
    default = declared.default
    shown: bool | str = declared.default_doc or default is not None
    kind = _type(declared)
    if issubclass(kind, StrEnum):
        default = kind(default)
    text = declared.doc if declared.auto is None else f"{declared.doc} {declared.auto}"
    if declared.auto is not None:
        default = str(default)
    info = typer.Option(f"--{declared.name.replace('_', '-')}", help=text, metavar=declared.metavar, show_default=shown)
    annotation = Annotated[kind | None if default is None else kind, info]  # type: ignore[valid-type]
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _type(declared: Any) -> type[Any]:
    """The type that the command line parses: an enum of choices, a number or a flag, else the text as it is."""
    if declared.choices:
        return StrEnum(declared.name.title().replace("_", ""), {choice: choice for choice in declared.choices})  # type: ignore[return-value]
    if declared.auto is not None:
        return str
    kinds = [kind for kind in get_args(declared.type) or (declared.type,) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float) else str


def _value(declared: Any, parsed: Any) -> Any:
    """A parsed value as the declaration has it. Text that is a number is one where numbers are valid."""
    if isinstance(parsed, StrEnum):
        return parsed.value
    if isinstance(parsed, str) and int in (declared.type, *get_args(declared.type)) and re.fullmatch(r"-?[0-9]{1,20}", parsed):
        return int(parsed)
    return parsed
