"""The schedule of a batch: which form each product of S takes, frontier, matrix or needed rows (DESIGN section 5).

`next_product` is the only place that decides. The run asks it with the state it has, the plan and the memory model with the
states they foresee. All forms give the same result to the last bit; they differ in time and memory.

Costs are in units of one column of one edge in the product of a whole matrix.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

# Visiting an entry of a frontier, and checking whether a neighbour has any.
ENTRY_COST, EDGE_COST = 70, 20

# A product stays a frontier while its visits cost less than this many columns of each row. The product itself is about as
# quick either way, but the next one is quicker from a frontier.
_FRONTIER_COST = 9

# Filling an entry of a new matrix, whose memory has to be faulted in.
_FILL_COST = 4

ENTRY_BYTES = 8
"""Bytes of a frontier entry: column and value."""

NEW_ENTRY_BYTES = 12
"""Bytes of an entry of a frontier that is made of parts: the parts and the whole, columns before values."""


class Form(StrEnum):
    """The form of S that a product reads, and that it writes."""

    FRONTIER = "frontier"
    FRONTIER_TO_ROWS = "frontier to rows"
    FRONTIER_TO_MATRIX = "frontier to matrix"
    MATRIX = "matrix"
    MATRIX_TO_ROWS = "some rows"
    COUPLED = "matrix on disk"


class FrontierSize(NamedTuple):
    """Size of a frontier: rows with an entry, entries, and the visits of the next product (entries times their edges)."""

    rows: int
    entries: int
    visits: int


class ProductSize(NamedTuple):
    """Size of the next product. `rows_only`: it is the last, and only some rows are needed. Sizes in rows, edges and bytes.

    `spill_bytes` is the memory of the chunks that S passes through on its way to disk and back; None without a spill file.
    """

    nodes: int
    width: int
    itemsize: int
    needed_rows: int
    needed_edges: int
    rows_only: bool
    spill_bytes: int | None = None

    @property
    def matrix_bytes(self) -> int:
        return self.nodes * self.width * self.itemsize

    @property
    def rows_bytes(self) -> int:
        return self.needed_rows * self.width * self.itemsize


class Decision(NamedTuple):
    """The next product. `expands`: a frontier is first written out as a matrix. `spills`: S goes through a spill file."""

    form: Form
    expands: bool = False
    spills: bool = False


def next_product(frontier: FrontierSize | None, size: ProductSize) -> Decision:
    """The form of the next product of a batch, whose state is a frontier or, without one, a matrix."""
    if frontier is not None:
        if _stays_small(frontier, size):
            return Decision(Form.FRONTIER)
        if frontier_cost(frontier, size) < _matrix_cost(size):
            return Decision(Form.FRONTIER_TO_ROWS if size.rows_only else Form.FRONTIER_TO_MATRIX)
    expands = frontier is not None
    if size.spill_bytes is not None and not (size.rows_only and size.rows_bytes <= size.spill_bytes):
        return Decision(Form.MATRIX, expands, spills=True)
    return Decision(Form.MATRIX_TO_ROWS if size.rows_only else Form.MATRIX, expands)


def frontier_cost(frontier: FrontierSize, size: ProductSize) -> int:
    """Cost of the next product from a frontier, in the needed rows.

    At worst, every edge of those rows leads to a row of the frontier.
    """
    met = frontier.entries * size.needed_edges // max(1, frontier.rows)
    return ENTRY_COST * min(met, frontier.visits) + EDGE_COST * size.needed_edges


def _matrix_cost(size: ProductSize) -> int:
    """Cost of the next product from a matrix that has to be filled first."""
    return size.width * (size.needed_edges + _FILL_COST * size.nodes)


def _stays_small(frontier: FrontierSize, size: ProductSize) -> bool:
    """Whether the result is better stored as a frontier. At worst it has an entry for each visit."""
    quicker = ENTRY_COST * frontier.visits < _FRONTIER_COST * size.nodes * size.width
    return quicker and 2 * ENTRY_BYTES * frontier.visits < size.matrix_bytes
