"""`mmdiff import`: files or arrays of embeddings become `descriptors/ROLE`, chunk by chunk, in bounded memory.

Each chunk is read, projected into the space of all roles (`models/pca`) and written by one thread, independently of the others.
An interrupted import continues with the chunks that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from mmdiff.formats.errors import FILE, BadLabels, BadOption, Corrupt, Missing, Parameter, one_of
from mmdiff.formats.sources.base import Source, facts_of
from mmdiff.formats.sources.columns.files import ColumnFiles, find_column
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.storage.arrays import even_rows_per_chunk
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing import space as spaces
from mmdiff.importing.batches import Batch, batches_of
from mmdiff.importing.columns import (
    ClassNames,
    Columns,
    ColumnSpec,
    Given,
    fingerprint_of_names,
    imported_before,
    name_of,
    notes_on,
    notes_on_replacing,
    read_columns,
)
from mmdiff.importing.rows import Kept, as_float32, drop_bad_rows, narrowed, raw_dtype_of
from mmdiff.importing.same_ids import SameIds, find_same_ids
from mmdiff.importing.space import Space
from mmdiff.labels.classes import Classes
from mmdiff.labels.collection import APPENDED, remove_leftover
from mmdiff.labels.journal import NAME as LABELS
from mmdiff.runtime.find_or_make import Made, Run, make, refuse_forecast
from mmdiff.runtime.parameters import flag, whole
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.threads import in_threads

Role = Literal["background", "seeds", "test"]
ROLES: tuple[Role, ...] = ("background", "seeds", "test")
DTYPES = ("float32", "float16")
ON_BAD = ("error", "drop")
SCHEMA = 1
MOST_DIMS = 1 << 20

# More threads than cores, because some of them wait for the disk to confirm a write.
_THREADS = 4

# Bytes that a thread reads at a time: before a PCA rows can be many times wider than in their chunk.
PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class Request:
    """Parameters of an import; None stands for the default of the role.

    `sources` are the specs of files, or a source that is open already. `source_fingerprint` identifies one that is not simply
    its files, as `formats.store.fingerprint` does for files. Labels, ids and class names are files, or values in memory.
    """

    sources: Sequence[str] | Source
    role: Role
    labels: ColumnSpec = None
    ids: ColumnSpec = None
    class_names: ClassNames = None
    dtype: Literal["float32", "float16"] = "float32"
    dims: int | None = None
    normalize: bool = True
    keep_raw: bool | None = None
    on_bad: Literal["error", "drop"] = "error"
    no_background: bool = False
    same_ids: bool = False
    command: str = "mmdiff import"
    source_fingerprint: Json | None = None

    @property
    def name(self) -> str:
        return f"descriptors/{self.role}"

    @property
    def makes_space(self) -> bool:
        """Whether these rows define the space of all roles."""
        return self.role == "background" or self.no_background

    @property
    def keeps_raw(self) -> bool:
        """Whether the original descriptors are stored too."""
        return self.role != "background" if self.keep_raw is None else self.keep_raw

    def open(self) -> Source:
        return open_source(self.sources) if isinstance(self.sources, Sequence) else self.sources

    def with_columns_found(self) -> Request:
        """The request with the files of its labels and ids, which may be columns of the sources."""
        tables = self.sources if isinstance(self.sources, Sequence) else ()
        labels, ids = (find_column(spec, tables) if isinstance(spec, str) else spec for spec in (self.labels, self.ids))
        return replace(self, labels=labels, ids=ids)


@dataclass(frozen=True)
class Outcome:
    """The imported descriptors, and notes for the user. `chunks_found` were written by an interrupted run."""

    artifact: Artifact
    reused: bool
    chunks_found: int
    seconds: float
    notes: list[str]

    def summary(self) -> Json:
        """The outcome as plain values, for JSON."""
        manifest = self.artifact.manifest
        if manifest.kind == "labels":
            return {
                "artifact": self.artifact.name,
                "object": self.artifact.id,
                "reused": self.reused,
                "seconds": round(self.seconds, 3),
                "notes": self.notes,
            }
        vectors = self.artifact.spec("vectors")
        return {
            "artifact": f"descriptors/{manifest.parameters['role']}",
            "object": self.artifact.id,
            "shape": list(vectors.shape),
            "dtype": vectors.dtype,
            "bytes": manifest.bytes_on_disk,
            "input_bytes": manifest.inputs["source"]["bytes"],
            "classes": manifest.facts.get("classes", 0),
            "dropped": {reason: count for reason, count in manifest.facts["dropped"].items() if count},
            "reused": self.reused,
            "chunks_found": self.chunks_found,
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Inputs:
    """The inputs of an import by key: `fingerprints` for the manifest, and `states` of files (when they were last written)."""

    fingerprints: Json
    states: Json

    def add(self, key: str, found: Json, files: Sequence[Path] = ()) -> None:
        self.fingerprints[key] = found
        self.states[key] = source_fingerprint(files)


@explaining
def import_descriptors(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Imports one role into the store at `path`. A repeated import is recognised and does nothing."""
    run = Run(request.command)
    request = checked(Store(path), request)
    source = request.open()
    request = request.with_columns_found()
    columns = read_columns(source, request.labels, request.ids, request.class_names, request.role)
    _refuse_other_classes(Store(path), request, columns)
    inputs = inputs_of(request, source)
    twins = find_same_ids(Store(path), request.role, columns, source.name, request.same_ids)
    names = [request.name, spaces.NAME] if request.makes_space else [request.name]
    names += [] if twins is None else [LABELS]
    names += [APPENDED] if Store(path).id(APPENDED) is not None and request.role == "background" else []
    with Publication(path, names, request.command) as publication:
        before, appended = imported_before(publication.store, request.name), imported_before(publication.store, APPENDED)
        if before is not None and _is_first_of_merged(request, inputs, before):
            return Outcome(before, True, 0, run.seconds, [_merged_note(request, before)])
        labelled, notes = (None, []) if twins is None else twins.record(publication, run)

        @cache
        def rows() -> Kept:
            # Finding bad rows takes a pass over the source, which is only made where something is missing.
            kept = drop_bad_rows(source, progress) if request.on_bad == "drop" else Kept(source)
            return kept if twins is None else twins.left_out_of(kept)

        if twins is not None and not rows().rows:
            return _labels_alone(publication, labelled, run, notes)
        if request.makes_space:
            space = _space_from_rows(publication, request, rows, inputs, run, progress)
        else:
            space = spaces.open_for(publication.store, source, request.dims, request.normalize, request.role)

        def fill(draft: Draft) -> Json:
            run.entries["chunks_found"] = _write(draft, request, rows(), columns, Space.of(space), progress)
            return columns.facts() | {"rows": rows().rows, "dropped": rows().reasons} | facts_of(source)

        named_with = {spaces.NAME: space} if request.makes_space else {}
        named_with |= {} if labelled is None else {LABELS: labelled.artifact}
        recipe = _recipe(request, inputs, space, twins)
        enough = partial(_refuse_full_disk, publication, request, rows)
        made = make(publication, request.name, recipe, run, fill, before=enough, named_with=named_with)
        if APPENDED in names:
            remove_leftover(publication)
        gone = appended if publication.store.id(APPENDED) is None else None
        notes += notes_on_replacing(publication.store, before, made.artifact, gone) + notes_on(publication.store, request.role)
        return Outcome(made.artifact, made.reused, run.entries.get("chunks_found", 0), run.seconds, notes)


