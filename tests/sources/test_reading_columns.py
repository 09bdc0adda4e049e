"""Labels and ids: the same values are read from every format, and ambiguous ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import BadLabels, UnreadableSource
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.storage.strings import Strings


def values(column: Column) -> list[Any]:
    """The values as Python objects, nested if there are several per row."""
    flat: list[Any] = list(column.values) if isinstance(column.values, Strings) else column.values.tolist()
    assert len(flat) == len(column) * column.per_row
    if column.per_row == 1:
        return flat
    return [flat[i : i + column.per_row] for i in range(0, len(flat), column.per_row)]


def as_npy(path: Path, texts: list[str]) -> str:
    np.save(path / "x.npy", np.array(texts, "U"))
    return str(path / "x.npy")


def as_bytes(path: Path, texts: list[str]) -> str:
    np.save(path / "x.npy", np.array([text.encode() for text in texts], "S"))
    return str(path / "x.npy")


def as_txt(path: Path, texts: list[str]) -> str:
    (path / "x.txt").write_text("".join(f"{text}\n" for text in texts))
    return str(path / "x.txt")


def as_csv(path: Path, texts: list[str]) -> str:
    (path / "x.csv").write_text("row,what\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(texts)))
    return f"{path / 'x.csv'}::what"


def as_parquet(path: Path, texts: list[str]) -> str:
    pq.write_table(pa.table({"what": [text or None for text in texts]}), path / "x.parquet", row_group_size=3)
    return f"{path / 'x.parquet'}::what"


def as_dictionary(path: Path, texts: list[str]) -> str:
    pq.write_table(pa.table({"what": pa.array(texts).dictionary_encode()}), path / "x.parquet")
    return f"{path / 'x.parquet'}::what"


WRITERS = [as_npy, as_bytes, as_txt, as_csv, as_parquet, as_dictionary]

INTEGERS = st.integers(-(10**18) + 1, 10**18 - 1).map(str)
WORDS = st.sampled_from(
    ["", "0", "-1", "7", "-7", "007", "+7", "-0", "-", "1-2", "a", "ä", "日本", "🙂", "10" * 10, "n01440764"]
)


@pytest.mark.parametrize("write", WRITERS)
@settings(deadline=None, max_examples=25)
@given(texts=st.one_of(st.lists(INTEGERS | st.just(""), min_size=1), st.lists(WORDS, min_size=1)))
def test_the_same_values_are_read_from_every_kind_of_file(
    tmp_path_factory: pytest.TempPathFactory, write: Any, texts: list[str]
) -> None:
    def is_integer(text: str) -> bool:
        try:
            return len(text.lstrip("-")) <= 18 and str(int(text)) == text
        except ValueError:
            return False

    column = read_column(write(tmp_path_factory.mktemp("column"), texts))
    if all(is_integer(text) for text in texts if text):
        assert isinstance(column.values, np.ndarray)
        assert column.values.dtype == np.int64
        assert values(column) == [int(text) if text else -1 for text in texts]
    else:
        assert values(column) == texts


@pytest.mark.parametrize("dtype", ["i1", "<i2", ">i4", "i8", ">i8", "u1", "u2", "u4", "u8"])
def test_integers_of_any_width(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "x.npy", np.array([3, 0, 100], dtype))
    column = read_column(str(tmp_path / "x.npy"))
    assert isinstance(column.values, np.ndarray)
    assert column.values.dtype == np.int64
    assert values(column) == [3, 0, 100]


def test_values_below_minus_one_are_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([-5, -1, 2]))
    assert values(read_column(str(tmp_path / "x.npy"))) == [-5, -1, 2]


def test_unsigned_hashes_beyond_int64_stay_exact_as_strings(tmp_path: Path) -> None:
    hashes = np.array([2**64 - 1, 5], np.uint64)
    np.save(tmp_path / "x.npy", hashes)
    pq.write_table(pa.table({"id": hashes}), tmp_path / "x.parquet")
    pq.write_table(pa.table({"id": pa.array([2**64 - 1, None], pa.uint64())}), tmp_path / "n.parquet")
    assert values(read_column(str(tmp_path / "x.npy"))) == ["18446744073709551615", "5"]
    assert values(read_column(str(tmp_path / "x.parquet"))) == ["18446744073709551615", "5"]
    assert values(read_column(str(tmp_path / "n.parquet"))) == ["18446744073709551615", ""]


@pytest.mark.parametrize("order", ["C", "F"])
def test_two_dimensions_are_several_labels_per_row(tmp_path: Path, order: Any) -> None:
    np.save(tmp_path / "x.npy", np.asarray([[1, 2], [3, -1], [5, 6]], order=order))
    column = read_column(str(tmp_path / "x.npy"))
    assert (len(column), column.per_row) == (3, 2)
    assert values(column) == [[1, 2], [3, -1], [5, 6]]


def test_whole_floats_are_integers_and_nan_is_none(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([3.0, np.nan, 0.0], "f4"))
    pq.write_table(pa.table({"label": pa.array([3.0, None, float("nan")])}), tmp_path / "x.parquet")
    assert values(read_column(str(tmp_path / "x.npy"))) == [3, -1, 0]
    assert values(read_column(str(tmp_path / "x.parquet"))) == [3, -1, -1]


@pytest.mark.parametrize("bad", [2.5, np.inf, 1e300])
def test_other_floats_are_refused(tmp_path: Path, bad: float) -> None:
    np.save(tmp_path / "x.npy", np.array([3.0, bad]))
    with pytest.raises(BadLabels, match=r"x\.npy, value 1: found .*expected a whole number"):
        read_column(str(tmp_path / "x.npy"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([{}], object), r"holds Python objects \(a pickle\)"),
        (np.array([True]), r"type bool, expected integers or strings"),
        (np.zeros((2, 2, 2), int), r"3 dimensions"),
        (np.array(5), r"0 dimensions"),
        (np.zeros(0, int), r"holds no rows"),
        (np.zeros((3, 0), int), r"holds no rows"),
        (np.array([b"ok", b"\xff"]), r"rows 0 to 2: text that is not valid Unicode"),
        (np.array([b"\xc3", b"\xa4"]), r"a string starts within a character"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: np.ndarray[Any, Any], message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UnreadableSource, match=r"x\.npy.*" + message):
        read_column(str(tmp_path / "x.npy"))


def test_strings_are_converted_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.formats.sources.columns.npy.BLOCK_BYTES", 100)
    texts = [f"{i}-ö" for i in range(50)]
    assert values(read_column(as_npy(tmp_path, texts))) == texts


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("1\r\n2\r\n", [1, 2]),
        ("1\n\n3\n\n", [1, -1, 3, -1]),
        ("a\n\n", ["a", ""]),
        ("\ufeff1\n 2 \n", [1, 2]),
        ("a\u2028b\nc", ["a\u2028b", "c"]),
        ("label\n1\n", ["label", "1"]),
        ("\n", [-1]),
    ],
)
def test_text_has_one_value_per_line(tmp_path: Path, content: str, expected: list[Any]) -> None:
    (tmp_path / "x.txt").write_bytes(content.encode())
    assert values(read_column(str(tmp_path / "x.txt"))) == expected


@pytest.mark.parametrize(
    ("content", "inner", "expected"),
    [
        ("label\n1\n2\n", "", [1, 2]),
        ("Label\r\n1\r\n\r\n", "", [1, -1]),
        ("1\n2\n", "", [1, 2]),
        ("cat\ndog\n", "", ["cat", "dog"]),
        ("name\ncat\n", "", ["cat"]),
        ("kind\ncat\n", "::kind", ["cat"]),
        ("path,label\na.jpg,3\nb.jpg,\n", "", [3, -1]),
        ("path,label\na.jpg,3\nb.jpg,\n", "::path", ["a.jpg", "b.jpg"]),
        ('path,Class\n"a,b.jpg","x ""y"""\n', "", ['x "y"']),
        ('id,note\n7,"two\nlines"\n', "::note", ["two\nlines"]),
    ],
)
def test_csv_columns(tmp_path: Path, content: str, inner: str, expected: list[Any]) -> None:
    (tmp_path / "x.csv").write_bytes(content.encode())
    assert values(read_column(f"{tmp_path / 'x.csv'}{inner}")) == expected


