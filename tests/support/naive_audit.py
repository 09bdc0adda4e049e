"""Audits as their definitions say them, in plain Python: the twin of `mmdiff/auditing/`."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = 0xFFFFFFFF

Pair = tuple[int, int, float]


def naive_pairs(neighbors: Sequence[Sequence[int]], similarities: Sequence[Sequence[float]], above: float) -> list[Pair]:
    """The entries of lists that are other nodes and at least so similar."""
    return [
        (node, other, similarity)
        for node, (row, values) in enumerate(zip(neighbors, similarities, strict=True))
        for other, similarity in zip(row, values, strict=True)
        if other not in (NONE, node) and similarity >= above
    ]


def naive_groups(pairs: Sequence[Pair]) -> list[set[int]]:
    """The sets of nodes that pairs connect: joined until no two have a node in common. By their smallest nodes."""
    found: list[set[int]] = []
    for first, second, _ in pairs:
        together = {first, second}
        for group in [group for group in found if group & together]:
            together |= group
            found.remove(group)
        found.append(together)
    return sorted(found, key=min)


def naive_table(pairs: Sequence[Pair], row_of: Sequence[int]) -> list[tuple[int, int, bool, float]]:
    """Group, row, whether it represents the group, and the largest similarity: the table of duplicates."""
    links = {node: sum(node in pair[:2] for pair in pairs) for pair in pairs for node in pair[:2]}
    nearest = {node: max(pair[2] for pair in pairs if node in pair[:2]) for node in links}
    groups = sorted(naive_groups(pairs), key=lambda group: (-len(group), min(row_of[node] for node in group)))
    table = []
    for number, group in enumerate(groups):
        represents = min(group, key=lambda node: (-links[node], row_of[node]))
        for node in sorted(group, key=lambda node: (node != represents, row_of[node])):
            table.append((number, row_of[node], node == represents, nearest[node]))
    return table


def naive_matches(
    pairs: Sequence[Pair], evaluated: set[int], labelled: set[int], row_of: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """The most similar labelled row of each evaluated row, in either one's list; of equal ones the first row."""
    found: dict[int, list[tuple[float, int]]] = {}
    for first, second, similarity in pairs:
        for one, other in ((first, second), (second, first)):
            if one in evaluated and other in labelled:
                found.setdefault(row_of[one], []).append((-similarity, row_of[other]))
    return {row: (min(matches)[1], -min(matches)[0]) for row, matches in found.items()}


def naive_outlying(
    neighbors: Sequence[Sequence[int]], similarities: Sequence[Sequence[float]]
) -> tuple[list[float], list[int]]:
    """The mean similarity of each list without its own node, and the number of other lists that name each node."""
    means, named = [], [0] * len(neighbors)
    for node, (row, values) in enumerate(zip(neighbors, similarities, strict=True)):
        others = [(other, value) for other, value in zip(row, values, strict=True) if other not in (NONE, node)]
        means.append(math.fsum(value for _, value in others) / len(others) if others else -1.0)
        for other, _ in others:
            named[other] += 1
    return means, named


def naive_doubt(scores: Sequence[float], labels: Sequence[int]) -> tuple[int, int, float] | None:
    """The judged label, the best class and the doubt, from the scores of a diffusion; None where nothing can be said."""
    positive = [score for score in scores if score > 0]
    if not positive or len(set(labels)) == len(scores):
        return None
    logs = [math.log(score if score > 0 else min(positive) / 2) for score in scores]
    label = min(labels, key=lambda own: logs[own])
    other = max(log for index, log in enumerate(logs) if index not in labels)
    return label, logs.index(max(logs)), other - logs[label]