def _labels_alone(publication: Publication, labelled: Made | None, run: Run, notes: list[str]) -> Outcome:
    """The outcome of an import whose rows all stand in the collection: their labels are recorded, and nothing else."""
    if labelled is not None:
        publication.link({LABELS: labelled.artifact})
    return Outcome(publication.store.open_artifact(LABELS), labelled is None, 0, run.seconds, notes)


def checked(store: Store, request: Request) -> Request:
    """The request with its values in Python's types. Refuses parameters that contradict each other or the store."""
    one_of("role", request.role, ROLES)
    one_of("dtype", request.dtype, DTYPES)
    one_of("on_bad", request.on_bad, ON_BAD)
    role, no_background, labels = Parameter("role", request.role), Parameter("no_background", True), Parameter("labels", FILE)
    if request.role == "seeds" and request.labels is None:
        raise BadOption(role, ": seeds are the rows with labels. Give them with ", labels, ".")
    request = replace(
        request,
        normalize=flag("normalize", request.normalize),
        no_background=flag("no_background", request.no_background),
        same_ids=flag("same_ids", request.same_ids),
        keep_raw=None if request.keep_raw is None else flag("keep_raw", request.keep_raw),
        dims=None if request.dims is None else whole("dims", request.dims, 1, MOST_DIMS),
    )
    if request.no_background and request.role != "seeds":
        raise BadOption(no_background, " goes with ", Parameter("role", "seeds"), ", not with ", role, ". Leave it out.")
    if request.no_background and store.id("descriptors/background") is not None:
        raise BadOption(no_background, f": the store {store.path} has a background. Leave it out, or use another store.")
    if request.class_names is not None and request.labels is None:
        raise BadOption(Parameter("class_names"), ": there are no labels to name. Give them with ", labels, ".")
    return request