@pytest.mark.parametrize(
    ("content", "inner", "message"),
    [
        ("a,b\n1,2\n", "", r"x\.csv: there is not a column named label.*found a, b"),
        ("id,label\n1,2\n", "", r"2 candidates.*x\.csv::id; .*x\.csv::label"),
        ("id,label\n1,2\n", "::klass", r"no 'klass' in it.*x\.csv::id"),
        ("id,b\n1,2\n3\n", "", r"x\.csv, line 3: 1 cells, expected 2"),
        ("id,b\n1,2\n\n", "", r"x\.csv, line 3: 1 cells, expected 2"),
        ('id\n"open', "", r"x\.csv, line 2: not readable as CSV"),
        ("id,id\n1,2\n", "::id", r"x\.csv: 2 columns are named 'id'"),
        ("", "", r"x\.csv: holds no rows"),
        ("label\n", "", r"x\.csv: holds no rows"),
    ],
)
def test_csv_that_is_unclear_is_refused(tmp_path: Path, content: str, inner: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(UnreadableSource, match=message):
        read_column(f"{tmp_path / 'x.csv'}{inner}")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"abc\n\xe4\n")
    with pytest.raises(UnreadableSource, match=r"x\.txt: byte 4 is not UTF-8"):
        read_column(str(tmp_path / "x.txt"))


