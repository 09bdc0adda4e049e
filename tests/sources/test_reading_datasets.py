"""Folders as `save_to_disk` of the library datasets writes them: several parts as one table, with class names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mmdiff.formats.errors import BadLabels, CountMismatch, UnreadableSource, WidthMismatch
from mmdiff.formats.sources.columns.files import find_column
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.opening import open_source

X = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
CLASS_LABEL = {"names": ["cat", "dog", "eel"], "_type": "ClassLabel"}
FEATURES: dict[str, Any] = {
    "id": {"dtype": "string", "_type": "Value"},
    "emb": {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"},
    "label": CLASS_LABEL,
    "tags": {"feature": CLASS_LABEL, "_type": "Sequence"},
    "old": [CLASS_LABEL],
}


def save(folder: Path, parts: int = 3, width: int = 6, features: Any = FEATURES, state: Any = None) -> Path:
    """A dataset in equal parts, of which one more has no rows."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(50)
    table = pa.table(
        {
            "id": [f"p{i}" for i in numbers],
            "emb": pa.array(list(X[:, :width]), pa.list_(pa.float32())),
            "label": pa.array(numbers % 4 - 1, pa.int64()),
            "tags": pa.array([list(range(i % 3)) for i in numbers], pa.list_(pa.int64())),
            "old": pa.array([[i % 3] for i in numbers], pa.list_(pa.int64())),
        }
    )
    names = []
    for part, rows in enumerate([*np.array_split(numbers, parts), numbers[:0]]):
        names.append(f"data-{part:05d}-of-{parts + 1:05d}.arrow")
        with pa.ipc.new_stream(str(folder / names[-1]), table.schema) as writer:
            writer.write_table(table.take(rows), max_chunksize=10)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"} if state is None else state
    (folder / "state.json").write_text(json.dumps(state))
    if features is not None:
        (folder / "dataset_info.json").write_text(json.dumps({"features": features, "license": ""}))
    return folder


def test_all_parts_are_one_source(tmp_path: Path) -> None:
    source = open_source([str(save(tmp_path / "photos"))])
    assert (source.name, source.rows, source.width) == (f"{tmp_path / 'photos'}::emb", 50, 6)
    np.testing.assert_array_equal(source.read(0, 50), X)
    np.testing.assert_array_equal(source.read(11, 41), X[11:41])
    assert source.locate(20) == f"{tmp_path / 'photos'}/data-00001-of-00004.arrow::emb, row 3"
    assert {file.name for file in source.files} >= {"state.json", "dataset_info.json", "data-00003-of-00004.arrow"}


def test_columns_of_all_parts_are_one(tmp_path: Path) -> None:
    folder = save(tmp_path / "photos")
    assert list(read_column(f"{folder}::id").values) == [f"p{i}" for i in range(50)]
    assert np.asarray(read_column(f"{folder}::label").values).tolist() == [i % 4 - 1 for i in range(50)]
    tags = read_column(f"{folder}::tags")
    assert tags.per_row == 2
    assert np.asarray(tags.values).reshape(-1, 2)[:3].tolist() == [[-1, -1], [0, -1], [0, 1]]
    with pytest.raises(CountMismatch, match=r"photos: 50 rows, but 7 embeddings"):
        read_column(f"{folder}::label", rows=7)
    with pytest.raises(UnreadableSource, match=r"photos: no 'lable' in it(?=.*photos::id)(?=.*photos::label)"):
        read_column(f"{folder}::lable")


@pytest.mark.parametrize("column", ["label", "tags", "old"])
def test_class_labels_have_names(tmp_path: Path, column: str) -> None:
    names = find_column(column, [str(save(tmp_path / "photos"))]).class_names()
    assert names == {0: "cat", 1: "dog", 2: "eel"}


