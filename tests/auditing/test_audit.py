"""`mmdiff audit` on stores with planted duplicates, leaks and wrong labels: all are found, and said plainly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.evaluation.metrics import ranks_of
from mmdiff.formats.store.store import Store
from mmdiff.runtime.threads import limit_cores
from tests.diffusion.test_damaged_graph import forge
from tests.support.stores import problems, tree

ROWS, WIDTH, CLASSES = 240, 12, ("ant", "bee", "cat")
# Similarities of planted rows to rows of the collection, and where they are.
APPENDED = {3: 0.9995, 10: 0.997}
SEEDS = {20: 0.995, 21: 0.95}
TESTS = {0: 0.9999, 1: 0.996}
FLIPPED = (0, 7, 14, 24)
ABOVE = 0.99


def near(rows: NDArray[np.float64], planted: dict[int, float], seed: int) -> NDArray[np.float64]:
    """Rows of unit length, each with a known similarity to one of these."""
    draw = np.random.default_rng(seed)
    found = []
    for row, similarity in planted.items():
        own = rows[row]
        across = draw.standard_normal(len(own))
        across -= across @ own * own
        found.append(similarity * own + np.sqrt(1 - similarity**2) * across / np.linalg.norm(across))
    return np.array(found)


def collection() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rows in three clusters, none of which are near-duplicates, and their classes."""
    draw = np.random.default_rng(3)
    classes = np.arange(ROWS) % len(CLASSES)
    rows = draw.standard_normal((ROWS, WIDTH)) + 4 * np.eye(WIDTH)[classes]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), classes


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with appended rows, seeds and test points; every row up to 60 has a label, four of them a wrong one."""
    path = tmp_path_factory.mktemp("made") / "store"
    rows, classes = collection()
    labels = [CLASSES[own] if row < 60 else None for row, own in enumerate(classes)]
    for row in FLIPPED:
        labels[row] = CLASSES[(classes[row] + 1) % 3]
    store = mmdiff.open(path, create=True, memory="2G")
    store.add(rows, ids=[f"r{row}" for row in range(ROWS)], labels=labels)
    store.add(near(rows, APPENDED, 1), ids=[f"a{row}" for row in APPENDED], append=True)
    store.add(near(rows, SEEDS, 2), role="seeds", ids=[f"s{row}" for row in SEEDS], labels=[CLASSES[row % 3] for row in SEEDS])
    tests = np.concatenate([near(rows, TESTS, 3), rows[100:130] + 0.3 * near(rows, dict.fromkeys(range(30), 0.1), 4)])
    truth = [*(CLASSES[row % 3] for row in TESTS), *(CLASSES[row % 3] for row in range(100, 130))]
    store.add(tests, role="test", ids=[f"t{row}" for row in range(len(tests))], labels=truth)
    store.build_graph(k=12)
    store.diffuse(iterations=3)
    return path


@pytest.fixture
def path(original: Path, quick_folder: Path) -> Path:
    return Path(shutil.copytree(original, quick_folder / "store", symlinks=True))


@pytest.fixture
def store(path: Path) -> mmdiff.Store:
    return mmdiff.open(path, memory="2G")


def run(path: Path, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--store", str(path)])


def listed(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        (0.99, [("r3", "a3"), ("r10", "a10"), ("r20", "s20")]),
        (0.996, [("r3", "a3"), ("r10", "a10")]),
        (0.999, [("r3", "a3")]),
        (0.99999, []),
    ],
)
def test_duplicates_planted_at_known_similarities_are_all_found(
    store: mmdiff.Store, above: float, expected: list[tuple[str, str]]
) -> None:
    found = store.audit("duplicates", above=above)["duplicates"]
    table = listed(store.audit_table("duplicates"))
    assert [(one["id"], other["id"]) for one, other in zip(table[::2], table[1::2], strict=True)] == expected
    assert (found["groups"], found["rows"], found["above"], found["found"]) == (len(expected), 2 * len(expected), above, False)
    planted = {f"a{row}": value for row, value in APPENDED.items()} | {f"s{row}": value for row, value in SEEDS.items()}
    for one, other in zip(table[::2], table[1::2], strict=True):
        assert (one["group"], one["representative"], other["representative"]) == (other["group"], True, False)
        assert one["similarity"] == other["similarity"] == pytest.approx(planted[other["id"]], abs=1e-5)
        assert (one["role"], other["role"]) == ("background", "seeds" if other["id"].startswith("s") else "background")


def test_the_similarity_of_duplicates_is_found_from_the_lists_and_said(store: mmdiff.Store, path: Path) -> None:
    found = store.audit("duplicates")["duplicates"]
    assert found["found"]
    assert 0.95 < found["above"] < 0.9995
    assert {"r3", "a3"} <= {row["id"] for row in listed(store.audit_table("duplicates"))}
    outcome = run(path, "audit", "duplicates")
    assert f"(similarity of at least {found['above']:g}, found from the lists)" in outcome.stdout


def test_rows_that_are_equal_are_found_at_a_similarity_of_one(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((80, 30))
    for dtype in ("float32", "float16"):
        store = mmdiff.open(tmp_path / dtype, create=True)
        store.add(np.concatenate([rows, rows[:20]]), dtype=dtype)
        store.build_graph(k=5)
        assert store.audit("duplicates", above=1)["duplicates"]["groups"] == 20
    assert all(isinstance(row["id"], int) for row in listed(store.audit_table("duplicates")))


def test_a_group_is_joined_by_chains_and_represented_by_its_centre(tmp_path: Path) -> None:
    angles = np.concatenate([[0.0, 0.05, 0.1, 0.05 + 1e-3], np.linspace(1, 5, 20)])
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    store.build_graph(k=4)
    store.audit("duplicates", above=np.cos(0.06))
    group = [row for row in listed(store.audit_table("duplicates")) if row["group"] == 0]
    # Rows 0 and 2 are 0.1 apart; both are near 1 and 3, of which 1 comes first.
    assert [row["id"] for row in group] == [1, 0, 2, 3]


def test_planted_leaks_are_found_with_the_accuracy_without_them(store: mmdiff.Store, path: Path) -> None:
    found = store.audit("leaks", above=ABOVE)["leaks"]
    table = listed(store.audit_table("leaks"))
    assert [(row["id"], row["role"], row["matches"], row["matched_role"]) for row in table] == [
        ("t0", "test", "r0", "background"),
        ("t1", "test", "r1", "background"),
    ]
    np.testing.assert_allclose([row["similarity"] for row in table], list(TESTS.values()), atol=1e-5)
    assert (found["test"], found["tests"], found["held_out"]) == (2, 32, 0)
    scores = store["scores/diffusion"]["scores"][-1]
    names = [str(name) for name in Store.open(path).open_artifact("scores/diffusion").strings("class_names")]
    truth = [names.index(CLASSES[row % 3]) for row in (*TESTS, *range(100, 130))]
    right = ranks_of(np.asarray(scores), np.array(truth)[:, None]) == 1
    (accuracy,) = found["accuracy"]
    for part, rows in (("all", right), ("without", right[2:]), ("leaked", right[:2])):
        assert accuracy[part]["rows"] == len(rows)
        assert accuracy[part]["top1"]["accuracy"] == pytest.approx(rows.mean(), abs=1e-6)
    assert f"without the 2 that leak {right[2:].mean():.1%}" in found["notes"][-1]


def test_held_out_rows_leak_too(store: mmdiff.Store) -> None:
    store.hold_out(0.3)
    held = {row: f"r{row}" for row in range(60)}
    found = store.audit("leaks", above=0.8)["leaks"]
    rows = [row for row in listed(store.audit_table("leaks")) if row["role"] != "test"]
    assert found["held_out"] == len(rows) > 0
    X = np.concatenate([collection()[0], near(collection()[0], SEEDS, 2)])
    place = {f"r{row}": row for row in held} | {f"s{row}": ROWS + number for number, row in enumerate(SEEDS)}
    for row in rows:
        assert row["similarity"] == pytest.approx(X[place[row["id"]]] @ X[place[row["matches"]]], abs=1e-5)
    kept_out = {row["id"] for row in rows}
    assert not kept_out & {row["matches"] for row in rows}
    assert any("accuracy on held-out rows is not known" in note for note in found["notes"])


def test_flipped_labels_come_first(store: mmdiff.Store) -> None:
    found = store.audit("labels")["labels"]
    table = listed(store.audit_table("labels"))
    _, classes = collection()
    assert {row["id"] for row in table[: len(FLIPPED)]} == {f"r{row}" for row in FLIPPED}
    for row in table[: len(FLIPPED)]:
        number = int(row["id"][1:])
        assert (row["predicted"], row["label"]) == (CLASSES[classes[number]], CLASSES[(classes[number] + 1) % 3])
        assert row["doubt"] > 0
        assert row["confidence"] < row["predicted_confidence"]
    assert found["rows"] == len(table) == 62
    assert found["contradicted"] == sum(row["predicted"] != row["label"] for row in table)


def test_labels_are_judged_by_other_methods_too(store: mmdiff.Store) -> None:
    store.logreg(iterations=30)
    store.fuse()
    first = {f"r{row}" for row in FLIPPED}
    for name, folds in (("logreg", ["folds/logreg"]), ("fusion", ["folds/diffusion", "folds/logreg"])):
        store.audit("labels", scores=name)
        assert {row["id"] for row in listed(store.audit_table("labels"))[: len(FLIPPED)]} == first
        inputs = {entry["artifact"] for entry in store["audit/labels"].manifest.inputs.values()}
        assert inputs == {"graph/W", *folds}


def test_outliers_are_rows_far_from_all_others_and_rows_that_no_list_names(tmp_path: Path) -> None:
    rows = np.concatenate(
        [np.tile(np.eye(20)[0] * 9, (60, 1)) + np.random.default_rng(0).normal(size=(60, 20)), -np.eye(20)[:2]]
    )
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows)
    store.build_graph(k=5)
    found = store.audit("outliers")["outliers"]
    table = listed(store.audit_table("outliers"))
    assert {row["id"] for row in table[:2]} == {60, 61}
    assert table[0]["similarity"] <= table[1]["similarity"] < found["below"]
    X = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float64)
    products = X @ X.T
    lists = np.argsort(-products, axis=1)[:, :5]
    for row in table:
        others = lists[row["id"]][lists[row["id"]] != row["id"]]
        assert row["similarity"] == pytest.approx(products[row["id"], others].mean(), abs=1e-5)
        assert row["named"] == int((np.delete(lists, row["id"], axis=0) == row["id"]).sum())
        assert row["reason"].endswith("not named") == (row["named"] == 0)
    assert (found["far"], found["unnamed"]) == (
        sum("far" in row["reason"] for row in table),
        sum("not named" in row["reason"] for row in table),
    )


def test_an_unchanged_audit_is_found_and_a_changed_label_makes_only_its_audits_stale(store: mmdiff.Store, path: Path) -> None:
    first, again = store.audit(above=ABOVE), store.audit(above=ABOVE)
    parts = ("labels", "duplicates", "leaks", "outliers")
    assert [first[part]["reused"] for part in parts] == [False] * 4
    assert [again[part]["reused"] for part in parts] == [True] * 4
    assert [first[part]["object"] for part in parts] == [again[part]["object"] for part in parts]
    assert problems(Store.open(path)) == []
    store.label({"r61": "bee"})
    for part in ("labels", "leaks"):
        with pytest.raises(mmdiff.errors.Stale, match="Run again"):
            store.audit_table(part)
    for part in ("duplicates", "outliers"):
        assert store.audit_table(part).num_rows == first[part]["rows"]
    now = store.audit(above=ABOVE)
    assert [now[part]["reused"] for part in parts] == [False, True, False, True]


def test_one_and_two_threads_and_any_order_of_parts_make_the_same_bytes(store: mmdiff.Store, path: Path) -> None:
    before = limit_cores(1)
    try:
        first = store.audit(above=ABOVE)
    finally:
        limit_cores(before)
    other = mmdiff.open(shutil.copytree(path, path.with_name("other"), symlinks=True), threads=2, memory="1G")
    try:
        shutil.rmtree(other.path / "audit")
        for folder in (other.path / "objects").glob("audit-*"):
            shutil.rmtree(folder)
        for part in ("outliers", "leaks", "duplicates", "labels"):
            assert other.audit(part, above=ABOVE)[part]["object"] == first[part]["object"]
    finally:
        limit_cores(before)


def test_an_interrupted_audit_leaves_the_store_sound_and_runs_again(path: Path) -> None:
    class Stop:
        def __init__(self, what: str, _total: int, _unit: str) -> None:
            self.stop = what == "auditing lists"

        def __enter__(self) -> Any:
            if self.stop:
                raise KeyboardInterrupt
            return lambda _: None

        def __exit__(self, *_: object) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        mmdiff.open(path, progress=Stop).audit()
    assert problems(Store.open(path)) == []
    # Labels do not read the lists: they were finished before.
    assert [name for name in mmdiff.open(path).names() if name.startswith("audit/")] in ([], ["audit/labels"])
    assert mmdiff.open(path).audit()["duplicates"]["rows"] >= 2


def test_tables_and_files_have_the_same_rows(store: mmdiff.Store, tmp_path: Path) -> None:
    for part in ("labels", "duplicates", "leaks", "outliers"):
        found = store.audit(part, tmp_path / "rows.parquet", above=None if part in ("labels", "outliers") else ABOVE)[part]
        table = store.audit_table(part)
        assert pq.read_table(tmp_path / "rows.parquet").equals(table)
        assert (found["file"], found["rows"]) == (str(tmp_path / "rows.parquet"), table.num_rows)
        store.audit(part, tmp_path / "rows.jsonl", above=found.get("above"))
        lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
        plain = listed(table)
        assert [list(line) for line in lines] == [list(row) for row in plain]
        for line, row in zip(lines, plain, strict=True):
            assert {key: value if not isinstance(value, float) else np.float32(value) for key, value in line.items()} == row
        store.audit(part, tmp_path / "rows.csv", above=found.get("above"))
        head, *text = (tmp_path / "rows.csv").read_text().splitlines()
        assert head == ",".join(table.column_names)
        assert [line.split(",")[table.column_names.index("id")] for line in text] == [row["id"] for row in plain]


def test_the_command_shows_the_worst_of_every_part(path: Path) -> None:
    outcome = run(path, "audit", "--above", "0.99")
    assert outcome.exit_code == 0, outcome.output
    for told in (
        "labels: 62 labels judged in 5 folds,",
        "duplicates: 3 groups of together 6 rows (similarity of at least 0.99)",
        "leaks: 2 of 32 test points have a near-duplicate among the labelled rows",
        "outliers: ",
    ):
        assert told in outcome.stdout
    assert "without the 2 that leak" in outcome.stderr
    found = json.loads(run(path, "audit", "duplicates", "--above", "0.99", "--json").stdout)
    assert found["duplicates"]["worst"][0] == {
        "group": 0,
        "rows": 2,
        "representative": "r3",
        "role": "background",
        "others": ["a3"],
    }
    lines = run(path, "audit", "leaks", "--above", "0.99", "--out", "-").stdout.splitlines()
    assert lines[0] == "id,role,matches,matched_role,similarity"
    assert lines[1].startswith("t0,test,r0,background,0.999")
    assert "audit/leaks" in run(path, "inspect").stdout
    details = json.loads(run(path, "inspect", "audit/duplicates", "--json").stdout)
    assert details["statistics"]["rows_per_group"]["max"] == 2


def test_the_report_shows_audits_and_leaves_out_stale_ones(store: mmdiff.Store, tmp_path: Path) -> None:
    store.audit(above=ABOVE)
    assert "audit" in store.report(tmp_path / "report.html")["sections"]
    page = (tmp_path / "report.html").read_text()
    for shown in ("Labels that the graph contradicts", "3 groups of together 6 rows", "Leaks into the evaluation", "r3", "a3"):
        assert shown in page
    store.label({"r61": "bee"})
    notes = store.report(tmp_path / "report.html")["notes"]
    for part in ("labels", "leaks"):
        assert any(note.startswith(f"left out audit/{part}: labels/current has changed since") for note in notes)
    assert "Near-duplicates" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("audit", "--above", "1.5"), "--above 1.5: expected a number from 0 to 1. For example 0.98."),
        (("audit", "nothing"), "nothing"),
        (("audit", "labels", "--scores", "none"), "scores/none"),
        (("audit", "--out", "x.csv"), "all: a file holds the table of one part."),
        (("audit", "labels", "--out", "x.txt"), "x.txt: audits are written to .csv, .jsonl, .parquet."),
        (("audit", "outliers", "--memory", "1M"), "--memory 1048576: the audit of 244 rows takes about"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(path: Path, words: tuple[str, ...], told: str) -> None:
    before = tree(path)
    outcome = run(path, *words)
    assert outcome.exit_code == 2, outcome.output
    assert told in outcome.stderr
    assert tree(path) == before


def test_what_a_store_cannot_have_is_left_out_of_all_and_refused_by_name(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.random.default_rng(0).standard_normal((50, 8)))
    with pytest.raises(mmdiff.errors.Missing, match=r"no graph .* Run first: store\.build_graph"):
        store.audit()
    with pytest.raises(mmdiff.errors.Missing, match=r"no audit/labels. Run first: store.audit\('labels'\)"):
        store.audit_table("labels")
    with pytest.raises(mmdiff.errors.BadOption, match="what='label': not one of the choices"):
        store.audit("label")
    store.build_graph(k=5)
    found = store.audit()
    assert sorted(found) == ["duplicates", "notes", "outliers"]
    assert "labels are not audited: " in found["notes"][0]
    assert "no row has a label" in found["notes"][0]
    assert "leaks are not audited: " in found["notes"][1]
    with pytest.raises(mmdiff.errors.Missing, match="no row has a label"):
        store.audit("labels")
    store.label({0: "cat", 1: "dog"})
    with pytest.raises(mmdiff.errors.BadLabels, match="has one label"):
        store.audit("labels")
    with pytest.raises(mmdiff.errors.Missing, match="nothing can leak"):
        store.audit("leaks")


def test_lists_that_say_nothing_are_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 8))
    for folder, given, built, part, told in (
        ("short", {}, {"k": 1}, "outliers", "lists of 1 neighbour"),
        ("long", {"normalize": False}, {"k": 4}, "duplicates", "not scaled to unit length"),
    ):
        store = mmdiff.open(tmp_path / folder, create=True)
        store.add(rows, **given)  # type: ignore[arg-type]
        store.build_graph(**built)  # type: ignore[arg-type]
        with pytest.raises(mmdiff.errors.MmdiffError, match=told):
            store.audit(part)
    np.save(tmp_path / "lists.npy", (np.arange(40)[:, None] + np.arange(3)) % 40)
    store = mmdiff.open(tmp_path / "imported", create=True)
    store.add(rows, labels=np.where(np.arange(40) < 12, np.arange(40) % 2, -1))
    store.import_graph(tmp_path / "lists.npy")
    with pytest.raises(mmdiff.errors.Missing, match="imported, so that there are no lists"):
        store.audit("duplicates")
    assert sorted(store.audit()) == ["labels", "notes"]


def test_recall_below_one_is_said(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(draw.standard_normal((3000, 8)))
    store.build_graph(k=5, recall=0.5, index="cells")
    found = store.audit("duplicates")["duplicates"]
    recall = found["estimated"]["knn/BB"]
    assert recall < 1
    assert f"knn/BB: a recall of {recall:.3f} was measured" in found["notes"][0]


@pytest.mark.parametrize("part", ["labels", "duplicates", "leaks", "outliers"])
def test_a_graph_whose_order_names_a_row_twice_is_not_audited(store: mmdiff.Store, path: Path, part: str) -> None:
    W = Store.open(path).open_artifact("graph/W")
    order = np.array(W.array("order"))
    order[17] = order[18]
    forge(W, "order", order)
    with pytest.raises(mmdiff.errors.Corrupt, match="graph/W, array order: not a permutation"):
        store.audit(part)
