"""`mmdiff export`: an artifact as a file for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.errors import INTERRUPTED, fail
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, complete_artifacts, open_store


class Order(StrEnum):
    """The order of rows and node numbers."""

    user = "user"
    internal = "internal"


class Format(StrEnum):
    """The formats of other libraries."""

    csr = "csr"
    edges = "edges"
    edge_index = "edge-index"
    sisap = "sisap"
    embedding_atlas = "embedding-atlas"
    faiss = "faiss"


def command(
    artifact: Annotated[
        str,
        typer.Argument(
            metavar="ARTIFACT",
            help="The artifact, e.g. `descriptors/background`.",
            show_default=False,
            autocompletion=complete_artifacts,
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file to write; its ending says how. `.npy`: one array. `.npz`: all arrays; of a graph, the matrix W "
            "for `scipy.sparse.load_npz`. `.parquet`, `.csv`: of descriptors, a table of ids, labels and vectors; of scores, "
            "one of ids, labels and predictions. `.safetensors`: a model. Other endings, and those that stand for several "
            "files, go with a format.",
            show_default=False,
        ),
    ],
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="The format of another library. Of lists of neighbours and graphs: `csr` (`.npz`; distances for scikit-learn, "
            "UMAP, cleanlab and HDBSCAN, or W), `edges` (`.parquet`, `.csv`), `edge-index` (`.safetensors`, `.npz`; PyTorch "
            "Geometric and DGL). Of lists: `sisap` (`.h5`), `embedding-atlas` (`.parquet`). Of descriptors and "
            "`models/cells`: `faiss` (`.faiss`).",
            show_default="what the ending stands for",
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The array to export, e.g. `raw` or `labels`. Default: the vectors of descriptors, the scores of scores.",
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        Order, typer.Option(help="Rows and node numbers of graphs and lists: as you imported them, or as they are stored.")
    ] = Order.user,
    self_loops: Annotated[
        bool,
        typer.Option(help="Whether each row is its own neighbour in the file, at distance 0; cleanlab wants none."),
    ] = True,
    projection: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="For `embedding-atlas`: x and y of each row, in a file as `import` takes it, of two columns.",
            show_default=False,
        ),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Write an artifact to a file that other tools read. An existing file is replaced once the new one is complete.

    `.npy` and `.npz` hold arrays, with rows and nodes in your order: background, seeds, test points. Labels
    are rows of the artifact's own table of classes (`class_numbers`, `class_names`), -1 for none. `.parquet` and `.csv` hold
    your ids (else row numbers), and class names (else your numbers). Formats for other libraries are in your order too;
    lists of neighbours are `knn/BB` (the background), `knn/W0` (all nodes, where there are seeds or appended rows) and
    `knn/test`.
    """
    try:
        summary = open_store(store).export(
            artifact,
            file,
            format_=None if format_ is None else format_.value,
            array=array,
            order=order.value,
            self_loops=self_loops,
            projection=projection,
        )
    except KeyboardInterrupt:
        fail(f"interrupted. {file} is as it was before.", INTERRUPTED)
    for sentence in summary["notes"]:
        show.note(sentence)
    if json:
        show.as_json(summary)
        return
    as_what = f" as {summary['format']}" if summary["format"] in list(Format) else ""
    speed = summary["bytes"] / max(summary["seconds"], 1e-9)
    show.result(
        f"{text.printable(summary['file'])}: {text.count(summary['rows'], 'row')} of {summary['artifact']}{as_what}, "
        f"{text.size(summary['bytes'])}, in {text.duration(summary['seconds'])} ({text.size(speed)}/s)"
    )
