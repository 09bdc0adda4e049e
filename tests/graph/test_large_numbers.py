"""Graphs beyond every limit, with the limits lowered: a share of the long campaign `tests/long/large_numbers.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.long.large_numbers import check_large, check_lowered


@pytest.mark.parametrize("case", range(12))
def test_graphs_and_scores_have_the_same_bytes_beyond_every_limit(quick_folder: Path, case: int) -> None:
    check_lowered(np.random.default_rng([15, case]), quick_folder)


def test_rows_and_scores_beyond_an_entry_equal_those_of_the_lists(quick_folder: Path) -> None:
    said: list[str] = []
    figures = check_large(quick_folder, nodes=2000, limit=1 << 16, say=said.append)
    assert figures["nodes"] == 2000
    assert len(said) == 5
