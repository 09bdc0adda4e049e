"""Rows that arrive later: appended in the space of the background, with new ids and shared chunks, and only once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.formats.errors import (
    BadLabels,
    BadOption,
    CountMismatch,
    Damaged,
    DuplicateIds,
    Missing,
    MmdiffError,
    WidthMismatch,
)
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing.appending import AppendOutcome, append_descriptors
from mmdiff.importing.batches import RowColumns, batches_of
from mmdiff.importing.stage import import_descriptors
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.collection import Collection, appended_rows
from mmdiff.labels.ids import ids_of
from tests.support.stores import (
    SMALL_CHUNKS,
    Inputs,
    chunks_of,
    interrupted_after_first_chunk,
    make_inputs,
    problems,
    tree,
)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """600 rows of 12 values, and parts of others as files of their own."""
    made = make_inputs(tmp_path / "inputs")
    others = np.load(made.folder / "others.npy")
    for name, rows in {"a.npy": others[:300], "b.npy": others[300:380], "c.npy": others[380:]}.items():
        np.save(made.folder / name, rows)
    return made


def start(path: Path, inputs: Inputs, **more: Any) -> Artifact:
    with chunks_of(SMALL_CHUNKS):
        return import_descriptors(path, inputs.request(**more)).artifact


def append(path: Path, inputs: Inputs, name: str, dtype: str | None = None, **more: Any) -> AppendOutcome:
    with chunks_of(SMALL_CHUNKS):
        return append_descriptors(path, inputs.request(name=name, **more), dtype)


def numbers(file: Path, values: Any) -> str:
    np.save(file, np.asarray(values))
    return str(file)


def lines(file: Path, values: Any) -> str:
    file.write_text("".join(f"{value}\n" for value in values))
    return str(file)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_appended_rows_are_those_of_one_import_in_the_space_of_the_background(
    tmp_path: Path, inputs: Inputs, dtype: str
) -> None:
    """The PCA of the store is that of the background: test points are projected by it too."""
    start(tmp_path / "store", inputs, dtype=dtype, keep_raw=True)
    pca = Store.open(tmp_path / "store").id("models/pca")
    for name in ("a.npy", "b.npy", "c.npy"):
        made = append(tmp_path / "store", inputs, name)
    with chunks_of(SMALL_CHUNKS):
        expected = import_descriptors(tmp_path / "store", inputs.request("test", "others.npy", dtype=dtype)).artifact
    appended = made.artifact
    assert appended.array("vectors").dtype == dtype
    np.testing.assert_allclose(appended.array("vectors"), expected.array("vectors"), atol=1e-3 if dtype == "float16" else 1e-6)
    np.testing.assert_array_equal(appended.array("raw"), expected.array("raw"))
    assert Store.open(tmp_path / "store").id("models/pca") == pca
    assert (made.added, appended.facts["rows"], made.summary()["shape"]) == (220, 600, [600, 8])
    assert problems(Store.open(tmp_path / "store")) == []


def test_full_chunks_of_earlier_appends_are_shared(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs)
    first = append(tmp_path / "store", inputs, "a.npy").artifact
    second = append(tmp_path / "store", inputs, "c.npy").artifact
    # 256 rows of 8 float32 are a chunk.
    for artifact, expected in ((first, [2, 1]), (second, [2, 1, 1])):
        assert [file.stat().st_nlink for file in sorted((artifact.folder / "vectors").glob("c.*"))] == expected
    assert problems(Store.open(tmp_path / "store")) == []
    assert mmdiff.open(tmp_path / "store").gc()["removed"]
    assert Store.open(tmp_path / "store").names() == ["descriptors/appended", "descriptors/background", "models/pca"]
    assert problems(Store.open(tmp_path / "store")) == []


def test_interrupted_append_gives_the_same_bytes(tmp_path: Path, inputs: Inputs) -> None:
    for place in ("store", "other"):
        start(tmp_path / place, inputs)
        append(tmp_path / place, inputs, "a.npy")
    with pytest.raises(KeyboardInterrupt), chunks_of(SMALL_CHUNKS):
        append_descriptors(tmp_path / "store", inputs.request(name="c.npy"), None, interrupted_after_first_chunk)
    assert appended_rows(Store.open(tmp_path / "store")) is not None
    append(tmp_path / "store", inputs, "c.npy")
    append(tmp_path / "other", inputs, "c.npy")
    assert tree(tmp_path / "store", with_runs=False) == tree(tmp_path / "other", with_runs=False)


def test_an_append_is_done_once(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs)
    append(tmp_path / "store", inputs, "a.npy")
    append(tmp_path / "store", inputs, "b.npy")
    before = tree(tmp_path / "store")
    for name in ("a.npy", "b.npy"):
        again = append(tmp_path / "store", inputs, name)
        assert (again.reused, again.added) == (True, 0)
        assert again.notes == [f"{inputs.folder / name}: its rows are in descriptors/appended already."]
    known = append(tmp_path / "store", inputs, "vectors.npy")
    assert (known.reused, known.artifact.name) == (True, "descriptors/background")
    with pytest.raises(BadOption, match=r"a\.npy: its rows are in descriptors/appended already, with other labels"):
        append(tmp_path / "store", inputs, "a.npy", labels=numbers(tmp_path / "l.npy", np.zeros(300, int)))
    np.save(inputs.folder / "a.npy", np.load(inputs.folder / "a.npy"))
    with pytest.raises(
        BadOption, match=r"a\.npy: has the name and size of a file whose rows are in descriptors/appended already"
    ):
        append(tmp_path / "store", inputs, "a.npy")
    assert tree(tmp_path / "store") == before


def test_damaged_appended_rows_are_made_again_by_the_recorded_commands(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs)
    append(tmp_path / "store", inputs, "a.npy", command="append a")
    whole = append(tmp_path / "store", inputs, "c.npy", command="append c").artifact
    chunk = whole.folder / "vectors" / "c.0.0"
    content = bytearray(chunk.read_bytes())
    content[9] ^= 1
    chunk.write_bytes(content)
    assert whole.remedy == "Run again: append a; then append c"
    with pytest.raises(Damaged, match="append a; then append c"):
        append(tmp_path / "store", inputs, "b.npy")
    append(tmp_path / "store", inputs, "a.npy", command="append a")
    again = append(tmp_path / "store", inputs, "c.npy", command="append c").artifact
    assert again.id == whole.id
    assert problems(Store.open(tmp_path / "store")) == []


def test_row_numbers_go_on(tmp_path: Path, inputs: Inputs) -> None:
    """Rows that are dropped keep their numbers, too."""
    rows = np.load(inputs.folder / "b.npy")
    rows[[3, 70]] = 0
    np.save(inputs.folder / "b.npy", rows)
    start(tmp_path / "store", inputs)
    append(tmp_path / "store", inputs, "b.npy", on_bad="drop")
    last = append(tmp_path / "store", inputs, "a.npy").artifact
    expected = [*(600 + row for row in range(80) if row not in (3, 70)), *range(680, 980)]
    np.testing.assert_array_equal(last.array("ids"), expected)
    np.testing.assert_array_equal(last.array("dropped_ids"), [603, 670])
    assert last.facts["dropped"] == {"not_finite": 0, "all_zero": 2}
    collection = Collection.of(Store.open(tmp_path / "store"))
    assert collection.rows == 978
    np.testing.assert_array_equal(collection.ids(0, 978), [*range(600), *expected])
    np.testing.assert_array_equal(collection.ids(598, 602), [598, 599, 600, 601])


def test_row_numbers_go_on_after_a_background_with_bad_rows(tmp_path: Path, inputs: Inputs) -> None:
    rows = np.load(inputs.folder / "vectors.npy")
    rows[5] = np.nan
    np.save(inputs.folder / "vectors.npy", rows)
    start(tmp_path / "store", inputs, on_bad="drop")
    np.testing.assert_array_equal(append(tmp_path / "store", inputs, "b.npy").artifact.array("ids"), np.arange(600, 680))


@pytest.mark.parametrize("strings", [True, False])
def test_appended_ids_must_be_new(tmp_path: Path, inputs: Inputs, strings: bool) -> None:
    def given_ids(first: int, count: int) -> str:
        values = [f"row-{i}" if strings else i for i in range(first, first + count)]
        return lines(tmp_path / f"ids-{first}.txt", values)

    start(tmp_path / "store", inputs, ids=given_ids(1000, 600))
    append(tmp_path / "store", inputs, "b.npy", ids=given_ids(5000, 80))
    before = tree(tmp_path / "store")
    shown = "row-" if strings else ""
    message = rf"ids-1590\.txt, row 0: the id {shown}1590 is that of row 590 of descriptors/background\. Appended rows need"
    with pytest.raises(DuplicateIds, match=message):
        append(tmp_path / "store", inputs, "a.npy", ids=given_ids(1590, 300))
    message = rf"ids-4990\.txt, row 10: the id {shown}5000 is that of row 0 of descriptors/appended\."
    with pytest.raises(DuplicateIds, match=message):
        append(tmp_path / "store", inputs, "a.npy", ids=given_ids(4990, 300))
    with pytest.raises(CountMismatch, match=r"a\.npy: no ids, but the rows of descriptors/background have some\. Give one"):
        append(tmp_path / "store", inputs, "a.npy")
    if not strings:
        names = lines(tmp_path / "names.txt", [f"x{i}" for i in range(300)])
        with pytest.raises(CountMismatch, match=r"names\.txt: ids that are names, but those of .* are numbers\. Use numbers"):
            append(tmp_path / "store", inputs, "a.npy", ids=names)
    assert tree(tmp_path / "store") == before
    made = append(tmp_path / "store", inputs, "a.npy", ids=given_ids(7000, 300)).artifact
    ids = Collection.of(Store.open(tmp_path / "store")).ids(599, 682)
    expected = [1599, *range(5000, 5080), 7000, 7001]
    assert [*ids] == ([f"row-{i}" for i in expected] if strings else expected)
    assert len(ids_of(made)) == 380


def test_appended_labels_join_the_classes_of_the_store(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs, labels=lines(tmp_path / "l.txt", ["cat", "dog", *[""] * 598]))
    append(tmp_path / "store", inputs, "b.npy", labels=lines(tmp_path / "b.txt", ["dog", *[""] * 78, "emu"]))
    append(tmp_path / "store", inputs, "a.npy")
    last = append(tmp_path / "store", inputs, "c.npy", labels=lines(tmp_path / "c.txt", ["ant", "emu", *[""] * 218])).artifact
    assert Classes.of(last).names == ("dog", "emu", "ant")
    labels = np.full(600, UNLABELLED)
    labels[[0, 79, 380, 381]] = [0, 1, 2, 1]
    np.testing.assert_array_equal(last.array("labels"), labels)
    assert last.facts["classes"] == 3


def test_appended_labels_of_other_classes_are_refused(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs, labels=numbers(tmp_path / "l.npy", np.arange(600) % 2))
    before = tree(tmp_path / "store")
    message = r"b\.txt: the labels are names, but the classes of descriptors/background have numbers only"
    with pytest.raises(BadLabels, match=message):
        append(tmp_path / "store", inputs, "b.npy", labels=lines(tmp_path / "b.txt", ["cat"] * 80))
    assert tree(tmp_path / "store") == before


labels_of_rows = st.lists(st.sampled_from([*range(-1, 4)]), min_size=1, max_size=6)


@given(st.lists(st.tuples(labels_of_rows, st.booleans(), st.integers(1, 2)), min_size=2, max_size=4))
def test_joined_columns_are_those_of_all_rows(parts: list[tuple[list[int], bool, int]]) -> None:
    """Each part has a table of its own classes, in another order than the others."""

    def columns(part: tuple[list[int], bool, int]) -> RowColumns:
        labels, labelled, per_row = part
        if not labelled:
            return RowColumns(len(labels), None, None, None, None, {})
        table = sorted({label for label in labels if label >= 0}, reverse=True)
        indices = np.array([table.index(label) if label >= 0 else -1 for label in labels], np.int32)
        values: NDArray[np.int32] = indices if per_row == 1 else np.stack([indices, np.full_like(indices, -1)], axis=1)
        return RowColumns(len(labels), values, Classes(np.array(table, np.int64), None), None, None, {"all_zero": 1})

    joined = columns(parts[0])
    for part in parts[1:]:
        joined = joined.followed_by(columns(part))
    expected = [label if labelled else -1 for labels, labelled, _ in parts for label in labels]
    assert joined.rows == len(expected)
    assert joined.ids is None
    assert joined.dropped.get("all_zero", 0) == sum(labelled for _, labelled, _ in parts)
    if joined.labels is None or joined.classes is None:
        assert not any(labelled for _, labelled, _ in parts)
        return
    numbers_of = np.append(joined.classes.numbers if joined.classes.numbers is not None else [], -1).astype(int)
    found = joined.labels.reshape(joined.rows, -1)
    np.testing.assert_array_equal(numbers_of[found[:, 0]], expected)
    assert (found[:, 1:] == UNLABELLED).all()


def refusals() -> dict[str, tuple[type[MmdiffError], str, dict[str, Any]]]:
    return {
        "width": (WidthMismatch, r"wide\.npy: rows of 13 values, but models/pca is for rows of 12", {"name": "wide.npy"}),
        "dtype": (BadOption, "dtype='float16': descriptors/background is stored as float32, and rows", {"dtype": "float16"}),
        "dims": (BadOption, "dims=4: models/pca has 8 dimensions", {"dims": 4}),
        "normalize": (BadOption, "normalize=False: models/pca normalises all roles", {"normalize": False}),
        "raw": (BadOption, "keep_raw=True: descriptors/background does not keep the original", {"keep_raw": True}),
        "role": (BadOption, "append=True goes with role='background', not with role='test'", {"role": "test"}),
        "ids": (
            CountMismatch,
            r"ids\.txt: ids for appended rows, but the rows of descriptors/background have none",
            {"ids": 1},
        ),
        "rows": (MmdiffError, r"nan\.npy, row 2: NaN in 1 of 12 values", {"name": "nan.npy"}),
    }


@pytest.mark.parametrize("case", refusals())
def test_append_that_contradicts_the_background_is_refused_and_changes_nothing(
    tmp_path: Path, inputs: Inputs, case: str
) -> None:
    error, message, more = refusals()[case]
    rows = np.load(inputs.folder / "a.npy")
    np.save(inputs.folder / "wide.npy", np.ones((5, 13), np.float32))
    rows[2, 4] = np.nan
    np.save(inputs.folder / "nan.npy", rows)
    start(tmp_path / "store", inputs)
    append(tmp_path / "store", inputs, "b.npy")
    before = tree(tmp_path / "store")
    given_ids = {"ids": lines(tmp_path / "ids.txt", range(9000, 9300))} if "ids" in more else {}
    with pytest.raises(error, match=message):
        append(tmp_path / "store", inputs, **{"name": "a.npy", **more, **given_ids})
    assert tree(tmp_path / "store") == before


def test_append_without_a_background_is_refused(tmp_path: Path, inputs: Inputs) -> None:
    with pytest.raises(
        Missing, match=r"append=True: .*store has no background to append rows to\. Run first: store\.add\(FILE\)"
    ):
        append(tmp_path / "store", inputs, "a.npy")
    assert not (tmp_path / "store").exists()


def test_raw_descriptors_of_another_type_are_refused(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs, keep_raw=True)
    np.save(inputs.folder / "small.npy", np.ones((3, 12), np.uint8))
    with pytest.raises(BadOption, match=r"small\.npy: rows of uint8, but the original descriptors of .* are float32"):
        append(tmp_path / "store", inputs, "small.npy")


def test_importing_the_background_again_says_that_appended_rows_go(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs)
    append(tmp_path / "store", inputs, "a.npy")
    with chunks_of(SMALL_CHUNKS):
        same = import_descriptors(tmp_path / "store", inputs.request())
        assert same.reused
        assert same.notes == []
        assert appended_rows(same.artifact.store) is not None
        other = import_descriptors(tmp_path / "store", inputs.request(name="c.npy"))
    assert other.notes == ["descriptors/background replaces 600 rows imported from vectors.npy, and 300 rows appended to them."]
    assert Store.open(tmp_path / "store").names() == ["descriptors/background", "models/pca"]
    assert problems(Store.open(tmp_path / "store")) == []


def test_replaced_rows_come_back_when_they_are_imported_again(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs)
    appended = append(tmp_path / "store", inputs, "a.npy").artifact
    start(tmp_path / "store", inputs, name="c.npy")
    start(tmp_path / "store", inputs)
    again = append(tmp_path / "store", inputs, "a.npy")
    assert (again.reused, again.artifact.id) == (True, appended.id)


def test_batches_of_appended_rows_are_recorded(tmp_path: Path, inputs: Inputs) -> None:
    start(tmp_path / "store", inputs)
    append(tmp_path / "store", inputs, "a.npy", labels=numbers(tmp_path / "l.npy", np.arange(300) % 2))
    made = append(tmp_path / "store", inputs, "b.npy", on_bad="drop").artifact
    assert {*made.manifest.inputs} == {"source", "labels", "source_2", "pca", "background"}
    assert made.manifest.parameters["on_bad"] == ["error", "drop"]
    assert [batch.inputs["source"]["source"] for batch in batches_of(made)] == ["a.npy", "b.npy"]


def test_command_line_appends(tmp_path: Path, inputs: Inputs) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--store", str(tmp_path / "store")])

    assert run("import", str(inputs.folder / "vectors.npy"), "--role", "background").exit_code == 0
    done = run("import", str(inputs.folder / "a.npy"), "--role", "background", "--append")
    assert done.exit_code == 0
    assert "descriptors/appended: 300 x 12 float32" in done.output
    assert "300 rows added" in done.output
    refused = run("import", str(inputs.folder / "b.npy"), "--role", "background", "--append", "--dtype", "float16")
    assert refused.exit_code == 2
    assert "--dtype float16: descriptors/background is stored as float32" in refused.output
