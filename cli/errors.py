"""Errors as the user sees them: a sentence on stderr and an exit code, never a traceback for a mistake of the user's.

0 done, 1 the store is damaged, the disk is full or fails, or memory or threads are refused, 2 the user's file or option,
130 interrupted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from mmdiff.cli import show
from mmdiff.errors import Call, MmdiffError, Parameter, Placeholder, one_of, shortened
from mmdiff.text import printable

INTERRUPTED = 130

# The class of everything that typer finds wrong with a command line.
UsageError: Any = typer.BadParameter.__base__

_LONG_WORD = re.compile(r"\S{1000,}")

_EXPECTED = {"integer": "a whole number", "float": "a number", "number": "a number", "boolean": "true or false"}

# Methods of the store whose command is called otherwise, parameters whose option is, and those that are arguments.
_COMMANDS = {
    "add": "import",
    "experiment": "experiment run",
    "labels": "label --list",
    "undo_label": "label --undo",
    "hold_out": "label --holdout",
}
_OPTIONS = {"share": "holdout", "candidates": "from"}
_ARGUMENTS = ("source", "file", "artifact", "config", "url", "what", "n")


class Commands(TyperGroup):
    """All commands, with one way to fail."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        show.survive_any_encoding()
        try:
            return super().main(*arguments, **options)
        finally:
            show.finish_notes()

    def invoke(self, ctx: Any) -> Any:
        words = [*ctx._protected_args, *ctx.args]
        try:
            try:
                return super().invoke(ctx)
            finally:
                show.finish_output()
        except MmdiffError as error:
            fail(error.spelled(spell), error.exit_code)
        except UsageError as error:
            fail(_sentence(error, words), error.exit_code)
        except KeyboardInterrupt:
            fail("interrupted. What is finished is kept: the same command continues from there.", INTERRUPTED)
        except show.OutputClosed:
            show.discard_output()
            raise typer.Exit(0) from None
        except show.OutputError as error:
            show.discard_output()
            fail(f"the output cannot be written ({error}). Write it to another place.", 1)
        except MemoryError:
            fail("the machine, or a limit on this process, grants no more memory. Free some, or allow less: --memory 1G", 1)
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            fail("the system starts no more threads for this process. Raise its limits (ulimit -a), or use fewer threads.", 1)
        except OSError as error:
            if error.filename is None:
                reason = error.strerror or str(error) or type(error).__name__
                fail(f"the system refuses to read or write a file ({reason}). Check the disk, then run this again.", 1)
            fail(f"{error.filename}: {error.strerror}. Check the path and its permissions.", MmdiffError.exit_code)


def fail(message: str, code: int) -> NoReturn:
    # A value may be a name or path of thousands of characters.
    shown = _LONG_WORD.sub(lambda word: f"{word[0][:80]}... ({len(word[0]):,} characters)", message)
    show.note(shown)
    raise typer.Exit(code)


def _sentence(error: Any, words: Sequence[str]) -> str:
    """The fault of a command line, in our own words."""
    parameter = getattr(error, "param", None)
    command = error.ctx.command_path if error.ctx is not None else "mmdiff"
    see = f"See {command.replace('root', 'mmdiff', 1)} --help."
    given = None if parameter is None else _given(parameter.opts, words)
    if not isinstance(error, typer.BadParameter) or parameter is None or given is None:
        message = " ".join(error.format_message().split())
        return f"{message if message.endswith(('.', '?')) else message + '.'} {see}"
    option = max(parameter.opts, key=len)
    # Versions of typer differ in what they tell beside the message.
    choices = re.search(r"is not one of (.*)", error.message)
    if choices is not None:
        try:
            one_of(option.lstrip("-").replace("-", "_"), given, tuple(re.findall(r"'(.*?)'", choices[1])))
        except MmdiffError as refused:
            return refused.spelled(spell)
    expected = next((what for word, what in _EXPECTED.items() if word in error.message.lower()), "another value")
    return f"{option} {_word(given)}: expected {expected}. {see}"


def _given(options: Sequence[str], words: Sequence[str]) -> str | None:
    """The value of an option on the command line."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options and (equals or place + 1 < len(words)):
            return value if equals else words[place + 1]
    return None


def spell(part: Parameter | Call) -> str:
    """A parameter or a call as the user of the command line types it: `--k 30`, `mmdiff import FILE --role test`."""
    if isinstance(part, Call):
        words = [_word(argument) for argument in part.arguments]
        words += [spell(Parameter(name, value)) for name, value in part.parameters.items()]
        return " ".join(["mmdiff", _COMMANDS.get(part.method, part.method.replace("_", "-")), *words])
    if part.name in _ARGUMENTS and part.has_value:
        return _word(part.value)
    option = f"--{_OPTIONS.get(part.name, part.name).strip('_').replace('_', '-')}"
    if part.value is True or not part.has_value:
        return option
    return f"--no-{option[2:]}" if part.value is False else f"{option} {_word(part.value)}"


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, Placeholder) else shortened(value, lambda given: shlex.quote(printable(given)))
