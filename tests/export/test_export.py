"""Exported files hold the values of the store, are replaced completely or not at all, and can be imported again."""

from __future__ import annotations

import csv
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.export import reading, stage
from mmdiff.export import tables as csvs
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption, Corrupt, DiskFull, Missing, MissingExtra
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing.stage import Request, import_descriptors
from mmdiff.kinds import KINDS
from mmdiff.runtime.progress import Advance
from tests.support.stores import SMALL_CHUNKS, chunks_of

ROWS, WIDTH = 300, 12
export = partial(stage.export, kinds=KINDS)

X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
NAMES = ["goldfish, Carassius auratus", 'the "reel"', "žába", "go-kart"]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several chunks, blocks of rows and blocks of lines, as large artifacts have them."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 70 * WIDTH * 4)
    monkeypatch.setattr(csvs, "_LINES", 32)
    with chunks_of(SMALL_CHUNKS):
        yield


def one_label_a_row() -> np.ndarray[Any, Any]:
    labels = np.arange(ROWS) % 4
    labels[::7] = -1
    return labels


def several_labels_a_row() -> np.ndarray[Any, Any]:
    return np.stack([one_label_a_row(), np.where(np.arange(ROWS) % 2, -1, 3)], axis=1)


def import_role(folder: Path, **options: Any) -> Artifact:
    """Imports X; options that are arrays or lists are written to files first."""
    np.save(folder / "x.npy", X)
    for key in ("labels", "ids"):
        if options.get(key) is not None:
            np.save(folder / f"{key}.npy", options[key])
            options[key] = str(folder / f"{key}.npy")
    if "class_names" in options:
        (folder / "names.json").write_text(json.dumps(options["class_names"]))
        options["class_names"] = str(folder / "names.json")
    request = replace(Request([str(folder / "x.npy")], "background"), **options)
    return import_descriptors(folder / "store", request).artifact


def store_in(folder: Path) -> Store:
    return Store.open(folder / "store")


@pytest.fixture
def named(tmp_path: Path) -> Artifact:
    """Descriptors with ids, class names, and rows without labels."""
    ids = np.array([f"img,{i}" for i in range(ROWS)])
    return import_role(tmp_path, ids=ids, labels=one_label_a_row(), class_names=NAMES, keep_raw=True)


def run(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments, "--store", str(folder / "store")])


@pytest.mark.parametrize("array", ["vectors", "raw", "labels", "class_numbers", "class_names_utf8"])
def test_npy_is_the_array_as_stored(tmp_path: Path, named: Artifact, array: str) -> None:
    outcome = export(store_in(tmp_path), named.name, tmp_path / "out.npy", array)
    read = np.load(tmp_path / "out.npy", allow_pickle=False)
    assert read.dtype == named.array(array).dtype
    np.testing.assert_array_equal(read, named.array(array))
    assert (outcome.rows, outcome.bytes) == (len(read), (tmp_path / "out.npy").stat().st_size)