def test_other_columns_have_no_class_names(tmp_path: Path) -> None:
    assert find_column("id", [str(save(tmp_path / "a"))]).class_names() is None
    assert find_column("label", [str(save(tmp_path / "b", features=None))]).class_names() is None


def test_folders_with_other_class_names_are_not_one(tmp_path: Path) -> None:
    folders = [
        str(save(tmp_path / "a")),
        str(save(tmp_path / "b", features={"label": {**CLASS_LABEL, "names": ["dog", "cat"]}})),
    ]
    with pytest.raises(BadLabels, match=r"b::label: class 0 is called 'dog' here, but 'cat' in a folder before it"):
        find_column("label", folders).class_names()


def test_a_folder_of_splits_is_its_only_split(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    save(tmp_path / "all" / "train")
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    np.testing.assert_array_equal(open_source([str(tmp_path / "all")]).read(0, 50), X)
    save(tmp_path / "all" / "test")
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test", "../all/train", ".."]}')
    with pytest.raises(UnreadableSource, match=r"all: a dataset of 2 splits\. Name one: .*all/train, .*all/test\."):
        open_source([str(tmp_path / "all")])
    (tmp_path / "all" / "dataset_dict.json").write_text("{}")
    with pytest.raises(UnreadableSource, match=r"all: a dataset of 0 splits\. Save it again"):
        open_source([str(tmp_path / "all")])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], r"state\.json: found \[\], expected an object"),
        ({}, r"state\.json: names no data files"),
        ({"_data_files": []}, r"state\.json: names no data files"),
        ({"_data_files": [{"filename": "../secret.arrow"}]}, r"found '\.\./secret\.arrow', expected the name of a file in"),
        ({"_data_files": [{"filename": ".."}]}, r"found '\.\.', expected the name of a file in"),
        ({"_data_files": [{"filename": "\ud800.arrow"}]}, r"expected the name of a file in the same folder"),
        ({"_data_files": [{}]}, r"found None, expected the name of a file"),
        ({"_data_files": [7]}, r"found 7, expected the name of a file"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, r"gone\.arrow: no such file"),
        ({"_data_files": [{"filename": "data-00003-of-00004.arrow"}]}, r"photos: holds no rows"),
        (
            {"_data_files": [{"filename": "data-00000-of-00004.arrow"}], "_indices_data_files": [{"filename": "i.arrow"}]},
            r"a selection of rows from other files\. Save the rows themselves: flatten_indices\(\)",
        ),
    ],
)
def test_a_damaged_state_is_refused(tmp_path: Path, state: Any, message: str) -> None:
    folder = save(tmp_path / "photos", state=state)
    for read in (lambda: open_source([str(folder)]), lambda: read_column(f"{folder}::label")):
        with pytest.raises(UnreadableSource, match=message):
            read()


def test_damaged_class_names_are_refused(tmp_path: Path) -> None:
    for names in (None, [], "cat", ["cat", 7]):
        folder = save(tmp_path / "photos", features={"label": {"names": names, "_type": "ClassLabel"}})
        with pytest.raises(UnreadableSource, match=r"dataset_info\.json: the class names of label are .*, expected a list"):
            find_column("label", [str(folder)]).class_names()


def test_a_part_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "photos")
    part = folder / "data-00001-of-00004.arrow"
    part.write_bytes(part.read_bytes()[:-8])
    with pytest.raises(
        UnreadableSource, match=r"data-00001-of-00004\.arrow: .*the mark of its end is missing: it was cut short"
    ):
        open_source([str(folder)])


def test_parts_of_other_width_are_named(tmp_path: Path) -> None:
    folder, other = save(tmp_path / "photos"), save(tmp_path / "other", width=4)
    name = "data-00001-of-00004.arrow"
    (folder / name).write_bytes((other / name).read_bytes())
    with pytest.raises(WidthMismatch, match=rf"{name}::emb has rows of 4 values, but .*data-00000-of-00004\.arrow::emb of 6"):
        open_source([str(folder)])
