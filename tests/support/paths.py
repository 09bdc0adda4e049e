"""Where tests find the repository, its parts, and the real data where that is there."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SAMPLE = ROOT / "tests" / "sample"
GOLDEN = ROOT / "tests" / "golden" / "store-1"
BACKWARD_CLOCK = ROOT / "tests" / "support" / "backward_clock"
REAL = ROOT.parent / "shared" / "data" / "tiny-imagenet"
