"""`mmdiff evaluate`: ranks in which ties never help, accuracies of all and of novel classes, worst classes, margins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from mmdiff.evaluation import metrics as ranks_module
from mmdiff.evaluation.metrics import (
    NO_COLUMN,
    NO_RANK,
    accuracies,
    bootstrap_interval,
    by_class,
    evaluate_scores,
    margins,
    novel_ranks,
    predictions,
    ranks_by_label,
    ranks_of,
    top_k_accuracy,
    worst_classes,
)
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch
from mmdiff.formats.store.store import Store
from mmdiff.logreg.stage import Request as LogregRequest
from mmdiff.logreg.stage import logreg
from tests.support.naive_evaluation import naive_interval, naive_rank, naive_ranks, naive_separation
from tests.support.paths import DOCS, SAMPLE
from tests.support.scored import (
    CLASSES,
    descriptors,
    diffused,
    import_role,
    make_scored,
    publish_diffusion,
    refused,
    run,
    run_json,
)
from tests.support.stores import tree


@st.composite
def labelled_scores(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores with many ties, and up to two labels per row."""
    rows, classes, per_row = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(1, 2))
    values = st.one_of(st.integers(0, 3).map(float), st.just(float("nan")))
    scores = draw(hnp.arrays(np.float32, (rows, classes), elements=values))
    labels = draw(hnp.arrays(np.int64, (rows, per_row), elements=st.integers(-1, classes - 1)))
    return scores, labels


@given(labelled_scores())
def test_a_rank_counts_all_that_are_not_below(example: tuple[NDArray[np.float32], NDArray[np.int64]]) -> None:
    scores, labels = example
    assert ranks_of(scores, labels).tolist() == naive_ranks(scores, labels, NO_RANK)
    for i, j in np.ndindex(*labels.shape):
        expected = naive_rank(scores[i], labels[i, j]) if labels[i, j] >= 0 else NO_RANK
        assert ranks_by_label(scores, labels)[i, j] == expected


def test_ranks_are_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    scores, labels = draw.random((50, 7)), draw.integers(-1, 7, (50, 2))
    whole = ranks_by_label(scores, labels), predictions(scores)
    monkeypatch.setattr(ranks_module, "_BLOCK_VALUES", 20)
    np.testing.assert_array_equal(ranks_by_label(scores, labels), whole[0])
    for part, expected in zip(predictions(scores), whole[1], strict=True):
        np.testing.assert_array_equal(part, expected)


def test_a_row_that_is_all_zero_is_a_miss() -> None:
    assert ranks_of(np.zeros((1, 20)), np.array([[0]])).tolist() == [20]
    assert top_k_accuracy(ranks_of(np.zeros((3, 20)), np.array([[0], [5], [19]])), 5) == 0


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=st.integers(0, 3).map(float)))
def test_a_prediction_is_right_exactly_where_the_rank_is_one(scores: NDArray[np.float32]) -> None:
    best, margin = predictions(scores)
    for row, predicted, lead in zip(scores, best, margin, strict=True):
        alone = [label for label in range(len(row)) if naive_rank(row, label) == 1]
        assert ([] if predicted == -1 else [predicted]) == alone
        ordered = sorted(row.tolist(), reverse=True)
        assert lead == (ordered[0] - ordered[1] if len(row) > 1 else np.inf)


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (10, 10), (3, 10), (450, 600), (37, 100)])
def test_intervals_are_those_of_the_bootstrap(hits: int, count: int) -> None:
    found = bootstrap_interval(hits, count, 0)
    assert found == bootstrap_interval(hits, count, 0)
    assert found[0] <= hits / count <= found[1]
    np.testing.assert_allclose(found, naive_interval(hits, count), atol=1.01 / count)


def test_accuracies_of_no_points_are_none() -> None:
    assert accuracies(np.empty(0, np.int32), [1, 5], 0) is None


@given(labelled_scores(), st.integers(1, 4))
def test_accuracies_by_class_are_those_of_its_labels(example: tuple[NDArray[np.float32], NDArray[np.int64]], k: int) -> None:
    scores, labels = example
    counts, shares = by_class(ranks_by_label(scores, labels), labels, scores.shape[1], [k])
    for label in range(scores.shape[1]):
        own = [naive_rank(scores[i], label) <= k for i, j in np.argwhere(labels == label)]
        assert counts[label] == len(own)
        assert shares[f"top{k}"][label] == pytest.approx(np.mean(own) if own else 0)


