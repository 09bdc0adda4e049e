"""Rows that arrive later: `mmdiff import --append` adds them to `descriptors/appended`, in the space of the background.

The rows of earlier appends come first, and full chunks of theirs are shared with the earlier artifact. The background, its PCA
and the lists of its neighbours stay as they are; the graph is completed with the appended rows as with seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import (
    FILE,
    BadLabels,
    BadOption,
    Corrupt,
    CountMismatch,
    DuplicateIds,
    Missing,
    Parameter,
    Stale,
    call,
)
from mmdiff.formats.sources.base import Source, facts_of
from mmdiff.formats.storage.arrays import lasting_rows_per_chunk
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.formats.store.verify import problems_of_files
from mmdiff.importing import space as spaces
from mmdiff.importing.batches import Batch, Matrices, RowColumns, batches_of, inputs_of_batches
from mmdiff.importing.columns import Columns, name_of, read_columns
from mmdiff.importing.rows import Kept, as_float32, drop_bad_rows, narrowed, raw_dtype_of
from mmdiff.importing.space import Space
from mmdiff.importing.stage import PIECE_BYTES, SCHEMA, Outcome, Request, checked, inputs_of
from mmdiff.labels.classes import Classes
from mmdiff.labels.collection import APPENDED, BACKGROUND, appended_rows, rows_of
from mmdiff.labels.ids import Ids, find_rows, ids_of, joined, take
from mmdiff.runtime.find_or_make import Run, input_of, make
from mmdiff.runtime.progress import Progress, silent

SEEDS, GRAPH = "descriptors/seeds", "graph/W"


@dataclass(frozen=True)
class AppendOutcome(Outcome):
    """All appended rows; the batch of this append has `added` rows, read from `input_bytes`."""

    added: int = 0
    input_bytes: int = 0

    def summary(self) -> Json:
        return super().summary() | {"added": self.added, "input_bytes": self.input_bytes}


@explaining
def append_descriptors(path: Path, request: Request, dtype: str | None = None, progress: Progress = silent) -> AppendOutcome:
    """Appends rows to the background of the store at `path`. A repeated append is recognised and does nothing.

    `dtype` is what the user asked for, None for that of the background.
    """
    run, store = Run(request.command), Store(path)
    request = checked(store, request)
    if request.role != "background":
        role = Parameter("role", request.role)
        raise BadOption(Parameter("append", True), " goes with ", Parameter("role", "background"), ", not with ", role, ".")
    if store.id(BACKGROUND) is None:
        raise Missing(
            Parameter("append", True), f": {path} has no background to append rows to. Run first: ", call("add", FILE)
        )
    source = request.open()
    request = request.with_columns_found()
    space = spaces.open_for(store, source, request.dims, request.normalize, request.role)
    request = _like_background(store.open_artifact(BACKGROUND), space, request, dtype)
    columns = read_columns(source, request.labels, request.ids, request.class_names, request.role)
    inputs = inputs_of(request, source)
    batch = Batch(inputs.fingerprints, inputs.states, request.on_bad)
    # The name of the background is locked: it must not be replaced meanwhile.
    with Publication(path, [APPENDED, BACKGROUND], request.command) as publication:
        background, earlier = store.open_artifact(BACKGROUND), _earlier(store, batch)
        known = _known(batch, background, earlier)
        if known is not None:
            note = f"{source.name}: its rows are in {known.name} already."
            return AppendOutcome(known, True, 0, run.seconds, [note], 0, batch.inputs["source"]["bytes"])
        columns = replace(columns, ids=_new_ids(columns.ids, source, request, background, earlier))
        _refuse_other_classes(columns, request, background, earlier)
        rows = drop_bad_rows(source, progress) if request.on_bad == "drop" else Kept(source)
        append = _Append(request, background, earlier, rows, Space.of(space))
        together = append.columns(columns)

        def fill(draft: Draft) -> Json:
            together.write(draft)
            run.entries["chunks_found"] = append.matrices().write(draft, f"importing {rows.name}", progress)
            return together.facts() | facts_of(source)

        batches = [*([] if earlier is None else batches_of(earlier)), batch]
        if earlier is not None:
            run.command = f"{earlier.run['command']}; then {run.command}"
        made = make(publication, APPENDED, _recipe(request, batches, background, space), run, fill, disk=append.disk)
        notes = ["the graph does not have the appended rows yet: build it again."] if store.id(GRAPH) is not None else []
        found = run.entries.get("chunks_found", 0)
        return AppendOutcome(made.artifact, made.reused, found, run.seconds, notes, rows.rows, batch.inputs["source"]["bytes"])


def _like_background(background: Artifact, space: Artifact, request: Request, dtype: str | None) -> Request:
    """The request with the parameters of the background, refused where others were asked for."""
    if background.manifest.inputs["pca"]["object"] != space.id:
        raise Stale(f"{BACKGROUND} was made with another {spaces.NAME}. Run again: {background.run['command']}")
    stored, keeps_raw = background.spec("vectors").dtype, background.manifest.parameters["keep_raw"]
    alike = "and rows are appended to it in the same way. Leave it out."
    if dtype is not None and dtype != stored:
        raise BadOption(Parameter("dtype", dtype), f": {BACKGROUND} is stored as {stored}, {alike}")
    if request.keep_raw is not None and request.keep_raw != keeps_raw:
        kept = "keeps the original descriptors" if keeps_raw else "does not keep the original descriptors"
        raise BadOption(Parameter("keep_raw", request.keep_raw), f": {BACKGROUND} {kept}, {alike}")
    return replace(request, dtype="float16" if stored == "float16" else "float32", keep_raw=keeps_raw)


def _earlier(store: Store, batch: Batch) -> Artifact | None:
    """The rows appended before; None where there are none, or where they are damaged and this append makes them anew."""
    earlier = appended_rows(store)
    if earlier is not None and batches_of(earlier)[0] == batch and any(problems_of_files(earlier)):
        return None
    return earlier


def _known(batch: Batch, background: Artifact, earlier: Artifact | None) -> Artifact | None:
    """The artifact that has the rows of this batch already; refused where it has them in another way."""
    for artifact in (background, *([] if earlier is None else [earlier])):
        for other in batches_of(artifact):
            if other.inputs["source"] != batch.inputs["source"]:
                continue
            name = batch.inputs["source"]["source"]
            if other.states["source"] != batch.states["source"]:
                raise BadOption(
                    f"{name}: has the name and size of a file whose rows are in {artifact.name} already, but was written or "
                    "moved since. Give new rows in a file of another name."
                )
            if other != batch:
                raise BadOption(
                    f"{name}: its rows are in {artifact.name} already, with other labels, ids or treatment of bad rows. Append "
                    "each row once."
                )
            return artifact
    return None


def _new_ids(ids: Ids | None, source: Source, request: Request, background: Artifact, earlier: Artifact | None) -> Ids:
    """The ids of the rows of a source: its own, refused unless they are new, or the row numbers that follow."""
    where = name_of(request.ids) if request.ids is not None else source.name
    number = next_row_number(background)
    if number is not None:
        if ids is not None:
            raise CountMismatch(
                f"{where}: ids for appended rows, but the rows of {BACKGROUND} have none. Leave them out: row numbers go on."
            )
        first = number if earlier is None else number + rows_of(earlier) + _dropped(earlier)
        return np.arange(first, first + source.rows)
    if ids is None:
        raise CountMismatch(
            f"{where}: no ids, but the rows of {BACKGROUND} have some. Give one for each appended row with ",
            Parameter("ids", FILE),
            ".",
        )
    for artifact in (background, *([] if earlier is None else [earlier])):
        others = ids_of(artifact)
        assert not isinstance(others, range)
        if isinstance(others, Strings):
            # Files of strings that all look like numbers are read as numbers.
            ids = joined(Strings.of([]), ids)
        elif isinstance(ids, Strings):
            raise CountMismatch(f"{where}: ids that are names, but those of {artifact.name} are numbers. Use numbers.")
        rows = find_rows(others, ids)
        if (rows >= 0).any():
            row = int((rows >= 0).argmax())
            other = int(rows[row])
            raise DuplicateIds(
                f"{where}, row {row}: the id {ids[row]!s} is that of row {other} of {artifact.name}. Appended rows need new "
                "ids: leave rows out that are there already."
            )
    return ids


def next_row_number(artifact: Artifact) -> int | None:
    """The number that follows the row numbers of an artifact; None where its rows have ids.

    Where bad rows were dropped, the numbers of the others are stored.
    """
    ids, count = ids_of(artifact), rows_of(artifact) + _dropped(artifact)
    if isinstance(ids, range):
        return count
    if "ids" in artifact.manifest.inputs or isinstance(ids, Strings) or "dropped_ids" not in artifact:
        return None
    numbers = np.sort(np.concatenate([ids, artifact.array("dropped_ids")]))
    return count if np.array_equal(numbers, np.arange(count)) else None


def _dropped(artifact: Artifact) -> int:
    """The number of bad rows that were left out."""
    return sum(int(count) for count in artifact.facts["dropped"].values())


def _refuse_other_classes(columns: Columns, request: Request, background: Artifact, earlier: Artifact | None) -> None:
    """Refuses labels whose classes cannot be matched with those of the store."""
    if request.labels is None or columns.classes is None:
        return
    store = background.store
    with suppress(Missing, Corrupt):
        artifacts = [background, *([] if earlier is None else [earlier])]
        artifacts += [store.open_artifact(SEEDS)] if store.id(SEEDS) is not None else []
        for artifact in artifacts:
            if "labels" in artifact:
                try:
                    columns.classes.columns_in(Classes.of(artifact), artifact.name)
                except BadLabels as error:
                    raise BadLabels(f"{name_of(request.labels)}: ", *error.parts) from None


def _recipe(request: Request, batches: Sequence[Batch], background: Artifact, space: Artifact) -> Recipe:
    parameters = {
        "role": "appended",
        "dtype": request.dtype,
        "keep_raw": request.keep_raw,
        "on_bad": [batch.on_bad for batch in batches],
    }
    inputs, states = inputs_of_batches(batches)
    return Recipe(
        "descriptors", SCHEMA, parameters, {**inputs, "pca": input_of(space), "background": input_of(background)}, states
    )


@dataclass(frozen=True)
class _Append:
    """The rows of one append, and those before them."""

    request: Request
    background: Artifact
    earlier: Artifact | None
    rows: Kept
    space: Space

    @property
    def disk(self) -> int:
        """Bytes of the matrices of the rows that are added."""
        return self.rows.rows * sum(width * np.dtype(dtype).itemsize for width, dtype in self._shapes().values())

    def columns(self, columns: Columns) -> RowColumns:
        """The columns of all appended rows."""
        rows = self.rows
        assert columns.ids is not None
        own = RowColumns(
            rows=rows.rows,
            labels=columns.labels if columns.labels is None or rows.kept is None else columns.labels[rows.kept],
            classes=columns.classes,
            ids=columns.ids if rows.kept is None else take(columns.ids, rows.kept),
            dropped_ids=take(columns.ids, rows.dropped) if len(rows.dropped) else None,
            dropped=rows.reasons,
        )
        return own if self.earlier is None else RowColumns.of(self.earlier).followed_by(own)

    def matrices(self) -> Matrices:
        shapes = self._shapes()
        before = 0 if self.earlier is None else rows_of(self.earlier)
        rows_per_chunk = lasting_rows_per_chunk(
            *(((before + self.rows.rows, width), dtype) for width, dtype in shapes.values())
        )
        return Matrices(shapes, self.earlier, self.rows.rows, rows_per_chunk, self._read)

    def _shapes(self) -> dict[str, tuple[int, str]]:
        """The matrices, as the background has them."""
        shapes = {"vectors": (self.space.dims, str(self.request.dtype))}
        if "raw" in self.background:
            shapes["raw"] = (self.space.width, self.background.spec("raw").dtype)
            if raw_dtype_of(self.rows) != shapes["raw"][1]:
                raise BadOption(
                    f"{self.rows.name}: rows of {raw_dtype_of(self.rows)}, but the original descriptors of {BACKGROUND} "
                    f"are {shapes['raw'][1]}. Give rows of the same type."
                )
        return shapes

    def _read(self, start: int, stop: int) -> Mapping[str, NDArray[np.generic]]:
        """Rows of the source as they are stored."""
        rows, parts = self.rows, []
        raw = np.empty((stop - start, rows.width), self.background.spec("raw").dtype) if "raw" in self.background else None
        rows_per_piece = max(1, PIECE_BYTES // (rows.width * rows.dtype.itemsize))
        for low in range(start, stop, rows_per_piece):
            high = min(low + rows_per_piece, stop)
            block = rows.read(low, high)
            block = as_float32(block) if block.dtype == np.float64 else block
            if raw is not None:
                raw[low - start : high - start] = block
            projected = self.space.project(block, lambda row, low=low: rows.locate(low + row))  # type: ignore[misc]
            parts.append(narrowed(projected, str(self.request.dtype), rows, low))
        return {"vectors": np.concatenate(parts)} | ({} if raw is None else {"raw": raw})
