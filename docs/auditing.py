"""Measures `mmdiff audit labels` on Tiny ImageNet: docs/experiments/results/audit.json, docs/results.md.

.venv/bin/python docs/auditing.py FOLDER            both groups of the paper's protocol; the stores are made in FOLDER
.venv/bin/python docs/auditing.py FOLDER --per-class 50 --draws 2 --out FILE     a quick look, on 50 images of each class

The collection is the training images of a group. N images of each of its 80 classes get labels, of which a share is flipped:
each becomes that of another class, drawn at random. Every method ranks all labels by doubt; what counts is the average
precision of the flipped ones. Measures of doubt were compared on group 1; group 2 is reported.

cleanlab ranks the same labels by out-of-fold probabilities of our logistic regression, of the same folds. The regression is
tuned on the first draw of each share, by labels that are held out, and has these options in the other draws. cleanlab runs in
an environment of its own, FOLDER/cleanlab, which is made with pip, since its dependencies are none of ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results_page import page
from saving import save

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parent.parent / "shared" / "data" / "tiny-imagenet"
RESULT = DOCS / "experiments" / "results" / "audit.json"

N = 20
FLIPPED = (0.05, 0.2)
CLEANLAB = "cleanlab==2.9.0"
CLEANLAB_RANKS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")

Labels = NDArray[np.int64]
Ranking = NDArray[np.floating[Any]]


def average_precision(flipped: NDArray[np.bool_], doubt: Ranking) -> float:
    """The mean precision at the place of each flipped label, when labels are ordered by doubt."""
    hits = flipped[np.argsort(-doubt, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def measures(shares: NDArray[np.float64], given: Labels) -> dict[str, Ranking]:
    """Doubts by other measures than ours, from shares of classes and the given ones."""
    rows = np.arange(len(shares))
    own, others = shares[rows, given], shares.copy()
    others[rows, given] = 0
    typical = np.array([own[given == label].mean() if (given == label).any() else 1 for label in range(shares.shape[1])])
    adjusted = np.log(shares) - np.log(typical)
    adjusted_own = adjusted[rows, given].copy()
    adjusted[rows, given] = -np.inf
    return {
        "log share": -np.log(own),
        "difference of shares": others.max(axis=1) - own,
        "class-normalised log ratio": adjusted.max(axis=1) - adjusted_own,
    }


def make_collection(folder: Path, rows: Labels) -> Any:
    import mmdiff

    store = mmdiff.open(folder, create=True, memory="4G", progress=True)
    store.add(np.load(DATA / "train_features.npy", mmap_mode="r")[rows])
    store.build_graph()
    return store


def shares_of(folds: Any, plane: int) -> tuple[NDArray[np.float64], Labels, Labels]:
    """The shares of held-out rows, their rows and their labels."""
    scores = np.asarray(folds["scores"][plane], np.float64)
    if folds.manifest.parameters["method"] == "diffusion":
        least = np.where(scores > 0, scores, np.inf).min(axis=1, keepdims=True)
        scores = np.where(scores > 0, scores, np.where(np.isinf(least), 2, least) / 2)
    else:
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = scores / scores.sum(axis=1, keepdims=True)
    return shares, np.asarray(folds["rows"][:]), np.asarray(folds["labels"][:])[:, 0].astype(np.int64)


def audited(store: Any, scores: str, flipped: dict[int, bool]) -> float:
    """The average precision of the doubts of `mmdiff audit`."""
    store.audit("labels", scores=scores)
    table = store.audit_table("labels")
    wrong = np.array([flipped[row] for row in table.column("id").to_pylist()])
    return average_precision(wrong, np.asarray(table.column("doubt")))


def label_rows(store: Any, truth: Labels, share: float, draw: np.random.Generator) -> dict[int, bool]:
    """Labels N rows of each class in place of those that were labelled before; returns for each whether it is flipped."""
    classes = np.unique(truth)
    labelled = np.sort(np.concatenate([draw.choice(np.flatnonzero(truth == own), N, replace=False) for own in classes]))
    given = np.searchsorted(classes, truth[labelled])
    wrong = np.zeros(len(labelled), bool)
    wrong[draw.choice(len(labelled), round(share * len(labelled)), replace=False)] = True
    given[wrong] = (given[wrong] + draw.integers(1, len(classes), wrong.sum())) % len(classes)
    before = [entry["id"] for entry in store.labels()["labels"]] if "labels/current" in store else []
    store.label(
        dict.fromkeys(before)
        | {row: f"class {classes[own]}" for row, own in zip(labelled.tolist(), given.tolist(), strict=True)}
    )
    return dict(zip(labelled.tolist(), wrong.tolist(), strict=True))


def by_diffusion(store: Any, flipped: dict[int, bool], python: Path) -> Iterator[tuple[str, float]]:
    """The average precision of each way to rank the held-out scores of a diffusion."""
    store.diffuse(predict_nodes=True)
    yield "audit, diffusion", audited(store, "diffusion", flipped)
    yield from ranked(store, "diffusion", flipped, python)


def by_regression(store: Any, flipped: dict[int, bool], python: Path, tuned: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The same for a logistic regression. `tuned` has its options; where it is empty, they are chosen and put there."""
    store.logreg(**(tuned or {"tune": True}))
    tuned |= store["models/logreg"].facts["chosen"]
    yield "audit, logreg", audited(store, "logreg", flipped)
    yield from ranked(store, "logreg", flipped, python)


