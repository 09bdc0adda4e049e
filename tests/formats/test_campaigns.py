"""A small share of the campaigns of the long run that disturb stages: faults, power loss and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long.__main__ import run_apart

# At least so many cases of each campaign, by figure.
SHARES = {
    "faults": (0.001, {"faults": 100, "kills": 20}),
    "power_loss": (0.002, {"states": 50}),
    "kills": (0.005, {"kills": 6}),
}


@pytest.mark.parametrize("campaign", SHARES)
def test_disturbed_stages_leave_no_damage_and_complete_to_identical_bytes(campaign: str, tmp_path: Path) -> None:
    scale, least = SHARES[campaign]
    finished = run_apart(campaign, scale, 1, tmp_path)
    assert finished.figures is not None, finished.log.read_text()
    assert finished.figures["findings"] == 0
    for figure, count in least.items():
        assert int(finished.figures[figure]) >= count
