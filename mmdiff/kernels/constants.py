"""Bit patterns that kernels share: the missing neighbour of a list, and the two parts of an entry of a value-free CSR graph."""

from __future__ import annotations

import numpy as np

NONE = np.uint32(0xFFFFFFFF)
"""Fills a list of fewer than k neighbours, behind them."""

COLUMN = np.uint32(0x7FFFFFFF)
"""The bits of an index of W that are its column; the bit above them marks a reciprocal edge."""

RECIPROCAL_SHIFT = np.uint32(31)
"""The place of that bit."""
