"""Lists of neighbours as results of the SISAP indexing challenge: HDF5 with `knns` and `dists`.

Rows are queries, or all rows where these are searched among themselves; each then begins with itself. `knns` are numbers from 1
on, 0 where there are fewer than k neighbours, and `dists` are increasing: 1 - the inner product, +Inf where there is none. The
attributes `algo`, `params`, `buildtime` and `querytime` are what the evaluation of the challenge shows.
"""

from __future__ import annotations

import json
from typing import IO

import numpy as np

from mmdiff.export.graphs import Task, rows_of_lists
from mmdiff.export.neighbours import UserLists, cosine_lists, require_unit_length
from mmdiff.formats.extras import load
from mmdiff.runtime.progress import Progress


def write_sisap(task: Task, stream: IO[bytes], progress: Progress) -> int:
    """Writes the lists, a block of rows at a time."""
    h5py, lists = load("h5py", "writing .h5"), UserLists.of(task.artifact)
    require_unit_length(lists, "sisap")
    shape = (lists.rows, lists.k - (lists.of_nodes and not task.self_loops))
    with progress(f"exporting {task.artifact.name}", lists.rows, "rows") as advance, h5py.File(stream, "w") as file:
        knns, dists = (file.create_dataset(name, shape, dtype) for name, dtype in (("knns", "<i4"), ("dists", "<f4")))
        for block in lists.blocks(rows_of_lists(lists)):
            neighbors, distances = cosine_lists(lists, block, task.self_loops)
            rows = slice(block.start, block.start + len(neighbors))
            knns[rows], dists[rows] = (neighbors + 1).astype(np.int32), distances
            advance(len(neighbors))
        file.attrs["algo"] = "mmdiff"
        file.attrs["params"] = json.dumps(task.artifact.manifest.parameters, sort_keys=True)
        file.attrs["buildtime"], file.attrs["querytime"] = float(task.artifact.run["seconds"]), 0.0
    return lists.rows
