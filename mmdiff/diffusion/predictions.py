"""The predictions for the background as a Parquet file with the user's ids: what most users want of a diffusion.

Columns: `id`; `label`, the number of the best class, -1 where no label reaches the node; `name`, where classes have names;
`classes` and `scores`, the best few classes and their scores in L, best first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import UNLABELLED, Classes
from mmdiff.diffusion.problem import Problem
from mmdiff.export.arrow import arrow, strings_column
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption
from mmdiff.formats.manifest import Json
from mmdiff.formats.store import Artifact, Store
from mmdiff.formats.strings import Strings
from mmdiff.ids import ids_of
from mmdiff.progress import Progress

_BLOCK_ROWS = 1 << 18
BACKGROUND = "descriptors/background"


def check_predictions(file: Path, store: Store, problem: Problem) -> None:
    """Refuses a file that could not be written in the end."""
    if file.suffix.lower() != ".parquet":
        raise BadOption(f"--predict-nodes {file}: predictions are written to Parquet. Name a file that ends in .parquet.")
    if not problem.background:
        raise BadOption(f"--predict-nodes {file}: the graph has no background nodes. Leave the option out.")
    check_place(file, store)
    arrow("writing .parquet")


def write_predictions(store: Store, artifact: Artifact, file: Path, progress: Progress) -> Json:
    """Writes one row for each row of the background, in the user's order; returns how many rows there are, and are reached."""
    pa, parquet = arrow("writing .parquet")
    top, scores, classes = artifact.array("top_classes"), artifact.array("top_scores"), Classes.of(artifact)
    ids: Any = ids_of(store.open_artifact(BACKGROUND)) if store.id(BACKGROUND) is not None else range(len(top))
    numbers = np.arange(len(classes)) if classes.numbers is None else classes.numbers
    names = None if classes.names is None else pa.array([*classes.names, None])
    reached = 0
    with whole_file(file) as stream:
        writer = None
        with progress("writing predictions", len(top), "rows") as advance:
            for start in range(0, max(1, len(top)), _BLOCK_ROWS):
                rows = slice(start, min(start + _BLOCK_ROWS, len(top)))
                best = top[rows]
                given = best != UNLABELLED
                offsets = pa.array(np.append(0, np.cumsum(given.sum(axis=1))).astype(np.int32))
                label = np.where(given[:, 0], numbers[best[:, 0]], UNLABELLED)
                columns: dict[str, Any] = {"id": _ids(pa, ids, rows), "label": pa.array(label)}
                if names is not None:
                    columns["name"] = names.take(pa.array(np.where(given[:, 0], best[:, 0], len(classes))))
                columns["classes"] = pa.ListArray.from_arrays(offsets, pa.array(numbers[best[given]]))
                columns["scores"] = pa.ListArray.from_arrays(offsets, pa.array(scores[rows][given]))
                table = pa.table(columns)
                writer = writer or parquet.ParquetWriter(stream, table.schema)
                writer.write_table(table)
                reached += int(given[:, 0].sum())
                advance(len(best))
        if writer is not None:
            writer.close()
    return {"file": str(file), "rows": len(top), "reached": reached}


def _ids(pa: Any, ids: Strings | range | NDArray[np.int64], rows: slice) -> Any:
    if isinstance(ids, Strings):
        return strings_column(pa, ids.take(np.arange(rows.start, rows.stop)))
    return pa.array(np.asarray(ids[rows], np.int64))
