"""`mmdiff fuse`: the weighted mean of log-probabilities, and the accuracy at every weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import NO_RANK
from mmdiff.formats.store.store import Store
from mmdiff.fusion import late
from mmdiff.fusion.late import WEIGHTS, fuse, hits_by_weight, log_of_scores
from mmdiff.fusion.stage import Request, best_weight, fuse_scores
from mmdiff.labels.classes import Classes
from mmdiff.logreg.stage import Request as LogregRequest
from mmdiff.logreg.stage import logreg
from tests.support.naive_evaluation import naive_log_of_scores, naive_ranks
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
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, tree

scores_of_diffusions = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.integers(1, 6)),
    elements=st.one_of(st.just(0.0), st.floats(2.0**-90, 1024, width=32)),
)


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A store with a logistic regression and a diffusion."""
    store = make_scored(tmp_path)
    logreg(store.path, LogregRequest(iterations=60))
    publish_diffusion(store, diffused(store))
    return tmp_path


def planes(folder: Path, name: str) -> NDArray[Any]:
    return Store.open(folder / "store").open_artifact(name).array("scores")


def truth(folder: Path) -> NDArray[Any]:
    return Store.open(folder / "store").open_artifact("descriptors/test").array("labels")[:, None]


@given(scores_of_diffusions)
def test_scores_of_a_diffusion_become_a_distribution_in_the_same_order(scores: NDArray[np.float32]) -> None:
    found = log_of_scores(scores)
    np.testing.assert_allclose(found, naive_log_of_scores(scores), atol=1e-9)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1)
    for row, logs in zip(scores, found, strict=True):
        assert (np.argsort(-row, kind="stable") == np.argsort(-logs, kind="stable")).all()
        assert ((row == 0) == (logs == logs.min())).all() or (row > 0).all()


@given(scores_of_diffusions, st.sampled_from(WEIGHTS))
def test_fusion_is_the_weighted_mean_of_logarithms(scores: NDArray[np.float32], weight: float) -> None:
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(scores.shape[1]), len(scores)))
    expected = weight * log_p + (1 - weight) * naive_log_of_scores(scores)
    np.testing.assert_allclose(fuse(log_p, log_of_scores(scores), weight), expected, rtol=1e-5, atol=1e-6)


def test_a_row_without_scores_leaves_the_decision_to_the_other() -> None:
    log_p = np.log(np.array([[0.2, 0.5, 0.3]]))
    fused = fuse(log_p, log_of_scores(np.zeros((1, 3), np.float32)), 0.1)
    assert (np.argsort(-fused) == [[1, 2, 0]]).all()


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_what_no_diffusion_gives_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="negative or infinite"):
        log_of_scores(np.array([[1.0, bad]]))


def test_hits_are_counted_at_every_weight() -> None:
    draw = np.random.default_rng(4)
    log_p = np.log(draw.dirichlet(np.ones(7), 40))
    log_q = log_of_scores(draw.random((40, 7)))
    labels = draw.integers(-1, 7, (40, 2))
    for weight, hits in zip(WEIGHTS, hits_by_weight(log_p, log_q, labels), strict=True):
        ranks = np.array(naive_ranks(fuse(log_p, log_q, weight), labels, NO_RANK))
        assert hits.tolist() == [(ranks <= 1).sum(), (ranks <= 5).sum()]


