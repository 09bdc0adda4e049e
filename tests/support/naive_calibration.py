"""Calibration as its definition says it, in plain Python: the twin of `mmdiff/prediction/calibration.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

Rows = list[tuple[float, bool, float]]


def naive_calibration(
    margins: Sequence[float], right: Sequence[bool], weights: Sequence[float], prior: float, one: float, wanted: Sequence[float]
) -> list[float]:
    """The confidence for each wanted margin."""
    rows = sorted(zip(margins, right, weights, strict=True))
    blocks = [[row for row in rows if row[0] == margin] for margin in sorted(set(margins))]
    accuracy = (_right(rows) + Fraction(one)) / (_weight(rows) + 2 * Fraction(one))

    def share(block: Rows) -> Fraction:
        return _right(block) / _weight(block)

    def supported(block: Rows) -> Fraction:
        added = Fraction(prior) * Fraction(one)
        shrunk = (_right(block) + added * accuracy) / (_weight(block) + added)
        return min(shrunk, (_weight(block) + Fraction(one)) / (_weight(block) + 2 * Fraction(one)))

    blocks = _join(_join(blocks, share), supported)
    return [_between(blocks, [float(supported(block)) for block in blocks], margin) for margin in wanted]


def _weight(block: Rows) -> Fraction:
    return sum((Fraction(weight) for _, _, weight in block), Fraction(0))


def _right(block: Rows) -> Fraction:
    return _weight([row for row in block if row[1]])


def _join(blocks: list[Rows], value: Callable[[Rows], Fraction]) -> list[Rows]:
    """Joins the first two neighbours that are out of order, again and again."""
    while True:
        wrong = [i for i in range(len(blocks) - 1) if value(blocks[i]) >= value(blocks[i + 1])]
        if not wrong:
            return blocks
        i = wrong[0]
        blocks = [*blocks[:i], blocks[i] + blocks[i + 1], *blocks[i + 2 :]]


def _between(blocks: list[Rows], values: list[float], margin: float) -> float:
    for number, block in enumerate(blocks):
        low, high = block[0][0], block[-1][0]
        if margin < low:
            if number == 0:
                return values[0]
            before = blocks[number - 1][-1][0]
            part = (margin - before) / (low - before)
            return values[number - 1] + part * (values[number] - values[number - 1])
        if margin <= high:
            return values[number]
    return values[-1]


def naive_group_shares(
    confusion: Sequence[Sequence[float]], predicted: Sequence[int], start: Sequence[float], rounds: int
) -> list[float]:
    """The shares of true groups after some rounds: each row is divided among the groups that it may come from."""
    groups = range(len(start))
    rows = [count / sum(predicted) for count in predicted]

    def chance(of: int, group: int) -> float:
        seen = sum(confusion[row][group] for row in groups)
        return (confusion[of][group] + rows[of]) / (seen + 1) if seen else float(of == group)

    shares = [value / sum(start) for value in start]
    for _ in range(rounds):
        new = [0.0 for _ in groups]
        for of in groups:
            mixture = sum(chance(of, group) * shares[group] for group in groups)
            for group in groups:
                new[group] += rows[of] * chance(of, group) * shares[group] / mixture if mixture else 0.0
        shares = [value / sum(new) for value in new]
    return shares


class Prediction(NamedTuple):
    """The best class of a row, and its margin."""

    label: int
    margin: float


def naive_predictions(scores: Sequence[Sequence[float]], kept: int) -> list[Prediction]:
    """The predictions of rows of scores, of which the best few are kept."""
    found = []
    for row in scores:
        best = sorted(range(len(row)), key=lambda column: (-row[column], column))[:kept]
        shares = [row[column] / sum(row[column] for column in best) for column in best]
        found.append(Prediction(best[0], shares[0] - shares[1]))
    return found
