"""Imports of good input: one space for all roles, the user's labels and ids, and nothing made twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from mmdiff.building.stage import Request as BuildRequest
from mmdiff.building.stage import build_graph
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch
from mmdiff.formats.sources.base import Column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing.columns import Given
from mmdiff.importing.stage import Outcome, Request, import_descriptors
from mmdiff.labels.classes import Classes
from mmdiff.labels.ids import ids_of
from mmdiff.runtime.staleness import reasons_stale
from tests.support.stores import Inputs, chunks_of, make_inputs, problems, tree


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return make_inputs(tmp_path / "inputs")


def rows_of(inputs: Inputs, name: str = "vectors.npy") -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = np.load(inputs.folder / name)
    return rows


def do(path: Path, request: Request) -> Outcome:
    with chunks_of(8192):
        return import_descriptors(path, request)


def unit(rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    scaled: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def expected_vectors(inputs: Inputs, name: str, dims: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """PCA of the background by SVD in float64, signs as specified, then unit length."""
    background = rows_of(inputs).astype(np.float64)
    mean = background.mean(axis=0)
    components = np.linalg.svd(background - mean, full_matrices=False)[2][:dims]
    components *= np.sign(components[np.arange(dims), np.abs(components).argmax(axis=1)])[:, None]
    return unit((rows_of(inputs, name) - mean) @ components.T)


def test_all_roles_share_the_pca_of_the_background(tmp_path: Path, inputs: Inputs) -> None:
    background = do(tmp_path / "store", inputs.request()).artifact
    test = do(tmp_path / "store", inputs.request("test", "others.npy")).artifact
    np.testing.assert_allclose(background.array("vectors"), expected_vectors(inputs, "vectors.npy", 8), atol=1e-4)
    np.testing.assert_allclose(test.array("vectors"), expected_vectors(inputs, "others.npy", 8), atol=1e-4)
    assert "raw" not in background
    np.testing.assert_array_equal(test.array("raw"), rows_of(inputs, "others.npy"))


def test_narrow_rows_are_only_normalised(tmp_path: Path, inputs: Inputs) -> None:
    artifact = do(tmp_path / "store", inputs.request(dims=None)).artifact
    np.testing.assert_allclose(artifact.array("vectors"), unit(rows_of(inputs).astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 40])
def test_fewer_rows_than_the_usual_dimensions_are_reduced_to_as_many_as_there_are(tmp_path: Path, rows: int) -> None:
    np.save(tmp_path / "few.npy", np.random.default_rng(0).standard_normal((rows, 300)).astype(np.float32))
    artifact = do(tmp_path / "store", Request([str(tmp_path / "few.npy")], "background")).artifact
    vectors = np.asarray(artifact.array("vectors"), np.float64)
    assert vectors.shape == (rows, rows)
    # As many dimensions lose nothing: similarities are those of the centred rows.
    centred = np.load(tmp_path / "few.npy").astype(np.float64)
    centred = unit(centred - centred.mean(axis=0))
    np.testing.assert_allclose(vectors @ vectors.T, centred @ centred.T, atol=2e-3)
    with pytest.raises(BadOption, match=f"at most dims={rows}"):
        do(tmp_path / "other", Request([str(tmp_path / "few.npy")], "background", dims=256))


def test_fewer_rows_than_dimensions_are_not_reduced_where_they_are_narrow(tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32))
    artifact = do(tmp_path / "store", Request([str(tmp_path / "few.npy")], "background")).artifact
    assert artifact.spec("vectors").shape == (4, 9)


def test_without_normalisation_and_pca_rows_stay_as_they_are_and_are_not_kept_twice(tmp_path: Path, inputs: Inputs) -> None:
    artifact = do(tmp_path / "store", inputs.request(dims=None, normalize=False, keep_raw=True)).artifact
    np.testing.assert_array_equal(artifact.array("vectors"), rows_of(inputs))
    assert "raw" not in artifact


def test_without_a_background_the_space_is_made_from_the_seeds(tmp_path: Path, inputs: Inputs) -> None:
    seeds = do(tmp_path / "store", inputs.request("seeds", no_background=True)).artifact
    np.testing.assert_allclose(seeds.array("vectors"), expected_vectors(inputs, "vectors.npy", 8), atol=1e-4)
    do(tmp_path / "store", inputs.request("test", "others.npy"))
    assert Store.open(tmp_path / "store").names() == ["descriptors/seeds", "descriptors/test", "models/pca"]


def test_the_same_import_again_does_nothing(tmp_path: Path, inputs: Inputs) -> None:
    assert not do(tmp_path / "store", inputs.request()).reused
    before = tree(tmp_path / "store")
    assert do(tmp_path / "store", inputs.request()).reused
    assert tree(tmp_path / "store") == before


def test_a_changed_source_is_never_mistaken_for_the_old_one(tmp_path: Path, inputs: Inputs) -> None:
    """The modification time reveals a change even between the samples of the fingerprint."""
    rows = np.random.default_rng(0).standard_normal((40_000, 12)).astype(np.float32)
    np.save(inputs.folder / "large.npy", rows)
    do(tmp_path / "store", inputs.request(name="large.npy"))
    rows[20_123, 3] += 1
    np.save(inputs.folder / "large.npy", rows)
    again = do(tmp_path / "store", inputs.request(name="large.npy", keep_raw=True))
    assert not again.reused
    np.testing.assert_array_equal(again.artifact.array("raw"), rows)


def test_other_parameters_make_another_artifact_and_the_old_one_is_found_again(tmp_path: Path, inputs: Inputs) -> None:
    first = do(tmp_path / "store", inputs.request())
    second = do(tmp_path / "store", inputs.request(dtype="float16"))
    assert second.artifact.array("vectors").dtype == np.float16
    back = do(tmp_path / "store", inputs.request())
    assert back.reused
    assert Store.open(tmp_path / "store").id("descriptors/background") == first.artifact.id != second.artifact.id


def test_a_new_background_makes_other_roles_stale_and_says_so(tmp_path: Path, inputs: Inputs) -> None:
    do(tmp_path / "store", inputs.request())
    do(tmp_path / "store", inputs.request("seeds"))
    outcome = do(tmp_path / "store", inputs.request(name="others.npy"))
    assert outcome.notes == [
        "descriptors/background replaces 600 rows imported from vectors.npy.",
        "descriptors/seeds was made with another models/pca: import it again.",
    ]
    assert do(tmp_path / "store", inputs.request("seeds")).notes == []


def test_bad_rows_are_left_out_when_asked_and_the_rest_keep_their_numbers(tmp_path: Path, inputs: Inputs) -> None:
    rows = rows_of(inputs)
    rows[[3, 599]] = 0
    rows[100, 5] = np.nan
    np.save(inputs.folder / "bad.npy", rows)
    kept = np.setdiff1d(np.arange(600), [3, 100, 599])
    request = inputs.request("seeds", "bad.npy", on_bad="drop", no_background=True)
    artifact = do(tmp_path / "store", request).artifact
    np.testing.assert_array_equal(artifact.array("raw"), rows[kept])
    np.testing.assert_array_equal(artifact.array("ids"), kept)
    np.testing.assert_array_equal(artifact.array("dropped_ids"), [3, 100, 599])
    np.testing.assert_array_equal(artifact.array("labels"), (np.arange(600) % 5)[kept])
    assert artifact.manifest.facts["dropped"] == {"not_finite": 1, "all_zero": 2}


def test_ids_of_rows_that_were_left_out_are_recorded(tmp_path: Path, inputs: Inputs) -> None:
    rows = rows_of(inputs)
    rows[7] = np.inf
    np.save(inputs.folder / "bad.npy", rows)
    artifact = do(
        tmp_path / "store", inputs.request(name="bad.npy", on_bad="drop", ids=str(inputs.folder / "ids.txt"))
    ).artifact
    assert list(artifact.strings("dropped_ids")) == ["row-7"]
    assert list(artifact.strings("ids")) == [f"row-{row}" for row in range(600) if row != 7]


def test_float16_sources_stay_float16_where_they_are_kept_raw(tmp_path: Path, inputs: Inputs) -> None:
    np.save(inputs.folder / "half.npy", rows_of(inputs).astype(np.float16))
    np.save(inputs.folder / "bytes.npy", np.arange(7200, dtype=np.uint8).reshape(600, 12) + 1)
    assert do(tmp_path / "store", inputs.request(name="half.npy", keep_raw=True)).artifact.spec("raw").dtype == "float16"
    assert do(tmp_path / "store", inputs.request(name="bytes.npy", keep_raw=True)).artifact.spec("raw").dtype == "uint8"


def titles(artifact: Artifact) -> list[str]:
    classes = Classes.of(artifact)
    return [classes.title(int(label)) if label >= 0 else "" for label in artifact.array("labels")]


def test_labels_may_be_numbers_or_names_and_seeds_decide(tmp_path: Path, inputs: Inputs) -> None:
    names = ["ant", "bee", "", "cat", "bee"] * 120
    (inputs.folder / "names.txt").write_text("".join(f"{name}\n" for name in names))
    (inputs.folder / "test.csv").write_text("id,label\n" + "".join(f"{i},{i % 7 - 1}\n" for i in range(600)))
    do(tmp_path / "store", inputs.request())
    seeds = do(tmp_path / "store", inputs.request("seeds", labels=str(inputs.folder / "names.txt"))).artifact
    assert titles(seeds) == names
    outcome = do(tmp_path / "store", inputs.request("test", labels=f"{inputs.folder / 'test.csv'}::label"))
    columns = Classes.of(outcome.artifact).columns_in(Classes.of(seeds))
    assert columns.tolist() == [0, 1, 2, -1, -1, -1]
    assert outcome.notes == [
        "descriptors/test: 3 classes without seeds (3, 4, 5). Their points are kept but always count as errors."
    ]


def test_several_labels_a_row_come_from_parquet_lists(tmp_path: Path, inputs: Inputs) -> None:
    labels = [["a", "b"], ["b"], None] * 200
    pq.write_table(pa.table({"tags": labels}), inputs.folder / "tags.parquet")
    do(tmp_path / "store", inputs.request())
    seeds = do(tmp_path / "store", inputs.request("seeds", labels=f"{inputs.folder / 'tags.parquet'}::tags")).artifact
    np.testing.assert_array_equal(seeds.array("labels")[:3], [[0, 1], [1, -1], [-1, -1]])


def test_a_clip_retrieval_folder_needs_no_flags(tmp_path: Path, inputs: Inputs) -> None:
    folder = tmp_path / "clip"
    rows = rows_of(inputs)
    for kind in ("img_emb", "metadata"):
        (folder / kind).mkdir(parents=True)
    for part in range(12):
        np.save(folder / "img_emb" / f"img_emb_{part}.npy", rows[part * 50 : part * 50 + 50].astype(np.float16))
        paths = [f"{part}/{row}.jpg" for row in range(50)]
        pq.write_table(pa.table({"image_path": paths}), folder / "metadata" / f"metadata_{part}.parquet")
    artifact = do(tmp_path / "store", Request([str(folder)], "background", dims=8, keep_raw=True)).artifact
    np.testing.assert_array_equal(artifact.array("raw"), rows.astype(np.float16))
    assert ids_of(artifact)[551] == "11/1.jpg"


def test_every_format_gives_the_same_vectors(tmp_path: Path, inputs: Inputs) -> None:
    rows = rows_of(inputs)
    folder = inputs.folder
    np.save(folder / "fortran.npy", np.asfortranarray(rows))
    np.save(folder / "big.npy", rows.astype(">f4"))
    np.column_stack([np.full(600, 12, "<i4").view("<f4"), rows]).tofile(folder / "rows.fvecs")
    (folder / "rows.fbin").write_bytes(np.array([600, 12], "<u4").tobytes() + rows.tobytes())
    with h5py.File(folder / "rows.h5", "w") as file:
        file["deep/rows"] = rows
    pq.write_table(pa.table({"embedding": list(rows)}), folder / "rows.parquet", row_group_size=77)
    np.save(folder / "part_2.npy", rows[:100])
    np.save(folder / "part_10.npy", rows[100:])
    reference = do(tmp_path / "reference", inputs.request()).artifact.array("vectors")
    specs = ["fortran.npy", "big.npy", "rows.fvecs", "rows.fbin", "rows.h5::deep/rows", "rows.parquet::embedding", "part_*.npy"]
    for number, spec in enumerate(specs):
        vectors = do(tmp_path / f"store-{number}", inputs.request(name=spec)).artifact.array("vectors")
        np.testing.assert_array_equal(vectors, reference, err_msg=spec)


def test_an_exported_zarr_array_of_a_store_can_be_imported_again(tmp_path: Path, inputs: Inputs) -> None:
    first = do(tmp_path / "store", inputs.request(dims=None, normalize=False)).artifact
    source = f"{tmp_path / 'store' / 'descriptors' / 'background'}::vectors"
    again = do(tmp_path / "other", Request([source], "background", normalize=False)).artifact
    np.testing.assert_array_equal(again.array("vectors"), first.array("vectors"))
    assert problems(Store.open(tmp_path / "other")) == []


@pytest.mark.parametrize("seeds_first", [True, False])
def test_class_names_that_contradict_the_seeds_are_told(tmp_path: Path, inputs: Inputs, seeds_first: bool) -> None:
    folder = inputs.folder
    (folder / "other.txt").write_text("".join(f"thing {i}\n" for i in range(5)))
    do(tmp_path / "store", inputs.request())
    seeds = inputs.request("seeds", class_names=str(folder / "classes.txt"))
    test = inputs.request("test", labels=str(folder / "labels.npy"), class_names=str(folder / "other.txt"))
    if seeds_first:
        do(tmp_path / "store", seeds)
        with pytest.raises(BadLabels, match=r"labels\.npy: class 'class 0' of the seeds is called 'thing 0' here"):
            do(tmp_path / "store", test)
    else:
        do(tmp_path / "store", test)
        (note,) = do(tmp_path / "store", seeds).notes
        assert "descriptors/test: class 'class 0' of the seeds is called 'thing 0' here" in note


def test_names_for_seeds_that_have_only_numbers_are_refused(tmp_path: Path, inputs: Inputs) -> None:
    (inputs.folder / "names.txt").write_text("ant\nbee\n" * 300)
    do(tmp_path / "store", inputs.request())
    do(tmp_path / "store", inputs.request("seeds"))
    with pytest.raises(BadLabels, match="Import the seeds with class names"):
        do(tmp_path / "store", inputs.request("test", labels=str(inputs.folder / "names.txt")))


def test_replacing_a_role_says_what_it_replaces_and_what_is_stale_now(tmp_path: Path, inputs: Inputs) -> None:
    do(tmp_path / "store", inputs.request())
    assert do(tmp_path / "store", inputs.request("seeds")).notes == []
    assert do(tmp_path / "store", inputs.request("seeds")).notes == []
    build_graph(tmp_path / "store", BuildRequest(k=3))
    (note,) = do(tmp_path / "store", inputs.request("seeds", "others.npy")).notes
    assert note == (
        "descriptors/seeds replaces 600 rows imported from vectors.npy; made from them, and stale now: knn/W0, graph/W."
    )


class InMemory:
    """A source without files."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.name, self.files = "array", ()
        self._rows = rows
        self.rows, self.width = rows.shape
        self.dtype = rows.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._rows[start:stop].copy()

    def locate(self, row: int) -> str:
        return f"array, row {row}"

    def ids(self) -> Column | None:
        return None


