"""Generates neighbour lists with the statistics of real ones in cell order, for sizes whose descriptors would not fit the disk.

The statistics are those of generated descriptors and of Tiny ImageNet (k = 30): about half of the neighbours are within a few
hundred rows, evenly spread, since cells have that size; the others are anywhere, more of them farther away. In-degrees have a
mean of 30 and a standard deviation of 24. In real lists 39 to 55 % of the entries are mutual, and W has 43 to 48 edges per
node; here about a fifth are, so that W has 52 to 53, as in the paper. A row depends on its number alone, so it can be read
again at any time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.graph.lists import Block
from mmdiff.kernels.jit import kernel
from mmdiff.runtime.threads import in_threads

_BLOCK_ROWS = 1 << 16
# Mutual neighbours are paired in groups of 2^bits rows, with these bits in turn; four of seven lie within a cell.
_GROUPS = (9, 16, 9, 20, 9, 24, 9)
_MUTUAL = 0.24
_NEAR, _REACH, _FARTHER = 0.42, 350, 1000
# Number of quantiles from which distances are interpolated.
_QUANTILES = 1 << 12
# Rows of a group of 64 differ in popularity, which gives in-degrees their deviation.
_PLACES, _PICKS = 64, 1 << 12


class GeneratedLists:
    """Lists generated on reading; the first neighbour of a node is itself."""

    def __init__(self, nodes: int, k: int = 30) -> None:
        self.nodes, self.k = nodes, k
        bits = [min(_GROUPS[number % len(_GROUPS)], nodes.bit_length() - 1) for number in range(round(_MUTUAL * (k - 1)))]
        self._groups = np.array(bits, np.int64)
        popularity = np.sort(np.random.default_rng(0).gamma(1.7, 1, _PLACES))
        shares = np.cumsum(popularity) / popularity.sum()
        self._picks = np.searchsorted(shares, (np.arange(_PICKS) + 0.5) / _PICKS).astype(np.int64)
        share = np.linspace(0, 1, _QUANTILES + 1)
        far = np.sqrt(np.maximum(share - _NEAR, 0) / (1 - _NEAR))
        distances = np.where(share < _NEAR, 1 + share / _NEAR * _REACH, _FARTHER * max(nodes / _FARTHER, 2.0) ** far)
        self._distances = np.minimum(distances, nodes - 1).astype(np.int64)

    def block(self, start: int, stop: int) -> Block:
        neighbors = np.empty((stop - start, self.k), np.uint32)
        _make(start, self.nodes, self._groups, self._picks, self._distances, neighbors)
        return neighbors, np.broadcast_to(np.float32(0), neighbors.shape)

    def write(self, file: Path) -> None:
        """Writes all lists as a `.npy` file."""
        with file.open("wb") as stream:
            shape = (self.nodes, self.k)
            np.lib.format.write_array_header_1_0(stream, {"descr": "<u4", "fortran_order": False, "shape": shape})
            starts = range(0, self.nodes, _BLOCK_ROWS)
            for block, _ in in_threads(lambda start: self.block(start, min(start + _BLOCK_ROWS, self.nodes)), starts):
                block.tofile(stream)


@kernel
def _mix(value: np.uint64) -> np.uint64:
    """Pseudo-random bits from a number (the mixer of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _partner(node: int, bits: int, number: int) -> int:
    """The partner of a node in a random pairing of 2^bits rows; the partner's partner is the node."""
    mask = np.uint64((1 << bits) - 1)
    half = np.uint64((bits + 1) // 2)
    factor = _mix(np.uint64(number * 1_000_003 + (node >> bits) + 1)) | np.uint64(1)
    inverse = factor
    for _ in range(5):
        inverse *= np.uint64(2) - factor * inverse
    low = np.uint64(node) & mask
    low ^= low >> half
    low = (low * factor) & mask
    low ^= low >> half
    low ^= np.uint64(1)
    low ^= low >> half
    low = (low * inverse) & mask
    low ^= low >> half
    return int((node >> bits << bits) | np.int64(low))


@kernel
def _make(
    start: int,
    nodes: int,
    groups: NDArray[np.int64],
    picks: NDArray[np.int64],
    distances: NDArray[np.int64],
    out: NDArray[np.uint32],
) -> None:
    step, low = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFFF)
    for r in range(len(out)):
        i = start + r
        state = np.uint64(i) * step + np.uint64(1)
        out[r] = i
        count = 1
        for number in range(len(groups)):
            partner = _partner(i, groups[number], number)
            if partner < nodes:
                count += _enter(out[r], count, partner)
        while count < out.shape[1]:
            state += step
            drawn = _mix(state)
            place = np.int64(drawn & low)
            between = np.int64((drawn >> np.uint64(12)) & low)
            distance = distances[place] + (((distances[place + 1] - distances[place]) * between) >> 12)
            target = i - distance if drawn >> np.uint64(63) else i + distance
            target = target + nodes if target < 0 else target
            target = target - nodes if target >= nodes else target
            # Which of the 64 rows around the target are popular differs from group to group.
            pick = picks[np.int64((drawn >> np.uint64(24)) & low)]
            turn = np.int64(_mix(np.uint64(target >> 6)) & np.uint64(_PLACES - 1))
            target = (target >> 6 << 6) | (pick ^ turn)
            if target < nodes:
                count += _enter(out[r], count, target)


@kernel
def _enter(row: NDArray[np.uint32], count: int, node: int) -> int:
    """Appends a node unless it is in the row already; returns whether it was appended. Unused places hold row[0]."""
    same = 0
    for place in range(len(row)):
        same += row[place] == np.uint32(node)
    if same == 0:
        row[count] = node
    return int(same == 0)