def _refuse_other_classes(store: Store, request: Request, columns: Columns) -> None:
    """Refuses labels that cannot be mapped to the classes of the seeds now, instead of when they are needed."""
    if request.role != "seeds" and request.labels is not None and columns.classes is not None:
        try:
            # Damaged seeds are no reason to refuse another role: either can be repaired first.
            with suppress(Missing, Corrupt):
                columns.classes.columns_in(Classes.of(store.open_artifact("descriptors/seeds")))
        except BadLabels as error:
            raise BadLabels(f"{name_of(request.labels)}: ", *error.parts) from None


def inputs_of(request: Request, source: Source) -> Inputs:
    """The fingerprint and state of every input. Inputs in memory have no files whose state could change."""
    inputs = Inputs({}, {})
    if request.source_fingerprint is not None:
        inputs.add("source", request.source_fingerprint, source.files)
    elif source.files:
        inputs.add("source", fingerprint(_without_folder(source.name), source.files), source.files)
    else:
        raise TypeError(f"{source.name}: a source without files needs a fingerprint")
    for key in ("labels", "ids", "class_names"):
        spec: ColumnSpec | ClassNames = getattr(request, key)
        if isinstance(spec, Given):
            inputs.add(key, spec.fingerprint)
        elif isinstance(spec, ColumnFiles):
            inputs.add(key, fingerprint(spec.name_without_folders, spec.files), spec.files)
        elif isinstance(spec, str):
            inputs.add(key, fingerprint(Path(spec).name, (Path(spec),)), (Path(spec),))
        elif spec is not None:
            inputs.add(key, fingerprint_of_names(spec))
    return inputs


def _without_folder(spec: str) -> str:
    """`/data/x.h5::a/b` is `x.h5::a/b` in the manifest: the same file in another folder is the same input."""
    path, separator, inner = spec.partition("::")
    return Path(path).name + separator + inner


def _space_from_rows(
    publication: Publication, request: Request, rows: Callable[[], Kept], inputs: Inputs, run: Run, progress: Progress
) -> Artifact:
    """The space made from these rows; it gets its name together with the descriptors."""
    dims = request.dims or spaces.DEFAULT_DIMS
    state = {"source": inputs.states["source"]}
    recipe = spaces.recipe(inputs.fingerprints["source"], dims, request.normalize, request.on_bad, state)

    def fill(draft: Draft) -> Json:
        space = Space.make(rows(), _dims_of(request, rows()), request.normalize, progress)
        space.write(draft)
        return space.facts(rows().rows)

    enough = partial(_refuse_full_disk, publication, request, rows)
    return make(publication, spaces.NAME, recipe, run, fill, before=enough, named_with=None).artifact


def _dims_of(request: Request, rows: Kept) -> int:
    """The dimensions that rows are reduced to where they are wider; without a wish not more than a PCA of few rows has."""
    few = request.dims is None and rows.width > spaces.DEFAULT_DIMS
    return min(spaces.DEFAULT_DIMS, rows.rows) if few else request.dims or spaces.DEFAULT_DIMS


def _is_first_of_merged(request: Request, inputs: Inputs, background: Artifact) -> bool:
    """Whether a merged background begins with these rows, imported in the same way: repeating the import drops no others."""
    parameters = background.manifest.parameters
    if not isinstance(parameters["on_bad"], list):
        # A background that was imported, not merged; the record of its run may be what this import repairs.
        return False
    batches = batches_of(background)
    same = batches[0] == Batch(inputs.fingerprints, inputs.states, request.on_bad)
    stored = {key: parameters[key] for key in ("dtype", "keep_raw")}
    if len(batches) == 1 or not same or stored != {"dtype": request.dtype, "keep_raw": request.keeps_raw}:
        return False
    dims, state = request.dims or spaces.DEFAULT_DIMS, {"source": inputs.states["source"]}
    recipe = spaces.recipe(inputs.fingerprints["source"], dims, request.normalize, request.on_bad, state)
    return background.store.open_artifact(spaces.NAME).manifest.follows(recipe)


