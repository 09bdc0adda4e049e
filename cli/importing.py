"""`mmdiff import`: embeddings, labels and ids into the store."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, Threads, open_store


class Role(StrEnum):
    """The part that rows play in the paper."""

    background = "background"
    seeds = "seeds"
    test = "test"


class Dtype(StrEnum):
    """Type of stored vectors."""

    float32 = "float32"
    float16 = "float16"


class OnBad(StrEnum):
    """Treatment of rows with NaN, Inf or only zeros."""

    error = "error"
    drop = "drop"


# Options that `describe` shares.
InRole = Annotated[
    Role,
    typer.Option(
        help="`background`: rows that labels spread over. `seeds`: labelled rows beside them. `test`: rows to classify.",
    ),
]

ClassNames = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Names of class numbers: `.txt` (line i is class i), `.json` or `.csv`."),
]

StoredDtype = Annotated[
    Dtype | None,
    typer.Option(
        help="Type of the stored vectors. Default: float32, or with `--append` that of the background.", show_default=False
    ),
]

Dims = Annotated[
    int | None,
    typer.Option(help="Reduce wider rows to this many dimensions by PCA (with the background: 256).", show_default=False),
]

Normalize = Annotated[bool, typer.Option(help="Scale rows to unit length.")]

NoBackground = Annotated[bool, typer.Option("--no-background", help="There is none: train the PCA on these seeds.")]

SameIds = Annotated[
    bool,
    typer.Option("--same-ids", help="Use only the labels of seeds whose ids stand in the collection."),
]


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files of embeddings, read as one array in the order given (a quoted pattern: in numeric order). "
            "`.npy`, `.fvecs`, `.bvecs`, `.fbin`, `.u8bin`, `.i8bin`, `.f16bin`, `file.npz::array`, "
            "`file.safetensors::tensor`, `file.h5::dataset`, `file.parquet::column`, `file.arrow::column`, "
            "`file.feather::column`, a zarr array, or a folder as `datasets` or clip-retrieval writes it. "
            "Where only one fits, the name after `::` may be left out.",
            show_default=False,
        ),
    ],
    role: InRole = Role.background,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|FILE",
            help="A label for each row: a column of the source where it is a table, or a file: `.npy`, `.txt`, `.csv::column`, "
            "`.parquet::column` or any other table above, or a quoted pattern; numbers or names; -1, empty or null means "
            "unlabelled.",
        ),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="COLUMN|FILE", help="An id for each row, in the same way. Default: row numbers.")
    ] = None,
    class_names: ClassNames = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Add rows to the background instead of replacing it, with its PCA and options. Ids must be new; without ids, "
            "row numbers go on.",
        ),
    ] = False,
    dtype: StoredDtype = None,
    dims: Dims = None,
    normalize: Normalize = True,
    keep_raw: Annotated[
        bool | None,
        typer.Option(
            help="Keep the original descriptors too; logistic regression trains on them. Default: for seeds and test.",
            show_default=False,
        ),
    ] = None,
    on_bad: Annotated[OnBad, typer.Option(help="Rows with NaN, Inf or only zeros: stop, or leave them out.")] = OnBad.error,
    no_background: NoBackground = False,
    same_ids: SameIds = False,
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Import embeddings as background, seeds or test points.

    Rows are reduced by PCA where they are wider than --dims, and scaled to unit length. The PCA is trained on the background
    and used for all roles, so import the background first. Importing a role again replaces its rows, and says so; rows that
    arrive later are added to the background with `--append`. If interrupted, the same command continues; repeated, it does
    nothing.
    """
    summary = open_store(store, create=True, threads=threads).add(
        sources,
        role=role.value,
        labels=labels,
        ids=ids,
        class_names=class_names,
        append=append,
        dtype=None if dtype is None else dtype.value,
        dims=dims,
        normalize=normalize,
        keep_raw=keep_raw,
        on_bad=on_bad.value,
        no_background=no_background,
        same_ids=same_ids,
    )
    if json:
        show.as_json(summary)
        return
    for sentence in summary["notes"]:
        show.note(text.printable(sentence))
    if "shape" not in summary:
        show.result(f"{summary['artifact']}: {'nothing new' if summary['reused'] else 'labels recorded'}, no rows imported")
        return
    if summary["reused"]:
        show.result(f"{summary['artifact']}: already imported, nothing to do")
        return
    speed = summary["input_bytes"] / max(summary["seconds"], 1e-9)
    show.result(
        f"{summary['artifact']}: {show.shape(summary['shape'])} {summary['dtype']}, {text.size(summary['bytes'])} on disk, "
        f"in {text.duration(summary['seconds'])} ({text.size(speed)}/s)"
    )
    if append:
        show.result(f"  {text.count(summary['added'], 'row')} added")
    if summary["chunks_found"]:
        show.result(f"  continued: {text.count(summary['chunks_found'], 'chunk')} kept from an interrupted run")
    if summary["classes"]:
        show.result(f"  {text.count(summary['classes'], 'class', 'classes')}")
    for reason, count in summary["dropped"].items():
        show.result(f"  {text.count(count, 'row')} left out: {reason.replace('_', ' ')}")