@given(labelled_scores(), st.sets(st.integers(0, 5)))
def test_novel_ranks_are_those_of_novel_labels(example: tuple[NDArray[np.float32], NDArray[np.int64]], novel: set[int]) -> None:
    scores, labels = example
    theirs = [[label for label in some if label in novel] for some in labels.tolist()]
    expected = [min(naive_rank(row, label) for label in some) for row, some in zip(scores, theirs, strict=True) if some]
    assert novel_ranks(ranks_by_label(scores, labels), np.isin(labels, list(novel))).tolist() == expected


@given(
    hnp.arrays(np.float32, st.integers(2, 20), elements=st.integers(0, 4).map(float)),
    st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_separation_is_the_share_of_pairs_in_the_right_order(margin: NDArray[np.float32], flags: list[bool]) -> None:
    right = np.array(flags[: len(margin)])
    found = margins(margin, right)
    if right.all() or not right.any():
        assert found["separation"] is None
    else:
        assert found["separation"] == pytest.approx(naive_separation(margin, right), abs=1e-6)


def test_worst_classes_come_with_what_they_are_taken_for() -> None:
    labels = np.array([[0], [0], [0], [1], [1], [3], [3], [-1]])
    predicted = np.array([0, 2, 2, 1, 1, -1, 0, 2])
    assert worst_classes(predicted, labels, 4, 2) == [
        {"class": 3, "points": 2, "top1": 0.0, "taken_for": [{"class": None, "points": 1}, {"class": 0, "points": 1}]},
        {"class": 0, "points": 3, "top1": 0.333333, "taken_for": [{"class": 2, "points": 2}]},
    ]


def test_a_point_of_two_classes_that_is_taken_for_one_is_no_mistake() -> None:
    assert worst_classes(np.array([1]), np.array([[0, 1]]), 2, 1)[0]["taken_for"] == []


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    store = make_scored(tmp_path)
    logreg(store.path, LogregRequest(iterations=60))
    publish_diffusion(store, diffused(store))
    return tmp_path


def test_every_scores_of_the_store_is_evaluated_at_every_iteration(scored: Path) -> None:
    evaluated = run_json(scored, "evaluate --novel 1,3 --top 1 --top 2")
    store = Store.open(scored / "store")
    labels = store.open_artifact("descriptors/test").array("labels")
    assert [entry["artifact"] for entry in evaluated["scores"]] == ["scores/diffusion", "scores/logreg"]
    for entry in evaluated["scores"]:
        stored = store.open_artifact(entry["artifact"]).array("scores")
        for figures, scores in zip(entry["iterations"], stored, strict=True):
            ranks = np.array(naive_ranks(scores, labels[:, None], NO_RANK))
            for group, points in (("all", labels >= 0), ("novel", np.isin(labels, [1, 3]))):
                for k in (1, 2):
                    assert figures[group][f"top{k}"]["accuracy"] == pytest.approx((ranks[points] <= k).mean(), abs=1e-6)
        assert entry["test"]["novel"] == {
            "classes": 2,
            "points": 30,
            "classes_without_seeds": 0,
            "classes_without_test_points": 0,
        }
    assert [one["iteration"] for one in evaluated["scores"][0]["iterations"]] == [1, 2, 3]
    assert [one["iteration"] for one in evaluated["scores"][1]["iterations"]] == [None]
    assert run_json(scored, "evaluate --novel 1,3 --top 1 --top 2") == evaluated


def test_arrays_are_evaluated_to_the_same_numbers(scored: Path) -> None:
    store = Store.open(scored / "store")
    labels = store.open_artifact("descriptors/test").array("labels")
    for entry in run_json(scored, "evaluate --top 1 --top 3")["scores"]:
        stored = store.open_artifact(entry["artifact"]).array("scores")
        for expected, scores in zip(entry["iterations"], stored, strict=True):
            for columns in (labels, labels[:, None], np.stack([labels, np.full_like(labels, -1)], axis=1)):
                found = evaluate_scores(scores, columns, top=(3, 1))
                assert {top: accuracy.to_json() for top, accuracy in found.items()} == expected["all"]


def test_rows_without_labels_do_not_count_and_classes_without_scores_are_errors() -> None:
    scores, labels = np.eye(4, dtype=np.float32), np.array([0, 1, -1, 0])
    assert evaluate_scores(scores, labels)["top1"].accuracy == pytest.approx(2 / 3)
    # A class without a column of scores is always an error.
    assert evaluate_scores(scores, np.array([0, 4, NO_COLUMN, 1]))["top1"].accuracy == pytest.approx(1 / 4)
    with pytest.raises(BadLabels, match="no row has a label"):
        evaluate_scores(scores, np.full(4, -1))
    with pytest.raises(CountMismatch, match="labels of 3 rows"):
        evaluate_scores(scores, labels[:3])
    with pytest.raises(BadOption, match="top=0: expected a whole number from 1"):
        evaluate_scores(scores, labels, top=(0,))


def test_top_is_any_iterable_of_whole_numbers() -> None:
    scores, labels = np.eye(4, dtype=np.float32), np.array([0, 1, -1, 0])
    expected = evaluate_scores(scores, labels, top=(1, 2))
    for top in ((k for k in (2, 1, 2)), {1, 2}, np.array([1, 2]), {1: "a", 2: "b"}.keys()):
        assert evaluate_scores(scores, labels, top=top) == expected
    for nothing in ((), iter(())):
        with pytest.raises(BadOption, match=r"top=.*: expected a list of whole numbers, such as"):
            evaluate_scores(scores, labels, top=nothing)


def test_text_names_everything_once(scored: Path) -> None:
    outcome = run(scored, "evaluate")
    for part in ("90 test points, 6 classes", "scores/diffusion", "scores/logreg", "top-1 all", "top-5 all"):
        assert part in outcome.stdout
    assert "worst classes" not in outcome.stdout
    shown = run(scored, "evaluate diffusion --per-class").stdout
    assert "worst classes" in shown
    assert "every class" in shown
    assert "4 points have no single best class" in shown


def test_evaluating_changes_nothing(scored: Path) -> None:
    before = tree(scored / "store")
    run_json(scored, "evaluate --per-class")
    assert tree(scored / "store") == before


def test_points_of_classes_without_seeds_are_misses_and_unlabelled_ones_are_left_out(tmp_path: Path) -> None:
    make_scored(tmp_path)
    labels = np.arange(100) % 8  # Classes 6 and 7 have no seeds.
    labels[labels == 2] = -1
    import_role(tmp_path, "test", descriptors(np.maximum(labels, 0), 4), labels)
    logreg(tmp_path / "store", LogregRequest(iterations=60))
    outcome = run_json(tmp_path, "evaluate --per-class --top 1 --novel 6,5,2")
    entry, notes = outcome["scores"][0], outcome["notes"]
    unknown, unlabelled = int((labels >= 6).sum()), int((labels == -1).sum())
    assert entry["test"] == {
        "points": 100,
        "labelled": 100 - unlabelled,
        "unlabelled": unlabelled,
        "of_classes_without_seeds": unknown,
        "classes": 6,
        "classes_without_seeds": 0,
        "classes_without_test_points": 1,
        "novel": {
            "classes": 3,
            "points": int(np.isin(labels, [5, 6]).sum()),
            "classes_without_seeds": 1,
            "classes_without_test_points": 1,
        },
    }
    assert notes == [
        f"{unlabelled} of 100 test points have no label and are left out.",
        f"{unknown} of {100 - unlabelled} test points are of classes that no seed has; they count as misses.",
        "1 of 6 classes have no test points.",
    ]
    scores = Store.open(tmp_path / "store").open_artifact("scores/logreg").array("scores")[0]
    hits = [naive_rank(row, label) == 1 for row, label in zip(scores, labels, strict=True) if 0 <= label < 6]
    assert entry["iterations"][0]["all"]["top1"]["accuracy"] == pytest.approx(sum(hits) / (100 - unlabelled), abs=1e-6)
    novel = [
        bool(label < 6) and naive_rank(row, label) == 1 for row, label in zip(scores, labels, strict=True) if label in (5, 6)
    ]
    assert entry["iterations"][0]["novel"]["top1"]["accuracy"] == pytest.approx(np.mean(novel), abs=1e-6)
    by_class = {line["class"]: line for line in entry["per_class"]}
    assert (by_class["2"]["points"], by_class["2"]["top1"]) == (0, None)
    assert (by_class["7"]["seeds"], by_class["7"]["points"], by_class["7"]["top1"]) == (False, int((labels == 7).sum()), 0.0)
    assert "NaN" not in run(tmp_path, "evaluate --per-class --json").stdout


def test_points_of_a_class_that_has_a_name_but_no_seeds_are_misses(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("".join(f"kind {i}\n" for i in range(4)))
    labels = np.arange(30) % 3
    import_role(tmp_path, "seeds", descriptors(labels, 1), labels, no_background=True, class_names=str(tmp_path / "names.txt"))
    truth = np.arange(40) % 4
    import_role(tmp_path, "test", descriptors(truth, 2), truth)
    scores = np.zeros((1, 40, 4), np.float32)
    scores[0, np.arange(40), truth] = 1
    publish_diffusion(Store.open(tmp_path / "store"), scores)
    evaluated = run_json(tmp_path, "evaluate --top 1 --per-class --novel 3")
    entry = evaluated["scores"][0]
    assert entry["iterations"][0]["all"]["top1"]["accuracy"] == 0.75
    assert entry["iterations"][0]["novel"]["top1"]["accuracy"] == 0
    assert (entry["test"]["of_classes_without_seeds"], entry["test"]["classes_without_seeds"]) == (10, 1)
    assert entry["test"]["novel"]["classes_without_seeds"] == 1
    assert entry["per_class"][3] == {"class": "kind 3", "number": 3, "points": 10, "top1": 0.0, "seeds": False}
    assert len(entry["per_class"]) == 4
    assert evaluated["notes"] == ["10 of 40 test points are of classes that no seed has; they count as misses."]


def test_scores_that_are_out_of_date_are_left_out_where_none_are_named(scored: Path) -> None:
    labels = np.arange(30) % CLASSES
    import_role(scored, "test", descriptors(labels, 7), labels)
    logreg(scored / "store", LogregRequest(iterations=60))
    evaluated = run_json(scored, "evaluate --top 1")
    assert [entry["artifact"] for entry in evaluated["scores"]] == ["scores/logreg"]
    assert evaluated["notes"] == [
        "left out scores/diffusion: descriptors/test has changed since scores/diffusion was made from it. "
        "Run again: mmdiff diffuse"
    ]


def test_a_point_of_several_classes_is_right_if_any_of_them_is_found(tmp_path: Path) -> None:
    store = make_scored(tmp_path)
    labels = np.stack([np.arange(30) % CLASSES, np.where(np.arange(30) % 2, -1, 5)], axis=1)
    import_role(tmp_path, "test", descriptors(labels[:, 0], 4), labels)
    logreg(store.path, LogregRequest(iterations=60))
    entry = run_json(tmp_path, "evaluate --top 1")["scores"][0]
    scores = store.open_artifact("scores/logreg").array("scores")[0]
    ranks = np.array(naive_ranks(scores, labels, NO_RANK))
    assert entry["iterations"][0]["all"]["top1"]["accuracy"] == pytest.approx((ranks == 1).mean(), abs=1e-6)


def test_novel_classes_can_be_numbers_or_names_in_a_file(scored: Path) -> None:
    (scored / "novel.txt").write_text("1\n\n 3 \n")
    by_file = run_json(scored, f"evaluate --novel {scored / 'novel.txt'}")
    assert by_file == run_json(scored, "evaluate --novel 3,1")


def test_no_novel_points_is_said_and_not_a_number(tmp_path: Path) -> None:
    store = make_scored(tmp_path)
    labels = np.zeros(20, np.int64)
    import_role(tmp_path, "test", descriptors(labels, 4), labels)
    logreg(store.path, LogregRequest(iterations=5))
    evaluated = run_json(tmp_path, "evaluate --novel 4")
    assert evaluated["scores"][0]["iterations"][0]["novel"] is None
    assert "no test point is of a novel class, so there is no accuracy on them." in evaluated["notes"]
    assert "no points" in run(tmp_path, "evaluate --novel 4").stdout


def test_top_k_of_too_few_classes_is_said(scored: Path) -> None:
    assert "top 6 says little: there are only 6 classes." in run_json(scored, "evaluate --top 6")["notes"]


REFUSED = {
    "--top 0": "--top 0: expected a whole number from 1 to 2,147,483,647. The paper reports top 5.",
    "--novel nov.txt": "--novel nov.txt: no such file. Name a file with one class per line, or list classes: 3,17,21.",
    "--novel ,": "--novel ,: no classes in it. Write one class number or name per line.",
    "--novel 3,77": "--novel 3,77: class '77' is neither among those of the seeds nor among those of the test points. "
    "Use class numbers or names as they were imported, or a file with one per line.",
    "descriptors/seeds": "descriptors/seeds: of kind descriptors, not scores. Name one of scores/...",
}


@pytest.mark.parametrize(("options", "told"), REFUSED.items(), ids=REFUSED.keys())
def test_bad_options_are_told(options: str, told: str, scored: Path) -> None:
    assert refused(scored, f"evaluate {options}") == told


def test_a_novel_file_is_named_with_its_line(scored: Path) -> None:
    file = scored / "novel.txt"
    file.write_text("1\nzebra\n")
    assert refused(scored, f"evaluate --novel {file}").startswith(f"{file}, line 2: class 'zebra' is neither")
    file.write_bytes(b"\xff\xfe")
    assert refused(scored, f"evaluate --novel {file}").endswith(
        "is not UTF-8. Save the file as UTF-8, for example with iconv. Write one class number or name per line."
    )


def test_a_store_without_scores_says_how_to_make_some(tmp_path: Path) -> None:
    make_scored(tmp_path, 20, 10)
    assert refused(tmp_path, "evaluate").endswith(
        "there are no scores of the test points yet. Run: mmdiff build-graph; then mmdiff diffuse"
    )
    assert "scores/logreg: not in the store" in refused(tmp_path, "evaluate logreg")


def test_test_points_without_labels_are_refused(tmp_path: Path) -> None:
    store = make_scored(tmp_path, 20, 10)
    for labels in (None, np.full(10, -1)):
        import_role(tmp_path, "test", descriptors(np.arange(10) % CLASSES, 5), labels)
        logreg(store.path, LogregRequest(iterations=5))
        assert refused(tmp_path, "evaluate") == (
            "descriptors/test: no test point has a label to compare with. "
            "Import them again with labels: mmdiff import FILE --labels FILE --role test"
        )


def test_scores_are_refused_however_far_back_their_inputs_have_changed(scored: Path) -> None:
    run_json(scored, "fuse")
    labels = np.arange(44) % CLASSES
    import_role(scored, "seeds", descriptors(labels, 8), labels, no_background=True)
    told = refused(scored, "evaluate scores/fusion")
    assert told.startswith("scores/fusion: descriptors/seeds has changed since models/logreg was made from it. Run again: ")
    # These seeds define the space of all roles, so the test points have to be imported again, before anything reads them.
    commands = told.partition("Run again: ")[2].split("; then ")
    assert commands[:-1] == ["mmdiff import", "mmdiff logreg", "mmdiff diffuse"]
    assert refused(scored, "evaluate diffusion") == (
        "scores/diffusion: models/pca has changed since descriptors/test was made from it. "
        "Run again: mmdiff import; then mmdiff diffuse"
    )


def test_the_sample_is_evaluated_as_a_user_would(tmp_path: Path) -> None:
    for command in (
        f"import {SAMPLE}/background.npy --role background",
        f"import {SAMPLE}/seeds.npy --labels {SAMPLE}/seed_labels.npy --class-names {SAMPLE}/class_names.json --role seeds",
        f"import {SAMPLE}/test.npy --labels {SAMPLE}/test_labels.npy --role test",
        "logreg --iterations 300",
    ):
        outcome = run(tmp_path, command)
        assert outcome.exit_code == 0, outcome.output
    entry = run_json(tmp_path, f"evaluate --novel {SAMPLE}/novel.txt")["scores"][0]
    everywhere, novel = (entry["iterations"][0][group]["top5"]["accuracy"] for group in ("all", "novel"))
    assert everywhere > 0.85
    assert novel > 0.75
    assert entry["test"]["novel"]["classes"] == 10
    assert entry["margin"]["separation"] > 0.6


def test_the_code_of_the_page_on_evaluation_runs(tmp_path: Path) -> None:
    page = (DOCS / "evaluation.md").read_text()
    said = []
    # The studies, which come last.
    for code in re.findall(r"(?s)```python\n(.*?)```", page)[-2:]:
        outcome = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, outcome.stderr
        said.append(outcome.stdout)
    without, with_test_points = said
    assert re.search(r"folds/diffusion, iteration 5, 40 held-out rows: top-1 [89]\d\.\d %", without)
    assert re.search(r"100 points: top-1 9\d\.\d %", with_test_points)


def test_scores_that_are_named_twice_are_evaluated_once(scored: Path) -> None:
    evaluated: dict[str, Any] = run_json(scored, "evaluate logreg logreg scores/logreg")
    assert len(evaluated["scores"]) == 1
