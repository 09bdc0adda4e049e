"""Arrow IPC files and streams: the rows and columns that were written, and refusals of what a file lies about."""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import BadRow, CountMismatch, MissingExtra, UnreadableSource, WidthMismatch
from mmdiff.formats.sources.arrow import ArrowFile, ArrowSource
from mmdiff.formats.sources.arrow_messages import Batch
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.sources.parquet import RowGroupCache
from mmdiff.formats.storage.strings import Strings

X = np.random.default_rng(0).standard_normal((100, 6)).astype(np.float32)


def lists(array: np.ndarray[Any, Any], kind: str = "list") -> Any:
    values = pa.from_numpy_dtype(array.dtype)
    types = {"list": pa.list_(values), "large": pa.large_list(values), "fixed": pa.list_(values, array.shape[1])}
    return pa.array(list(array), types[kind])


def write(path: Path, batch: int = 30, stream: bool = True, compression: str | None = None, **columns: Any) -> Path:
    table = pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def values(path: Path, column: str) -> list[Any]:
    found = read_column(f"{path}::{column}").values
    return list(found) if isinstance(found, Strings) else found.tolist()


@settings(max_examples=30)
@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 8),
    dtype=st.sampled_from(["f2", "f4", "f8", "u1", "i1"]),
    kind=st.sampled_from(["list", "large", "fixed"]),
    batch=st.integers(1, 70),
    stream=st.booleans(),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    data=st.data(),
)
def test_any_range_of_rows_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    width: int,
    dtype: str,
    kind: str,
    batch: int,
    stream: bool,
    compression: str | None,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("arrow") / "x.arrow"
    array = np.random.default_rng(rows).integers(0, 100, (rows, width)).astype(dtype)
    names = pa.array([f"n{i % 3}" for i in range(rows)]).dictionary_encode()
    write(path, batch, stream, compression, name=names, pixels=[b"x"] * rows, emb=lists(array, kind), id=range(rows))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    source = open_source([str(path)])
    read = source.read(start, stop)
    assert (source.name, source.rows, source.width, source.dtype) == (f"{path}::emb", rows, width, array.dtype)
    assert read.flags.c_contiguous
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array[start:stop])
    assert values(path, "id") == list(range(rows))
    assert values(path, "name") == names.to_pylist()


def test_files_of_feather_are_read(tmp_path: Path) -> None:
    table = pa.table({"emb": lists(X), "label": range(100)})
    for compression in ("lz4", "zstd", "uncompressed"):
        feather.write_feather(table, str(tmp_path / "x.feather"), compression=compression, chunksize=17)
        np.testing.assert_array_equal(open_source([str(tmp_path / "x.feather")]).read(0, 100), X)
        assert values(tmp_path / "x.feather", "label") == list(range(100))


COLUMNS: dict[str, Any] = {
    "none": pa.nulls(8),
    "integers": pa.array([3, None, -1, 0, 1, 2, 3, 4], pa.int16()),
    "unsigned": pa.array([2**64 - 1, 5, None, 0, 1, 2, 3, 4], pa.uint64()),
    "floats": pa.array([3.0, None, 0, 0, 1, 2, 3, 4]),
    "texts": pa.array(["cat", None, "äöü", "", "a", "b", "c", "d"]),
    "large": pa.array(["1", "2", None, "", "3", "4", "5", "6"], pa.large_string()),
    "coded": pa.array(["cat", None, "dog", "cat", "eel", "eel", "", "cat"]).dictionary_encode(),
    "lists": pa.array([[1], [2, 3], None, [], [4, 5, 6], [7], [], [8]], pa.list_(pa.int64())),
    "tags": pa.array([["a"], ["b", "c"], None, [], ["d"], ["e"], [], ["f"]]),
}


@pytest.mark.parametrize("column", sorted(COLUMNS))
@pytest.mark.parametrize("stream", [True, False])
def test_columns_are_those_of_parquet(tmp_path: Path, column: str, stream: bool) -> None:
    # Columns of structs and maps before it have buffers of their own, which are skipped.
    others = {"struct": [{"a": 1, "b": "x"}] * 8, "map": pa.array([[("k", 1)]] * 8, pa.map_(pa.string(), pa.int8()))}
    write(tmp_path / "y.arrow", 3, stream, "zstd", **others, **{column: COLUMNS[column]})
    pq.write_table(pa.table({column: COLUMNS[column]}), tmp_path / "y.parquet")
    found, expected = (read_column(f"{tmp_path / name}::{column}") for name in ("y.arrow", "y.parquet"))
    assert found.per_row == expected.per_row
    assert list(found.values) == list(expected.values)


