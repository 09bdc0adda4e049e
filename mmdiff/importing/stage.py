"""`mmdiff import`: from somebody's files to `descriptors/ROLE`, chunk by chunk, in bounded memory.

Chunks are independent of each other: each is read, brought into the space of all roles and written by one thread, while others
wait for the disk. A chunk that is on the disk is not made again when an interrupted import is continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmdiff.formats.errors import BadLabels, BadOption, Corrupt, Missing
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.sources.spec import split_spec
from mmdiff.formats.storage.arrays import even_rows_per_chunk
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import ArrayWriter, Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing import space as spaces
from mmdiff.importing.columns import Columns, notes_on, read_columns
from mmdiff.importing.rows import Kept, as_float32, drop_bad_rows
from mmdiff.importing.space import Space
from mmdiff.labels.classes import Classes
from mmdiff.runtime.find_or_make import Run, make
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.threads import in_threads

Role = Literal["background", "seeds", "test"]
ROLES: tuple[Role, ...] = ("background", "seeds", "test")
SCHEMA = 1

# More threads than cores: some of them wait for the disk to confirm what they wrote.
_THREADS = 4

# Read at a time by each of them: rows that a PCA makes narrow are many times as large as the chunk that they become.
_PIECE_BYTES = 64 << 20

# What raw descriptors are stored as; float64 has no use that float32 would not serve.
_RAW_DTYPES = {"float64": "float32"}


@dataclass(frozen=True)
class Request:
    """What the user asked for; None stands for the default of the role."""

    sources: Sequence[str]
    role: Role
    labels: str | None = None
    ids: str | None = None
    class_names: str | None = None
    dtype: Literal["float32", "float16"] = "float32"
    dims: int | None = None
    normalize: bool = True
    keep_raw: bool | None = None
    on_bad: Literal["error", "drop"] = "error"
    no_background: bool = False
    command: str = "mmdiff import"

    @property
    def name(self) -> str:
        return f"descriptors/{self.role}"

    @property
    def makes_space(self) -> bool:
        """Whether the space of all roles is made from these rows."""
        return self.role == "background" or self.no_background


@dataclass(frozen=True)
class Outcome:
    """What an import came to. `chunks_found` had been written by a run that was interrupted."""

    artifact: Artifact
    reused: bool
    chunks_found: int
    seconds: float
    notes: list[str]

    def summary(self) -> Json:
        """The outcome as plain values."""
        manifest = self.artifact.manifest
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


def import_descriptors(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Imports one role into the store at `path`. An import that was made before is recognised and left as it is."""
    run = Run(request.command)
    _refuse_contradictions(Store(path), request)
    source = open_source(request.sources)
    columns = read_columns(source, request.labels, request.ids, request.class_names, request.role)
    _refuse_other_classes(Store(path), request, columns)
    inputs = _inputs(request, source)
    names = [request.name, spaces.NAME] if request.makes_space else [request.name]
    with Publication(path, names, request.command) as publication:
        rows = drop_bad_rows(source, progress) if request.on_bad == "drop" else Kept(source)
        if request.makes_space:
            space = _find_or_make_space(publication, request, rows, inputs, run, progress)
        else:
            space = spaces.open_for(publication.store, source, request.dims, request.normalize, request.role)

        def fill(draft: Draft) -> Json:
            run.entries["chunks_found"] = _write(draft, request, rows, columns, Space.of(space), progress)
            return columns.facts() | {"rows": rows.rows, "dropped": rows.reasons}

        named_with = {spaces.NAME: space} if request.makes_space else {}
        made = make(publication, request.name, _recipe(request, inputs, space), run, fill, named_with=named_with)
        notes = notes_on(publication.store, request.role)
        return Outcome(made.artifact, made.reused, run.entries.get("chunks_found", 0), run.seconds, notes)


def _refuse_contradictions(store: Store, request: Request) -> None:
    if request.role == "seeds" and request.labels is None:
        raise BadOption("--role seeds: seeds are what has labels. Give them with --labels FILE.")
    if request.dims is not None and request.dims < 1:
        raise BadOption(f"--dims {request.dims}: at least one dimension is needed.")
    if request.no_background and request.role != "seeds":
        raise BadOption(f"--no-background goes with --role seeds, not with --role {request.role}. Leave it out.")
    if request.no_background and store.id("descriptors/background") is not None:
        raise BadOption(f"--no-background: the store {store.path} has one. Leave the option out, or use another store.")
    if request.class_names is not None and request.labels is None:
        raise BadOption("--class-names: there are no labels that it could name. Give them with --labels FILE.")


