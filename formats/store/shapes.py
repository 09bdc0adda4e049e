"""Shapes and counts of an artifact that must agree, one function a kind, read from the manifest alone.

They run whenever an artifact is opened, before anything of it is read, so that readers and kernels may rely on them: right
digests do not make a manifest possible. `checks.py` adds what needs the data. `docs/formats.md` is the specification.
"""

from __future__ import annotations

from collections.abc import Iterator

from mmdiff.formats.store.manifest import Manifest

Finding = tuple[str, str]
"""The array that a problem is in, and the problem."""

# Columns are numbered by 31 bits.
MOST_NODES = (1 << 31) - 1

# Columns of the arrays of experiment results: four counts of hits, nonzero entries of L and all its entries; bytes of a digest.
_REPORT_COLUMNS = {"planes": 6, "keys": 12}


# The arrays of each audit beside `rows`, and the roles whose rows are numbered through.
AUDITS = {
    "labels": ("labels", "predicted", "confidence", "predicted_confidence", "doubt"),
    "duplicates": ("group", "representative", "similarity"),
    "leaks": ("matches", "similarity"),
    "outliers": ("similarity", "named", "reasons"),
}
AUDITED_ROLES = ("background", "appended", "seeds", "test")
_OF_CLASSES = ("class_numbers", "class_names_offsets", "class_names_utf8")


def shapes_of_descriptors(manifest: Manifest) -> Iterator[Finding]:
    rows = _rows(manifest, "vectors")
    yield from _counts(manifest, "vectors", rows=rows)
    yield from _lengths(manifest, "vectors", raw=rows, labels=rows, ids=rows)
    yield from _strings(manifest, "ids", rows)
    yield from _strings(manifest, "dropped_ids", None)
    yield from _classes(manifest)
    if "labels" in manifest.arrays and not {"class_numbers", "class_names_offsets"} & manifest.arrays.keys():
        yield "labels", "there is no table of their classes"


def shapes_of_labels(manifest: Manifest) -> Iterator[Finding]:
    entries, batches, share = _rows(manifest, "labels"), _rows(manifest, "batch_times"), manifest.parameters["holdout"]
    yield from _counts(manifest, "labels", entries=entries)
    yield from _counts(manifest, "batch_times", batches=batches)
    yield from _lengths(manifest, "entries", batch=entries, ids=entries)
    yield from _strings(manifest, "ids", entries)
    yield from _strings(manifest, "batch_sources", batches)
    yield from _classes(manifest)
    if ("ids" in manifest.arrays) == ("ids_offsets" in manifest.arrays):
        yield "ids", "ids are either numbers or strings, and one of them must be there"
    if "batch_sources_offsets" not in manifest.arrays:
        yield "batch_sources_offsets", "missing"
    if manifest.facts["classes"] != class_count(manifest):
        yield "class_numbers", f"{class_count(manifest)} classes, where the manifest says {manifest.facts['classes']}"
    if not 0 <= share < 1 or not 0 <= manifest.parameters["seed"] < 1 << 31:
        yield "", f"a share of {share} that is held out, with seed {manifest.parameters['seed']}"


def shapes_of_pca(manifest: Manifest) -> Iterator[Finding]:
    facts, reduces = manifest.facts, manifest.facts["reduces"]
    for name in ("components", "mean", "explained_variance"):
        if reduces is not (name in manifest.arrays):
            yield name, f"{'missing' if reduces else 'there'}, where the manifest says otherwise"
            return
    if not reduces:
        if facts["dims"] != facts["width"] or facts["width"] < 1:
            yield "", f"{facts['dims']} dimensions of {facts['width']}, where nothing is reduced"
        return
    dims, width = manifest.arrays["components"].spec.shape
    yield from _counts(manifest, "components", dims=dims, width=width)
    yield from _lengths(manifest, "values", mean=width)
    yield from _lengths(manifest, "components", explained_variance=dims)
    if type(facts.get("explained_variance")) not in (int, float):
        yield "explained_variance", "the manifest does not say how much of the variance the components explain"


def shapes_of_cells(manifest: Manifest) -> Iterator[Finding]:
    (rows, width), shapes = manifest.arrays["vectors"].spec.shape, {n: e.spec.shape for n, e in manifest.arrays.items()}
    cells, groups = _rows(manifest, "centroids"), _rows(manifest, "coarse")
    expected = {"order": (rows,), "cell_of": (rows,), "offsets": (cells + 1,), "children": (groups + 1,)}
    for name, shape in {**expected, "centroids": (cells, width), "coarse": (groups, width)}.items():
        if shapes[name] != shape:
            yield name, f"of shape {shapes[name]}; expected {shape}"
    yield from _counts(manifest, "centroids", cells=cells)


