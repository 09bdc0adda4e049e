"""A file gets memory in proportion to its bytes and rows: what a few bytes merely promise is refused before it is allocated."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from mmdiff.formats.errors import BadLabels, CountMismatch, UnreadableSource
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.sources.columns.reading import read_class_names, read_column
from mmdiff.formats.sources.graphs import read_csr
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.sources.text import read_lines, read_values


def write_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_one_long_list_of_labels_does_not_pad_all_rows(tmp_path: Path) -> None:
    rows = [[0] * 100_000, *([1] for _ in range(99_999))]
    file = write_parquet(tmp_path / "y.parquet", label=pa.array(rows, pa.list_(pa.int64())))
    assert file.stat().st_size < 2000
    with pytest.raises(BadLabels, match=r"y\.parquet::label, row 0: 100,000 labels.*at most 167 in one row\. Keep"):
        read_column(str(file))
    with pytest.raises(BadLabels, match=r"labels, row 0: 100,000 labels"):
        column_of(rows, "labels")


def test_several_labels_per_row_are_padded_where_that_is_cheap(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "y.parquet", label=pa.array([[1], [2, 3, 4], None], pa.list_(pa.int64())))
    column = read_column(str(file), rows=3)
    assert column.per_row == 3
    assert np.asarray(column.values).tolist() == [1, -1, -1, 2, 3, 4, -1, -1, -1]


def test_a_column_of_another_length_is_not_decoded(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "y.parquet", label=pa.array(np.zeros(1_000_000, np.int64)))
    with pytest.raises(CountMismatch, match=r"y\.parquet::label: 1,000,000 values for 5 rows\. Give one for each row"):
        read_column(str(file), rows=5)


def test_a_long_text_that_is_stored_once_is_not_repeated_for_all_rows(tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * 200_000]))
    file = write_parquet(tmp_path / "y.parquet", label=long.cast(pa.dictionary(pa.int32(), pa.string())))
    with pytest.raises(UnreadableSource, match=r"y\.parquet::label: .* bytes of memory or more, in a file of"):
        read_column(str(file))


def test_a_row_group_that_expands_without_bound_is_refused(tmp_path: Path) -> None:
    flat = pa.array(np.zeros(40_000_000, np.float32))
    lists = pa.FixedSizeListArray.from_arrays(flat, 400).cast(pa.list_(pa.float32()))
    file = write_parquet(tmp_path / "x.parquet", emb=lists)
    with pytest.raises(UnreadableSource, match=r"x\.parquet::emb: row group 0 takes 160,000,000 bytes .*smaller row groups"):
        open_source([str(file)])


def npy(values: np.ndarray[Any, Any], **header: Any) -> bytes:
    stream = io.BytesIO()
    described = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape} | header
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue() + values.tobytes()


def write_npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def matrix(**changed: bytes) -> dict[str, bytes]:
    arrays = {
        "format": np.array(b"csr"),
        "shape": np.array([2, 2]),
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([1, 0], np.int32),
        "data": np.ones(2, np.float32),
    }
    return {name: npy(values) for name, values in arrays.items()} | changed


def test_an_npz_header_that_promises_gigabytes_is_refused(tmp_path: Path) -> None:
    file = write_npz(tmp_path / "w.npz", **matrix(data=npy(np.ones(2, np.float32), shape=(40_000_000_000,))))
    with pytest.raises(UnreadableSource, match=r"w\.npz: .*data\.npy promises \(40000000000,\) float32.*and holds 8"):
        read_csr(file)


def test_an_npz_that_expands_without_bound_is_refused(tmp_path: Path) -> None:
    file = write_npz(tmp_path / "w.npz", **matrix(data=npy(np.zeros(25_000_000, np.float32))))
    with pytest.raises(UnreadableSource, match=r"w\.npz: [0-9,]+ bytes that expand to 100,000,"):
        read_csr(file)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool, ">f4"])
@pytest.mark.parametrize("compressed", [True, False])
def test_matrices_of_scipy_are_read(tmp_path: Path, dtype: Any, compressed: bool) -> None:
    wanted = sp.csr_array(np.array([[0, 1, 2], [1, 0, 0], [2, 0, 5]]))
    wanted.data = wanted.data.astype(dtype)
    sp.save_npz(tmp_path / "w.npz", wanted, compressed=compressed)
    data, indices, indptr, shape = read_csr(tmp_path / "w.npz")
    np.testing.assert_array_equal(sp.csr_array((data, indices, indptr), shape).toarray(), wanted.toarray())


def test_a_damaged_member_is_noticed_by_its_checksum(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        for name, content in matrix().items():
            archive.writestr(f"{name}.npy", content)
    raw = bytearray((tmp_path / "w.npz").read_bytes())
    raw[raw.index(np.ones(2, np.float32).tobytes()) + 2] ^= 1
    (tmp_path / "w.npz").write_bytes(raw)
    with pytest.raises(UnreadableSource, match=r"w\.npz: not an \.npz file that can be read \(Bad CRC"):
        read_csr(tmp_path / "w.npz")


def test_values_of_no_bytes_are_not_rows(tmp_path: Path) -> None:
    (tmp_path / "y.npy").write_bytes(npy(np.array([], "S1"), descr="<U0", shape=(10**15,)))
    with pytest.raises(UnreadableSource, match=r"y\.npy: values of no bytes"):
        read_column(str(tmp_path / "y.npy"))


@pytest.mark.parametrize("read", [read_lines, lambda path: read_column(str(path))])
def test_a_sparse_file_is_no_list(tmp_path: Path, read: Any) -> None:
    file = tmp_path / "y.txt"
    file.touch()
    os.truncate(file, 1 << 42)
    with pytest.raises(UnreadableSource, match=r"y\.txt: (byte 0 is zero|not readable as text)"):
        read(file)


def test_huge_class_names_are_refused(tmp_path: Path) -> None:
    for ending in ("json", "txt", "csv"):
        file = tmp_path / f"names.{ending}"
        file.touch()
        os.truncate(file, 1 << 40)
        with pytest.raises(UnreadableSource, match=rf"names\.{ending}: 1,099,511,627,776 bytes, expected at most 16,777,216"):
            read_class_names(file)


def test_a_row_of_millions_of_values_is_no_embedding(tmp_path: Path) -> None:
    file = tmp_path / "x.bvecs"
    width = (1 << 24) + 1
    file.write_bytes(np.int32(width).tobytes())
    os.truncate(file, 4 + width)
    with pytest.raises(UnreadableSource, match=r"x\.bvecs: rows of 16,777,217 values, expected at most 16,777,216"):
        open_source([str(file)])


def test_labels_that_need_more_memory_than_there_is_are_refused(quick_folder: Path) -> None:
    # More than an address can reach, so that no machine tries; only a file system in memory has such sparse files.
    file = quick_folder / "y.npy"
    file.write_bytes(npy(np.zeros(0, np.int64), shape=(1 << 47,)))
    os.truncate(file, file.stat().st_size + (8 << 47))
    for read in (lambda: read_column(str(file)), lambda: read_values(file)):
        with pytest.raises(UnreadableSource, match=r"y\.npy: not readable as .*it asks for more memory than there is"):
            read()


def test_a_member_that_ends_before_its_values_is_noticed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        for name, content in matrix(data=npy(np.ones(2, np.float32), shape=(10,))).items():
            archive.writestr(f"{name}.npy", content)
        # The directory is written at the end, so it promises the eight values that are not there.
        archive.getinfo("data.npy").file_size += 32
    with pytest.raises(UnreadableSource, match=r"w\.npz: not an .*\(data\.npy ends after 8 of 40 bytes\)"):
        read_csr(tmp_path / "w.npz")