def _refuse_other_classes(store: Store, request: Request, columns: Columns) -> None:
    """Labels that cannot be brought to the classes of the seeds are refused now, and not when they are needed."""
    if request.role != "seeds" and columns.classes is not None:
        try:
            # Seeds that are damaged are no reason to refuse another role: repairing one must not wait for the other.
            with suppress(Missing, Corrupt):
                columns.classes.columns_in(Classes.of(store.open_artifact("descriptors/seeds")))
        except BadLabels as error:
            raise BadLabels(f"{request.labels}: {error}") from None


def _inputs(request: Request, source: Source) -> Json:
    """Every file that the import reads: its fingerprint, and under `witness` when it was last written."""
    files = {"source": (_without_folder(source.name), source.files)}
    for key in ("labels", "ids", "class_names"):
        spec = getattr(request, key)
        if spec is not None:
            files[key] = (_without_folder(spec), (split_spec(spec)[0],))
    prints = {key: fingerprint(name, paths) for key, (name, paths) in files.items()}
    return {"prints": prints, "witness": {key: source_fingerprint(paths) for key, (_, paths) in files.items()}}


def _without_folder(spec: str) -> str:
    """`/data/x.h5::a/b` is `x.h5::a/b` in the manifest: the same file elsewhere is the same input."""
    path, separator, inner = spec.partition("::")
    return Path(path).name + separator + inner


def _find_or_make_space(
    publication: Publication, request: Request, rows: Kept, inputs: Json, run: Run, progress: Progress
) -> Artifact:
    """The space made from these rows; it gets its name together with the descriptors."""
    dims = request.dims or spaces.DEFAULT_DIMS
    seen = {"source": inputs["witness"]["source"]}
    recipe = spaces.recipe(inputs["prints"]["source"], dims, request.normalize, request.on_bad, seen)

    def fill(draft: Draft) -> Json:
        space = Space.make(rows, dims, request.normalize, progress)
        space.write(draft)
        return space.facts(rows.rows)

    return make(publication, spaces.NAME, recipe, run, fill, named_with=None).artifact


def _recipe(request: Request, inputs: Json, space: Artifact) -> Recipe:
    keep_raw = request.role != "background" if request.keep_raw is None else request.keep_raw
    parameters = {"role": request.role, "dtype": request.dtype, "keep_raw": keep_raw, "on_bad": request.on_bad}
    pca = {"artifact": spaces.NAME, "object": space.id}
    return Recipe("descriptors", SCHEMA, parameters, {**inputs["prints"], "pca": pca}, inputs["witness"])


def _write(draft: Draft, request: Request, rows: Kept, columns: Columns, space: Space, progress: Progress) -> int:
    """Writes all arrays of the artifact; returns how many chunks an interrupted run had left."""
    columns.write(draft, rows)
    vectors, raw = _matrices(draft, request, rows, space)
    found = len(vectors.crcs)
    rows_per_piece = max(1, _PIECE_BYTES // (rows.width * rows.dtype.itemsize))

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
            parts.append(_narrowed(projected, request.dtype, rows, low))
        if raw is not None and originals is not None:
            raw.write(chunk, originals)
        vectors.write(chunk, parts[0] if len(parts) == 1 else np.concatenate(parts))
        return stop - start

    todo = sorted({*vectors.missing, *(raw.missing if raw else ())})
    with progress(f"importing {rows.name}", rows.rows, "rows") as advance:
        advance(rows.rows - sum(stop - start for start, stop in map(vectors.spec.rows, todo)))
        for count in in_threads(convert, todo, _THREADS):
            advance(count)
    return found


def _matrices(draft: Draft, request: Request, rows: Kept, space: Space) -> tuple[ArrayWriter, ArrayWriter | None]:
    """The vectors, and the raw descriptors where they are kept and are not the same; a chunk of each has the same rows."""
    shape, raw_shape = (rows.rows, space.dims), (rows.rows, space.width)
    raw_dtype = _RAW_DTYPES.get(rows.dtype.name, rows.dtype.name)
    changed = space.normalize or space.reduction is not None or raw_dtype != request.dtype
    if not draft.recipe.parameters["keep_raw"] or not changed:
        return draft.array("vectors", shape, request.dtype), None
    rows_per_chunk = even_rows_per_chunk((shape, request.dtype), (raw_shape, raw_dtype))
    vectors = draft.array("vectors", shape, request.dtype, rows_per_chunk)
    return vectors, draft.array("raw", raw_shape, raw_dtype, rows_per_chunk)


def _narrowed(values: Any, dtype: str, rows: Kept, start: int) -> Any:
    """Values in the precision they are stored in, which must be able to hold them."""
    if dtype == "float32":
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    overflow = ~np.isfinite(narrow).all(axis=1)
    if overflow.any():
        where = rows.locate(start + int(overflow.argmax()))
        raise BadOption(f"{where}: values too large for --dtype {dtype}. Use --dtype float32, or normalise the rows.")
    return narrow
