"""`mmdiff logreg`: balanced batches, the model that their gradients lead to, and its scores in the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.errors import BadLabels, BadOption, MissingExtra
from mmdiff.formats.store.store import Store
from mmdiff.logreg import training as module
from mmdiff.logreg.stage import Request, best_of, logreg
from mmdiff.logreg.training import Model, Options, Samples, train
from tests.support.naive_evaluation import naive_logreg
from tests.support.scored import CLASSES, WIDTH, descriptors, import_role, make_scored, refused, run, run_json
from tests.support.stores import problems, tree

labels_of_seeds = st.lists(st.integers(-1, 4), min_size=2, max_size=40).filter(lambda labels: max(labels) >= 0)


def quick(path: Path, **more: Any) -> Any:
    return logreg(path / "store", Request(**({"iterations": 50} | more)))


@given(labels_of_seeds, st.integers(0, 5))
def test_samples_are_the_labels_of_the_seeds_by_class(labels: list[int], seed: int) -> None:
    samples = Samples.of(np.array(labels))
    assert sorted(zip(samples.rows.tolist(), samples.classes.tolist(), strict=True)) == [
        (row, label) for row, label in enumerate(labels) if label >= 0
    ]
    for rows, classes in samples.batches(7, 3, seed):
        assert [labels[row] for row in rows] == classes.tolist()


def test_a_seed_with_two_labels_is_two_samples() -> None:
    samples = Samples.of(np.array([[0, 2], [1, -1], [-1, -1]]))
    assert (samples.rows.tolist(), samples.classes.tolist()) == ([0, 1, 0], [0, 1, 2])


def test_classes_are_drawn_alike_however_many_seeds_they_have() -> None:
    labels = np.array([0] * 500 + [1] * 5 + [2])
    drawn = np.concatenate([rows for rows, _ in Samples.of(labels).batches(100, 300, 0)])
    assert np.bincount(labels[drawn]) == pytest.approx([10_000] * 3, rel=0.05)
    assert np.bincount(drawn)[500:505] == pytest.approx([2000] * 5, rel=0.15)


def test_batches_are_those_of_the_seed() -> None:
    samples = Samples.of(np.arange(30) % 3)
    first, again, other = (np.concatenate([rows for rows, _ in samples.batches(8, 70, seed)]) for seed in (1, 1, 2))
    assert first.shape == (8 * 70,)
    assert (first == again).all()
    assert (first != other).any()


@given(labels_of_seeds, st.floats(0.05, 0.95))
def test_what_is_held_out_leaves_a_seed_to_every_class(labels: list[int], share: float) -> None:
    samples = Samples.of(np.array(labels))
    kept, out = samples.held_out(share, 0)
    assert sorted([*kept.rows.tolist(), *out.rows.tolist()]) == sorted(samples.rows.tolist())
    assert set(kept.classes.tolist()) == set(samples.classes.tolist())
    counts = np.bincount(samples.classes)
    assert set(out.classes.tolist()) == set(np.flatnonzero(counts > 1).tolist())


@settings(max_examples=25)
@given(
    st.integers(2, 5),
    st.integers(1, 6),
    st.sampled_from([0.1, 1.0]),
    st.sampled_from([0.0, 1e-3]),
    st.sampled_from(["float32", "float16", "uint8"]),
    st.booleans(),
)
def test_training_is_momentum_on_balanced_batches(
    classes: int, width: int, lr: float, decay: float, dtype: str, resident: bool
) -> None:
    draw = np.random.default_rng(classes * 10 + width)
    x = draw.integers(0, 50, (40, width)).astype(dtype)
    x[0] += 1
    samples = Samples.of(draw.integers(-1, classes, 40))
    options = Options(lr=lr, batch_size=16, weight_decay=decay, iterations=30, seed=3)
    before, module._RESIDENT_BYTES = module._RESIDENT_BYTES, 1 << 30 if resident else 0
    try:
        model = train(x, samples, classes, options)
    finally:
        module._RESIDENT_BYTES = before
    wide = x.astype(np.float64)
    weight, bias = naive_logreg(wide, samples.batches(16, 30, 3), np.unique(samples.rows), classes, lr, decay, 0.9)
    np.testing.assert_allclose(model.weight, weight, atol=2e-4)
    np.testing.assert_allclose(model.bias, bias, atol=2e-3)
    logits = wide @ weight.T + bias
    expected = logits - np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    expected -= logits.max(axis=1, keepdims=True)
    np.testing.assert_allclose(model.log_probabilities(x), expected, atol=1e-2)


def test_log_probabilities_are_those_of_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 8)
    model = Model(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32) * 100, np.zeros(5, np.float32))
    log_p = model.log_probabilities(np.random.default_rng(1).normal(size=(20, 4)))
    assert log_p.dtype == np.float32
    assert np.isfinite(log_p).all()
    np.testing.assert_allclose(np.exp(log_p.astype(np.float64)).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("decay", [1e-3, 1e-2])
def test_it_finds_what_scikit_learn_finds(decay: float) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    labels = np.arange(400) % 5
    x = descriptors(labels, 3, spread=2.0).astype(np.float64)
    z = x - x.mean(axis=0)
    z /= np.sqrt((z**2).sum(axis=1).mean())
    # Their C weighs the sum of losses, our L2 the mean: C = 1 / (n L2).
    peer = linear.LogisticRegression(C=1 / (len(x) * decay), tol=1e-8, max_iter=2000).fit(z, labels)
    model = train(x, Samples.of(labels), 5, Options(weight_decay=decay, batch_size=400, iterations=4000, lr=1.0))
    np.testing.assert_allclose(np.exp(model.log_probabilities(x)), peer.predict_proba(z), atol=0.03)


def test_a_class_without_seeds_is_learned_against() -> None:
    labels = np.arange(60) % 3
    model = train(descriptors(labels, 0), Samples.of(labels), 4, Options(iterations=200))
    assert (model.log_probabilities(descriptors(labels, 1)).argmax(axis=1) != 3).all()


def test_one_seed_is_enough_to_train_on() -> None:
    model = train(np.ones((1, 3), np.float32), Samples.of(np.array([1])), 2, Options(iterations=20))
    assert np.isfinite(model.log_probabilities(np.ones((2, 3)))).all()


def test_threads_of_torch_are_as_they_were() -> None:
    import torch

    before = torch.get_num_threads()
    train(descriptors(np.arange(20) % 2, 0), Samples.of(np.arange(20) % 2), 2, Options(iterations=5))
    assert torch.get_num_threads() == before


def test_a_learning_rate_that_diverges_is_told() -> None:
    labels = np.arange(20) % 2
    with pytest.raises(BadOption, match=r"lr=1e\+30: the regression diverged\. Use a smaller one, such as lr=1e\+29"):
        train(descriptors(labels, 0), Samples.of(labels), 2, Options(lr=1e30, weight_decay=1.0))


def test_model_and_scores_are_published_and_found_again(tmp_path: Path) -> None:
    make_scored(tmp_path)
    first = quick(tmp_path)
    store = Store.open(tmp_path / "store")
    model, scores = store.open_artifact("models/logreg"), store.open_artifact("scores/logreg")
    assert problems(store) == []
    assert scores.manifest.parameters["method"] == "logreg"
    assert scores.manifest.facts == {"tests": 90, "classes": CLASSES, "planes": [0]}
    from safetensors.torch import load

    tensors = load(model.array("safetensors").tobytes())
    raw = store.open_artifact("descriptors/test").array("raw")
    logits = raw @ tensors["weight"].numpy().T + tensors["bias"].numpy()
    np.testing.assert_allclose(
        logits - scores.array("scores")[0], (logits - scores.array("scores")[0])[:, :1] + 0 * logits, atol=1e-4
    )
    assert tensors["class_numbers"].tolist() == list(range(CLASSES))
    assert first.model.seconds is not None
    before = tree(tmp_path / "store")
    again = quick(tmp_path)
    assert (again.model.seconds, again.scores.seconds) == (None, None)
    assert tree(tmp_path / "store") == before


def test_new_test_points_do_not_train_again_and_new_options_do(tmp_path: Path) -> None:
    make_scored(tmp_path)
    quick(tmp_path)
    labels = np.arange(30) % CLASSES
    import_role(tmp_path, "test", descriptors(labels, 7), labels)
    outcome = quick(tmp_path)
    assert outcome.model.seconds is None
    assert outcome.scores.seconds is not None
    assert quick(tmp_path, lr=0.5).model.seconds is not None
    assert quick(tmp_path).model.seconds is None


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    stores = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        make_scored(tmp_path / name)
        quick(tmp_path / name)
        stores.append(Store.open(tmp_path / name / "store"))
    assert [store.id("scores/logreg") for store in stores] == [stores[0].id("scores/logreg")] * 2
    assert quick(tmp_path / "one", seed=1).model.artifact.id != stores[1].id("models/logreg")


def test_raw_descriptors_are_learned_from_and_vectors_where_they_are_not_kept(tmp_path: Path) -> None:
    make_scored(tmp_path)
    assert quick(tmp_path).model.artifact.manifest.facts["width"] == WIDTH
    labels = np.arange(40) % CLASSES
    import_role(tmp_path, "seeds", descriptors(labels, 1), labels, no_background=True, keep_raw=False, dims=4)
    import_role(tmp_path, "test", descriptors(labels, 2), labels, keep_raw=False)
    assert quick(tmp_path).model.artifact.manifest.facts["width"] == 4
    assert problems(Store.open(tmp_path / "store")) == []


def test_without_test_points_there_is_a_model_only_and_that_is_said(tmp_path: Path) -> None:
    labels = np.arange(30) % 3
    import_role(tmp_path, "seeds", descriptors(labels, 1), labels, no_background=True)
    outcome = run(tmp_path, "logreg --iterations 20")
    assert outcome.exit_code == 0
    assert "no test points were imported" in outcome.stderr
    assert Store.open(tmp_path / "store").names() == ["descriptors/seeds", "models/logreg", "models/pca"]


def test_tuning_keeps_what_it_tried_and_takes_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.logreg.stage.LRS", (1e-6, 1.0))
    make_scored(tmp_path)
    shown = run_json(tmp_path, "logreg --tune --iterations 40")
    facts = shown["artifacts"][0]["facts"]
    assert len(facts["tried"]) == 16
    counts = np.bincount(np.minimum(np.arange(60) % 11, CLASSES - 1))
    assert facts["held_out"] == sum(max(1, round(0.2 * count)) for count in counts.tolist())
    best = facts["tried"][best_of(facts["tried"])]
    assert facts["chosen"].items() <= best.items()
    assert all((best["top5"], best["top1"]) >= (other["top5"], other["top1"]) for other in facts["tried"])
    shown = run(tmp_path, "logreg --tune --iterations 40")
    assert "unchanged" in shown.stdout
    assert f"--lr {best['lr']:g} --batch-size {best['batch_size']}" in shown.stdout


def test_best_is_the_highest_top5_then_top1_then_the_first() -> None:
    tried = [{"top5": 0.5, "top1": 0.9}, {"top5": 0.6, "top1": 0.1}, {"top5": 0.6, "top1": 0.2}, {"top5": 0.6, "top1": 0.2}]
    assert best_of(tried) == 2


def test_tuning_with_one_seed_a_class_is_refused(tmp_path: Path) -> None:
    import_role(tmp_path, "seeds", descriptors(np.arange(5), 1), np.arange(5), no_background=True)
    assert refused(tmp_path, "logreg --tune") == (
        "--tune: no class has two seeds, so none can be held out. Import more seeds, or give --lr, --batch-size and "
        "--weight-decay."
    )
    with pytest.raises(BadLabels):
        quick(tmp_path, tune=True)


REFUSED = {
    "--lr 0": "--lr 0: expected a number from 1e-09 to 1e+09. For example 1.",
    "--lr nan": "--lr nan: expected a number from 1e-09 to 1e+09. For example 1.",
    "--batch-size 0": "--batch-size 0: expected a whole number from 1 to 65,536. For example 256.",
    "--iterations 0": "--iterations 0: expected a whole number from 1 to 100,000,000. For example 1000.",
    "--weight-decay -1": "--weight-decay -1: expected a number from 0 to 1e+09. For example 0.0003.",
    "--tune --lr 1 --weight-decay 0": "--tune chooses --lr, --weight-decay. Leave out one or the other.",
    "--device gpu": "--device gpu: torch finds no GPU. Use --device cpu, or a torch that was built for your GPU.",
    "--name a/b": "'models/a/b' is not the name of an artifact. "
    "Names look like descriptors/background; mmdiff inspect lists them.",
}


@pytest.mark.parametrize(("options", "told"), REFUSED.items(), ids=REFUSED.keys())
def test_bad_options_are_told_and_leave_the_store_as_it_was(options: str, told: str, tmp_path: Path) -> None:
    import torch

    if "gpu" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    make_scored(tmp_path, 20, 10)
    before = tree(tmp_path / "store")
    assert refused(tmp_path, f"logreg {options}") == told
    assert tree(tmp_path / "store") == before


def test_a_store_without_seeds_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    import_role(tmp_path, "background", descriptors(np.arange(20), 1), None)
    told = "Label rows of the collection: mmdiff label FILE; or import rows with their labels: mmdiff import FILE --labels FILE"
    assert refused(tmp_path, "logreg").endswith(told)


def test_raw_seeds_and_reduced_test_points_are_refused(tmp_path: Path) -> None:
    make_scored(tmp_path, 20, 10, keep_raw=False)
    assert refused(tmp_path, "logreg") == (
        "descriptors/seeds has descriptors of 10 values (raw), descriptors/test of 10 (reduced). "
        "Import test again, with --keep-raw like the other."
    )


def test_without_torch_the_user_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_scored(tmp_path, 20, 10)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused(tmp_path, "logreg") == (
        "logistic regression needs torch, which is not installed. Run: pip install 'mmdiff[torch]'"
    )
    with pytest.raises(MissingExtra):
        module.load_torch()


def test_help_does_not_import_torch() -> None:

    script = "import sys, mmdiff.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_logreg_reports_as_json(tmp_path: Path) -> None:
    make_scored(tmp_path, 20, 10)
    shown = run_json(tmp_path, "logreg --iterations 10")
    assert [made["artifact"] for made in shown["artifacts"]] == ["models/logreg", "scores/logreg"]
    assert json.loads(json.dumps(shown)) == shown
