"""Arrays inside HDF5 files and zarr folders: chosen by name, or as the only one; never unpickled."""

from __future__ import annotations

import errno
import json
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec

from mmdiff.formats.errors import MissingExtra, UnreadableSource
from mmdiff.formats.sources.opening import open_source

X = np.random.default_rng(0).standard_normal((200, 12)).astype(np.float32)


def write_h5(path: Path, **arrays: np.ndarray[Any, Any]) -> None:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key.replace("__", "/"), data=array, chunks=(16, 4) if array.shape == X.shape else None)


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", "u1", "i1"])
@pytest.mark.parametrize("spec", ["x.h5", "x.h5::deep/emb", "x.h5::/deep/emb"])
def test_a_dataset_is_read_by_name_or_because_it_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, spec: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_h5(tmp_path / "x.h5", deep__emb=X.astype(dtype), labels=np.arange(200))
    source = open_source([spec])
    read = source.read(30, 150)
    assert (source.rows, source.width) == X.shape
    assert source.dtype == read.dtype == np.dtype(dtype).newbyteorder("=")
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, X.astype(dtype)[30:150])


def test_several_datasets_are_listed(tmp_path: Path) -> None:
    write_h5(tmp_path / "x.hdf5", train=X, test=X[:5], neighbours=np.zeros((5, 3), "i4"))
    with pytest.raises(
        UnreadableSource, match=r"2 candidates.*x\.hdf5::test \(5 x 12 float32\).*x\.hdf5::train \(200 x 12"
    ) as e:
        open_source([str(tmp_path / "x.hdf5")])
    assert "neighbours" not in str(e.value)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("nothing", r"no 'nothing' in it.*x\.h5::emb"),
        ("labels", r"x\.h5::labels: has 1 dim"),
        ("ints", r"x\.h5::ints: .*type int64"),
    ],
)
def test_the_wrong_dataset_is_refused(tmp_path: Path, inner: str, message: str) -> None:
    write_h5(tmp_path / "x.h5", emb=X, labels=np.arange(200), ints=np.zeros((2, 2), "i8"))
    with pytest.raises(UnreadableSource, match=message):
        open_source([f"{tmp_path / 'x.h5'}::{inner}"])


def test_a_file_without_matrices_says_what_it_holds(tmp_path: Path) -> None:
    write_h5(tmp_path / "x.h5", labels=np.arange(200))
    with pytest.raises(UnreadableSource, match=r"x\.h5: there is not a 2-D array .*found labels"):
        open_source([str(tmp_path / "x.h5")])


def test_what_is_no_hdf5_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"no such format")
    with pytest.raises(UnreadableSource, match=r"x\.h5: not readable as HDF5"):
        open_source([str(tmp_path / "x.h5")])


def test_without_h5py_the_message_is_the_line_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_h5(tmp_path / "x.h5", emb=X)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"reading .*x\.h5 needs h5py.*pip install 'mmdiff\[files\]'"):
        open_source([str(tmp_path / "x.h5")])


def write_zarr(path: Path, array: np.ndarray[Any, Any] = X, **options: Any) -> None:
    zarr.create_array(path, data=array, **{"chunks": (32, 5), **options})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i1"])
def test_zarr_arrays_of_both_versions_are_read(tmp_path: Path, zarr_format: int, dtype: str) -> None:
    data = np.abs(X * 10).astype(dtype)
    write_zarr(tmp_path / "x.zarr", data, zarr_format=zarr_format)
    source = open_source([str(tmp_path / "x.zarr")])
    read = source.read(30, 150)
    assert (source.rows, source.width, source.dtype) == (*X.shape, np.dtype(dtype))
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, data[30:150])
    assert len(source.files) >= 21


