"""Random problems with all options give what naive twins give: a share of the long campaign `tests/long/differential.py`."""

from __future__ import annotations

from tests.long import differential


def test_random_problems_give_what_naive_twins_give() -> None:
    found = differential.run(1, seed=15, cases=80, dask=False)
    assert found == {"cases": 80, "on_dask_workers": 0, "differences": 0}
