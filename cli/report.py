"""`mmdiff report`: the store as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.explain import Images
from mmdiff.cli.options import DEFAULT_PLACE, AsJson, StorePlace
from mmdiff.cli.reading import open_store


def command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path("report.html"),
    novel: Annotated[
        str | None,
        typer.Option(
            metavar="CLASSES",
            help="Report these classes apart too, as `mmdiff evaluate` does: a file, or a list.",
            show_default=False,
        ),
    ] = None,
    images: Images = None,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", metavar="ID", help="Show the paths to this test point; may be repeated.", show_default="some"),
    ] = None,
    store: StorePlace = DEFAULT_PLACE,
    json: AsJson = False,
) -> None:
    """Write one HTML page of all there is: accuracies, curves, experiments, classes, paths, and what was run.

    The page needs no network: figures are in it, and thumbnails too where images are files.
    """
    from mmdiff.report.stage import Request, write_report

    found = write_report(open_store(store), out, Request(novel, images, test or ()), show.progress)
    if json:
        show.as_json(found)
        return
    for text in found["notes"]:
        show.note(text)
    show.result(
        f"{found['file']}: {show.size(found['bytes'])}, {len(found['sections'])} sections: {', '.join(found['sections'])}"
    )