def test_rows_labels_ids_and_names_in_memory_give_the_arrays_of_files(tmp_path: Path, inputs: Inputs) -> None:
    keys = ("rows", "labels", "ids")
    prints = {key: {"source": key, "bytes": 1, "files": 0, "digest": f"{n:024x}"} for n, key in enumerate(keys)}
    labels = Given(Column(np.arange(600) % 5), prints["labels"], "labels")
    ids = Given(Column(Strings.of(f"row-{i}" for i in range(600))), prints["ids"], "ids")
    request = Request(
        InMemory(rows_of(inputs)),
        "seeds",
        labels=labels,
        ids=ids,
        class_names={i: f"class {i}" for i in range(5)},
        dims=8,
        no_background=True,
        source_fingerprint=prints["rows"],
    )
    made = do(tmp_path / "memory", request).artifact
    folder = inputs.folder
    by_files = inputs.request("seeds", ids=str(folder / "ids.txt"), class_names=str(folder / "classes.txt"), no_background=True)
    assert made.manifest.arrays == do(tmp_path / "files", by_files).artifact.manifest.arrays
    assert made.manifest.inputs["source"] == prints["rows"]
    assert made.run["witness"] == {"source": [], "labels": [], "ids": [], "class_names": []}
    assert reasons_stale(Store.open(tmp_path / "memory"), made) == []
    assert do(tmp_path / "memory", request).reused
    assert not do(tmp_path / "memory", replace(request, labels=replace(labels, fingerprint=prints["ids"]))).reused
    assert not do(tmp_path / "memory", replace(request, class_names={i: f"other {i}" for i in range(5)})).reused


