"""How much memory this process holds, so that a stage can keep within what it is allowed."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes() -> int:
    """Memory of this process that is not a file's: what `--memory` limits."""
    status = Path("/proc/self/status").read_text()
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
