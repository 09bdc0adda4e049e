"""`.fvecs`, `.bvecs` and the `.fbin` family: round trips, exact sizes, and the width that each row repeats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import UnreadableSource, WidthMismatch
from mmdiff.formats.sources.opening import open_source

VECS = {".fvecs": "<f4", ".bvecs": "u1"}
BINS = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1", ".f16bin": "<f2"}


def write(path: Path, X: np.ndarray[Any, Any]) -> None:
    if path.suffix in VECS:
        path.write_bytes(b"".join(np.array(len(row), "<i4").tobytes() + row.tobytes() for row in X))
    else:
        path.write_bytes(np.array(X.shape, "<u4").tobytes() + X.tobytes())


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 30),
    width=st.integers(1, 20),
    kind=st.sampled_from([*VECS.items(), *BINS.items()]),
    data=st.data(),
)
def test_any_range_of_rows_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: int, width: int, kind: tuple[str, str], data: st.DataObject
) -> None:
    ending, dtype = kind
    X = np.random.default_rng(rows).integers(0, 100, (rows, width)).astype(dtype)
    path = tmp_path_factory.mktemp("raw") / f"x{ending}"
    write(path, X)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    source = open_source([str(path)])
    read = source.read(start, stop)
    assert (source.rows, source.width, source.dtype) == (rows, width, X.dtype)
    assert read.flags.c_contiguous
    assert read.dtype == X.dtype
    np.testing.assert_array_equal(read, X[start:stop])


def test_each_row_of_vecs_repeats_its_width(tmp_path: Path) -> None:
    path = tmp_path / "x.fvecs"
    write(path, np.ones((10, 4), "f4"))
    content = bytearray(path.read_bytes())
    content[7 * 20 : 7 * 20 + 4] = (5).to_bytes(4, "little")
    path.write_bytes(content)
    source = open_source([str(path)])
    assert source.read(0, 7).shape == (7, 4)
    with pytest.raises(WidthMismatch, match=r"x\.fvecs, row 7: found a width of 5, expected 4"):
        source.read(5, 10)


def test_vecs_of_a_broken_size_say_how_many_bytes_are_left(tmp_path: Path) -> None:
    path = tmp_path / "x.fvecs"
    write(path, np.ones((10, 4), "f4"))
    os.truncate(path, 193)
    with pytest.raises(UnreadableSource, match=r"x\.fvecs: row 0 has 4 values.*20 bytes.*193 bytes are 9 such rows and 13"):
        open_source([str(path)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b"\1\0", "2 bytes, expected at least 4"),
        (b"\xff\xff\xff\xff", "a width of -1"),
        (b"\0" * 8, "width of 0"),
    ],
)
def test_what_are_no_vecs_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.bvecs").write_bytes(content)
    with pytest.raises(UnreadableSource, match=r"x\.bvecs.*" + message):
        open_source([str(tmp_path / "x.bvecs")])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (5, "5 bytes, expected at least 8"),
        (100, r"10 x 4 float32 \(160 bytes of data\) but the file holds 92. It is truncated"),
        (170, r"10 x 4 float32 \(160 bytes of data\) but the file holds 162. It has 2 bytes too many"),
    ],
)
def test_bins_of_the_wrong_size_are_refused(tmp_path: Path, size: int, message: str) -> None:
    path = tmp_path / "x.fbin"
    write(path, np.ones((10, 4), "f4"))
    os.truncate(path, size)
    with pytest.raises(UnreadableSource, match=r"x\.fbin: .*" + message):
        open_source([str(path)])


@pytest.mark.parametrize(("shape", "message"), [((0, 4), "holds no rows"), ((4, 0), "holds rows of no values")])
def test_empty_bins_are_refused(tmp_path: Path, shape: tuple[int, int], message: str) -> None:
    write(tmp_path / "x.u8bin", np.ones(shape, "u1"))
    with pytest.raises(UnreadableSource, match=r"x\.u8bin: " + message):
        open_source([str(tmp_path / "x.u8bin")])
