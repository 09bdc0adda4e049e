"""`.npy` files: rows are those that numpy reads, and damaged files are refused with numbers."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import MmdiffError, UnreadableSource
from mmdiff.formats.sources.npy import NpySource

DTYPES = ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "u1", "i1")


def matrix(rows: int, width: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.random.default_rng(rows * 1000 + width).integers(0, 100, (rows, width)).astype(dtype)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from("CF"),
    version=st.sampled_from([(1, 0), (2, 0)]),
    data=st.data(),
)
def test_any_range_of_rows_is_what_numpy_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    width: int,
    dtype: str,
    order: Any,
    version: tuple[int, int],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.asarray(matrix(rows, width, dtype), order=order), version)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    source = NpySource(path)
    read = source.read(start, stop)
    expected = np.load(path)[start:stop]
    assert (source.rows, source.width) == (rows, width)
    assert read.dtype == source.dtype == expected.dtype.newbyteorder("=")
    assert read.dtype.isnative
    assert read.flags.c_contiguous
    assert read.flags.writeable
    np.testing.assert_array_equal(read, expected)


def test_rows_outside_the_file_are_an_index_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", matrix(5, 2))
    with pytest.raises(IndexError):
        NpySource(tmp_path / "x.npy").read(0, 6)


def test_truncated_npy_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "seeds.npy"
    np.save(path, matrix(1000, 256))
    os.truncate(path, 128 + 512_000)
    with pytest.raises(UnreadableSource, match=r"1000 x 256 float32 \(1,024,000 bytes of data\).*512,000.*truncated") as e:
        NpySource(path)
    assert str(e.value).startswith(str(path))


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, matrix(3, 2))
    with path.open("ab") as file:
        file.write(b"12345")
    with pytest.raises(UnreadableSource, match=r"x\.npy.*24 bytes of data.*holds 29.*5 bytes too many"):
        NpySource(path)


def test_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, matrix(3, 2))
    os.truncate(path, 100)
    with pytest.raises(UnreadableSource, match=r"x\.npy: the header should take 128 bytes but the file holds 100"):
        NpySource(path)


def test_header_larger_than_numpy_allows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + (60_000).to_bytes(2, "little") + b" " * 60_000)
    with pytest.raises(UnreadableSource, match=r"x\.npy: a header of 60,000 bytes, expected at most 10,000"):
        NpySource(path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, "a"]], dtype=object), allow_pickle=True)
    with pytest.raises(UnreadableSource, match=r"x\.npy: holds Python objects \(a pickle\), which mmdiff never loads.*float32"):
        NpySource(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(7, "f4"), r"1 dimension \(shape \(7,\)\), expected 2"),
        (np.zeros((2, 3, 4), "f4"), r"3 dimensions \(shape \(2, 3, 4\)\), expected 2"),
        (np.zeros((2, 3), "i8"), r"type int64, expected one of float16, float32, float64, uint8, int8"),
        (np.zeros((2, 3), "c8"), r"type complex64"),
        (np.zeros((2, 3), [("a", "f4")]), r"holds values of type"),
        (np.zeros((0, 3), "f4"), r"holds no rows"),
        (np.zeros((3, 0), "f4"), r"holds rows of no values"),
    ],
)
def test_other_shapes_and_types_are_refused(tmp_path: Path, array: np.ndarray[Any, Any], message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UnreadableSource, match=r"x\.npy: .*" + message):
        NpySource(tmp_path / "x.npy")


@pytest.mark.parametrize("content", [b"", b"\x93NUM", b"PK\x03\x04 a zip file", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00ab"])
def test_what_is_no_npy_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(UnreadableSource, match=r"x\.npy: "):
        NpySource(tmp_path / "x.npy")


def test_a_negative_shape_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"1234")
    with pytest.raises(UnreadableSource, match=r"shape \(-1, -1\)"):
        NpySource(tmp_path / "x.npy")


@settings(deadline=None, max_examples=70)
@given(position=st.integers(0, 127), value=st.integers(0, 255))
def test_a_damaged_header_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    np.save(path, matrix(3, 2))
    content = bytearray(path.read_bytes())
    content[position] = value
    path.write_bytes(content)
    try:
        source = NpySource(path)
    except MmdiffError:
        return
    source.read(0, source.rows)


def test_headers_of_python_2_are_read_without_a_warning(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 1L), }\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0\0\x80\x3f")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert NpySource(tmp_path / "x.npy").read(0, 1).tolist() == [[1.0]]


@pytest.mark.parametrize("order", ["C", "F"])
def test_threads_read_at_once(tmp_path: Path, order: Any) -> None:
    X = matrix(4000, 16)
    np.save(tmp_path / "x.npy", np.asarray(X, order=order))
    source = NpySource(tmp_path / "x.npy")
    starts = list(range(0, 3900, 13))
    with ThreadPoolExecutor(8) as pool:
        for start, rows in zip(starts, pool.map(lambda s: source.read(s, s + 100), starts), strict=True):
            np.testing.assert_array_equal(rows, X[start : start + 100])


def test_a_file_cut_short_during_the_run_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, matrix(100, 4))
    source = NpySource(path)
    os.truncate(path, 500)
    with pytest.raises(
        UnreadableSource, match=r"x\.npy: the file changed while it was being read \(it had 1,728 bytes, now 500"
    ):
        source.read(0, 100)


def test_a_file_that_ends_within_a_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", matrix(100, 4))
    source = NpySource(tmp_path / "x.npy")
    # One byte at a time, then the end: short reads are continued, and the end is not read as data.
    real, left = os.preadv, [700]

    def meagre(fd: int, buffers: list[memoryview], offset: int) -> int:
        left[0] -= 1
        return real(fd, [buffers[0][:1]], offset) if left[0] >= 0 else 0

    monkeypatch.setattr(os, "preadv", meagre)
    np.testing.assert_array_equal(source.read(0, 10), matrix(100, 4)[:10])
    with pytest.raises(UnreadableSource, match=r"x\.npy: the file ended at byte 668 .*bytes 128 to 1,728"):
        source.read(0, 100)


def test_reading_leaves_no_descriptor_open(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", matrix(10, 4))
    before = len(list(Path("/proc/self/fd").iterdir()))
    sources = [NpySource(tmp_path / "x.npy") for _ in range(20)]
    for source in sources:
        source.read(0, 10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(UnreadableSource, match=r"x\.npy: not a regular file"):
        NpySource(tmp_path / "x.npy")


def test_an_unreadable_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", matrix(10, 4))

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableSource, match=r"x\.npy: cannot be read \(Permission denied\)"):
        NpySource(tmp_path / "x.npy")