def _merged_note(request: Request, background: Artifact) -> str:
    rows, source = background.spec("vectors").shape[0], background.manifest.inputs["source"]["source"]
    return f"{request.name} holds the rows of {source} and others that were merged into it, {rows:,} in all. It stays as it is."


def _refuse_full_disk(publication: Publication, request: Request, found: Callable[[], Kept]) -> None:
    """Refuses a disk without room for the vectors, and for the raw descriptors where they are kept."""
    rows = found()
    width = min(rows.width, _dims_of(request, rows))
    raw = np.dtype(raw_dtype_of(rows)).itemsize if request.keeps_raw else 0
    disk = rows.rows * (width * np.dtype(request.dtype).itemsize + rows.width * raw)
    refuse_forecast(publication, request.name, disk)


def _recipe(request: Request, inputs: Inputs, space: Artifact, twins: SameIds | None) -> Recipe:
    parameters = {
        "role": request.role,
        "dtype": request.dtype,
        "keep_raw": request.keeps_raw,
        "on_bad": request.on_bad,
        **({} if twins is None else {"same_ids": twins.digest}),
    }
    pca = {"artifact": spaces.NAME, "object": space.id}
    return Recipe("descriptors", SCHEMA, parameters, {**inputs.fingerprints, "pca": pca}, inputs.states)


def _write(draft: Draft, request: Request, rows: Kept, columns: Columns, space: Space, progress: Progress) -> int:
    """Writes all arrays of the artifact; returns the number of chunks that an interrupted run had written."""
    columns.write(draft, rows)
    vectors, raw = _matrices(draft, request, rows, space)
    found = len(vectors.crcs)
    rows_per_piece = max(1, PIECE_BYTES // (rows.width * rows.dtype.itemsize))

    def convert(chunk: int) -> int:
        start, stop = vectors.spec.rows(chunk)
        originals = None if raw is None or chunk in raw.crcs else np.empty((stop - start, space.width), raw.spec.dtype)
        parts = []
        for low in range(start, stop, rows_per_piece):
            high = min(low + rows_per_piece, stop)
            block = rows.read(low, high)
            if block.dtype == np.float64:
                block = as_float32(block)
            if originals is not None:
                originals[low - start : high - start] = block
            projected = space.project(block, lambda row, low=low: rows.locate(low + row))  # type: ignore[misc]
            parts.append(narrowed(projected, request.dtype, rows, low))
        if raw is not None and originals is not None:
            raw.write(chunk, originals, cached=False)
        vectors.write(chunk, parts[0] if len(parts) == 1 else np.concatenate(parts), cached=False)
        return stop - start

    todo = sorted({*vectors.missing, *(raw.missing if raw else ())})
    with progress(f"importing {rows.name}", rows.rows, "rows") as advance:
        advance(rows.rows - sum(stop - start for start, stop in map(vectors.spec.rows, todo)))
        for count in in_threads(convert, todo, _THREADS):
            advance(count)
    return found


def _matrices(draft: Draft, request: Request, rows: Kept, space: Space) -> tuple[ArrayWriter, ArrayWriter | None]:
    """Writers of the vectors and, where they are kept and differ, of the raw descriptors; their chunks hold the same rows."""
    shape, raw_shape = (rows.rows, space.dims), (rows.rows, space.width)
    raw_dtype = raw_dtype_of(rows)
    changed = space.normalize or space.reduction is not None or raw_dtype != request.dtype
    if not draft.recipe.parameters["keep_raw"] or not changed:
        return draft.array("vectors", shape, request.dtype), None
    rows_per_chunk = even_rows_per_chunk((shape, request.dtype), (raw_shape, raw_dtype))
    vectors = draft.array("vectors", shape, request.dtype, rows_per_chunk)
    return vectors, draft.array("raw", raw_shape, raw_dtype, rows_per_chunk)