def test_fused_scores_are_published_with_their_curve(scored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_BLOCK_VALUES", 100)
    with chunks_of(SMALL_CHUNKS):
        outcome = fuse_scores(scored / "store", Request(weight=0.3))
    p, q = planes(scored, "scores/logreg")[0], planes(scored, "scores/diffusion")[-1]
    expected = 0.3 * p + 0.7 * naive_log_of_scores(q)
    np.testing.assert_allclose(planes(scored, "scores/fusion")[0], expected, rtol=1e-5, atol=1e-5)
    facts = outcome.made.artifact.manifest.facts
    assert (facts["weight"], facts["weight_chosen_on"], facts["curve_points"]) == (0.3, None, 90)
    for point in facts["curve"]:
        ranks = np.array(naive_ranks(fuse(p, log_of_scores(q), point["weight"]), truth(scored), NO_RANK))
        assert point["top1"] == pytest.approx((ranks <= 1).mean(), abs=1e-6)
        assert point["top5"] == pytest.approx((ranks <= 5).mean(), abs=1e-6)
    assert outcome.made.artifact.manifest.parameters["iteration"] == {"scores/diffusion": 3}
    assert problems(Store.open(scored / "store")) == []


def test_the_ends_of_the_curve_are_the_two_classifiers(scored: Path) -> None:
    facts = run_json(scored, "fuse")["facts"]
    report = {entry["artifact"]: entry["iterations"][-1]["all"] for entry in run_json(scored, "evaluate")["scores"]}
    for point, name in ((facts["curve"][0], "scores/diffusion"), (facts["curve"][-1], "scores/logreg")):
        for top in ("top1", "top5"):
            assert point[top] == report[name][top]["accuracy"]


def test_tuning_takes_the_best_weight_and_says_what_it_was_chosen_on(scored: Path) -> None:
    outcome = run(scored, "fuse --tune")
    assert "the weight was chosen on the labelled test points" in outcome.stderr
    facts = run_json(scored, "fuse --tune")["facts"]
    assert facts["weight"] == best_weight(facts["curve"])
    assert facts["weight_chosen_on"] == "the labelled test points"
    assert "its weight was chosen on these test points" in run(scored, "evaluate").stderr


def test_best_weight_is_that_of_top5_then_top1_then_the_smallest() -> None:
    points = [(0.0, 0.9, 0.1), (0.2, 0.2, 0.5), (0.4, 0.3, 0.5), (0.6, 0.3, 0.5)]
    assert best_weight([{"weight": weight, "top1": top1, "top5": top5} for weight, top1, top5 in points]) == 0.4


def test_an_iteration_can_be_chosen(scored: Path) -> None:
    run_json(scored, "fuse --iteration 1 --weight 0 --name early")
    np.testing.assert_allclose(
        planes(scored, "scores/early")[0], naive_log_of_scores(planes(scored, "scores/diffusion")[0]), atol=1e-5
    )


def test_a_fusion_can_be_fused_again(scored: Path) -> None:
    run_json(scored, "fuse --weight 0.5")
    run_json(scored, "fuse fusion logreg --weight 0.5 --name twice")
    expected = (planes(scored, "scores/fusion")[0] + planes(scored, "scores/logreg")[0]) / 2
    np.testing.assert_allclose(planes(scored, "scores/twice")[0], expected, rtol=1e-5)


def test_repeated_it_does_nothing_and_new_inputs_are_fused_anew(scored: Path) -> None:
    assert not run_json(scored, "fuse")["reused"]
    before = tree(scored / "store")
    assert run_json(scored, "fuse")["reused"]
    assert tree(scored / "store") == before
    store = Store.open(scored / "store")
    publish_diffusion(store, diffused(store, seed=5))
    assert not run_json(scored, "fuse")["reused"]


def test_test_points_without_labels_are_fused_without_a_curve(tmp_path: Path) -> None:
    store = make_scored(tmp_path)
    import_role(tmp_path, "test", descriptors(np.arange(30) % CLASSES, 5), None)
    logreg(store.path, LogregRequest(iterations=20))
    publish_diffusion(store, diffused(store))
    outcome = run(tmp_path, "fuse")
    assert outcome.exit_code == 0, outcome.output
    assert "no curve over the weights" in outcome.stderr
    assert "curve" not in store.open_artifact("scores/fusion").manifest.facts
    # The weight is chosen on held-out labels of the seeds then, which needs the graph that made the diffusion.
    assert refused(tmp_path, "fuse --tune").endswith("no graph to spread labels over. Run first: mmdiff build-graph")


REFUSED = {
    "fuse --weight 1.5": "--weight 1.5: expected a number from 0 to 1. 0 is only the second, 1 only the first.",
    "fuse --weight nan": "--weight nan: expected a number from 0 to 1. 0 is only the second, 1 only the first.",
    "fuse --weight 0.5 --tune": "--tune chooses --weight. Leave out one or the other.",
    "fuse --iteration 9": "--iteration 9: scores/diffusion has the iterations 1, 2, 3. Choose one of them.",
    "fuse logreg scores/logreg": "scores/logreg twice: there is nothing to fuse. Name two different scores.",
    "fuse --name logreg": "--name logreg: one of the scores that are fused. Choose another name.",
    "fuse logreg models/logreg": "models/logreg: of kind logreg, not scores. Name one of scores/...",
}


@pytest.mark.parametrize(("command", "told"), REFUSED.items(), ids=REFUSED.keys())
def test_bad_options_are_told_and_leave_the_store_as_it_was(command: str, told: str, scored: Path) -> None:
    before = tree(scored / "store")
    assert refused(scored, command) == told
    assert tree(scored / "store") == before


def test_scores_that_are_not_there_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    make_scored(tmp_path, 20, 10)
    assert refused(tmp_path, "fuse") == (
        "scores/logreg and scores/diffusion: there are no scores of the test points yet. "
        "Run: mmdiff build-graph; then mmdiff logreg; then mmdiff diffuse"
    )
    logreg(tmp_path / "store", LogregRequest(iterations=5))
    assert refused(tmp_path, "fuse").endswith("Run: mmdiff build-graph; then mmdiff diffuse")
    assert refused(tmp_path, "fuse logreg other").endswith("(scores/logreg). Name two of them.")


def test_scores_of_other_test_points_are_refused(scored: Path) -> None:
    labels = np.arange(30) % CLASSES
    import_role(scored, "test", descriptors(labels, 7), labels)
    logreg(scored / "store", LogregRequest(iterations=60))
    assert refused(scored, "fuse") == (
        "scores/diffusion: descriptors/test has changed since scores/diffusion was made from it. Run again: mmdiff diffuse"
    )


def test_scores_of_another_number_of_points_are_refused(scored: Path) -> None:
    store = Store.open(scored / "store")
    publish_diffusion(store, diffused(store)[:, :50])
    assert refused(scored, "fuse") == (
        "scores/logreg (90 test points) and scores/diffusion (50) are of different test points. "
        "Make both again from the same descriptors/test."
    )


def test_scores_of_other_classes_are_refused(scored: Path) -> None:
    store = Store.open(scored / "store")
    publish_diffusion(store, diffused(store), classes=Classes(np.arange(CLASSES)[::-1].astype(np.int64), None))
    assert refused(scored, "fuse") == (
        "scores/logreg (6 classes) and scores/diffusion (6) are of different classes. "
        "Make both again from the same descriptors/seeds."
    )


def test_scores_that_are_negative_are_refused(scored: Path) -> None:
    store = Store.open(scored / "store")
    publish_diffusion(store, diffused(store) - 1)
    assert refused(scored, "fuse") == (
        "scores/diffusion: negative or infinite scores cannot come from a diffusion. Run again: mmdiff diffuse"
    )