def ranked(store: Any, scores: str, flipped: dict[int, bool], python: Path) -> Iterator[tuple[str, float]]:
    """The average precision of other measures than ours, and of cleanlab, on the same held-out scores."""
    shares, rows, given = shares_of(store[f"folds/{scores}"], -1)
    wrong = np.array([flipped[row] for row in rows.tolist()])
    for name, doubt in measures(shares, given).items():
        yield f"{name}, {scores}", average_precision(wrong, doubt)
    for name, quality in cleanlab(python, store.path.parent, shares, given).items():
        yield f"cleanlab {name}, {scores}", average_precision(wrong, -np.array(quality))


def cleanlab(python: Path, folder: Path, shares: NDArray[np.float64], given: Labels) -> dict[str, list[float]]:
    """The label quality scores of cleanlab, by its ways to rank."""
    np.savez(folder / "shares.npz", shares=shares, given=given)
    command = [str(python), __file__, str(folder / "shares.npz"), "--judge"]
    found: dict[str, list[float]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def judge(file: Path) -> None:
    """The part that runs in the environment of cleanlab."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    with np.load(file) as stored:
        shares, given = stored["shares"], stored["given"]
    found = {name: get_label_quality_scores(given, shares, method=name) for name in CLEANLAB_RANKS}
    # The labels that cleanlab calls issues come first, and all others after them.
    issues = find_label_issues(given, shares, n_jobs=1)
    found["issues first"] = found["self_confidence"] - 2 * issues
    sys.stdout.write(json.dumps({name: quality.tolist() for name, quality in found.items()}))


def environment(folder: Path) -> Path:
    """The Python of an environment with cleanlab."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", CLEANLAB], check=True)
    return python


def lines(folder: Path, per_class: int, draws: int) -> Iterator[dict[str, Any]]:
    python = environment(folder / "cleanlab")
    split = json.loads((DATA / "split.json").read_text())
    train = np.load(DATA / "train_labels.npy").astype(np.int64)
    for group in (1, 2):
        classes = sorted(split[f"base_{group}"] + split[f"novel_{group}"])
        draw = np.random.default_rng(0)
        rows = np.sort(np.concatenate([draw.choice(np.flatnonzero(train == own), per_class, replace=False) for own in classes]))
        store = make_collection(folder / f"group{group}", rows)
        for share in FLIPPED:
            found: dict[str, list[float]] = {}
            tuned: dict[str, Any] = {}
            for number in range(draws):
                drawn = np.random.default_rng((group, round(100 * share), number))
                flipped = label_rows(store, train[rows], share, drawn)
                regression = by_regression(store, flipped, python, tuned) if group == 2 else ()
                for name, precision in (*by_diffusion(store, flipped, python), *regression):
                    found.setdefault(name, []).append(precision)
            for name, values in found.items():
                mean, deviation = 100 * float(np.mean(values)), 100 * float(np.std(values, ddof=1) if draws > 1 else 0)
                method, _, scores = name.rpartition(", ")
                yield {
                    "group": group,
                    "flipped": share,
                    "ranking": method,
                    "scores": scores,
                    "average_precision": [round(mean, 2), round(deviation, 2)],
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-class", type=int, default=500)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge(options.folder)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    clock = time.perf_counter()
    found = list(lines(options.folder, options.per_class, options.draws))
    head = {"command": ".venv/bin/python docs/auditing.py FOLDER", "draws": options.draws, "per_class": options.per_class}
    head |= {"n": N, "cleanlab": CLEANLAB, "seconds": round(time.perf_counter() - clock)}
    save(options.out, head, lines=found)
    sys.stdout.write(options.out.read_text())
    if options.out == RESULT:
        (DOCS / "results.md").write_text(page(RESULT.parent))


if __name__ == "__main__":
    main()