def test_big_endian_zarr_is_read_as_native(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr", X.astype(">f4"), zarr_format=2)
    assert open_source([str(tmp_path / "x.zarr")]).read(0, 5).dtype == np.dtype("=f4")


def test_sharded_zarr_is_read(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr", chunks=(10, 12), shards=(50, 12))
    np.testing.assert_array_equal(open_source([str(tmp_path / "x.zarr")]).read(45, 105), X[45:105])


def test_an_array_in_a_group_is_found(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("deep/emb", data=X)
    group.create_array("labels", data=np.arange(3))
    for spec in ("g.zarr", "g.zarr::deep/emb"):
        source = open_source([str(tmp_path / spec)])
        assert source.name == f"{tmp_path}/g.zarr::deep/emb"
        assert all("deep/emb" in str(file) for file in source.files)
        np.testing.assert_array_equal(source.read(0, 200), X)
    group.create_array("other", data=X[:7])
    with pytest.raises(UnreadableSource, match=r"g\.zarr: 2 candidates.*g\.zarr::deep/emb.*g\.zarr::other|other.*deep/emb"):
        open_source([str(tmp_path / "g.zarr")])
    with pytest.raises(UnreadableSource, match=r"g\.zarr: no 'none' in it"):
        open_source([f"{tmp_path / 'g.zarr'}::none"])
    with pytest.raises(UnreadableSource, match=r"g\.zarr::labels: has 1 dim"):
        open_source([f"{tmp_path / 'g.zarr'}::labels"])


def test_an_array_has_nothing_inside(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr")
    with pytest.raises(UnreadableSource, match=r"x\.zarr: an array, not a group"):
        open_source([f"{tmp_path / 'x.zarr'}::emb"])


@pytest.mark.parametrize("place", ["compressor", "filters"])
def test_a_codec_that_unpickles_is_refused(tmp_path: Path, place: str) -> None:
    write_zarr(tmp_path / "x.zarr", zarr_format=2)
    metadata = json.loads((tmp_path / "x.zarr/.zarray").read_text())
    codec = {"id": "pickle", "protocol": 4}
    metadata[place] = [codec] if place == "filters" else codec
    (tmp_path / "x.zarr/.zarray").write_text(json.dumps(metadata))
    with pytest.raises(UnreadableSource, match=r"x\.zarr: .*pickle"):
        open_source([str(tmp_path / "x.zarr")])


def test_missing_chunks_are_not_zeros(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr")
    (tmp_path / "x.zarr/c/3/1").unlink()
    with pytest.raises(UnreadableSource, match=r"x\.zarr: 20 of 21 chunks are on disk"):
        open_source([str(tmp_path / "x.zarr")])


def test_a_damaged_chunk_names_the_rows(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr")
    source = open_source([str(tmp_path / "x.zarr")])
    (tmp_path / "x.zarr/c/3/1").write_bytes(b"damaged")
    with pytest.raises(UnreadableSource, match=r"x\.zarr, rows 90 to 110: a chunk cannot be read"):
        source.read(90, 110)


def test_damaged_zarr_metadata_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr/zarr.json").write_text('{"zarr_format": 3, "node_type": "array", "shape": ')
    with pytest.raises(UnreadableSource, match=r"x\.zarr: not readable as zarr"):
        open_source([str(tmp_path / "x.zarr")])


@pytest.mark.parametrize("name", ["x.h5", "x.zarr"])
def test_threads_read_at_once(tmp_path: Path, name: str) -> None:
    write_h5(tmp_path / "x.h5", emb=X)
    write_zarr(tmp_path / "x.zarr")
    source = open_source([str(tmp_path / name)])
    starts = list(range(0, 180, 7))
    with ThreadPoolExecutor(4) as pool:
        for start, rows in zip(starts, pool.map(lambda s: source.read(s, s + 20), starts), strict=True):
            np.testing.assert_array_equal(rows, X[start : start + 20])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunks_are_found_by_name_and_not_by_count(tmp_path: Path, zarr_format: int) -> None:
    write_zarr(tmp_path / "x.zarr", zarr_format=zarr_format)
    chunk = tmp_path / "x.zarr" / ("c/3/1" if zarr_format == 3 else "3.1")
    chunk.rename(chunk.with_name("another"))
    with pytest.raises(UnreadableSource, match=r"x\.zarr: 20 of 21 chunks are on disk"):
        open_source([str(tmp_path / "x.zarr")])


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunks_missing_from_shards_are_not_zeros(tmp_path: Path, location: Any) -> None:
    sharding = ShardingCodec(chunk_shape=(10, 4), index_location=location)
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=(45, 12), dtype="f4", chunks=(50, 12), serializer=sharding, compressors=None
    )
    array[:] = X[:45]
    np.testing.assert_array_equal(open_source([str(tmp_path / "x.zarr")]).read(0, 45), X[:45])
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=(45, 12),
        dtype="f4",
        chunks=(50, 12),
        serializer=sharding,
        compressors=None,
        overwrite=True,
    )
    array[:20] = X[:20]
    with pytest.raises(UnreadableSource, match=r"x\.zarr: 9 chunks are not in their shards and would read as 0\.0"):
        open_source([str(tmp_path / "x.zarr")])


SHARDING = ShardingCodec(chunk_shape=(10, 12))
LAYERS: dict[str, dict[str, Any]] = {
    "transposed": {"filters": [TransposeCodec(order=(0, 1))], "serializer": SHARDING, "compressors": None},
    "compressed": {"filters": None, "serializer": SHARDING, "compressors": [GzipCodec()]},
    "nested": {"filters": None, "serializer": ShardingCodec(chunk_shape=(20, 12), codecs=[SHARDING]), "compressors": None},
    "with a sharded index": {
        "filters": None,
        "serializer": ShardingCodec(chunk_shape=(20, 12), index_codecs=[ShardingCodec(chunk_shape=(1, 1, 2)), Crc32cCodec()]),
        "compressors": None,
    },
}


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("inner", [None, "in/a"])
def test_shards_whose_holes_cannot_be_found_are_refused_without_a_warning_of_zarr(
    tmp_path: Path, layers: str, inner: str | None
) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Combining a `sharding_indexed` codec")
        array = zarr.create_array(
            tmp_path / "x.zarr", name=inner, shape=(40, 12), dtype="f4", chunks=(40, 12), **LAYERS[layers]
        )
        array[:30] = X[:30]
    name = rf"x\.zarr{'::in/a' if inner else ''}"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(UnreadableSource, match=rf"{name}: sharded in a way whose holes cannot be found.*plain sharding\.$"):
            open_source([str(tmp_path / "x.zarr") + (f"::{inner}" if inner else "")])
    assert not shown


def test_a_missing_shard_is_not_zeros(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr", chunks=(10, 12), shards=(50, 12))
    (tmp_path / "x.zarr/c/2/0").unlink()
    with pytest.raises(UnreadableSource, match=r"x\.zarr: 3 of 4 chunks are on disk"):
        open_source([str(tmp_path / "x.zarr")])


def test_a_chunk_that_needs_far_more_memory_than_the_folder_has_bytes_is_refused(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr", zarr_format=2)
    metadata = json.loads((tmp_path / "x.zarr/.zarray").read_text())
    metadata |= {"chunks": [1 << 30, 1 << 10], "shape": [4, 4]}
    (tmp_path / "x.zarr/.zarray").write_text(json.dumps(metadata))
    with pytest.raises(UnreadableSource, match=r"x\.zarr: a chunk takes 4,398,046,511,104 bytes of memory.*smaller chunks"):
        open_source([str(tmp_path / "x.zarr")])


@pytest.mark.parametrize(
    "changes", [{"chunks": [0, 5]}, {"shape": [1 << 70, 12]}, {"shape": [1 << 40, 1 << 20]}, {"chunks": []}]
)
def test_impossible_shapes_of_zarr_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_zarr(tmp_path / "x.zarr", zarr_format=2)
    metadata = json.loads((tmp_path / "x.zarr/.zarray").read_text()) | changes
    (tmp_path / "x.zarr/.zarray").write_text(json.dumps(metadata))
    with pytest.raises(UnreadableSource, match=r"x\.zarr"):
        open_source([str(tmp_path / "x.zarr")])


@pytest.mark.parametrize("place", [".zattrs", "0.0", "sub/.zarray"])
def test_a_pipe_within_a_zarr_folder_does_not_hang(tmp_path: Path, place: str) -> None:
    write_zarr(tmp_path / "x.zarr", zarr_format=2)
    pipe = tmp_path / "x.zarr" / place
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(UnreadableSource, match=r"x\.zarr/.*: not a regular file"):
        open_source([str(tmp_path / "x.zarr")])


def test_huge_zarr_metadata_are_refused(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr", zarr_format=2)
    os.truncate(tmp_path / "x.zarr/.zattrs", 1 << 40)
    with pytest.raises(UnreadableSource, match=r"\.zattrs: metadata of 1,099,511,627,776 bytes"):
        open_source([str(tmp_path / "x.zarr")])


def test_a_codec_of_a_plugin_that_unpickles_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numcodecs.registry.codec_registry, "cloudpickle", numcodecs.Zlib)
    write_zarr(tmp_path / "x.zarr", zarr_format=2)
    metadata = json.loads((tmp_path / "x.zarr" / ".zarray").read_text())
    (tmp_path / "x.zarr" / ".zarray").write_text(json.dumps(metadata | {"compressor": {"id": "cloudpickle"}}))
    monkeypatch.setattr(numcodecs.Zlib, "codec_id", "cloudpickle")
    with pytest.raises(UnreadableSource, match=r"x\.zarr: its chunks are pickled, and mmdiff never loads a pickle"):
        open_source([str(tmp_path / "x.zarr")])


def test_a_zarr_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zarr(tmp_path / "x.zarr")
    scandir = os.scandir

    def failing(path: Any) -> Any:
        if Path(path).name == "c":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(UnreadableSource, match=r"x\.zarr: .*Input/output error"):
        open_source([str(tmp_path / "x.zarr")])


def test_a_shard_with_a_compressed_index_is_refused(tmp_path: Path) -> None:
    codec = ShardingCodec(chunk_shape=(100, 12), index_codecs=[BytesCodec(), GzipCodec()])
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=X.shape, dtype="f4", chunks=X.shape, serializer=codec, compressors=None
    )
    array[:] = X
    with pytest.raises(UnreadableSource, match=r"x\.zarr/c/0/0: the index of the shard is compressed\. Write the array again"):
        open_source([str(tmp_path / "x.zarr")])


def test_a_shard_that_is_shorter_than_its_index_is_refused(tmp_path: Path) -> None:
    write_zarr(tmp_path / "x.zarr", chunks=(100, 12), shards=X.shape)
    os.truncate(tmp_path / "x.zarr" / "c" / "0" / "0", 10)
    with pytest.raises(UnreadableSource, match=r"x\.zarr/c/0/0: 10 bytes, too few for the index of the shard"):
        open_source([str(tmp_path / "x.zarr")])
