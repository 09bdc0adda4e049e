"""Accuracy with and without the rows that leak: those with a near-duplicate among the labelled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.lists import Rows
from mmdiff.evaluation.metrics import accuracies, ranks_of
from mmdiff.evaluation.scores import TEST, open_scores, open_truth
from mmdiff.formats.errors import InputError, Missing, Stale
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.text import count, first_sentence
from mmdiff.validation.held_out import HeldOut, full_name

_TOPS = (1, 5)


def with_and_without(
    store: Store, scores: str, rows: Rows, leaked: NDArray[np.int64], held_out: bool
) -> tuple[list[Json], list[str]]:
    """The accuracies of scores on all points, on those that do not leak and on those that do; with notes on what is missing.

    `scores` have their namespace; `held_out` says whether labels are held out for good, on which accuracy is measured too.
    """
    found, notes = [], []
    if store.id(TEST) is not None:
        judged, why = _on_test_points(store, scores, leaked[leaked >= rows.first_test] - rows.first_test)
        found += judged
        notes += why
    if held_out:
        judged, why = _on_held_out_rows(store, scores, leaked[leaked < rows.first_test])
        found += judged
        notes += why
    return found, notes


def _on_test_points(store: Store, name: str, leaked: NDArray[np.int64]) -> tuple[list[Json], list[str]]:
    unknown = "how much they change the accuracy on test points is not known:"
    if store.id(name) is None:
        return [], [f"{unknown} there is no {name}."]
    try:
        scores = open_scores(store, name)
        truth = open_truth(store, scores)
    except Stale as error:
        return [], [f"{unknown} {error}"]
    except (InputError, Missing) as error:
        return [], [f"{unknown} {first_sentence(error)}"]
    if truth is None or not truth.labelled.any():
        return [], [f"{unknown} they have no labels."]
    ranks = ranks_of(scores.after(), truth.labels)
    leaks = np.zeros(scores.tests, bool)
    leaks[leaked] = True
    return [{"scores": name, "points": "test", **_split(ranks[truth.labelled], leaks[truth.labelled])}], []


def _on_held_out_rows(store: Store, name: str, leaked: NDArray[np.int64]) -> tuple[list[Json], list[str]]:
    folds = full_name(name)
    unknown = "how much they change the accuracy on held-out rows is not known:"
    if store.id(folds) is None or store.open_artifact(folds).manifest.parameters["scheme"] != "holdout":
        return [], [f"{unknown} {folds} is not of the labels that are held out for good. Evaluate, then run this again."]
    try:
        found = HeldOut.open(store, name)
    except Stale as error:
        return [], [f"{unknown} {error}"]
    leaks = np.isin(found.rows, leaked)
    return [{"scores": folds, "points": "held-out", **_split(ranks_of(found.scores[-1], found.labels), leaks)}], []


def _split(ranks: NDArray[np.int32], leaks: NDArray[Any]) -> Json:
    """Accuracies on all points, on those without a leak, and on those with one; None where there are no points."""
    parts = {"all": ranks, "without": ranks[~leaks], "leaked": ranks[leaks]}
    return {
        name: {
            "rows": len(of),
            **({} if (found := accuracies(of, _TOPS)) is None else {k: a.to_json() for k, a in found.items()}),
        }
        for name, of in parts.items()
    }


def sentences(found: list[Json]) -> list[str]:
    """The effect of the leaks, in a sentence for each kind of points."""
    said = []
    for one in found:
        whole, without, points = one["all"], one["without"], one["points"]
        leaked = one["leaked"]["rows"]
        what = f"{one['scores']}, top-1 on {count(whole['rows'], f'{points} row' if points != 'test' else 'test point')}:"
        if not without["rows"]:
            said.append(f"{what} {whole['top1']['accuracy']:.1%}, and every one of them leaks.")
        elif leaked:
            said.append(
                f"{what} {whole['top1']['accuracy']:.1%}; without the {leaked:,} that leak {without['top1']['accuracy']:.1%}."
            )
    return said
