"""`mmdiff export`: an artifact as a file for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.errors import INTERRUPTED, fail
from mmdiff.cli.options import DEFAULT_PLACE, AsJson, StorePlace
from mmdiff.cli.reading import open_store


class RowOrder(StrEnum):
    """Orders of rows and node numbers."""

    user = "user"
    internal = "internal"


def command(
    artifact: Annotated[
        str, typer.Argument(metavar="ARTIFACT", help="What to export, e.g. `descriptors/background`.", show_default=False)
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file to write; its ending says how. `.npy`: one array. `.npz`: all arrays; of a graph, the matrix W "
            "for `scipy.sparse.load_npz`. `.parquet`, `.csv`: of descriptors, a table of ids, labels and vectors; of scores, "
            "one of ids, labels and predictions. `.safetensors`: a model.",
            show_default=False,
        ),
    ],
    array: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The array to export, e.g. `raw` or `labels`. Default: the vectors of descriptors, the scores of scores.",
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        RowOrder, typer.Option(help="Order of rows and node numbers: as you imported them, or as they are stored.")
    ] = RowOrder.user,
    store: StorePlace = DEFAULT_PLACE,
    json: AsJson = False,
) -> None:
    """Write an artifact to a file that other tools read. An existing file is replaced once the new one is complete.

    `.npy` and `.npz` hold arrays as they are stored, with rows and nodes in your order: background, seeds, test points. Labels
    are rows of the artifact's own table of classes (`class_numbers`, `class_names`), -1 for none. `.parquet` and `.csv` hold
    your ids (else row numbers), and class names (else your numbers).
    """
    from mmdiff.export.stage import export

    try:
        outcome = export(open_store(store), artifact, file, array, show.progress, order.value)
    except KeyboardInterrupt:
        fail(f"interrupted. {file} is as it was before.", INTERRUPTED)
    for text in outcome.notes:
        show.note(text)
    if json:
        show.as_json(outcome.summary())
        return
    speed = outcome.bytes / outcome.seconds
    show.result(
        f"{outcome.file}: {outcome.rows:,} rows of {outcome.artifact}, {show.size(outcome.bytes)}, "
        f"in {show.duration(outcome.seconds)} ({show.size(speed)}/s)"
    )