def test_columns_behind_views_are_read(tmp_path: Path) -> None:
    seen = pa.array(["a rather long text that is not inlined", "b", None, "c"]).cast(pa.string_view())
    write(tmp_path / "y.arrow", 2, text=seen, id=range(4), emb=lists(X[:4]))
    assert values(tmp_path / "y.arrow", "text") == ["a rather long text that is not inlined", "b", "", "c"]
    assert values(tmp_path / "y.arrow", "id") == [0, 1, 2, 3]
    np.testing.assert_array_equal(open_source([str(tmp_path / "y.arrow")]).read(1, 4), X[1:4])


def test_dictionaries_that_are_replaced_or_extended_are_those_of_their_batch(tmp_path: Path) -> None:
    batches = [pa.array(texts).dictionary_encode() for texts in (["a", "b"], ["a", "b", "c"], ["x", "y"])]
    schema = pa.schema({"label": batches[0].type, "emb": pa.list_(pa.float32())})
    for deltas in (False, True):
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.ipc.new_stream(str(tmp_path / "y.arrow"), schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(pa.record_batch([batch, lists(X[: len(batch)])], schema=schema))
        assert values(tmp_path / "y.arrow", "label") == ["a", "b", "a", "b", "c", "x", "y"]
        assert open_source([str(tmp_path / "y.arrow")]).read(0, 7).shape == (7, 6)


def test_only_the_wanted_column_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.arrow", pixels=[b"x" * 100_000] * 90, emb=lists(X[:90]), label=range(90))
    sizes: list[int] = []
    real = ArrowFile._content

    def content(self: ArrowFile, *args: Any) -> Any:
        sizes.append(len(real(self, *args)))
        return real(self, *args)

    monkeypatch.setattr(ArrowFile, "_content", content)
    open_source([str(tmp_path / "x.arrow")]).read(0, 90)
    assert values(tmp_path / "x.arrow", "label") == list(range(90))
    assert max(sizes) < 10_000


def test_each_batch_is_decoded_once_by_sequential_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ArrowSource(ArrowFile(write(tmp_path / "x.arrow", emb=lists(X))), cache=RowGroupCache(limit=0))
    decoded: list[int] = []
    real = ArrowFile.decode

    def decode(self: ArrowFile, column: str, batch: Batch) -> Any:
        decoded.append(batch.rows)
        return real(self, column, batch)

    monkeypatch.setattr(ArrowFile, "decode", decode)
    for start in range(0, 100, 10):
        source.read(start, start + 10)
    assert decoded == [30, 30, 30, 10]


def test_threads_read_at_once(tmp_path: Path) -> None:
    source = ArrowSource(ArrowFile(write(tmp_path / "x.arrow", 7, emb=lists(X))), cache=RowGroupCache(limit=500))
    starts = [*range(0, 90, 3), *range(87, -1, -3)]
    with ThreadPoolExecutor(4) as pool:
        for start, rows in zip(starts, pool.map(lambda s: source.read(s, s + 10), starts), strict=True):
            np.testing.assert_array_equal(rows, X[start : start + 10])


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (None, BadRow, r"x\.arrow::emb, row 65: null, expected a list"),
        ([1, 2, None, 4, 5, 6], BadRow, r"x\.arrow::emb, row 65: value 2 is null"),
        ([1, 2, 3], WidthMismatch, r"x\.arrow::emb, row 65: 3 values, expected 6 as in row 0"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: Any, error: type[Exception], message: str) -> None:
    rows: list[Any] = X.tolist()
    rows[65] = row
    source = open_source([str(write(tmp_path / "x.arrow", emb=pa.array(rows, pa.list_(pa.float32()))))])
    np.testing.assert_array_equal(source.read(0, 60), X[:60])
    with pytest.raises(error, match=message):
        source.read(0, 100)


def test_columns_are_listed_where_the_name_does_not_decide(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", image=lists(X), text=lists(X, "fixed"), label=range(100))
    with pytest.raises(UnreadableSource, match=r"2 candidates.*x\.arrow::image .*x\.arrow::text "):
        open_source([str(file)])
    with pytest.raises(UnreadableSource, match=r"x\.arrow: no 'lable' in it.*x\.arrow::image; .*x\.arrow::label"):
        read_column(f"{file}::lable")
    with pytest.raises(UnreadableSource, match=r"x\.arrow::label: a column of int64, expected lists"):
        open_source([f"{file}::label"])
    with pytest.raises(CountMismatch, match=r"x\.arrow::label: 100 values for 5 rows"):
        read_column(f"{file}::label", rows=5)


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", emb=lists(X[:0]), label=pa.array([], pa.int64()))
    with pytest.raises(UnreadableSource, match=r"x\.arrow::emb: holds no rows"):
        open_source([str(file)])
    with pytest.raises(UnreadableSource, match=r"x\.arrow::label: holds no rows"):
        read_column(f"{file}::label")


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_that_was_cut_short_is_refused_wherever_it_was_cut(tmp_path: Path, stream: bool) -> None:
    content = write(tmp_path / "x.arrow", 40, stream, emb=lists(X)).read_bytes()
    for size in range(0, len(content), 8):
        (tmp_path / "x.arrow").write_bytes(content[:size])
        with pytest.raises(UnreadableSource, match=r"x\.arrow: not readable as Arrow IPC"):
            open_source([str(tmp_path / "x.arrow")])


def test_two_streams_in_one_file_are_not_one(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", emb=lists(X))
    file.write_bytes(2 * file.read_bytes())
    with pytest.raises(UnreadableSource, match=r"x\.arrow: .*bytes follow its end; only one stream"):
        open_source([str(file)])


def test_the_first_version_of_feather_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    with pytest.raises(UnreadableSource, match=r"x\.feather: Feather version 1, expected version 2\. Write it again"):
        open_source([str(tmp_path / "x.feather")])


def test_what_is_no_arrow_file_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x", b"ARROW1", b"ARROW1\0\0" + bytes(30) + b"ARROW1", b"\xff" * 64, bytes(64)):
        (tmp_path / "x.arrow").write_bytes(content)
        with pytest.raises(UnreadableSource, match=r"x\.arrow: not readable as Arrow IPC"):
            open_source([str(tmp_path / "x.arrow")])


def forge(file: Path, before: bytes, after: bytes) -> None:
    """Replaces the first occurrence of some bytes."""
    content = file.read_bytes()
    assert before in content
    file.write_bytes(content.replace(before, after, 1))


def test_a_body_that_promises_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", 100, emb=lists(X[:64], "fixed"))
    # The size of the body, which comes before that of its buffer of as many bytes.
    forge(file, struct.pack("<q", 64 * 6 * 4), struct.pack("<q", 1 << 50))
    with pytest.raises(UnreadableSource, match=r"promises 1,125,899,906,842,624 bytes, but [0-9,]+ follow"):
        open_source([str(file)])


def test_rows_that_are_not_in_the_file_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", emb=lists(X[:29]), label=pa.nulls(29))
    content = file.read_bytes()
    file.write_bytes(content.replace(struct.pack("<q", 29), struct.pack("<q", 1 << 40)))
    with pytest.raises(UnreadableSource, match=r"x\.arrow::emb: not readable as Arrow IPC"):
        open_source([str(file)])
    with pytest.raises(UnreadableSource, match=r"x\.arrow::label: 1,099,511,627,776 nulls in a file of 1,248 bytes"):
        read_column(f"{file}::label")


def test_a_buffer_that_expands_without_bound_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", 100, compression="zstd", emb=lists(np.zeros((100, 600), np.float32), "fixed"))
    forge(file, struct.pack("<q", 240_000), struct.pack("<q", 1 << 45))
    with pytest.raises(UnreadableSource, match=r"x\.arrow::emb: .*bytes that expand to 35,184,372,088,832"):
        open_source([str(file)])


def test_offsets_that_lead_out_of_the_values_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", 100, emb=lists(X[:4]), label=["aa", "bb", "cc", "dd"])
    forge(file, np.arange(0, 30, 6, dtype=np.int32).tobytes(), np.array([0, 6, 12, 18, 1 << 28], np.int32).tobytes())
    with pytest.raises(UnreadableSource, match=r"x\.arrow::emb: not readable as Arrow IPC"):
        open_source([str(file)])
    forge(file, np.arange(0, 10, 2, dtype=np.int32).tobytes(), np.array([0, 2, 1 << 28, 6, 8], np.int32).tobytes())
    with pytest.raises(UnreadableSource, match=r"x\.arrow::label: not readable as Arrow IPC"):
        read_column(f"{file}::label")


def test_names_of_columns_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.arrow", emb=lists(X), longname=range(100))
    forge(file, b"longname", b"long\xff\xfeme")
    with pytest.raises(UnreadableSource, match=r"x\.arrow: not readable as Arrow IPC"):
        open_source([str(file)])


def test_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "y.arrow", label=["aabb", "ccdd"])
    forge(file, b"aabb", b"\xff\xfe\xfd\xfc")
    with pytest.raises(UnreadableSource, match=r"y\.arrow::label: not readable as Arrow IPC"):
        read_column(f"{file}::label")


def test_a_long_text_that_is_stored_once_is_not_repeated_for_all_rows(tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * 200_000]))
    file = write(tmp_path / "y.arrow", 50_000, label=long)
    with pytest.raises(UnreadableSource, match=r"y\.arrow::label: .* bytes of memory or more, in a file of"):
        read_column(str(file))


def test_without_pyarrow_the_message_is_the_line_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "x.arrow", emb=lists(X))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"reading .*x\.arrow needs pyarrow.*pip install 'mmdiff\[files\]'"):
        open_source([str(file)])