def shapes_of_partitions(manifest: Manifest) -> Iterator[Finding]:
    rows, width = manifest.arrays["vectors"].spec.shape
    entries, cells = _rows(manifest, "members"), _rows(manifest, "offsets") - 1
    partitions, first = max(1, entries // max(1, rows)), _rows(manifest, "centroids")
    yield from _lengths(manifest, "vectors", order=rows)
    yield from _lengths(manifest, "entries", cell_of=entries, members=partitions * rows)
    yield from _counts(manifest, "members", partitions=partitions)
    yield from _counts(manifest, "centroids", cells=first)
    if not (first == cells if partitions == 1 else 0 <= first <= cells):
        yield "centroids", f"{first} centroids for {cells} cells in {partitions} partitions"
    if manifest.arrays["centroids"].spec.shape[1] != width:
        yield "centroids", f"{manifest.arrays['centroids'].spec.shape[1]} values each for vectors of {width}"


def shapes_of_knn(manifest: Manifest) -> Iterator[Finding]:
    shape, nodes = manifest.arrays["neighbors"].spec.shape, manifest.facts["nodes"]
    yield from _lists(manifest)
    # The lists of the background say how they were searched. Test points are no nodes.
    rows_are_nodes = manifest.parameters.get("lists") == "knn/W0" or "index" in manifest.parameters
    if nodes < 0 or (rows_are_nodes and shape[0] != nodes):
        yield "neighbors", f"{shape[0]} rows, where the manifest says {nodes} nodes"


def shapes_of_patch(manifest: Manifest) -> Iterator[Finding]:
    lists, nodes, background = _rows(manifest, "neighbors"), manifest.facts["nodes"], manifest.facts["background"]
    yield from _lists(manifest)
    yield from _lengths(manifest, "lists", rows=lists)
    if not 0 <= background < nodes <= MOST_NODES:
        yield "rows", f"the manifest says {nodes} nodes, {background} of them in the background"
    elif not nodes - background <= lists <= nodes:
        yield "rows", f"{lists} lists for {nodes - background} nodes that join {background} of the background"


def shapes_of_graph(manifest: Manifest) -> Iterator[Finding]:
    nodes, edges, facts = _rows(manifest, "scale"), _rows(manifest, "indices"), manifest.facts
    if nodes > MOST_NODES:
        yield "scale", f"{nodes} nodes, more than {MOST_NODES}"
    yield from _counts(manifest, "indices", nodes=nodes, edges=edges)
    yield from _lengths(manifest, "edges", weights=edges)
    if _rows(manifest, "indptr") != nodes + 1:
        yield "indptr", f"{_rows(manifest, 'indptr')} offsets for {nodes} nodes"
    # Graphs of earlier versions have no appended rows.
    roles = [facts["background"], facts.get("appended", 0), facts["seeds"], facts["test"]]
    if any(type(count) is not int or count < 0 for count in roles) or sum(roles) != nodes:
        yield "scale", f"{nodes} nodes, where the manifest says {' + '.join(map(str, roles))}"
    if "order" in manifest.arrays and _rows(manifest, "order") != facts["background"]:
        yield "order", f"{_rows(manifest, 'order')} entries for {facts['background']} rows of the background"


def shapes_of_scores(manifest: Manifest) -> Iterator[Finding]:
    facts, parameters = manifest.facts, manifest.parameters
    planes, tests, iterations = facts["planes"], facts["tests"], parameters.get("iterations")
    if not all(type(plane) is int for plane in planes):
        yield "scores", "the manifest does not say which iterations there are"
    if type(iterations) is not int and (parameters["method"] == "diffusion" or "column_sums" in manifest.arrays):
        yield "scores", "the manifest does not say how many iterations there are"
        return
    yield from _classes(manifest)
    classes = _rows(manifest, "class_numbers")
    shapes = {name: entry.spec.shape for name, entry in manifest.arrays.items()}
    expected: dict[str, tuple[int, ...] | None] = {
        "scores": (len(planes), tests, classes),
        "column_sums": (iterations + 1, classes) if type(iterations) is int else None,
        "top_scores": shapes.get("top_classes"),
        "top_classes": shapes.get("top_scores"),
    }
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            yield name, f"of shape {shapes[name]}; expected {shape}"
    if tests and "scores" not in shapes:
        yield "scores", f"missing, where the manifest says {tests} test points"


def shapes_of_folds(manifest: Manifest) -> Iterator[Finding]:
    facts, rows = manifest.facts, _rows(manifest, "rows")
    if not facts["planes"] or not all(type(plane) is int for plane in facts["planes"]):
        yield "scores", "the manifest does not say which iterations there are"
    if not 1 <= facts["folds"] <= max(1, rows):
        yield "fold", f"{rows} rows in {facts['folds']} folds"
    yield from _classes(manifest)
    yield from _counts(manifest, "rows", rows=rows)
    yield from _lengths(manifest, "rows", fold=rows, labels=rows)
    shape, expected = manifest.arrays["scores"].spec.shape, (len(facts["planes"]), rows, _rows(manifest, "class_numbers"))
    if shape != expected:
        yield "scores", f"of shape {shape}; expected {expected}"


def shapes_of_audit(manifest: Manifest) -> Iterator[Finding]:
    facts, part, rows = manifest.facts, manifest.parameters["part"], _rows(manifest, "rows")
    if part not in AUDITS:
        yield "", f"an audit of {part!r}; expected one of {', '.join(AUDITS)}"
        return
    for name in AUDITS[part]:
        if name not in manifest.arrays:
            yield name, "missing"
    for name in manifest.arrays:
        if name not in ("rows", *AUDITS[part], *(_OF_CLASSES if part == "labels" else ())):
            yield name, f"not part of an audit of {part}"
    if sorted(facts["of"]) != sorted(AUDITED_ROLES) or not all(
        type(count) is int and count >= 0 for count in facts["of"].values()
    ):
        yield "rows", "the manifest does not say how many rows of each role there are"
    yield from _classes(manifest)
    yield from _counts(manifest, "rows", rows=rows)
    yield from _lengths(manifest, "rows", **dict.fromkeys(AUDITS[part], rows))


def shapes_of_logreg(manifest: Manifest) -> Iterator[Finding]:
    yield from _classes(manifest)


def shapes_of_report(manifest: Manifest) -> Iterator[Finding]:
    for name, columns in _REPORT_COLUMNS.items():
        if manifest.arrays[name].spec.shape[1] != columns:
            yield name, f"{manifest.arrays[name].spec.shape[1]} columns; expected {columns}"
    if manifest.parameters["draws"] < 1:
        yield "planes", "the manifest does not say which lines and draws there are"
    cells = _rows(manifest, "offsets") - 1
    if _rows(manifest, "keys") != cells:
        yield "keys", f"{_rows(manifest, 'keys')} keys for {cells} cells"


def class_count(manifest: Manifest) -> int:
    """The classes in the table of an artifact."""
    if "class_numbers" in manifest.arrays:
        return _rows(manifest, "class_numbers")
    return _rows(manifest, "class_names_offsets") - 1 if "class_names_offsets" in manifest.arrays else 0


def _rows(manifest: Manifest, array: str) -> int:
    return manifest.arrays[array].spec.shape[0]


def _lists(manifest: Manifest) -> Iterator[Finding]:
    """Neighbours and similarities have the same shape, and as many rows and columns as the manifest says."""
    shape = manifest.arrays["neighbors"].spec.shape
    if manifest.arrays["similarities"].spec.shape != shape:
        yield "similarities", f"of shape {manifest.arrays['similarities'].spec.shape} for neighbors of shape {shape}"
    yield from _counts(manifest, "neighbors", rows=shape[0])
    k = manifest.parameters.get("k", shape[1])
    if k != shape[1]:
        yield "neighbors", f"{shape[1]} neighbours of each row, where the manifest says {k}"


def _counts(manifest: Manifest, array: str, **counts: int) -> Iterator[Finding]:
    """Facts that count the entries of an array agree with its shape, where they are there."""
    for name, count in counts.items():
        found = manifest.facts.get(name, count)
        if type(found) is not int or found != count:
            yield array, f"{count} {name}, where the manifest says {found}"


def _lengths(manifest: Manifest, of: str, **lengths: int) -> Iterator[Finding]:
    """Arrays that have a row for each of something, where they are there."""
    for name, length in lengths.items():
        if name in manifest.arrays and _rows(manifest, name) != length:
            yield name, f"{_rows(manifest, name)} rows for {length} {of}"


def _strings(manifest: Manifest, column: str, length: int | None) -> Iterator[Finding]:
    """A column of strings has both of its arrays, and an offset more than strings."""
    offsets, utf8 = f"{column}_offsets", f"{column}_utf8"
    if (offsets in manifest.arrays) != (utf8 in manifest.arrays):
        yield utf8 if offsets in manifest.arrays else offsets, "missing"
    elif offsets in manifest.arrays:
        found = _rows(manifest, offsets)
        if found < 1 or (length is not None and found != length + 1):
            yield offsets, f"{found} offsets for {max(0, found - 1) if length is None else length} strings"


def _classes(manifest: Manifest) -> Iterator[Finding]:
    """The numbers and names of the table are of equally many classes, and as many as the manifest says."""
    numbered = "class_numbers" in manifest.arrays
    yield from _strings(manifest, "class_names", class_count(manifest) if numbered else None)
    if numbered or "class_names_offsets" in manifest.arrays:
        yield from _counts(manifest, "class_numbers" if numbered else "class_names_offsets", classes=class_count(manifest))
