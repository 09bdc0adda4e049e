"""`open_source` chooses the reader of a file by its ending, and that of a folder by the files in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from mmdiff.formats.errors import FILE, BadOption, UnreadableSource, call
from mmdiff.formats.sources.arrow import ENDINGS, ArrowFile, ArrowSource
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.datasets import DatasetSource, is_dataset
from mmdiff.formats.sources.hdf5 import Hdf5Source
from mmdiff.formats.sources.many import ClipSource, Concatenated, is_clip
from mmdiff.formats.sources.members import Members, MemberSource
from mmdiff.formats.sources.npy import NpySource
from mmdiff.formats.sources.npz import read_npz
from mmdiff.formats.sources.parquet import ParquetSource, RowGroupCache
from mmdiff.formats.sources.safetensors import read_tensors
from mmdiff.formats.sources.spec import expand_spec, refuse_inner
from mmdiff.formats.sources.vecs import BIN_DTYPES, VECS_DTYPES, BinSource, VecsSource
from mmdiff.formats.sources.zarr_arrays import ZarrSource, is_zarr

PLAIN: dict[str, Callable[[Path], Source]] = {
    ".npy": NpySource,
    **dict.fromkeys(VECS_DTYPES, VecsSource),
    **dict.fromkeys(BIN_DTYPES, BinSource),
}

ARCHIVES: dict[str, Callable[[Path], Members]] = {".npz": read_npz, ".safetensors": read_tensors}

IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp", ".avif", ".jp2"),
    *(".ppm", ".pgm", ".pbm"),
)
_TEXT_ENDINGS = (".txt", ".md", ".rst", ".html", ".json", ".jsonl", ".csv", ".tsv", ".pdf", ".docx")
# Entries of a folder that are looked at for images.
_MOST_ENTRIES = 1000

SUPPORTED = (
    f"{', '.join(PLAIN)}, .npz::array, .safetensors::tensor, .h5::dataset, .hdf5::dataset, .parquet::column, .arrow::column, "
    ".feather::column, zarr folders, folders of the library datasets and clip-retrieval folders"
)


def open_source(specs: Sequence[str]) -> Source:
    """The files that the specs name, as one matrix in the given order. Files that match a pattern are in numeric order."""
    if not specs:
        raise BadOption("No file of embeddings was given. Name at least one.")
    cache = RowGroupCache()
    parts = [_open(path, inner, cache) for spec in specs for path, inner in expand_spec(spec)]
    return parts[0] if len(parts) == 1 else Concatenated(parts)


def _open(path: Path, inner: str | None, cache: RowGroupCache) -> Source:
    if path.is_dir():
        return _open_folder(path, inner, cache)
    ending = path.suffix.lower()
    if ending in PLAIN:
        refuse_inner(path, inner)
        return PLAIN[ending](path)
    if ending in (".h5", ".hdf5"):
        return Hdf5Source(path, inner)
    if ending == ".parquet":
        return ParquetSource(path, inner, cache)
    if ending in ENDINGS:
        return ArrowSource(ArrowFile(path), inner, cache)
    if ending in ARCHIVES:
        return MemberSource(path, inner, ARCHIVES[ending])
    if ending in (*IMAGE_ENDINGS, ".tar"):
        raise _images(path)
    found = f"the ending {path.suffix}" if path.suffix else "a file without ending"
    advice = "Convert the file."
    if ending in _TEXT_ENDINGS:
        advice = "If it holds texts, turn them into embeddings first, with any embedder: docs/texts.md shows how."
    raise UnreadableSource(f"{path}: {found} is not one of those that can be read: {SUPPORTED}. {advice}")


def _images(path: Path) -> UnreadableSource:
    return UnreadableSource(
        f"{path}: images, not embeddings. A network describes them first: ", call("describe", str(path), model=FILE), "."
    )


def _holds_images(folder: Path) -> bool:
    """Whether there are images among the first entries of a folder, or of a folder in it."""
    with suppress(OSError):
        entries = list(islice(folder.iterdir(), _MOST_ENTRIES))
        inner = next((entry for entry in entries if entry.is_dir()), None)
        entries += [] if inner is None else list(islice(inner.iterdir(), _MOST_ENTRIES))
        return any(entry.suffix.lower() in IMAGE_ENDINGS for entry in entries)
    return False


def _open_folder(folder: Path, inner: str | None, cache: RowGroupCache) -> Source:
    if is_zarr(folder):
        return ZarrSource(folder, inner)
    if is_dataset(folder):
        return DatasetSource(folder, inner, cache)
    if is_clip(folder):
        refuse_inner(folder, inner)
        return ClipSource(folder)
    if _holds_images(folder):
        raise _images(folder)
    raise UnreadableSource(
        f"{folder}: a folder that is neither a zarr array or group (no zarr.json, .zarray or .zgroup), nor written by "
        "save_to_disk of datasets (no state.json) or by clip-retrieval (no img_emb_0.npy). To read the files in it as one, "
        f"give a pattern: '{folder}/*.npy'."
    )
