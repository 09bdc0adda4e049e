"""`open_source`: endings, patterns, several files as one, clip-retrieval folders, and its messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import BadOption, CountMismatch, InputError, MissingExtra, UnreadableSource, WidthMismatch
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.many import Concatenated, concatenate_columns
from mmdiff.formats.sources.npy import NpySource
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.storage.strings import Strings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def part(number: int, rows: int = 3, width: int = 4, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.full((rows, width), number, dtype)


def texts(source: Source) -> list[str]:
    column = source.ids()
    assert column is not None
    assert isinstance(column.values, Strings)
    return list(column.values)


def test_a_pattern_is_taken_in_numeric_order(here: Path) -> None:
    for number in range(12):
        np.save(here / f"part_{number}.npy", part(number))
    source = open_source(["part_*.npy"])
    assert source.read(0, 36)[::3, 0].tolist() == list(range(12))
    assert [file.name for file in source.files] == [f"part_{number}.npy" for number in range(12)]
    assert source.locate(32) == "part_10.npy, row 2"
    assert source.name == "part_0.npy ... part_11.npy (12 parts)"
    assert source.ids() is None


def test_several_specs_keep_the_order_given(here: Path) -> None:
    for number in range(4):
        np.save(here / f"{number}.npy", part(number, rows=1))
    assert open_source(["3.npy", "[0-1].npy", "2.npy"]).read(0, 4)[:, 0].tolist() == [3, 0, 1, 2]


def test_a_pattern_may_name_what_is_inside(here: Path) -> None:
    for number in (2, 10):
        pq.write_table(pa.table({"a": list(part(number)), "b": list(part(-number))}), here / f"{number}.parquet")
    source = open_source(["*.parquet::b"])
    assert source.read(0, 6)[:, 0].tolist() == [-2, -2, -2, -10, -10, -10]


@pytest.mark.parametrize("name", ["odd[1].npy", "a::b.npy", "c:d.npy", "what?.npy"])
def test_a_path_that_exists_is_no_pattern(here: Path, name: str) -> None:
    np.save(here / name, part(1))
    np.save(here / "odd1.npy", part(2))
    source = open_source([name])
    assert source.name == name
    assert source.read(0, 1)[0, 0] == 1


def test_colons_in_paths_do_not_break_the_inner_name(here: Path) -> None:
    (here / "run::3 12:30").mkdir()
    pq.write_table(pa.table({"a": list(part(1)), "b::c": list(part(2))}), here / "run::3 12:30" / "x.parquet")
    assert open_source(["run::3 12:30/x.parquet::b::c"]).read(0, 1)[0, 0] == 2
    assert open_source(["run::3 12:30/*.parquet::a"]).read(0, 1)[0, 0] == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("none.npy", r"none\.npy: no such file or folder.*current folder is"),
        ("none.h5::emb", r"none\.h5: no such file or folder"),
        ("none*.npy", r"none\*\.npy: nothing matches this pattern"),
        ("x.pt", r"x\.pt: the ending \.pt is not one of .*\.npy, \.fvecs, .*\.h5::dataset.*\.parquet::column, .*zarr"),
        ("x", r"x: a file without ending is not one of"),
        ("folder", r"folder: a folder that is neither a zarr .*'folder/\*\.npy'"),
        ("x.npy::emb", r"x\.npy: holds one array, so there is no 'emb'"),
    ],
)
def test_what_cannot_be_opened_is_said(here: Path, spec: str, message: str) -> None:
    (here / "folder").mkdir()
    for name in ("x", "x.pt", "x.npy"):
        (here / name).touch()
    with pytest.raises(InputError, match=message):
        open_source([spec])


def test_no_spec_at_all_is_refused() -> None:
    with pytest.raises(BadOption):
        open_source([])


@settings(deadline=None, max_examples=22)
@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6), data=st.data())
def test_reads_across_parts_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    whole = np.random.default_rng(len(sizes)).standard_normal((sum(sizes), 3)).astype(np.float32)
    for number, rows in enumerate(np.split(whole, np.cumsum(sizes)[:-1])):
        np.save(folder / f"{number}.npy", rows)
    source = open_source([str(folder / "*.npy")])
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    np.testing.assert_array_equal(source.read(start, stop), whole[start:stop])


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [("f2 f2", "f2"), ("u1 u1", "u1"), ("f2 f4", "f4"), ("u1 i1", "f4"), ("u1 f8", "f8"), ("f4 f8 f2", "f8")],
)
def test_mixed_dtypes_become_floats(here: Path, dtypes: str, expected: str) -> None:
    for number, dtype in enumerate(dtypes.split()):
        np.save(here / f"{number}.npy", part(number, dtype=dtype))
    source = open_source(["*.npy"])
    assert source.dtype == np.dtype(expected)
    assert source.read(0, 2).dtype == source.read(2, 4).dtype == source.dtype


def test_parts_of_another_width_are_named(here: Path) -> None:
    np.save(here / "a.npy", part(0, width=4))
    np.save(here / "b.npy", part(0, width=5))
    with pytest.raises(WidthMismatch, match=r"b\.npy has rows of 5 values, but a\.npy of 4"):
        open_source(["a.npy", "b.npy"])


def clip_folder(folder: Path, flat: bool, parts: int = 11, column: str | None = "image_path") -> None:
    for number in range(parts):
        embeddings, metadata = (folder, folder) if flat else (folder / "img_emb", folder / "metadata")
        embeddings.mkdir(exist_ok=True, parents=True)
        np.save(embeddings / f"img_emb_{number}.npy", part(number, dtype="f2"))
        if column is not None:
            metadata.mkdir(exist_ok=True)
            names = [f"{number}/{row}.jpg" for row in range(3)]
            pq.write_table(pa.table({column: names, "caption": ["x"] * 3}), metadata / f"metadata_{number}.parquet")


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("column", ["image_path", "key", "url"])
def test_a_clip_folder_is_read_in_numeric_order_with_its_ids(here: Path, flat: bool, column: str) -> None:
    clip_folder(here / "clip", flat, column=column)
    source = open_source(["clip"])
    assert (source.name, source.rows, source.width, source.dtype) == ("clip", 33, 4, np.dtype("f2"))
    assert source.read(0, 33)[::3, 0].tolist() == list(range(11))
    assert texts(source) == [f"{number}/{row}.jpg" for number in range(11) for row in range(3)]
    assert source.locate(31).endswith("img_emb_10.npy, row 1")
    assert len(source.files) == 22


@pytest.mark.parametrize("column", [None, "caption_only"])
def test_a_clip_folder_without_ids_has_none(here: Path, column: str | None) -> None:
    clip_folder(here / "clip", False, column=column)
    assert open_source(["clip"]).ids() is None


def test_a_part_whose_metadata_differ_in_number_is_named(here: Path) -> None:
    clip_folder(here / "clip", False)
    pq.write_table(pa.table({"image_path": ["one"]}), here / "clip/metadata/metadata_7.parquet")
    with pytest.raises(CountMismatch, match=r"img_emb_7\.npy has 3 rows, but .*metadata_7\.parquet has 1"):
        open_source(["clip"])


@pytest.mark.parametrize("missing", ["img_emb_2.npy", "img_emb_0.npy", "metadata_10.parquet", "img_emb_10.npy"])
def test_a_missing_part_is_named(here: Path, missing: str) -> None:
    clip_folder(here / "clip", True)
    (here / "clip" / missing).unlink()
    with pytest.raises(UnreadableSource, match=rf"clip: {missing} is missing \(10 of 11"):
        open_source(["clip"])


def test_two_files_for_one_part_are_refused(here: Path) -> None:
    clip_folder(here / "clip", True)
    np.save(here / "clip/img_emb_03.npy", part(3))
    with pytest.raises(UnreadableSource, match=r"img_emb_03\.npy and img_emb_3\.npy are both part 3"):
        open_source(["clip"])


def test_clip_metadata_need_pyarrow(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip_folder(here / "with", True)
    clip_folder(here / "without", True, column=None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert open_source(["without"]).rows == 33
    with pytest.raises(MissingExtra, match=r"pip install 'mmdiff\[files\]'"):
        open_source(["with"])


def test_ids_are_joined_if_all_parts_have_them(here: Path) -> None:
    clip_folder(here / "a", True, parts=1)
    clip_folder(here / "b", False, parts=2)
    assert texts(open_source(["b", "a"])) == [f"{p}/{row}.jpg" for p in (0, 1, 0) for row in range(3)]
    np.save(here / "c.npy", part(0, dtype="f2"))
    assert open_source(["a", "c.npy"]).ids() is None


def test_numbers_and_strings_join_as_strings() -> None:
    from mmdiff.formats.sources.base import Column

    joined = concatenate_columns([Column(np.array([5, -1, -7])), Column(Strings.of(["a", ""]))], "ids")
    assert isinstance(joined.values, Strings)
    assert list(joined.values) == ["5", "", "-7", "a", ""]
    integers = concatenate_columns([Column(np.array([5])), Column(np.array([-1]))], "ids").values
    assert isinstance(integers, np.ndarray)
    assert integers.tolist() == [5, -1]


def test_every_reader_is_a_source(here: Path) -> None:
    np.save(here / "x.npy", part(0))
    sources: list[Source] = [NpySource(Path("x.npy")), Concatenated([NpySource(Path("x.npy"))])]
    assert [source.name for source in sources] == ["x.npy", "x.npy"]


def test_opening_sources_imports_neither_pyarrow_nor_h5py_nor_zarr() -> None:
    code = (
        "import sys, mmdiff.formats.sources.opening, mmdiff.formats.sources.columns.reading\n"
        "sys.exit(' '.join({'pyarrow', 'h5py', 'zarr', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr.strip() == ""