def test_npy_is_what_numpy_would_write(tmp_path: Path, named: Artifact) -> None:
    export(store_in(tmp_path), named.name, tmp_path / "out.npy")
    np.save(tmp_path / "numpy.npy", named.array("vectors"))
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_npz_holds_all_arrays_under_their_names(tmp_path: Path, named: Artifact) -> None:
    outcome = export(store_in(tmp_path), named.name, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as read:
        assert set(read) == set(named.manifest.arrays)
        for name in read:
            np.testing.assert_array_equal(read[name], named.array(name))
    assert outcome.rows == ROWS


def test_npz_is_the_same_file_each_time(tmp_path: Path, named: Artifact) -> None:
    for file in ("one.npz", "two.npz"):
        export(store_in(tmp_path), named.name, tmp_path / file)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_npz_of_one_array_has_that_one(tmp_path: Path, named: Artifact) -> None:
    export(store_in(tmp_path), named.name, tmp_path / "out.npz", "labels")
    with np.load(tmp_path / "out.npz") as read:
        assert list(read) == ["labels"]


def test_a_pca_exports_its_components_but_is_no_table(tmp_path: Path) -> None:
    import_role(tmp_path, dims=5)
    store = store_in(tmp_path)
    export(store, "models/pca", tmp_path / "pca.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "pca.npy"), store.open_artifact("models/pca").array("components"))
    with pytest.raises(BadOption, match=r"models/pca can be exported to \.npy, \.npz\."):
        export(store, "models/pca", tmp_path / "pca.csv")


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("array", [None, "components"])
def test_a_pca_that_does_not_reduce_has_nothing_to_export(tmp_path: Path, ending: str, array: str | None) -> None:
    import_role(tmp_path)
    store, file = store_in(tmp_path), tmp_path / f"pca.{ending}"
    assert not store.open_artifact("models/pca").manifest.arrays
    with pytest.raises(BadOption, match=r"models/pca has no arrays, so there is nothing to export\. See what it is with "):
        export(store, "models/pca", file, array)
    assert not file.exists()


def test_parquet_has_the_users_ids_and_class_names(tmp_path: Path, named: Artifact) -> None:
    export(store_in(tmp_path), named.name, tmp_path / "out.parquet")
    with pq.ParquetFile(tmp_path / "out.parquet") as file:
        table, groups = file.read(), file.metadata.num_row_groups
    assert groups == -(-ROWS // 70)
    assert table["id"].to_pylist() == [f"img,{i}" for i in range(ROWS)]
    assert table["label"].to_pylist() == [None if label < 0 else NAMES[label] for label in one_label_a_row()]
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), named.array("vectors"))


def test_parquet_without_ids_and_names_has_numbers(tmp_path: Path) -> None:
    import_role(tmp_path, labels=np.where(one_label_a_row() < 0, -1, one_label_a_row() * 10))
    export(store_in(tmp_path), "descriptors/background", tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == list(range(ROWS))
    assert table["label"].to_pylist() == [None if label < 0 else label * 10 for label in one_label_a_row()]


def test_parquet_without_labels_has_no_label_column(tmp_path: Path) -> None:
    import_role(tmp_path)
    export(store_in(tmp_path), "descriptors/background", tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").names == ["id", "embedding"]


def test_parquet_lists_several_labels_of_a_row(tmp_path: Path) -> None:
    import_role(tmp_path, labels=several_labels_a_row(), class_names=NAMES)
    export(store_in(tmp_path), "descriptors/background", tmp_path / "out.parquet")
    labels = pq.read_table(tmp_path / "out.parquet")["label"].to_pylist()
    expected = [[NAMES[label] for label in row if label >= 0] or None for row in several_labels_a_row()]
    assert None in expected
    assert labels == expected


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_csv_reads_back_to_the_same_values(tmp_path: Path, dtype: str) -> None:
    artifact = import_role(tmp_path, dtype=dtype, labels=one_label_a_row(), class_names=NAMES)
    export(store_in(tmp_path), artifact.name, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["id", "label", *(f"v{i}" for i in range(WIDTH))]
    assert [line[0] for line in lines] == [str(i) for i in range(ROWS)]
    assert [line[1] for line in lines] == ["" if label < 0 else NAMES[label] for label in one_label_a_row()]
    np.testing.assert_array_equal(np.array([line[2:] for line in lines], dtype), artifact.array("vectors"))


def test_csv_has_a_column_for_each_of_several_labels(tmp_path: Path) -> None:
    import_role(tmp_path, labels=several_labels_a_row())
    export(store_in(tmp_path), "descriptors/background", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header[:4] == ["id", "label0", "label1", "v0"]
    assert [line[1:3] for line in lines] == [["" if n < 0 else str(n) for n in row] for row in several_labels_a_row()]


def test_tables_take_raw_descriptors_where_asked(tmp_path: Path, named: Artifact) -> None:
    export(store_in(tmp_path), named.name, tmp_path / "out.parquet", "raw")
    embedding = pq.read_table(tmp_path / "out.parquet")["embedding"].to_pylist()
    np.testing.assert_array_equal(np.array(embedding, np.float32), X)


@pytest.mark.parametrize("file", ["out.npy", "out.parquet"])
def test_what_is_exported_can_be_imported_again(tmp_path: Path, named: Artifact, file: str) -> None:
    export(store_in(tmp_path), named.name, tmp_path / file)
    request = Request([str(tmp_path / file)], "background", normalize=False)
    if file == "out.parquet":
        request = replace(request, labels=f"{tmp_path / file}::label", ids=f"{tmp_path / file}::id")
    again = import_descriptors(tmp_path / "again", request).artifact
    np.testing.assert_array_equal(again.array("vectors"), named.array("vectors"))
    if request.labels:
        assert list(again.strings("ids")) == list(named.strings("ids"))
        titles = [*again.strings("class_names"), None]
        assert [titles[label] for label in again.array("labels")] == [[*NAMES, None][label] for label in one_label_a_row()]


def test_labels_and_ids_can_be_imported_from_csv(tmp_path: Path, named: Artifact) -> None:
    export(store_in(tmp_path), named.name, tmp_path / "out.csv")
    labels, ids = (f"{tmp_path / 'out.csv'}::{column}" for column in ("label", "id"))
    request = Request([str(tmp_path / "x.npy")], "background", labels=labels, ids=ids)
    again = import_descriptors(tmp_path / "again", request).artifact
    assert list(again.strings("ids")) == list(named.strings("ids"))


def test_damaged_chunks_are_not_exported(tmp_path: Path) -> None:
    artifact = import_role(tmp_path)
    chunk = artifact.folder / "vectors" / "c.1.0"
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(Corrupt, match=r"chunk c\.1\.0 does not match its checksum"):
        export(store_in(tmp_path), artifact.name, tmp_path / "out.npy")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ".csv"])
def test_interrupted_exports_leave_the_old_file_and_nothing_else(tmp_path: Path, named: Artifact, ending: str) -> None:
    file = tmp_path / f"out{ending}"
    file.write_text("old")

    @contextmanager
    def interrupt(what: str, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG001
        def advance(_: int) -> None:
            raise KeyboardInterrupt

        yield advance

    with pytest.raises(KeyboardInterrupt):
        export(store_in(tmp_path), named.name, file, progress=interrupt)
    assert file.read_text() == "old"
    assert list(tmp_path.glob("out*")) == [file]


def test_a_file_that_is_there_is_replaced(tmp_path: Path, named: Artifact) -> None:
    (tmp_path / "real.npy").write_text("old")
    (tmp_path / "out.npy").symlink_to("real.npy")
    export(store_in(tmp_path), named.name, tmp_path / "out.npy")
    assert (tmp_path / "out.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").shape == (ROWS, WIDTH)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    def fill_the_disk() -> None:
        with whole_file(tmp_path / "out.npy") as stream:
            stream.write(b"some")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFull, match="disk is full"):
        fill_the_disk()
    assert not list(tmp_path.iterdir())


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, named: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mmdiff\[files\]'"):
        export(store_in(tmp_path), named.name, tmp_path / "out.parquet")
    assert not list(tmp_path.glob("out*"))


def test_export_of_what_is_not_there(tmp_path: Path, named: Artifact) -> None:
    with pytest.raises(Missing, match=f"It holds: {named.name}"):
        export(store_in(tmp_path), "descriptors/seeds", tmp_path / "out.npy")


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("out.txt", [], ".npy, .npz, .parquet, .csv"),
        ("out", [], ".npy, .npz, .parquet, .csv"),
        ("out.npy", ["--array", "nope"], "It has: class_names_offsets, class_names_utf8, class_numbers"),
        ("out.csv", ["--array", "labels"], "Choose the vectors with --array: vectors or raw"),
        ("nowhere/out.npy", [], "there is no folder"),
        ("store/out.npy", [], "no place for other files"),
        ("folder.npy", [], "a folder, which cannot be replaced by a file. Name a file to write."),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    tmp_path: Path, named: Artifact, file: str, options: list[str], message: str
) -> None:
    (tmp_path / "folder.npy").mkdir()
    result = run(tmp_path, named.name, str(tmp_path / file), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "store" / "out.npy").exists()


def test_the_command_says_what_it_wrote(tmp_path: Path, named: Artifact) -> None:
    result = run(tmp_path, named.name, str(tmp_path / "out.npy"))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{tmp_path / 'out.npy'}: 300 rows of descriptors/background, 14.2 KiB, in ")
    assert result.stderr == ""


def test_an_interrupted_command_says_that_nothing_changed(
    tmp_path: Path, named: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mmdiff.export.stage.export", interrupt)
    result = run(tmp_path, named.name, "out.npy")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "mmdiff: interrupted. out.npy is as it was before.\n"


def test_the_command_speaks_json(tmp_path: Path, named: Artifact) -> None:
    result = run(tmp_path, named.name, str(tmp_path / "out.CSV"), "--json")
    document = json.loads(result.stdout)
    assert document.pop("seconds") > 0
    size = (tmp_path / "out.CSV").stat().st_size
    expected = {"artifact": named.name, "file": str(tmp_path / "out.CSV"), "format": "csv", "rows": ROWS, "bytes": size}
    expected |= {"notes": []}
    assert document == expected


@pytest.mark.parametrize("file", ["pipe.npy", "/dev/null", "link.npy", "socket.npy"])
def test_only_regular_files_are_replaced(tmp_path: Path, named: Artifact, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "link.npy").symlink_to("pipe.npy")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("socket.npy")
        before = sorted(path.stat().st_mode for path in tmp_path.iterdir())
        # The ending of /dev/null is checked first, so it is reached through a link.
        if file == "/dev/null":
            (tmp_path / "null.npy").symlink_to(file)
            before.append((tmp_path / "null.npy").stat().st_mode)
            file = "null.npy"
        result = run(tmp_path, named.name, str(tmp_path / file))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "which cannot be replaced by a file. Name a file to write." in result.stderr
        assert sorted(path.stat().st_mode for path in tmp_path.iterdir()) == sorted(before)


def test_devices_and_links_into_nowhere_are_refused_before_anything_is_computed(tmp_path: Path, named: Artifact) -> None:
    store = store_in(tmp_path)
    with pytest.raises(BadOption, match="/dev/null: a device"):
        check_place(Path("/dev/null"), store)
    (tmp_path / "lost.npy").symlink_to("nowhere/lost.npy")
    with pytest.raises(BadOption, match=r"where there is no folder .*nowhere\. Make it first\."):
        export(store, named.name, tmp_path / "lost.npy")
    (tmp_path / "new.npy").symlink_to("made.npy")
    export(store, named.name, tmp_path / "new.npy")
    assert (tmp_path / "new.npy").is_symlink()
    assert np.load(tmp_path / "made.npy").shape == (ROWS, WIDTH)


@pytest.mark.parametrize("allowed", [os.R_OK, os.R_OK | os.X_OK])
def test_what_may_not_be_written_is_refused(
    tmp_path: Path, named: Artifact, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).is_dir() != (allowed == os.R_OK) or not mode & os.W_OK)
    (tmp_path / "out.npy").write_text("old")
    with pytest.raises(BadOption, match="no permission to write in" if allowed == os.R_OK else "write-protected"):
        export(store_in(tmp_path), named.name, tmp_path / "out.npy")
    assert (tmp_path / "out.npy").read_text() == "old"


def test_exports_of_what_is_stale_say_so(tmp_path: Path, named: Artifact) -> None:
    np.save(tmp_path / "x.npy", X + 1)
    result = run(tmp_path, named.name, str(tmp_path / "out.npy"))
    assert result.exit_code == 0
    expected = "descriptors/background is stale: x.npy has changed since. To make it anew, run: mmdiff import"
    assert result.stderr == f"mmdiff: {expected}\n"
    assert export(store_in(tmp_path), named.name, tmp_path / "out.npy").notes == [expected]


@pytest.mark.usefixtures("named")
def test_a_report_replaces_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")
    for out in ("/dev/null", str(tmp_path / "report.html")):
        result = CliRunner().invoke(app, ["report", "--out", out, "--store", str(tmp_path / "store")])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"mmdiff: {out}: a " in result.stderr
    assert (tmp_path / "report.html").is_fifo()
