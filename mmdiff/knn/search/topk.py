"""Lists of the best neighbours, as kernels keep them: candidates are offered, the best k stay.

An order holds everywhere: by similarity, falling, then by id. The similarity of a pair is its inner product, summed in
float64 and rounded to float32, so it does not depend on which block of the graph finds the pair first; the float32 scores that
candidates are offered with only decide who is looked at more closely.
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
"""Neighbours and similarities of some rows, k each."""

# Rows are selected from this many times k candidates at a time: fewer selections, and still in cache.
ROOM = 3
# Scores in float32 may put two candidates in the wrong order: so many more than k are kept to be compared exactly.
SPARE = 4


@kernel
def similarity(a: NDArray[Any], b: NDArray[Any]) -> np.float32:
    """The inner product of two stored rows, the same whoever asks."""
    total = 0.0
    for j in range(len(a)):
        total += np.float64(half_to_float(a[j])) * np.float64(half_to_float(b[j]))
    return np.float32(total)


@kernel
def quick_similarity(a: NDArray[Any], b: NDArray[Any]) -> np.float32:
    """The same in float32: for candidates that are many."""
    total = np.float32(0)
    for j in range(len(a)):
        total += half_to_float(a[j]) * half_to_float(b[j])
    return total


@kernel
def better(score: np.float32, node: int, other_score: np.float32, other: int) -> bool:
    return bool(score > other_score or (score == other_score and node < other))


@kernel
def offer(scores: NDArray[np.float32], nodes: NDArray[np.uint32], count: int, score: np.float32, node: int) -> int:
    """Adds a candidate to a row of candidates unless it is there; returns how many there are then."""
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
    """Moves the best `keep` of `count` candidates to the front (in no order); returns how many are left (quickselect)."""
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
    """Puts a row of candidates in order (by insertion: rows are short)."""
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
    """Lists from candidates: exact similarities for the best few of each query, the best k of these in order."""
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
    """Lists from ids that some index proposed, -1 for none: exact similarities, in order, each once."""
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
    """The best of two sets of lists of the same rows, as many as the first has places; who is in both counts once."""
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
                # The similarity of a pair is the same wherever it was found, so both are at the head of what is left.
                neighbors[i, q], similarities[i, q] = nodes_a[i, a], scores_a[i, a]
                a += 1
                b += 1
            elif no_b or (not no_a and better(scores_a[i, a], nodes_a[i, a], scores_b[i, b], nodes_b[i, b])):
                neighbors[i, q], similarities[i, q] = nodes_a[i, a], scores_a[i, a]
                a += 1
            else:
                neighbors[i, q], similarities[i, q] = nodes_b[i, b], scores_b[i, b]
                b += 1
