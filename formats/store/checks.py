"""Checks of the content of artifacts, one function a kind: index ranges, offsets, permutations, values that are not finite.

They run after the files were found intact and the shapes to agree (`shapes.py`), and yield the array and the problem. Large
arrays are checked in blocks, so that memory stays bounded. `docs/formats.md` specifies what is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource, shortened
from mmdiff.formats.store.kinds import NUMBER
from mmdiff.formats.store.shapes import Finding, class_count
from mmdiff.formats.store.tensors import floats_of, tensor_shapes

if TYPE_CHECKING:
    # A store compares the artifacts it opens with their layouts, and so with these checks.
    from mmdiff.formats.store.store import Artifact

# Values and strings that are checked at a time.
_BLOCK, _STRINGS = 1 << 20, 1 << 14
# Values that are sorted at a time, to find those that occur twice.
_SORTED = 1 << 24

# Entries of a line of experiment results, and the accuracies in its `mean` and `std`.
_LINE: dict[str, type] = {
    **dict.fromkeys(("group", "method", "kind"), str),
    **dict.fromkeys(("n", "plane", "first_cell"), int),
    **dict.fromkeys(("variant", "options", "mean", "std"), dict),
    **{"chosen": bool, "planes": list},
}
_ACCURACIES = ("top1", "top5", "novel_top1", "novel_top5")

# Marks a missing neighbour in a list, and the bits of a graph index that are the column.
_NONE, _COLUMN = 0xFFFFFFFF, 0x7FFFFFFF


def check_descriptors(artifact: Artifact) -> Iterator[Finding]:
    for column in ("ids", "class_names", "dropped_ids"):
        yield from _check_strings(artifact, column)
    if "labels" in artifact:
        yield from _check_range(artifact, "labels", -1, class_count(artifact.manifest))
    for name in ("class_numbers", "ids", "dropped_ids"):
        if name in artifact and _has_repeats(artifact.array(name)):
            yield name, "values that occur twice"


def check_labels(artifact: Artifact) -> Iterator[Finding]:
    for column in ("ids", "class_names", "batch_sources"):
        yield from _check_strings(artifact, column)
    yield from _check_range(artifact, "labels", -1, class_count(artifact.manifest))
    if "class_numbers" in artifact and _has_repeats(artifact.array("class_numbers")):
        yield "class_numbers", "values that occur twice"
    # Batches are numbered from 0, and entries are by batch: each is of the same batch as the one before, or of the next.
    batch, batches = artifact.array("batch"), artifact.facts["batches"]
    steps = np.diff(batch, prepend=np.int32(-1), append=np.int32(batches))
    if (batches or len(batch)) and not (steps[0] == steps[-1] == 1 and np.isin(steps, (0, 1)).all() and len(batch)):
        yield "batch", f"not the numbers of {batches} batches in turn"


def check_pca(artifact: Artifact) -> Iterator[Finding]:
    for name in artifact.manifest.arrays:
        yield from _check_finite(artifact, name)


def check_cells(artifact: Artifact) -> Iterator[Finding]:
    rows, cells = artifact.spec("vectors").shape[0], artifact.spec("centroids").shape[0]
    yield from _check_permutation("order", artifact.array("order"))
    wrong = list(_check_offsets("offsets", artifact.array("offsets"), rows))
    yield from wrong or _check_cell_of(artifact.array("offsets"), artifact.array("cell_of"))
    yield from _check_offsets("children", artifact.array("children"), cells)
    for name in ("centroids", "coarse"):
        yield from _check_finite(artifact, name)


def _check_cell_of(offsets: NDArray[Any], cell_of: NDArray[Any]) -> Iterator[Finding]:
    """Every row is in the cell whose offsets enclose it."""
    for start, block in _blocks(cell_of):
        stop = start + len(block)
        first, last = np.searchsorted(offsets, (start, stop - 1), "right") - 1
        sizes = np.diff(np.clip(offsets[first : last + 2], start, stop))
        wrong = block != np.repeat(np.arange(first, last + 1, dtype=np.uint32), sizes)
        if wrong.any():
            yield "cell_of", f"row {start + int(wrong.argmax())}: not the cell that the offsets say"
            return


def check_partitions(artifact: Artifact) -> Iterator[Finding]:
    rows, entries = artifact.spec("vectors").shape[0], artifact.spec("members").shape[0]
    cells = artifact.spec("offsets").shape[0] - 1
    yield from _check_offsets("offsets", artifact.array("offsets"), entries)
    yield from _check_permutation("order", artifact.array("order"))
    members = artifact.array("members")
    for start in range(0, entries, max(1, rows)):
        yield from _check_permutation("members", members[start : start + rows])
    yield from _check_range(artifact, "cell_of", 0, cells)
    yield from _check_finite(artifact, "centroids")


def check_knn(artifact: Artifact) -> Iterator[Finding]:
    nodes = artifact.facts["nodes"]
    similarities = artifact.array("similarities")
    for start, block in _blocks(artifact.array("neighbors")):
        none = block == _NONE
        outside = np.flatnonzero(((block >= nodes) & ~none).any(axis=1))
        if len(outside):
            yield "neighbors", f"row {start + int(outside[0])}: neighbours beyond the {nodes} nodes"
            return
        near = similarities[start : start + len(block)]
        wrong = np.flatnonzero((~np.isfinite(near) & ~(none & (near == -np.inf))).any(axis=1))
        if len(wrong):
            yield "similarities", f"row {start + int(wrong[0])}: similarities that are not finite"
            return


def check_patch(artifact: Artifact) -> Iterator[Finding]:
    problem = problem_of_patched_rows(artifact.array("rows"), artifact.facts["background"], artifact.facts["nodes"])
    if problem is not None:
        yield "rows", problem
    yield from check_knn(artifact)


def problem_of_patched_rows(rows: NDArray[Any], background: int, nodes: int) -> str | None:
    """Problems of the nodes of a patch: they must increase, and end in all nodes that join the background."""
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK + 1]
        falls = np.flatnonzero(block[1:] <= block[:-1])
        if len(falls):
            return f"row {start + 1 + int(falls[0])}: nodes that do not increase"
    if rows[-1] >= nodes or rows[len(rows) - (nodes - background)] != background:
        return f"the last nodes are not {background} to {nodes - 1}, which join the background"
    return None


def check_graph(artifact: Artifact) -> Iterator[Finding]:
    offsets = list(_check_offsets("indptr", artifact.array("indptr"), artifact.spec("indices").shape[0]))
    yield from offsets or _check_columns(artifact.array("indptr"), artifact.array("indices"))
    for name in ("scale", "weights"):
        if name in artifact:
            yield from _check_weights(artifact, name)
    if "order" in artifact:
        yield from _check_permutation("order", artifact.array("order"))


def check_scores(artifact: Artifact) -> Iterator[Finding]:
    yield from _check_strings(artifact, "class_names")
    for name in ("scores", "column_sums", "top_scores"):
        if name in artifact:
            yield from _check_finite(artifact, name)
    if "top_classes" in artifact:
        yield from _check_range(artifact, "top_classes", -1, class_count(artifact.manifest))


def check_folds(artifact: Artifact) -> Iterator[Finding]:
    yield from _check_strings(artifact, "class_names")
    yield from _check_finite(artifact, "scores")
    rows = artifact.array("rows")
    if len(rows) and (rows[0] < 0 or (np.diff(rows) <= 0).any()):
        yield "rows", "numbers of rows that are negative or do not increase"
    yield from _check_range(artifact, "fold", 0, artifact.facts["folds"])
    yield from _check_range(artifact, "labels", -1, class_count(artifact.manifest))
    curve = artifact.facts["curve"]
    if len(curve) != len(artifact.facts["planes"]) or not all(_is_point(point) for point in curve):
        yield "scores", "the manifest does not say how accurate each plane is"


def _is_point(point: Any) -> bool:
    return isinstance(point, dict) and all(type(point.get(key)) in NUMBER for key in ("top1", "top5"))


def check_audit(artifact: Artifact) -> Iterator[Finding]:
    """Rows are rows of the roles, each once; figures are finite; the worst rows come first."""
    rows = sum(artifact.facts["of"].values())
    for name in ("rows", "matches"):
        if name in artifact:
            yield from _check_range(artifact, name, 0, rows)
    for name in ("confidence", "predicted_confidence", "doubt", "similarity"):
        if name in artifact:
            yield from _check_finite(artifact, name)
    if len(np.unique(artifact.array("rows"))) != artifact.facts["rows"]:
        yield "rows", "a row that occurs twice"
    part = artifact.manifest.parameters["part"]
    if part == "labels":
        yield from _check_strings(artifact, "class_names")
        for name in ("labels", "predicted"):
            yield from _check_range(artifact, name, 0, class_count(artifact.manifest))
        if (np.diff(artifact.array("doubt")) > 0).any():
            yield "doubt", "rows that are not ordered by their doubt"
    if part == "duplicates":
        yield from _check_range(artifact, "representative", 0, 2)
        yield from _check_groups(artifact.array("group"), artifact.array("representative"))
    if part == "outliers":
        yield from _check_range(artifact, "named", 0, rows + 1)
        yield from _check_range(artifact, "reasons", 1, 4)


def _check_groups(group: NDArray[Any], representative: NDArray[Any]) -> Iterator[Finding]:
    """Groups are numbered from 0 in their order, and the first row of each, and no other, represents it."""
    steps = np.diff(group, prepend=-1)
    if ((steps != 0) != (representative != 0)).any() or ((steps != 0) & (steps != 1)).any():
        yield "group", "groups that are not numbered in their order, or whose first row does not represent them"


def check_logreg(artifact: Artifact) -> Iterator[Finding]:
    classes, width = class_count(artifact.manifest), artifact.facts["width"]
    yield from _check_strings(artifact, "class_names")
    expected = {"weight": ("F32", (classes, width)), "bias": ("F32", (classes,)), "class_numbers": ("I64", (classes,))}
    data = artifact.array("safetensors").tobytes()
    try:
        found = tensor_shapes(data)
    except UnreadableSource:
        found = {}
    if found != expected:
        yield (
            "safetensors",
            f"not a file of the tensors {', '.join(expected)} for {classes} classes and {shortened(width)} values",
        )
    elif not all(np.isfinite(floats_of(data, name)).all() for name in ("weight", "bias")):
        yield "safetensors", "weights that are not finite"


def check_report(artifact: Artifact) -> Iterator[Finding]:
    offsets = artifact.array("offsets")
    wrong = list(_check_offsets("offsets", offsets, artifact.spec("planes").shape[0]))
    yield from wrong
    lines, draws = artifact.facts["lines"], artifact.manifest.parameters["draws"]
    for number, line in enumerate(lines if not wrong else ()):
        if not _is_line(line):
            yield "offsets", f"line {number}: not a line of experiment results"
            return
        first, length = line["first_cell"], len(line["planes"])
        of_line = offsets[first : first + draws + 1]
        if len(of_line) != draws + 1 or (np.diff(of_line) != length).any():
            yield "offsets", f"line {number}: not {draws} cells of {length} planes from cell {first} on"
            return


def _is_line(line: Any) -> bool:
    """Whether a line of experiment results has the entries that readers rely on."""
    if not isinstance(line, dict) or any(type(line.get(key)) is not kind for key, kind in _LINE.items()):
        return False
    lists = [line["planes"], *(line[what].get(accuracy) for what in ("mean", "std") for accuracy in _ACCURACIES)]
    return (
        0 <= line["plane"] < len(line["planes"])
        and line["first_cell"] >= 0
        and all(isinstance(values, list) and len(values) == len(line["planes"]) for values in lists)
        and all(type(value) in NUMBER for values in lists for value in values)
    )


def _check_finite(artifact: Artifact, name: str) -> Iterator[Finding]:
    values = artifact.array(name)
    # Planes one by one: reshaping all of them would copy a mapped array.
    for plane, rows in enumerate(values if values.ndim == 3 else [values]):
        for start, block in _blocks(rows):
            if not np.isfinite(block).all():
                row = start + int((~np.isfinite(block)).reshape(len(block), -1).any(axis=1).argmax())
                yield name, f"{f'plane {plane}, ' if values.ndim == 3 else ''}row {row}: values that are not finite"
                return


def _check_permutation(name: str, values: NDArray[Any]) -> Iterator[Finding]:
    if not is_permutation(values):
        yield name, "not a permutation"


def is_permutation(values: NDArray[Any]) -> bool:
    """Whether every number below the length occurs once."""
    seen = np.zeros(len(values), bool)
    for _, block in _blocks(values):
        seen[block[block < len(values)]] = True
    return bool(seen.all())


def _check_columns(indptr: NDArray[Any], indices: NDArray[Any]) -> Iterator[Finding]:
    """Every column is a node, and columns increase within each row: they may fall only where a row begins."""
    nodes = len(indptr) - 1
    for start in range(0, len(indices), _BLOCK):
        columns = indices[start : start + _BLOCK + 1] & np.uint32(_COLUMN)
        if columns.max() >= nodes:
            at = start + int((columns >= nodes).argmax())
            yield "indices", f"row {_row_of(indptr, at)}: column {indices[at] & _COLUMN} of {nodes} nodes"
            return
        falls = start + 1 + np.flatnonzero(columns[1:] <= columns[:-1])
        wrong = falls[indptr[np.searchsorted(indptr, falls)] != falls]
        if len(wrong):
            yield "indices", f"row {_row_of(indptr, int(wrong[0]))}: columns that do not increase"
            return


def _row_of(indptr: NDArray[Any], entry: int) -> int:
    return int(np.searchsorted(indptr, entry, "right")) - 1


def _check_weights(artifact: Artifact, name: str) -> Iterator[Finding]:
    """All values are finite and not negative."""
    values = artifact.array(name)
    for start, block in _blocks(values):
        bad = ~np.isfinite(block) | (block < 0)
        if bad.any():
            yield name, f"value {start + int(bad.argmax())} is negative or not finite"
            return


def _blocks(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """An array in blocks of rows, each with the number of its first row."""
    step = max(1, _BLOCK // max(1, values[:1].size))
    for start in range(0, len(values), step):
        yield start, values[start : start + step]


def _check_strings(artifact: Artifact, column: str) -> Iterator[Finding]:
    name = f"{column}_offsets"
    if name in artifact:
        wrong = list(_check_offsets(name, artifact.array(name), artifact.spec(f"{column}_utf8").shape[0]))
        yield from wrong or _check_utf8(f"{column}_utf8", artifact.array(name), artifact.array(f"{column}_utf8"))


def _check_utf8(name: str, offsets: NDArray[Any], utf8: NDArray[Any]) -> Iterator[Finding]:
    """Every string is UTF-8. Many are decoded at once: they are, if together they are and none begins within a character."""
    strings = len(offsets) - 1
    for start in range(0, strings, _STRINGS):
        block = offsets[start : min(start + _STRINGS, strings) + 1]
        first = block[:-1][block[:-1] < block[1:]]
        if not _is_utf8(utf8[block[0] : block[-1]]) or (utf8[first] & 0xC0 == 0x80).any():
            bad = next(i for i in range(len(block) - 1) if not _is_utf8(utf8[block[i] : block[i + 1]]))
            yield name, f"string {start + bad} is not UTF-8"
            return


def _is_utf8(utf8: NDArray[Any]) -> bool:
    try:
        utf8.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_offsets(name: str, offsets: NDArray[Any], end: int) -> Iterator[Finding]:
    """Offsets start at 0, never decrease, and end at `end`."""
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != end:
        yield name, f"offsets do not run from 0 to {end}"
        return
    for start in range(0, len(offsets) - 1, _BLOCK):
        block = offsets[start : start + _BLOCK + 1]
        backwards = np.flatnonzero(block[1:] < block[:-1])
        if len(backwards):
            yield name, f"offsets go backwards at row {start + int(backwards[0])}"
            return


def _has_repeats(values: NDArray[np.int64]) -> bool:
    """Whether a value occurs twice. Values are sorted in parts by a hash, so that 10^8 ids take little memory."""
    parts = -(-len(values) // _SORTED)
    for part in range(parts):
        own = np.sort(np.concatenate([block[_hash(block) % np.uint64(parts) == part] for _, block in _blocks(values)]))
        if (own[1:] == own[:-1]).any():
            return True
    return False


def _hash(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The upper half of a product with an odd number (Fibonacci hashing): ids in steps fill all parts alike."""
    return (values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)


def _check_range(artifact: Artifact, name: str, low: int, high: int) -> Iterator[Finding]:
    """Every value is at least `low` and below `high`."""
    values = artifact.array(name)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        outside = np.flatnonzero(((block < low) | (block >= high)).reshape(len(block), -1).any(axis=1))
        if len(outside):
            row = start + int(outside[0])
            yield name, f"row {row}: {values[row]} is outside {low}..{high - 1}"
            return
