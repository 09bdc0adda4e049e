"""Where tests find the repository, its parts, and the real data where that is there."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SAMPLE = ROOT / "tests" / "sample"
GOLDEN = ROOT / "tests" / "golden" / "store-1"
# With `cells` of schema 2; everything else as before.
GOLDEN_2 = ROOT / "tests" / "golden" / "store-2"
# With `knn` of schema 2 as well.
GOLDEN_3 = ROOT / "tests" / "golden" / "store-3"
# A labelled table: the kinds `labels` and `folds`.
GOLDEN_4 = ROOT / "tests" / "golden" / "store-4"
# Audits: the kind `audit`, in each of its parts.
GOLDEN_5 = ROOT / "tests" / "golden" / "store-5"
BACKWARD_CLOCK = ROOT / "tests" / "support" / "backward_clock"
REAL = ROOT.parent / "shared" / "data" / "tiny-imagenet"
