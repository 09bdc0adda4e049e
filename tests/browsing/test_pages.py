"""The page's view of a store: artifacts, arrays, rows, neighbours, paths, search; never more than a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import mmdiff
from tests.support.paths import SAMPLE
from tests.support.served import Served, serve
from tests.support.stores import MEMORY

ROWS, SEEDS, TESTS, DIMS = 240, 12, 20, 64


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def store(folder: Path) -> mmdiff.Store:
    """A study: background with ids, appended rows, seeds with labels, test points; diffused, with copies of two rows."""
    rows = np.load(SAMPLE / "background.npy")[:ROWS]
    rows[7] = rows[5]
    chosen = np.linspace(0, 199, SEEDS).astype(int)
    names = {str(number): f"class {number}" for number in np.unique(np.load(SAMPLE / "seed_labels.npy")).tolist()}
    made = mmdiff.open(folder / "store", create=True)
    made.add(rows[:-10], ids=[f"photo-{row:03}" for row in range(ROWS - 10)], dims=DIMS)
    made.add(rows[-10:], ids=[f"later {row}" for row in range(10)], append=True)
    class_names = {int(number): name for number, name in names.items()}
    labels = np.load(SAMPLE / "seed_labels.npy")[chosen]
    made.add(np.load(SAMPLE / "seeds.npy")[chosen], role="seeds", labels=labels, class_names=class_names)
    made.add(np.load(SAMPLE / "test.npy")[:TESTS], role="test", labels=np.load(SAMPLE / "test_labels.npy")[:TESTS])
    made.build_graph(k=8)
    made.label({"photo-003": "class 0 of mine"})
    made.diffuse(predict_nodes=True)
    made.audit("duplicates", above=0.999)
    return made


@pytest.fixture(scope="module")
def page(store: mmdiff.Store, folder: Path) -> Iterator[Served]:
    (folder / "texts.csv").write_text("text\n" + "".join(f'"text of row {row}, é"\n' for row in range(ROWS)))
    with serve(store.path, "--texts", f"{folder / 'texts.csv'}::text") as served:
        served.wait(lambda status: status["state"] == "idle" and status["confident"] is not None)
        yield served


def test_the_store_is_described(page: Served, store: mmdiff.Store) -> None:
    found = page.ask("store")
    assert (found["name"], found["path"], found["rows"], found["dims"]) == ("store", str(store.path), ROWS, DIMS)
    assert found["roles"] == {"background": ROWS - 10, "appended": 10, "seeds": SEEDS, "test": TESTS}
    assert (found["graph"], found["missing"], found["names"], found["images"], found["texts"]) == (
        True,
        None,
        True,
        False,
        True,
    )


def test_every_artifact_is_shown_with_its_arrays_and_histograms(page: Served, store: mmdiff.Store) -> None:
    listed = page.ask("artifacts")["artifacts"]
    assert [each["name"] for each in listed] == store.names()
    assert all(each["stale"] is None and each["bytes"] > 0 and each["age"] >= 0 and each["summary"] for each in listed)
    for name in store.names():
        found = page.ask("artifact", name=name)
        assert {"kind", "schema", "command", "created", "seconds", "parameters", "facts", "inputs", "software"} <= found.keys()
        for array in found["arrays"]:
            rows = page.ask("rows", artifact=name, array=array["name"], count=3)
            length = array["shape"][0] if len(array["shape"]) == 1 else int(np.prod(array["shape"][:-1]))
            assert rows["total"] == length
            assert len(rows["rows"]) == min(3, length)
        for array in found["histograms"]:
            histogram = page.ask("histogram", artifact=name, array=array)
            assert len(histogram["edges"]) == len(histogram["counts"]) + 1
            assert histogram["sampled"] is None or histogram["sampled"] >= sum(histogram["counts"])


def test_pages_of_arrays_are_what_is_stored(page: Served, store: mmdiff.Store) -> None:
    vectors = np.asarray(store["descriptors/background"]["vectors"])
    found = page.ask("rows", artifact="descriptors/background", array="vectors", start=225, count=100)
    assert (found["start"], found["total"], len(found["rows"]), found["truncated"]) == (225, ROWS - 10, 5, True)
    np.testing.assert_allclose(np.array(found["rows"]), vectors[225:, :32], rtol=1e-6)
    ids = page.ask("rows", artifact="descriptors/background", array="ids", start=3, count=2)
    assert ids["rows"] == [["photo-003"], ["photo-004"]]
    planes = page.ask("rows", artifact="scores/diffusion", array="scores", start=TESTS, count=1)
    np.testing.assert_allclose(planes["rows"][0], store["scores/diffusion"]["scores"][1, 0, :32], rtol=1e-6)


def test_histograms_count_all_values_of_short_arrays_and_a_sample_of_long_ones(page: Served, store: mmdiff.Store) -> None:
    degrees = page.ask("histogram", artifact="graph/W", array="degrees")
    assert (sum(degrees["counts"]), degrees["sampled"]) == (ROWS + SEEDS, None)
    similarities = page.ask("histogram", artifact="knn/BB", array="similarities")
    assert sum(similarities["counts"]) == (ROWS - 10) * 8
    raw = page.ask("histogram", artifact="descriptors/background", array="vectors")
    assert sum(raw["counts"]) == (ROWS - 10) * DIMS or raw["sampled"]
    del store


def test_a_row_has_its_neighbours_by_similarity_its_label_and_its_history(page: Served, store: mmdiff.Store) -> None:
    found = page.ask("row", row=3)
    assert (found["id"], found["given"], found["source"], found["confidence"]) == (
        "photo-003",
        ["class 0 of mine"],
        "given",
        1.0,
    )
    assert found["text"] == "text of row 3, é"
    assert [(entry["batch"], entry["source"], entry["labels"]) for entry in found["history"]] == [
        (0, "python", ["class 0 of mine"])
    ]
    columns = store.graph.to_scipy()[[3]].indices
    assert {each["row"] for each in found["neighbours"]} == set(columns.tolist()) - {3}
    vectors = np.concatenate(
        [np.asarray(store[f"descriptors/{role}"]["vectors"]) for role in ("background", "appended", "seeds")]
    )
    expected = vectors[[each["row"] for each in found["neighbours"]]] @ vectors[3]
    np.testing.assert_allclose([each["similarity"] for each in found["neighbours"]], expected, atol=1e-5)
    assert (np.diff(expected) <= 1e-6).all()


def test_predictions_are_those_of_predict(page: Served, store: mmdiff.Store) -> None:
    table = store.predict().to_pylist()
    found = page.ask("search", q="", count=200)["rows"] + page.ask("search", q="", start=200, count=40)["rows"]
    assert len(found) == ROWS
    for row, line in zip(found, table, strict=False):
        assert (row["id"], row["label"], row["source"]) == (line["id"], line["label"], line["source"])
        assert row["confidence"] == pytest.approx(line["confidence"], abs=1e-5)
        assert row["margin"] == pytest.approx(line["margin"], abs=1e-5)
        assert row["second"] == line["second"] or row["source"] == "given"
    tested = [page.ask("row", row=row, role="test", path=0) for row in range(3)]
    for row, line in zip(tested, table[ROWS:], strict=False):
        assert (str(row["id"]), row["label"], row["role"]) == (line["id"], line["label"], "test")
        assert row["confidence"] == pytest.approx(line["confidence"], abs=1e-5)


def test_a_path_leads_from_a_labelled_row_to_the_row_as_explain_says(page: Served, store: mmdiff.Store) -> None:
    found = page.ask("row", row=11)
    explained = store.explain(id_="photo-011")["paths"][-1]
    assert found["path_label"] == explained["class"]
    assert [(step["role"].rstrip("s"), step["id"]) for step in found["path"]] == [
        (step["role"], step["id"]) for step in explained["steps"]
    ]
    assert [step["weight"] for step in found["path"]] == [step["share"] for step in explained["steps"]]
    assert page.ask("row", row=11, path=0)["path"] is None


def test_seeds_follow_the_collection_and_test_points_have_numbers_of_their_own(page: Served) -> None:
    seed = page.ask("row", row=ROWS, path=0)
    assert (seed["role"], seed["source"], seed["history"][0]["source"]) == ("seeds", "given", "import")
    assert page.ask("row", row=ROWS - 1, path=0)["id"] == "later 9"
    assert page.get("row", row=ROWS + SEEDS).status == 404
    point = page.ask("row", row=0, role="test")
    assert point["neighbours"]
    assert point["path"][-1]["row"] in {each["row"] for each in point["neighbours"]}
    assert page.get("row", row=TESTS, role="test").status == 404


def test_duplicates_of_an_audit_are_shown(page: Served) -> None:
    found = page.ask("row", row=5, path=0)
    assert [each["row"] for each in found["duplicates"]] == [7]
    assert found["group"] == page.ask("row", row=7, path=0)["group"]
    assert page.ask("row", row=8, path=0)["group"] is None


def test_search_finds_the_exact_id_first_then_those_that_begin_with_it(page: Served) -> None:
    found = page.ask("search", q="photo-02")
    assert [row["row"] for row in found["rows"]] == list(range(20, 30))
    assert (found["total"], found["more"]) == (10, False)
    assert [row["row"] for row in page.ask("search", q="later 3")["rows"]] == [ROWS - 7]
    part = page.ask("search", q="photo-", start=5, count=2)
    assert ([row["row"] for row in part["rows"]], part["more"]) == ([5, 6], True)
    assert page.ask("search", q="no such id") == {"total": 0, "more": False, "rows": []}
    # Seeds have no ids of their own, but numbers.
    assert [row["row"] for row in page.ask("search", q="11")["rows"]] == [ROWS + 11]


def test_suggestions_are_those_of_suggest_by_every_measure(page: Served, store: mmdiff.Store) -> None:
    for by in ("coverage", "uncertainty", "mixed"):
        while (found := page.ask("suggestions", by=by, count=20))["computing"]:
            page.wait(lambda status: status["state"] == "idle")
        table = store.suggest(20, by=by).to_pylist()
        assert [row["id"] for row in found["rows"]] == [line["id"] for line in table]
        assert [row["rank"] for row in found["rows"]] == list(range(1, 21))
        assert [row["reaches"] for row in found["rows"]] == [line["reaches"] for line in table]
        assert all(row["nearest_label"] is not None for row in found["rows"])
    assert page.get("suggestions", by="chance").status == 400


def test_classes_and_status_count_given_labels(page: Served) -> None:
    classes = {each["label"]: each for each in page.ask("classes")["classes"]}
    status = page.ask("status")
    assert sum(each["given"] for each in classes.values()) == status["labelled"] == SEEDS + 1
    assert classes["class 0 of mine"]["given"] == 1
    assert sum(each["predicted"] for each in classes.values()) == ROWS - 1
    assert status["coverage"] == {"reached": ROWS, "rows": ROWS}
    assert status["history"][0]["labelled"] == SEEDS + 1


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("rows", {"artifact": "graph/W", "array": "indptr", "count": 101}),
        ("rows", {"artifact": "graph/W", "array": "indptr", "start": "9" * 30}),
        ("rows", {"artifact": "graph/W", "array": "indptr", "start": -1}),
        ("rows", {"artifact": "graph/W", "array": "nothing"}),
        ("rows", {"artifact": "graph/V", "array": "indptr"}),
        ("rows", {"artifact": "../../etc", "array": "passwd"}),
        ("rows", {"array": "indptr"}),
        ("histogram", {"artifact": "descriptors/background", "array": "ids"}),
        ("histogram", {"artifact": "graph/W", "array": "../run"}),
        ("artifact", {"name": "objects/../zarr.json"}),
        ("artifact", {"name": "graph/W\0"}),
        ("search", {"q": "x" * 2000}),
        ("search", {"count": 100_000}),
        ("row", {"row": "nan"}),
        ("row", {"row": "٣"}),
        ("row", {}),
        ("suggestions", {"start": 1e300}),
        ("image", {"row": 0}),
        ("nothing", {}),
        ("label", {}),
    ],
)
def test_what_is_not_there_or_too_much_is_refused_with_a_sentence(page: Served, path: str, parameters: dict[str, Any]) -> None:
    reply = page.get(path, **parameters)
    assert reply.status in (400, 404, 405)
    assert reply.error.endswith(".")
    assert "Traceback" not in reply.error
