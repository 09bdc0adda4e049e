"""One table, or several, as one collection: columns by their own names, the same artifact as from files of arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.formats.errors import BadLabels, CountMismatch, DuplicateIds, UnreadableSource, WidthMismatch
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import Classes
from mmdiff.labels.ids import ids_of
from tests.support.stores import chunks_of, tree

X = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
IDS = [f"photo-{i}" for i in range(300)]
LABELS: list[str | None] = [("cat", "dog", "eel")[i % 3] if i % 10 == 0 else None for i in range(300)]
EMB = pa.array(list(X), pa.list_(pa.float32()))
TABLE = pa.table({"id": IDS, "label": LABELS, "emb": EMB})


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def add(source: Any, store: str = "store", **options: Any) -> Artifact:
    opened = mmdiff.open(store, create=True)
    with chunks_of(1024):
        opened.add(source, **options)
    return Store(Path(store)).open_artifact(f"descriptors/{options.get('role', 'background')}")


def arrays(artifact: Artifact) -> dict[str, list[Any]]:
    return {name: np.asarray(artifact.array(name)).tolist() for name in artifact.manifest.arrays}


def write_ipc(path: str, table: Any, stream: bool = False) -> None:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


def as_parquet() -> str:
    pq.write_table(TABLE, "photos.parquet", row_group_size=90)
    return "photos.parquet"


def as_arrow() -> str:
    write_ipc("photos.arrow", TABLE)
    return "photos.arrow"


def as_feather() -> str:
    write_ipc("photos.feather", TABLE)
    return "photos.feather"


def as_dataset() -> str:
    Path("photos").mkdir()
    for part, (start, stop) in enumerate([(0, 120), (120, 300)]):
        write_ipc(f"photos/data-{part}.arrow", TABLE.slice(start, stop - start), stream=True)
    files = [{"filename": f"data-{part}.arrow"} for part in range(2)]
    Path("photos/state.json").write_text(json.dumps({"_data_files": files}))
    return "photos"


def as_npz() -> str:
    np.savez_compressed("photos.npz", emb=X, id=np.array(IDS), label=np.array([label or "" for label in LABELS]))
    return "photos.npz"


def as_two_tables() -> list[str]:
    pq.write_table(TABLE.slice(0, 110), "a.parquet")
    pq.write_table(TABLE.slice(110), "b.parquet")
    return ["a.parquet", "b.parquet"]


def as_pattern() -> str:
    Path("parts").mkdir()
    for part in range(12):
        pq.write_table(TABLE.slice(25 * part, 25), f"parts/part_{part}.parquet")
    return "parts/*.parquet"


def as_two_formats() -> list[str]:
    pq.write_table(TABLE.slice(0, 110), "a.parquet")
    write_ipc("b.arrow", TABLE.slice(110))
    return ["a.parquet", "b.arrow"]


FORMS: list[Callable[[], Any]] = [
    as_parquet,
    as_arrow,
    as_feather,
    as_dataset,
    as_npz,
    as_two_tables,
    as_pattern,
    as_two_formats,
]


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_the_same_as_its_columns_in_files(form: Callable[[], Any]) -> None:
    np.save("x.npy", X)
    Path("ids.txt").write_text("\n".join(IDS))
    Path("labels.txt").write_text("".join(f"{label or ''}\n" for label in LABELS))
    expected = add("x.npy", "expected", ids="ids.txt", labels="labels.txt")
    found = add(form(), ids="id", labels="label")
    assert arrays(found) == arrays(expected)
    assert list(ids_of(found)) == IDS
    assert Classes.of(found).names == ("cat", "dog", "eel")


def test_safetensors_are_the_same_as_npy() -> None:
    np.save("x.npy", X)
    save_file({"emb": X, "label": np.arange(300) % 4 - 1}, "x.safetensors")
    np.save("y.npy", np.arange(300) % 4 - 1)
    assert arrays(add("x.safetensors", labels="label")) == arrays(add("x.npy", "expected", labels="y.npy"))


def test_class_names_of_a_dataset_are_those_of_its_labels() -> None:
    table = pa.table({"emb": EMB, "label": pa.array(np.arange(300) % 3 - 1)})
    Path("photos").mkdir()
    write_ipc("photos/data.arrow", table, stream=True)
    Path("photos/state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    feature = {"names": ["tench", "eel", "never"], "_type": "ClassLabel"}
    Path("photos/dataset_info.json").write_text(json.dumps({"features": {"label": feature}}))
    classes = Classes.of(add("photos", labels="label"))
    assert classes.names == ("tench", "eel", "never")
    assert classes.numbers is not None
    assert classes.numbers.tolist() == [0, 1, 2]
    given = Classes.of(add("photos", "other", labels="label", class_names={0: "a", 1: "b"}))
    assert given.names == ("a", "b")
    feature["names"] = ["tench", "tench"]
    Path("photos/dataset_info.json").write_text(json.dumps({"features": {"label": feature}}))
    with pytest.raises(BadLabels, match=r"classes 0 and 1 are both named 'tench'"):
        add("photos", "third", labels="label")


def test_a_column_by_itself_and_with_its_file_are_the_same_input() -> None:
    table = as_parquet()
    store = mmdiff.open("store", create=True)
    assert not store.add(table, ids="id", labels="label")["reused"]
    assert store.add(f"{table}::emb", ids=f"{table}::id", labels=f"{table}::label")["reused"]


def test_patterns_of_labels_are_in_the_order_of_the_sources() -> None:
    source = as_pattern()
    by_name = add(source, ids="id", labels="label")
    by_pattern = add(source, "other", ids="parts/*.parquet::id", labels="parts/*.parquet::label")
    assert by_name.manifest.inputs == by_pattern.manifest.inputs
    for part in range(3):
        np.save(f"x_{part}.npy", X[100 * part : 100 * part + 100])
        np.save(f"y_{part}.npy", np.arange(100 * part, 100 * part + 100))
    found = add("x_*.npy", "third", labels="y_*.npy")
    assert np.asarray(found.array("labels")).tolist() == list(range(300))


def test_fingerprints_cover_every_table() -> None:
    sources = as_two_tables()
    first = add(sources, ids="id", labels="label")
    assert {key: entry["files"] for key, entry in first.manifest.inputs.items() if "files" in entry} == {
        "source": 2,
        "ids": 2,
        "labels": 2,
    }
    assert first.manifest.inputs["labels"]["source"] == "a.parquet::label ... b.parquet::label (2 parts)"
    changed = TABLE.slice(110).set_column(1, "label", pa.array(["owl"] * 190))
    pq.write_table(changed, "b.parquet")
    second = add(sources, ids="id", labels="label")
    assert second.id != first.id
    assert Classes.of(second).names == ("cat", "dog", "eel", "owl")


def test_a_killed_import_of_tables_resumes_to_identical_bytes() -> None:
    source = as_dataset()
    with chunks_of(1024):
        mmdiff.open("expected", create=True).add(source, ids="id", labels="label")

        def interrupt(*_: Any) -> Any:
            raise KeyboardInterrupt

        store = mmdiff.open("store", create=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("mmdiff.importing.stage.narrowed", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.add(source, ids="id", labels="label")
        store.add(source, ids="id", labels="label")
    assert tree(Path("store"), with_runs=False) == tree(Path("expected"), with_runs=False)


def test_a_file_goes_before_a_column_of_the_same_name() -> None:
    table = as_parquet()
    Path("label").mkdir()
    Path("label/state.json").write_text('{"_data_files": [{"filename": "y.arrow"}]}')
    write_ipc("label/y.arrow", pa.table({"label": ["owl"] * 300}), stream=True)
    assert Classes.of(add(table, labels="label")).names == ("owl",)


def test_names_with_signs_of_patterns_are_columns_where_there_are_such() -> None:
    pq.write_table(pa.table({"emb": EMB, "label[0]": LABELS, "a::b": IDS}), "photos.parquet")
    found = add("photos.parquet", labels="label[0]", ids="a::b")
    assert list(ids_of(found)) == IDS
    assert Classes.of(found).names == ("cat", "dog", "eel")


def test_numbers_names_and_nothing_in_different_tables_are_one_column() -> None:
    parts: list[dict[str, Any]] = [
        {"id": list(range(100)), "label": pa.nulls(100)},
        {"id": [f"p{i}" for i in range(100)], "label": ["cat"] * 100},
        {"id": list(range(500, 600)), "label": [["dog", "eel"], []] * 50},
    ]
    for number, part in enumerate(parts):
        pq.write_table(pa.table({**part, "emb": EMB.slice(100 * number, 100)}), f"{number}.parquet")
    found = add("?.parquet", ids="id", labels="label")
    assert [list(ids_of(found))[i] for i in (0, 99, 100, 299)] == ["0", "99", "p0", "599"]
    assert np.asarray(found.array("labels"))[[0, 100, 200, 201]].tolist() == [[-1, -1], [0, -1], [1, 2], [-1, -1]]
    assert Classes.of(found).names == ("cat", "dog", "eel")


def test_one_row_with_very_many_labels_does_not_pad_all_tables() -> None:
    table = pa.table({"emb": EMB.slice(0, 100), "label": pa.array([[0] * 100_000] + [[1]] * 99, pa.list_(pa.int64()))})
    pq.write_table(table, "a.parquet")
    pq.write_table(pa.table({"emb": EMB.slice(100), "label": pa.array([[1]] * 200, pa.list_(pa.int64()))}), "b.parquet")
    assert add("a.parquet", labels="label").array("labels").shape == (100, 100_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mmdiff.formats.sources.many.most_per_row", lambda *_: 50)
        with pytest.raises(
            BadLabels, match=r"a\.parquet::label \.\.\. b\.parquet::label \(2 parts\): a row with 100,000 labels"
        ):
            add(["a.parquet", "b.parquet"], "other", labels="label")


def refused(source: Any, error: type[Exception], message: str, **options: Any) -> None:
    before = tree(Path("store"))
    with pytest.raises(error, match=message):
        add(source, **options)
    assert tree(Path("store")) == before


def test_bad_input_is_named_and_changes_nothing() -> None:
    add(as_parquet(), ids="id", labels="label")
    np.save("x.npy", X)
    pq.write_table(pa.table({"emb": EMB, "other": EMB, "label": LABELS}), "two.parquet")
    pq.write_table(pa.table({"emb": pa.array(list(X[:, :5])), "label": LABELS}), "narrow.parquet")
    pq.write_table(pa.table({"emb": EMB, "id": [f"q{i}" for i in range(300)]}), "unlabelled.parquet")
    pq.write_table(pa.table({"label": LABELS[:200]}), "short_a.parquet")
    pq.write_table(pa.table({"label": LABELS}), "short_b.parquet")
    refused(
        "photos.parquet",
        UnreadableSource,
        r"^lable: no such file, and no such column in photos\.parquet, which has id, label, emb\. Name one of them",
        labels="lable",
    )
    refused("photos.parquet", UnreadableSource, r"photos\.parquet: no 'lable' in it.*::label", labels="photos.parquet::lable")
    refused("x.npy", UnreadableSource, r"label: no such file or folder", labels="label")
    refused("two.parquet", UnreadableSource, r"two\.parquet: 2 candidates .*two\.parquet::emb .*two\.parquet::other ")
    refused(
        ["photos.parquet", "narrow.parquet"],
        WidthMismatch,
        r"narrow\.parquet::emb has rows of 5 values, but photos\.parquet::emb of 8",
        labels="label",
    )
    refused(
        ["photos.parquet", "unlabelled.parquet"],
        UnreadableSource,
        r"unlabelled\.parquet: no column 'label', found emb, id\. All tables must have the column\.",
        labels="label",
    )
    refused(
        ["photos.parquet", "x.npy"],
        UnreadableSource,
        r"x\.npy: not a table, so it has no column 'label'\. Give the values of all rows in files\.",
        labels="label",
    )
    refused(
        "photos.parquet",
        CountMismatch,
        r"short_a\.parquet::label \.\.\. short_b\.parquet::label \(2 parts\): 500 values or more for 300 rows",
        labels="short_?.parquet::label",
    )
    refused(["photos.parquet", "photos.parquet"], DuplicateIds, r"photos\.parquet::id", ids="id")
    refused(
        "photos.parquet", UnreadableSource, r"none_\*\.parquet: nothing matches this pattern", labels="none_*.parquet::label"
    )


def test_labels_of_fewer_rows_than_the_tables_are_refused() -> None:
    for part in range(2):
        np.save(f"y_{part}.npy", np.arange(100))
    with pytest.raises(CountMismatch, match=r"y_0\.npy \.\.\. y_1\.npy \(2 parts\): 200 labels for the 300 rows of photos"):
        add(as_parquet(), labels="y_*.npy")


def test_the_command_line_imports_a_table_as_background() -> None:
    done = CliRunner().invoke(app, ["import", *as_two_tables(), "--ids", "id", "--labels", "label", "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["artifact"], summary["shape"], summary["classes"]) == ("descriptors/background", [300, 8], 3)
    wrong = CliRunner().invoke(app, ["import", "a.parquet", "--labels", "lable"])
    assert wrong.exit_code == 2
    assert "no such column in a.parquet, which has id, label, emb" in " ".join(wrong.output.split())
