"""Checks of the content of artifacts, one function a kind: index ranges, offsets, and shapes that must agree.

They run after the files were found intact, and yield the array and the problem. Large arrays are checked in blocks, so that
memory stays bounded. `docs/formats.md` specifies what is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource, shortened
from mmdiff.formats.store.kinds import NUMBER, Finding
from mmdiff.formats.store.store import Artifact

# Values that are checked at a time.
_BLOCK = 1 << 20

# Columns of the array `planes` of experiment results: four counts of hits, nonzero entries of L, and all its entries.
_REPORT_COLUMNS = 6

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

# Bytes of a value, by the dtypes of safetensors that are accepted, and bounds of a shape.
_TENSOR_BYTES = {"F32": 4, "I64": 8}
_MOST_DIMENSIONS, _MOST_LENGTH = 8, 1 << 47


def check_descriptors(artifact: Artifact) -> Iterator[Finding]:
    rows = artifact.spec("vectors").shape[0]
    yield from _check_facts(artifact, "vectors", rows=rows)
    for name in ("raw", "labels", "ids"):
        if name in artifact and artifact.spec(name).shape[0] != rows:
            yield name, f"{artifact.spec(name).shape[0]} rows for {rows} vectors"
    for column, length in (("ids", rows), ("class_names", None), ("dropped_ids", None)):
        yield from _check_strings(artifact, column, length)
    if "labels" in artifact:
        classes = _class_count(artifact)
        yield from _check_range(artifact, "labels", -1, classes)
    for name in ("class_numbers", "ids", "dropped_ids"):
        if name in artifact and len(np.unique(artifact.array(name))) != artifact.spec(name).shape[0]:
            yield name, "values that occur twice"


def _class_count(artifact: Artifact) -> int:
    if "class_numbers" in artifact:
        return artifact.spec("class_numbers").shape[0]
    return artifact.spec("class_names_offsets").shape[0] - 1 if "class_names_offsets" in artifact else 0


def check_pca(artifact: Artifact) -> Iterator[Finding]:
    facts = artifact.manifest.facts
    if facts.get("reduces") is not ("components" in artifact):
        yield "components", f"{'missing' if facts.get('reduces') else 'there'}, where the manifest says otherwise"
    if "components" not in artifact:
        return
    dims, width = artifact.spec("components").shape
    yield from _check_facts(artifact, "components", dims=dims, width=width)
    if type(facts.get("explained_variance")) not in (int, float):
        yield "explained_variance", "the manifest does not say how much of the variance the components explain"
    for name, shape in (("mean", (width,)), ("explained_variance", (dims,))):
        if name not in artifact or artifact.spec(name).shape != shape:
            yield name, f"missing, or not of shape {shape} as the components require"
    for name in artifact.manifest.arrays:
        yield from _check_finite(artifact, name)


def check_cells(artifact: Artifact) -> Iterator[Finding]:
    rows, entries = artifact.spec("vectors").shape[0], artifact.spec("members").shape[0]
    for name, expected in (("order", rows), ("cell_of", entries), ("members", max(1, entries // max(1, rows)) * rows)):
        if artifact.spec(name).shape[0] != expected:
            yield name, f"{artifact.spec(name).shape[0]} entries; expected {expected}"
            return
    cells = artifact.spec("offsets").shape[0] - 1
    yield from _check_facts(artifact, "centroids", cells=artifact.spec("centroids").shape[0])
    yield from _check_facts(artifact, "members", partitions=entries // max(1, rows))
    yield from _check_offsets("offsets", artifact.array("offsets"), entries)
    yield from _check_permutation("order", artifact.array("order"))
    members = artifact.array("members")
    for start in range(0, entries, max(1, rows)):
        yield from _check_permutation("members", members[start : start + rows])
    yield from _check_range(artifact, "cell_of", 0, cells)
    yield from _check_finite(artifact, "centroids")


def check_knn(artifact: Artifact) -> Iterator[Finding]:
    shape = artifact.spec("neighbors").shape
    if artifact.spec("similarities").shape != shape:
        yield "similarities", f"of shape {artifact.spec('similarities').shape} for neighbors of shape {shape}"
        return
    nodes = artifact.manifest.facts.get("nodes")
    if type(nodes) is not int:
        yield "neighbors", "the manifest does not say how many nodes there are"
        return
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


def check_graph(artifact: Artifact) -> Iterator[Finding]:
    nodes, edges = artifact.spec("scale").shape[0], artifact.spec("indices").shape[0]
    if nodes > _COLUMN:
        yield "scale", f"{nodes} nodes, more than {_COLUMN}"
    yield from _check_facts(artifact, "indices", nodes=nodes, edges=edges)
    yield from _check_roles(artifact, nodes)
    if artifact.spec("indptr").shape[0] != nodes + 1:
        yield "indptr", f"{artifact.spec('indptr').shape[0]} offsets for {nodes} nodes"
        return
    offsets = list(_check_offsets("indptr", artifact.array("indptr"), edges))
    yield from offsets or _check_columns(artifact.array("indptr"), artifact.array("indices"))
    for name, length in (("scale", nodes), ("weights", edges)):
        if name in artifact:
            yield from _check_weights(artifact, name, length)
    if "order" in artifact:
        yield from _check_permutation("order", artifact.array("order"))


def _check_roles(artifact: Artifact, nodes: int) -> Iterator[Finding]:
    """The nodes are those of the three roles; the order is that of the background."""
    counts = [artifact.manifest.facts.get(role) for role in ("background", "seeds", "test")]
    numbers = [count for count in counts if type(count) is int]
    if len(numbers) == len(counts) and (min(numbers) < 0 or sum(numbers) != nodes):
        yield "scale", f"{nodes} nodes, where the manifest says {' + '.join(map(str, numbers))}"
    if "order" in artifact and type(counts[0]) is int and artifact.spec("order").shape[0] != counts[0]:
        yield "order", f"{artifact.spec('order').shape[0]} entries for {counts[0]} rows of the background"


def check_scores(artifact: Artifact) -> Iterator[Finding]:
    classes, planes = _class_count(artifact), artifact.manifest.facts.get("planes")
    if not isinstance(planes, list) or not all(type(plane) is int for plane in planes):
        yield "scores", "the manifest does not say which iterations there are"
        return
    yield from _check_strings(artifact, "class_names", classes)
    yield from _check_facts(artifact, "class_numbers", classes=classes)
    iterations, method = (artifact.manifest.parameters.get(name) for name in ("iterations", "method"))
    if type(iterations) is not int and (method == "diffusion" or "column_sums" in artifact):
        yield "scores", "the manifest does not say how many iterations there are"
        return
    for name, expected in (
        ("scores", (len(planes), artifact.manifest.facts.get("tests"), classes)),
        ("column_sums", (iterations + 1, classes) if type(iterations) is int else None),
        ("top_scores", artifact.spec("top_classes").shape if "top_classes" in artifact else None),
    ):
        if name in artifact and artifact.spec(name).shape != expected:
            yield name, f"of shape {artifact.spec(name).shape}; expected {expected}"
    for name in ("scores", "column_sums", "top_scores"):
        if name in artifact:
            yield from _check_finite(artifact, name)
    if "top_classes" in artifact:
        yield from _check_range(artifact, "top_classes", -1, classes)


def check_logreg(artifact: Artifact) -> Iterator[Finding]:
    classes, width = _class_count(artifact), artifact.manifest.facts.get("width")
    yield from _check_strings(artifact, "class_names", classes)
    yield from _check_facts(artifact, "class_numbers", classes=classes)
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
    elif not all(np.isfinite(_floats(data, name)).all() for name in ("weight", "bias")):
        yield "safetensors", "weights that are not finite"


def check_report(artifact: Artifact) -> Iterator[Finding]:
    planes, offsets = artifact.array("planes"), artifact.array("offsets")
    if artifact.spec("planes").shape[1] != _REPORT_COLUMNS:
        yield "planes", f"{artifact.spec('planes').shape[1]} columns; expected {_REPORT_COLUMNS}"
        return
    wrong = list(_check_offsets("offsets", offsets, len(planes)))
    yield from wrong
    cells, draws = len(offsets) - 1, artifact.manifest.parameters.get("draws")
    if artifact.spec("keys").shape[0] != cells:
        yield "keys", f"{artifact.spec('keys').shape[0]} keys for {cells} cells"
    lines = artifact.manifest.facts.get("lines")
    if not isinstance(lines, list) or type(draws) is not int or draws < 1:
        yield "planes", "the manifest does not say which lines and draws there are"
        return
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


def _check_facts(artifact: Artifact, array: str, **counts: int) -> Iterator[Finding]:
    """Facts that count the entries of arrays agree with their shapes."""
    for name, count in counts.items():
        found = artifact.manifest.facts.get(name)
        if type(found) is int and found != count:
            yield array, f"{count} {name}, where the manifest says {found}"


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
    """Every number below the length occurs once."""
    seen = np.zeros(len(values), bool)
    for _, block in _blocks(values):
        seen[block[block < len(values)]] = True
    if not seen.all():
        yield name, "not a permutation"


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


def _check_weights(artifact: Artifact, name: str, length: int) -> Iterator[Finding]:
    """There are `length` values, all finite and not negative."""
    values = artifact.array(name)
    if len(values) != length:
        yield name, f"{len(values)} values instead of {length}"
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


def _check_strings(artifact: Artifact, column: str, length: int | None) -> Iterator[Finding]:
    name = f"{column}_offsets"
    if name not in artifact:
        return
    if f"{column}_utf8" not in artifact:
        yield f"{column}_utf8", "missing"
        return
    offsets, size = artifact.array(name), artifact.spec(f"{column}_utf8").shape[0]
    if length is not None and len(offsets) != length + 1:
        yield name, f"{len(offsets)} offsets for {length} strings"
    yield from _check_offsets(name, offsets, size)


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


def tensor_shapes(data: bytes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each tensor of a safetensors file, read from its header without the library.

    The file is eight bytes with the length of the header, the header (JSON), and the tensors. Each tensor must lie within the
    file and have the size of its shape.
    """
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        return {
            name: _checked_tensor(entry, len(data) - 8 - length) for name, entry in header.items() if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableSource("not a safetensors file. Make it again.") from error


def _floats(data: bytes, name: str) -> NDArray[np.float32]:
    """A tensor of a safetensors file whose header was checked."""
    length = int.from_bytes(data[:8], "little")
    start, stop = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return np.frombuffer(data[8 + length + start : 8 + length + stop], "<f4")


def _checked_tensor(entry: dict[str, Any], available: int) -> tuple[str, tuple[int, ...]]:
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    # JSON has fractions, truth values and texts too; a text times a number would fill the memory.
    if not all(type(n) is int for n in (*shape, start, stop)):
        raise ValueError("a tensor whose shape or place is not of whole numbers")
    if len(shape) > _MOST_DIMENSIONS or not all(0 <= n <= _MOST_LENGTH for n in shape):
        raise ValueError("a tensor of an impossible shape")
    if not (0 <= start <= stop <= available and stop - start == _TENSOR_BYTES[dtype] * math.prod(shape)):
        raise ValueError(f"a tensor of shape {shape} at {start} to {stop}")
    return dtype, shape
