"""Golden stores of every schema version stay readable: by a reader without mmdiff, by stock zarr, and by mmdiff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from mmdiff.formats.store.store import Store
from mmdiff.formats.store.verify import verify, verify_frame
from mmdiff.kinds import KINDS
from tests.support import golden_reader as plain
from tests.support.make_golden import (
    BACKGROUND_ROWS,
    BAD_ROWS,
    DIFFUSION_ITERATIONS,
    DIMS,
    DRAWS,
    LARGER_K,
    NODES,
    SEED_LABELS,
    SEED_ROWS,
    TEST_LABELS,
    TEST_ROWS,
    K,
    golden_rows,
)
from tests.support.paths import DOCS, GOLDEN, GOLDEN_2, GOLDEN_3, GOLDEN_4, GOLDEN_5

KEPT = [row for row in range(BACKGROUND_ROWS) if row not in BAD_ROWS]
NAMES = (
    *("descriptors/background", "descriptors/seeds", "descriptors/test", "models/pca"),
    *("models/cells", "knn/BB", "knn/W0", "knn/test", "graph/W"),
    *("models/logreg", "scores/logreg", "scores/diffusion", "reports/golden"),
)


def test_background_reads_without_mmdiff() -> None:
    np.testing.assert_array_equal(plain.array(GOLDEN, NAMES[0], "raw"), golden_rows(BACKGROUND_ROWS, 0)[KEPT])
    np.testing.assert_array_equal(plain.array(GOLDEN, NAMES[0], "ids"), KEPT)
    np.testing.assert_array_equal(plain.array(GOLDEN, NAMES[0], "dropped_ids"), BAD_ROWS)
    assert plain.manifest(GOLDEN, NAMES[0])["facts"]["dropped"] == {"all_zero": 1, "not_finite": 1}


def test_seeds_read_without_mmdiff() -> None:
    classes = plain.strings(GOLDEN, NAMES[1], "class_names")
    labels = [classes[index] if index >= 0 else "" for index in plain.array(GOLDEN, NAMES[1], "labels")]
    assert tuple(labels) == SEED_LABELS
    assert plain.strings(GOLDEN, NAMES[1], "ids") == [f"seed-{row}" for row in range(SEED_ROWS)]
    np.testing.assert_array_equal(plain.array(GOLDEN, NAMES[1], "class_numbers"), [0, 1, 2])


def test_test_points_read_without_mmdiff() -> None:
    numbers = plain.array(GOLDEN, NAMES[2], "class_numbers")
    labels = [numbers[index] if index >= 0 else -1 for index in plain.array(GOLDEN, NAMES[2], "labels")]
    assert tuple(labels) == TEST_LABELS
    assert plain.array(GOLDEN, NAMES[2], "vectors").dtype == np.float16


def golden_nodes() -> NDArray[np.float64]:
    """The vectors of all nodes: the background in cell order, then the seeds."""
    order = plain.array(GOLDEN, "models/cells", "order")
    background = plain.array(GOLDEN, NAMES[0], "vectors")[order]
    np.testing.assert_array_equal(plain.array(GOLDEN, "models/cells", "vectors"), background)
    return np.concatenate([background, plain.array(GOLDEN, NAMES[1], "vectors")]).astype(np.float64)


def test_cells_of_schema_2_read_without_mmdiff() -> None:
    cells = plain.manifest(GOLDEN_2, "models/cells")
    assert (cells["kind"], cells["schema"]) == ("cells", 2)
    arrays = {name: plain.array(GOLDEN_2, "models/cells", name) for name in cells["arrays"]}
    background = plain.array(GOLDEN_2, NAMES[0], "vectors")
    np.testing.assert_array_equal(arrays["vectors"], background[arrays["order"]])
    sizes = np.diff(arrays["offsets"])
    np.testing.assert_array_equal(arrays["cell_of"], np.repeat(np.arange(len(sizes)), sizes))
    assert arrays["centroids"].shape == (cells["facts"]["cells"], DIMS) == (len(sizes), DIMS)
    assert arrays["children"][0] == 0
    assert arrays["children"][-1] == len(sizes)
    assert arrays["coarse"].shape == (len(arrays["children"]) - 1, DIMS)


@pytest.mark.parametrize(
    ("golden", "name", "arrays"),
    [
        (GOLDEN_2, "models/cells", ("order", "offsets", "centroids")),
        (GOLDEN_3, "knn/W0", ("rows", "neighbors", "similarities")),
        (GOLDEN_4, "folds/diffusion", ("scores", "rows", "fold", "labels", "class_numbers")),
        (GOLDEN_5, "audit/labels", ("rows", "labels", "predicted", "confidence", "predicted_confidence", "doubt")),
    ],
)
def test_golden_stores_of_later_schemas_are_sound_and_read_with_zarr(golden: Path, name: str, arrays: tuple[str, ...]) -> None:
    store = Store.open(golden)
    assert list(verify(store, store.names(), KINDS)) == []
    assert list(verify_frame(store)) == []
    group = zarr.open_group(golden, mode="r")
    for array in arrays:
        np.testing.assert_array_equal(group[f"{name}/{array}"][:], plain.array(golden, name, array))  # type: ignore[index]


def test_held_out_scores_read_without_mmdiff() -> None:
    folds = plain.manifest(GOLDEN_4, "folds/diffusion")
    scores, rows, fold, labels = (
        plain.array(GOLDEN_4, "folds/diffusion", name) for name in ("scores", "rows", "fold", "labels")
    )
    # Rows 0 to 5 were imported as cat, dog, cat, ...; then row 0 lost its label, row 4 became a dog, 7 and 8 beetles.
    given = {1: "dog", 2: "cat", 3: "dog", 4: "dog", 5: "dog", 7: "Käfer", 8: "Käfer"}
    names = plain.strings(GOLDEN_4, "folds/diffusion", "class_names")
    assert {row: names[label] for row, label in zip(rows.tolist(), labels[:, 0].tolist(), strict=True)} == {
        row: name for row, name in given.items() if name != "cat"
    }
    assert (folds["facts"]["singletons"], folds["facts"]["folds"], scores.shape) == (1, 2, (3, len(rows), 3))
    assert set(fold.tolist()) == {0, 1}
    # Before the first iteration no label has reached a row that is held out.
    assert not scores[0].any()
    assert scores[1:].any()


def test_audits_read_without_mmdiff() -> None:
    of = {"background": 24, "appended": 0, "seeds": 0, "test": 5}
    parts = {part: plain.manifest(GOLDEN_5, f"audit/{part}") for part in ("labels", "duplicates", "leaks", "outliers")}
    assert {part: found["parameters"]["part"] for part, found in parts.items()} == {part: part for part in parts}
    assert all(found["facts"]["of"] == of for found in parts.values())
    read = {part: {name: plain.array(GOLDEN_5, f"audit/{part}", name) for name in parts[part]["arrays"]} for part in parts}
    duplicates, leaks, labels, outliers = (read[part] for part in ("duplicates", "leaks", "labels", "outliers"))
    # Row 20 + i is row i once more. Test points are numbered from 24 on; test point i is row i, which has a label.
    assert duplicates["rows"].tolist() == [0, 20, 1, 21, 2, 22, 3, 23]
    assert duplicates["group"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert duplicates["representative"].tolist() == [1, 0] * 4
    assert sorted(zip(leaks["rows"].tolist(), leaks["matches"].tolist(), strict=True)) == [(24 + row, row) for row in range(5)]
    np.testing.assert_allclose([*duplicates["similarity"], *leaks["similarity"]], 1, atol=1e-6)
    names = plain.strings(GOLDEN_5, "audit/labels", "class_names")
    assert {row: names[label] for row, label in zip(labels["rows"].tolist(), labels["labels"].tolist(), strict=True)} == {
        row: ("cat", "dog", "Käfer")[row % 3] for row in range(9)
    }
    assert (np.diff(labels["doubt"]) <= 0).all()
    assert ((labels["doubt"] > 0) == (labels["labels"] != labels["predicted"])).all()
    assert set(outliers) == {"rows", "similarity", "named", "reasons"}


def test_lists_of_schema_2_read_without_mmdiff_as_a_patch() -> None:
    W0 = plain.manifest(GOLDEN_3, "knn/W0")
    assert (W0["kind"], W0["schema"]) == ("knn", 2)
    assert W0["facts"]["background"] == NODES - SEED_ROWS
    background = plain.array(GOLDEN_3, "models/cells", "vectors")
    nodes = np.concatenate([background, plain.array(GOLDEN_3, NAMES[1], "vectors")]).astype(np.float64)
    lists = np.zeros((NODES, LARGER_K), np.int64)
    lists[: NODES - SEED_ROWS] = plain.array(GOLDEN_3, "knn/BB", "neighbors")
    rows = plain.array(GOLDEN_3, "knn/W0", "rows")
    lists[rows] = plain.array(GOLDEN_3, "knn/W0", "neighbors")
    np.testing.assert_array_equal(lists, nearest(nodes, nodes, LARGER_K))
    assert SEED_ROWS < len(rows) < NODES


def nearest(queries: NDArray[Any], nodes: NDArray[np.float64], k: int = K) -> NDArray[np.int64]:
    """The k nearest nodes by decreasing similarity, then by number."""
    scores = (queries.astype(np.float64) @ nodes.T).astype(np.float32)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def test_lists_read_without_mmdiff() -> None:
    nodes = golden_nodes()
    background = nodes[: NODES - SEED_ROWS]
    test = plain.array(GOLDEN, NAMES[2], "vectors")
    np.testing.assert_array_equal(plain.array(GOLDEN, "knn/BB", "neighbors"), nearest(background, background))
    np.testing.assert_array_equal(plain.array(GOLDEN, "knn/W0", "neighbors"), nearest(nodes, nodes))
    np.testing.assert_array_equal(plain.array(GOLDEN, "knn/test", "neighbors"), nearest(test, nodes))
    best = (nodes @ nodes.T).max(axis=1)
    np.testing.assert_allclose(plain.array(GOLDEN, "knn/W0", "similarities")[:, 0], best, rtol=1e-6)


def test_graph_reads_without_mmdiff() -> None:
    indptr, indices, scale = (plain.array(GOLDEN, "graph/W", array) for array in ("indptr", "indices", "scale"))
    W = np.zeros((NODES, NODES))
    for row in range(NODES):
        entries = indices[indptr[row] : indptr[row + 1]]
        W[row, entries & 0x7FFFFFFF] = (1 + (entries >> 31)) * scale[row]
    W0 = np.zeros((NODES, NODES))
    np.put_along_axis(W0, plain.array(GOLDEN, "knn/W0", "neighbors").astype(np.int64), 1, axis=1)
    both = W0 + W0.T
    np.testing.assert_allclose(W, both / both.sum(axis=1, keepdims=True), rtol=1e-6)
    assert plain.manifest(GOLDEN, "graph/W")["facts"]["seeds"] == SEED_ROWS


def test_model_and_its_scores_read_without_mmdiff() -> None:
    file = plain.array(GOLDEN, "models/logreg", "safetensors").tobytes()
    length = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
    tensors = {}
    for name, dtype in (("weight", "<f4"), ("bias", "<f4"), ("class_numbers", "<i8")):
        start, stop = header[name]["data_offsets"]
        tensors[name] = np.frombuffer(data[start:stop], dtype).reshape(header[name]["shape"])
    logits = golden_rows(TEST_ROWS, 2).astype(np.float64) @ tensors["weight"].T + tensors["bias"]
    scores = plain.array(GOLDEN, "scores/logreg", "scores")
    assert scores.shape == (1, TEST_ROWS, 3)
    np.testing.assert_allclose(scores[0], logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), atol=1e-4)
    np.testing.assert_array_equal(tensors["class_numbers"], plain.array(GOLDEN, "scores/logreg", "class_numbers"))
    assert plain.strings(GOLDEN, "models/logreg", "class_names") == ["Käfer", "cat", "dog"]


def test_diffusion_reads_without_mmdiff() -> None:
    """The scores are V L, with L the columns of S = W^t Y divided by their sums."""
    indptr, indices, scale = (plain.array(GOLDEN, "graph/W", array) for array in ("indptr", "indices", "scale"))
    W = np.zeros((NODES, NODES))
    for row in range(NODES):
        entries = indices[indptr[row] : indptr[row + 1]]
        W[row, entries & 0x7FFFFFFF] = (1 + (entries >> 31)) * scale[row]
    labels, lists = plain.array(GOLDEN, NAMES[1], "labels"), plain.array(GOLDEN, "knn/test", "neighbors")
    S = np.zeros((NODES, 3))
    S[NODES - SEED_ROWS + np.flatnonzero(labels >= 0), labels[labels >= 0]] = 1
    scores, sums = (plain.array(GOLDEN, "scores/diffusion", array) for array in ("scores", "column_sums"))
    assert scores.shape == (DIFFUSION_ITERATIONS + 1, TEST_ROWS, 3)
    for t in range(DIFFUSION_ITERATIONS + 1):
        np.testing.assert_allclose(sums[t], S.sum(axis=0), rtol=1e-5)
        L = S / S.sum(axis=0)
        np.testing.assert_allclose(scores[t], L[lists].sum(axis=1), rtol=1e-5)
        S = W @ S
    mine = np.empty((NODES - SEED_ROWS, 3))
    mine[plain.array(GOLDEN, "graph/W", "order")] = L[: NODES - SEED_ROWS]
    top, best = (plain.array(GOLDEN, "scores/diffusion", array) for array in ("top_classes", "top_scores"))
    np.testing.assert_allclose(best, -np.sort(-mine, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(top == -1, best == 0)
    assert (top[:, 0] == -1).any()
    rows = np.arange(len(top))[:, None]
    np.testing.assert_allclose(np.where(top >= 0, mine[rows, top], 0), best, rtol=1e-5)
    assert plain.manifest(GOLDEN, "scores/diffusion")["facts"]["planes"] == list(range(DIFFUSION_ITERATIONS + 1))
    assert plain.strings(GOLDEN, "scores/diffusion", "class_names") == ["Käfer", "cat", "dog"]


@pytest.mark.parametrize(("name", "rows", "shift"), [(NAMES[1], SEED_ROWS, 1), (NAMES[2], TEST_ROWS, 2)])
def test_vectors_are_what_the_specification_says(name: str, rows: int, shift: int) -> None:
    mean, components = (plain.array(GOLDEN, NAMES[3], array).astype(np.float64) for array in ("mean", "components"))
    expected = (golden_rows(rows, shift) - mean) @ components.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = plain.array(GOLDEN, name, "vectors")
    np.testing.assert_allclose(vectors, expected, atol=1e-6 if vectors.dtype == np.float32 else 1e-3)
    np.testing.assert_allclose(components @ components.T, np.eye(DIMS), atol=1e-6)


def test_report_reads_without_mmdiff() -> None:
    planes, offsets, keys = (plain.array(GOLDEN, "reports/golden", array) for array in ("planes", "offsets", "keys"))
    facts = plain.manifest(GOLDEN, "reports/golden")["facts"]
    assert len(keys) == len(offsets) - 1 == len(facts["lines"]) * DRAWS
    for line in facts["lines"]:
        cells = range(line["first_cell"], line["first_cell"] + DRAWS)
        top5 = np.array([planes[offsets[cell] : offsets[cell + 1], 1] for cell in cells]) / facts["tests"]["validation"]["all"]
        assert len(line["planes"]) == DIFFUSION_ITERATIONS + 1
        np.testing.assert_allclose(line["mean"]["top5"], top5.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(line["std"]["top5"], top5.std(axis=0, ddof=1), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_stock_zarr_reads_the_same(name: str) -> None:
    group = zarr.open_group(GOLDEN, mode="r")[name]
    assert isinstance(group, zarr.Group)
    for array in plain.manifest(GOLDEN, name)["arrays"]:
        found = group[array]
        assert isinstance(found, zarr.Array)
        np.testing.assert_array_equal(np.asarray(found[:]), plain.array(GOLDEN, name, array))


@pytest.mark.parametrize("name", NAMES)
def test_mmdiff_reads_the_same(name: str) -> None:
    artifact = Store.open(GOLDEN).open_artifact(name)
    for array in artifact.manifest.arrays:
        np.testing.assert_array_equal(artifact.array(array), plain.array(GOLDEN, name, array))


def test_the_golden_store_is_whole() -> None:
    store = Store.open(GOLDEN)
    assert list(verify(store, store.names(), KINDS)) == []
    assert list(verify_frame(store)) == []


def test_every_kind_and_schema_has_a_golden_artifact_and_a_specification() -> None:
    manifests = [plain.manifest(store, name) for store in (GOLDEN, GOLDEN_2, GOLDEN_3) for name in NAMES]
    manifests += [plain.manifest(GOLDEN_4, name) for name in ("labels/current", "folds/diffusion")]
    manifests.append(plain.manifest(GOLDEN_5, "audit/labels"))
    golden = {(found["kind"], found["schema"]) for found in manifests}
    assert golden == set(KINDS)
    page = (DOCS / "formats.md").read_text()
    for (kind, schema), rules in KINDS.items():
        section = page.split(f"## `{kind}`, schema {schema}\n")[1].split("\n## ")[0]
        for array in rules.arrays:
            assert f"`{array.removesuffix('_offsets').removesuffix('_utf8')}`" in section, (kind, array)


def test_the_reader_without_mmdiff_imports_numpy_and_json_only() -> None:
    imports = [line for line in Path(plain.__file__).read_text().splitlines() if line.startswith(("import ", "from "))]
    allowed = ("__future__", "itertools", "json", "pathlib", "typing", "numpy")
    assert all(line.split()[1].split(".")[0] in allowed for line in imports)
    assert json.loads(json.dumps(plain.manifest(GOLDEN, NAMES[0])))["kind"] == "descriptors"
