"""List columns of Parquet files as matrices: all list types, many row groups, bounded memory, bad rows by number."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import BadRow, MissingExtra, UnreadableSource, WidthMismatch
from mmdiff.formats.sources.base import Rows
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.sources.parquet import ParquetSource, RowGroupCache

X = np.random.default_rng(0).integers(0, 100, (100, 6)).astype(np.float32)

VALUE_TYPES = {"f2": pa.float16(), "f4": pa.float32(), "f8": pa.float64(), "u1": pa.uint8(), "i1": pa.int8()}


def lists(array: np.ndarray[Any, Any], kind: str) -> Any:
    values = VALUE_TYPES[array.dtype.str[1:]]
    types = {"list": pa.list_(values), "large": pa.large_list(values), "fixed": pa.list_(values, array.shape[1])}
    return pa.array(list(array), types[kind])


def write(path: Path, row_group_size: int = 30, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 8),
    dtype=st.sampled_from(sorted(VALUE_TYPES)),
    kind=st.sampled_from(["list", "large", "fixed"]),
    group=st.integers(1, 70),
    data=st.data(),
)
def test_any_range_of_rows_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    width: int,
    dtype: str,
    kind: str,
    group: int,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "x.parquet"
    array = np.random.default_rng(rows).integers(0, 100, (rows, width)).astype(dtype)
    write(path, group, emb=lists(array, kind), id=pa.array(range(rows)))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    source = open_source([str(path)])
    read = source.read(start, stop)
    assert (source.name, source.rows, source.width, source.dtype) == (f"{path}::emb", rows, width, array.dtype)
    assert read.flags.c_contiguous
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array[start:stop])


def test_tensor_columns_are_read(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", emb=pa.FixedShapeTensorArray.from_numpy_ndarray(X))
    np.testing.assert_array_equal(open_source([str(tmp_path / "x.parquet")]).read(20, 70), X[20:70])


def test_what_is_read_is_the_callers_own(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", emb=lists(X, "list"))
    source = open_source([str(tmp_path / "x.parquet")])
    source.read(0, 10)[:] = -1
    np.testing.assert_array_equal(source.read(0, 10), X[:10])


def with_row(row: Any, at: int) -> Any:
    rows = X.tolist()
    rows[at] = row
    return pa.array(rows, pa.list_(pa.float32()))


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (None, BadRow, r"x\.parquet::emb, row 65: null, expected a list"),
        ([1, 2, None, 4, 5, 6], BadRow, r"x\.parquet::emb, row 65: value 2 is null"),
        ([1, 2, 3], WidthMismatch, r"x\.parquet::emb, row 65: 3 values, expected 6 as in row 0"),
        ([], WidthMismatch, r"x\.parquet::emb, row 65: 0 values, expected 6"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: Any, error: type[Exception], message: str) -> None:
    write(tmp_path / "x.parquet", emb=with_row(row, 65))
    source = open_source([str(tmp_path / "x.parquet")])
    np.testing.assert_array_equal(source.read(0, 60), X[:60])
    with pytest.raises(error, match=message):
        source.read(0, 100)


def test_a_null_in_the_first_row_is_named(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", emb=with_row(None, 0))
    with pytest.raises(BadRow, match=r"x\.parquet::emb, row 0: null"):
        open_source([str(tmp_path / "x.parquet")])


@pytest.mark.parametrize(("rows", "message"), [([], "holds no rows"), ([[], []], "holds rows of no values")])
def test_empty_columns_are_refused(tmp_path: Path, rows: list[Any], message: str) -> None:
    write(tmp_path / "x.parquet", emb=pa.array(rows, pa.list_(pa.float32())))
    with pytest.raises(UnreadableSource, match=r"x\.parquet::emb: " + message):
        open_source([str(tmp_path / "x.parquet")])


def test_several_list_columns_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", image=lists(X, "list"), text=lists(X, "fixed"), label=pa.array(range(100)))
    with pytest.raises(UnreadableSource, match=r"2 candidates.*x\.parquet::image .*x\.parquet::text "):
        open_source([str(tmp_path / "x.parquet")])
    with pytest.raises(UnreadableSource, match=r"x\.parquet: no 'nothing' in it.*x\.parquet::image"):
        open_source([f"{tmp_path / 'x.parquet'}::nothing"])
    with pytest.raises(UnreadableSource, match=r"x\.parquet::label: a column of int64, expected lists"):
        open_source([f"{tmp_path / 'x.parquet'}::label"])
    assert open_source([f"{tmp_path / 'x.parquet'}::text"]).width == 6


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([lists(X, "list"), lists(X, "list")], names=["emb", "emb"])
    pq.write_table(table, tmp_path / "x.parquet")
    for spec in ("x.parquet", "x.parquet::emb"):
        with pytest.raises(UnreadableSource, match=r"x\.parquet: 2 columns are named 'emb'"):
            open_source([str(tmp_path / spec)])


def test_dots_in_names_are_part_of_the_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"emb.old": lists(-X, "list"), "emb": lists(X, "list")}), tmp_path / "x.parquet")
    assert np.array_equal(open_source([f"{tmp_path / 'x.parquet'}::emb"]).read(0, 9), X[:9])
    assert np.array_equal(open_source([f"{tmp_path / 'x.parquet'}::emb.old"]).read(0, 9), -X[:9])


def test_a_list_of_other_numbers_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", emb=pa.array([[1, 2]], pa.list_(pa.int64())))
    with pytest.raises(UnreadableSource, match=r"x\.parquet::emb: holds values of type int64"):
        open_source([f"{tmp_path / 'x.parquet'}::emb"])


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(UnreadableSource, match=r"x\.parquet: not readable as Parquet"):
        open_source([str(tmp_path / "x.parquet")])


def test_without_pyarrow_the_message_is_the_line_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.parquet", emb=lists(X, "list"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"reading .*x\.parquet needs pyarrow.*pip install 'mmdiff\[files\]'"):
        open_source([str(tmp_path / "x.parquet")])


def test_sequential_reads_decode_each_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.parquet", emb=lists(X, "list"))
    decoded: list[int] = []
    real = ParquetSource._decode

    def decode(self: ParquetSource, group: int, rows: int) -> Rows:
        decoded.append(group)
        return real(self, group, rows)

    monkeypatch.setattr(ParquetSource, "_decode", decode)
    source = ParquetSource(tmp_path / "x.parquet", cache=RowGroupCache(limit=0))
    for start in range(0, 100, 10):
        source.read(start, start + 10)
    assert decoded == [0, 1, 2, 3]


def test_the_cache_keeps_the_last_row_groups_within_its_limit() -> None:
    cache = RowGroupCache(limit=100)
    decoded: list[int] = []

    def get(group: int) -> None:
        def decode() -> Rows:
            decoded.append(group)
            return np.zeros(40, np.uint8)

        cache.get((Path("x"), "emb", group), 40, decode)

    for group in (0, 1, 2, 2, 1, 0, 1, 2):
        get(group)
    assert decoded == [0, 1, 2, 0, 2]


def test_threads_read_at_once(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", row_group_size=7, emb=lists(X, "list"))
    source = ParquetSource(tmp_path / "x.parquet", cache=RowGroupCache(limit=500))
    starts = [*range(0, 90, 3), *range(87, -1, -3)]
    with ThreadPoolExecutor(4) as pool:
        for start, rows in zip(starts, pool.map(lambda s: source.read(s, s + 10), starts), strict=True):
            np.testing.assert_array_equal(rows, X[start : start + 10])


@pytest.mark.parametrize("values", [pa.time32("s"), pa.struct([("a", pa.int8())])])
def test_lists_of_values_that_numpy_has_no_type_for_are_refused(tmp_path: Path, values: Any) -> None:
    entry = {"a": 1} if pa.types.is_struct(values) else 1
    write(tmp_path / "x.parquet", emb=pa.array([[entry], [entry]], pa.list_(values)))
    with pytest.raises(UnreadableSource, match=r"x\.parquet::emb: a column of list<.*>, expected lists of numbers"):
        open_source([f"{tmp_path / 'x.parquet'}::emb"])


def test_a_row_group_that_holds_fewer_rows_than_the_footer_says_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write(file, 5, emb=lists(X[:8], "list"))
    raw = bytearray(file.read_bytes())
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    # The numbers of rows, 5 and 3, become 6 and 2; the protocol writes them doubled, after the type of their field.
    for before, after in ((b"\x16\x0a", b"\x16\x0c"), (b"\x16\x06", b"\x16\x04")):
        assert raw[footer:].count(before) == 1
        at = raw.index(before, footer)
        raw[at : at + 2] = after
    file.write_bytes(raw)
    source = open_source([str(file)])
    with pytest.raises(UnreadableSource, match=r"x\.parquet::emb: row group 0 holds 5 rows, expected 6\. Copy or write"):
        source.read(0, 8)
