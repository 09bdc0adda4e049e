"""Top-k lists in kernels: candidates are collected, the best k are kept.

Lists are ordered by decreasing similarity, then by id. The similarity of a pair is its inner product, summed in float64 and
rounded to float32, so that it does not depend on the block of W0 that finds the pair. Candidates are preselected by float32
scores only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels, half_to_float
from mmdiff.kernels.jit import kernel


class Candidates(NamedTuple):
    """Candidates of some queries, one row each: the first `counts[i]` of row i, in no order."""

    scores: NDArray[np.float32]
    nodes: NDArray[np.uint32]
    counts: NDArray[np.int64]


Lists = tuple[NDArray[np.uint32], NDArray[np.float32]]
"""Neighbours and similarities of some rows, k per row."""

# Candidates are collected up to this many times k before the best are selected: fewer selections, still in cache.
ROOM = 3
# float32 scores may swap close candidates, so this many more than k are kept for the exact comparison.
SPARE = 4


@kernel
def similarity(a: NDArray[Any], b: NDArray[Any]) -> np.float32:
    """The exact inner product of two stored rows: summed in float64, rounded to float32."""
    total = 0.0
    for j in range(len(a)):
        total += np.float64(half_to_float(a[j])) * np.float64(half_to_float(b[j]))
    return np.float32(total)


@kernel
def quick_similarity(a: NDArray[Any], b: NDArray[Any]) -> np.float32:
    """The inner product in float32, for preselecting candidates."""
    total = np.float32(0)
    for j in range(len(a)):
        total += half_to_float(a[j]) * half_to_float(b[j])
    return total


@kernel
def better(score: np.float32, node: int, other_score: np.float32, other: int) -> bool:
    """Whether a candidate comes before another in a list."""
    return bool(score > other_score or (score == other_score and node < other))


@kernel
def offer(scores: NDArray[np.float32], nodes: NDArray[np.uint32], count: int, score: np.float32, node: int) -> int:
    """Adds a candidate to a row unless the row has it; returns the new count."""
    known = False
    for q in range(count):
        known |= nodes[q] == node
    if known:
        return count
    scores[count] = score
    nodes[count] = node
    return count + 1


@kernel
def keep_best(scores: NDArray[np.float32], nodes: NDArray[np.uint32], count: int, keep: int) -> int:
    """Moves the best `keep` of `count` candidates to the front, in no order, by quickselect; returns the new count."""
    if count <= keep:
        return count
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        pivot_score, pivot = scores[middle], nodes[middle]
        i, j = low, high
        while i <= j:
            while better(scores[i], nodes[i], pivot_score, pivot):
                i += 1
            while better(pivot_score, pivot, scores[j], nodes[j]):
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                nodes[i], nodes[j] = nodes[j], nodes[i]
                i += 1
                j -= 1
        if keep - 1 <= j:
            high = j
        elif keep - 1 >= i:
            low = i
        else:
            break
    return keep


@kernel
def sort_best(scores: NDArray[np.float32], nodes: NDArray[np.uint32], count: int) -> None:
    """Sorts a row of candidates by insertion, since rows are short."""
    for i in range(1, count):
        score, node = scores[i], nodes[i]
        j = i
        while j > 0 and better(score, node, scores[j - 1], nodes[j - 1]):
            scores[j], nodes[j] = scores[j - 1], nodes[j - 1]
            j -= 1
        scores[j], nodes[j] = score, node


@kernel
def settle(
    queries: NDArray[Any],
    vectors: NDArray[Any],
    candidates: Candidates,
    similarities: NDArray[np.float32],
    neighbors: NDArray[np.uint32],
) -> None:
    """Writes lists from candidates: the best k of each query, by exact similarity, in order."""
    scores, nodes, counts = candidates
    k = neighbors.shape[1]
    for i in range(len(queries)):
        count = keep_best(scores[i], nodes[i], counts[i], k + SPARE)
        for q in range(count):
            scores[i, q] = similarity(queries[i], vectors[nodes[i, q]])
        sort_best(scores[i], nodes[i], count)
        for q in range(k):
            similarities[i, q] = scores[i, q] if q < count else -np.inf
            neighbors[i, q] = nodes[i, q] if q < count else NONE


def settle_candidates(queries: NDArray[Any], vectors: NDArray[Any], candidates: NDArray[np.int64], k: int) -> Lists:
    """Lists from the ids that an index proposes (-1: none): distinct, by exact similarity, in order."""
    neighbors = np.empty((len(queries), k), np.uint32)
    similarities = np.empty((len(queries), k), np.float32)
    _settle_candidates(for_kernels(queries), for_kernels(vectors), candidates, similarities, neighbors)
    return neighbors, similarities


@kernel
def _settle_candidates(
    queries: NDArray[Any],
    vectors: NDArray[Any],
    candidates: NDArray[np.int64],
    similarities: NDArray[np.float32],
    neighbors: NDArray[np.uint32],
) -> None:
    width = candidates.shape[1]
    scores = np.zeros((1, width), np.float32)
    nodes = np.empty((1, width), np.uint32)
    counts = np.empty(1, np.int64)
    best = Candidates(scores, nodes, counts)
    for i in range(len(queries)):
        counts[0] = 0
        for node in candidates[i]:
            if node >= 0:
                score = quick_similarity(queries[i], vectors[node])
                counts[0] = offer(scores[0], nodes[0], counts[0], score, node)
        settle(queries[i : i + 1], vectors, best, similarities[i : i + 1], neighbors[i : i + 1])


def merge(first: Lists, second: Lists) -> Lists:
    """Merges two lists of each row, to the length of the first; a node in both counts once."""
    neighbors, similarities = np.empty_like(first[0]), np.empty_like(first[1])
    _merge(*first, *second, neighbors, similarities)
    return neighbors, similarities


@kernel
def _merge(
    nodes_a: NDArray[np.uint32],
    scores_a: NDArray[np.float32],
    nodes_b: NDArray[np.uint32],
    scores_b: NDArray[np.float32],
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    for i in range(len(neighbors)):
        a, b = 0, 0
        for q in range(neighbors.shape[1]):
            no_a = a == nodes_a.shape[1] or nodes_a[i, a] == NONE
            no_b = b == nodes_b.shape[1] or nodes_b[i, b] == NONE
            if no_a and no_b:
                neighbors[i, q], similarities[i, q] = NONE, -np.inf
            elif not no_a and not no_b and nodes_a[i, a] == nodes_b[i, b]:
                # The similarity of a pair is the same in both lists, so a common node reaches the head of both at once.
                neighbors[i, q], similarities[i, q] = nodes_a[i, a], scores_a[i, a]
                a += 1
                b += 1
            elif no_b or (not no_a and better(scores_a[i, a], nodes_a[i, a], scores_b[i, b], nodes_b[i, b])):
                neighbors[i, q], similarities[i, q] = nodes_a[i, a], scores_a[i, a]
                a += 1
            else:
                neighbors[i, q], similarities[i, q] = nodes_b[i, b], scores_b[i, b]
                b += 1
