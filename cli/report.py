"""`mmdiff report`: the store as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.explain import Images
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store


def command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path("report.html"),
    novel: Annotated[
        str | None,
        typer.Option(
            metavar="CLASSES",
            help="Classes to report separately too, as in `mmdiff evaluate`: a file, or a list.",
            show_default=False,
        ),
    ] = None,
    images: Images = None,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", metavar="ID", help="Show the paths to this test point; may be repeated.", show_default="some"),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Write one HTML page with all there is: accuracies, curves, experiments, classes, paths, and how it was made.

    The page is self-contained: figures are in it, and thumbnails too where images are files.
    """
    found = open_store(store).report(out, novel=novel, images=images, test=test or ())
    if json:
        show.as_json(found)
        return
    for sentence in found["notes"]:
        show.note(text.printable(sentence))
    sections = ", ".join(found["sections"])
    show.result(
        f"{text.printable(found['file'])}: {text.size(found['bytes'])}, "
        f"{text.count(len(found['sections']), 'section')}: {sections}"
    )