def test_values_in_memory_are_checked_as_files_are(tmp_path: Path, inputs: Inputs) -> None:
    print_ = {"source": "rows", "bytes": 1, "files": 0, "digest": "0"}
    labels = Given(Column(np.zeros(600, np.int64)), print_, "y")
    request = Request(InMemory(rows_of(inputs)), "seeds", labels, no_background=True, dims=8, source_fingerprint=print_)
    with pytest.raises(CountMismatch, match="y: 3 labels for the 600 rows of array"):
        do(tmp_path / "store", replace(request, labels=replace(labels, column=Column(np.zeros(3, np.int64)))))
    for names, told in (({0: "a", 1: "a"}, "both named 'a'"), ({0: ""}, "class 0 is named ''")):
        with pytest.raises(BadLabels, match=told):
            do(tmp_path / "store", replace(request, class_names=names))
    with pytest.raises(TypeError, match="needs a fingerprint"):
        do(tmp_path / "store", replace(request, source_fingerprint=None))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("field", "value"), [("role", "seed"), ("dtype", "float61"), ("on_bad", "dorp")])
def test_choices_are_checked_without_the_command_line(tmp_path: Path, inputs: Inputs, field: str, value: str) -> None:
    with pytest.raises(BadOption, match=f"{field}='{value}': not one of the choices. Did you mean"):
        do(tmp_path / "store", replace(inputs.request(), **{field: value}))  # type: ignore[arg-type]


def test_no_background_is_for_seeds(tmp_path: Path, inputs: Inputs) -> None:
    with pytest.raises(BadOption, match="goes with role='seeds', not with role='test'"):
        do(tmp_path / "store", inputs.request("test", no_background=True))
