"""What the user sees when something goes wrong: a sentence on stderr and an exit code, never a traceback for their own mistake.

0 done, 1 the store is damaged or the disk is full, 2 the user's file or option, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from mmdiff.formats.errors import MmdiffError

INTERRUPTED = 130


class Commands(TyperGroup):
    """All commands, with one way to fail."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MmdiffError as error:
            fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            fail("interrupted. What is finished is kept: the same command continues from there.", INTERRUPTED)
        except BrokenPipeError:
            # Whoever read our output has seen enough, as in `mmdiff inspect | head`.
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:
            if error.filename is None:
                raise
            fail(f"{error.filename}: {error.strerror}. Check the path and its permissions.", MmdiffError.exit_code)


def fail(message: str, code: int) -> NoReturn:
    typer.echo(f"mmdiff: {message}", err=True)
    raise typer.Exit(code)