@pytest.mark.parametrize("name", ["x.pt", "x"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnreadableSource, match=r"x.*read from \.npy, \.txt, \.csv, \.parquet, \.arrow"):
        read_column(str(tmp_path / name))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSource, match=r"none\.txt: no such file"):
        read_column(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([[1, 2], [], None, [3]]), [[1, 2], [-1, -1], [-1, -1], [3, -1]]),
        (pa.array([["a", "bc"], [], None, [None, "d"]]), [["a", "bc"], ["", ""], ["", ""], ["", "d"]]),
        (pa.array([["1"], ["2", "30"]]), [[1, -1], [2, 30]]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], [-1, -1]]),
        (pa.array([[], None], pa.list_(pa.int32())), [-1, -1]),
        (pa.array([5, None], pa.uint16()), [5, -1]),
        (pa.array([None, None]), [-1, -1]),
        (pa.array(["a", None], pa.large_string()), ["a", ""]),
        (pa.array([7, 7, None]).dictionary_encode(), [7, 7, -1]),
    ],
)
def test_parquet_columns(tmp_path: Path, array: Any, expected: list[Any]) -> None:
    pq.write_table(pa.table({"label": array, "other": range(len(array))}), tmp_path / "x.parquet", row_group_size=2)
    assert values(read_column(str(tmp_path / "x.parquet"))) == expected


def test_other_parquet_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [True, False]}), tmp_path / "x.parquet")
    with pytest.raises(UnreadableSource, match=r"x\.parquet::label: a column of bool, expected integers or strings"):
        read_column(str(tmp_path / "x.parquet"))


def test_empty_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": pa.array([], pa.int64())}), tmp_path / "x.parquet")
    with pytest.raises(UnreadableSource, match=r"x\.parquet::label: holds no rows"):
        read_column(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_million_labels_are_read_as_written(tmp_path: Path, ending: str) -> None:
    labels = np.arange(1_000_000) % 1000
    names = np.char.add("n", labels.astype("U4"))
    if ending == "npy":
        np.save(tmp_path / "label.npy", labels)
        np.save(tmp_path / "name.npy", names)
        specs = [str(tmp_path / "label.npy"), str(tmp_path / "name.npy")]
    else:
        pq.write_table(pa.table({"label": labels, "name": names}), tmp_path / "x.parquet")
        specs = [f"{tmp_path / 'x.parquet'}::label", f"{tmp_path / 'x.parquet'}::name"]
    columns = [read_column(spec) for spec in specs]
    assert isinstance(columns[0].values, np.ndarray)
    np.testing.assert_array_equal(columns[0].values, labels)
    assert columns[1].values[999_999] == "n999"


def test_a_dictionary_of_bytes_is_no_column_of_texts(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array([b"a", b"b"]))
    pq.write_table(pa.table({"label": values}), tmp_path / "y.parquet")
    with pytest.raises(UnreadableSource, match=r"y\.parquet::label: a column of binary, expected integers or strings"):
        read_column(str(tmp_path / "y.parquet"))
