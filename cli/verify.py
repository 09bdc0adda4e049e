"""`mmdiff verify`: is everything in the store as it was published?"""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_PLACE, AsJson, StorePlace
from mmdiff.cli.reading import open_store

DAMAGED = 1


def command(
    artifact: Annotated[
        str | None, typer.Argument(help="Only this artifact, e.g. `descriptors/background`.", show_default=False)
    ] = None,
    store: StorePlace = DEFAULT_PLACE,
    json: AsJson = False,
) -> None:
    """Check every byte: checksums, sizes, missing and surplus files, index ranges, offsets.

    Names the first bad chunk of each array and the command that makes it anew. Exit code 1 if anything is wrong.
    """
    import time

    from mmdiff.formats.store.verify import bytes_to_read, verify, verify_frame
    from mmdiff.kinds import KINDS

    opened = open_store(store)
    names = [artifact] if artifact else opened.names()
    opened.ensure_local(names)
    total = bytes_to_read(opened, names)
    start = time.perf_counter()
    with show.progress("verifying", total, "bytes") as advance:
        problems = list(verify(opened, names, KINDS, advance))
        if artifact is None:
            problems += verify_frame(opened)
    seconds = time.perf_counter() - start
    if json:
        found = [problem.to_json() for problem in problems]
        show.as_json({"ok": not problems, "artifacts": names, "bytes": total, "seconds": seconds, "problems": found})
    else:
        for problem in problems:
            place = ", ".join(part for part in (problem.artifact, problem.array, problem.chunk) if part)
            show.result(f"BAD {place}: {problem.what}\n    {problem.remedy}")
        verdict = f"{len(problems)} problems in" if problems else "ok:"
        speed = show.size(total / max(seconds, 1e-9))
        read = f"{show.size(total)} read in {show.duration(seconds)} ({speed}/s)"
        show.result(f"{verdict} {len(names)} artifacts, {read}")
    if problems:
        raise typer.Exit(DAMAGED)
