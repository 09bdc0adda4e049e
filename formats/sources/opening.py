"""`open_source` chooses the reader of a file by its ending, and that of a folder by the files in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mmdiff.formats.errors import BadOption, UnreadableSource
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
    found = f"the ending {path.suffix}" if path.suffix else "a file without ending"
    raise UnreadableSource(f"{path}: {found} is not one of those that can be read: {SUPPORTED}. Convert the file.")


def _open_folder(folder: Path, inner: str | None, cache: RowGroupCache) -> Source:
    if is_zarr(folder):
        return ZarrSource(folder, inner)
    if is_dataset(folder):
        return DatasetSource(folder, inner, cache)
    if is_clip(folder):
        refuse_inner(folder, inner)
        return ClipSource(folder)
    raise UnreadableSource(
        f"{folder}: a folder that is neither a zarr array or group (no zarr.json, .zarray or .zgroup), nor written by "
        "save_to_disk of datasets (no state.json) or by clip-retrieval (no img_emb_0.npy). To read the files in it as one, "
        f"give a pattern: '{folder}/*.npy'."
    )
