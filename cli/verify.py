"""`mmdiff verify`: check that everything in the store is as it was published."""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, complete_artifacts, open_store

DAMAGED = 1


def command(
    artifact: Annotated[
        str | None,
        typer.Argument(
            help="Only this artifact, e.g. `descriptors/background`.", show_default=False, autocompletion=complete_artifacts
        ),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Check every byte: checksums, sizes, missing and surplus files, index ranges, offsets.

    Names the first bad chunk of each array and the command that makes it again. Exit code 1 if anything is wrong.
    """
    found = open_store(store).verify(artifact)
    problems = found["problems"]
    if json:
        show.as_json(found)
    else:
        for problem in problems:
            place = ", ".join(problem[part] for part in ("artifact", "array", "chunk") if problem[part])
            show.result(f"BAD {place}: {text.printable(problem['what'])}\n    {text.printable(problem['remedy'])}")
        verdict = f"{text.count(len(problems), 'problem')} in" if problems else "ok:"
        speed = text.size(found["bytes"] / max(found["seconds"], 1e-9))
        read = f"{text.size(found['bytes'])} read in {text.duration(found['seconds'])} ({speed}/s)"
        show.result(f"{verdict} {text.count(len(found['artifacts']), 'artifact')}, {read}")
    if problems:
        raise typer.Exit(DAMAGED)
