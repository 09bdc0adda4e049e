"""The commit that this copy of mmdiff was made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Beside this module in wheels and source distributions, written by setup.py while they are built.
BAKED = "_commit.txt"


def commit_of(package: Path) -> str:
    """The commit of a package folder: of the clone that it lies in, else the one written when it was built; "" if unknown."""
    root = package.parent
    # An environment may lie within the clone of something else.
    if (root / ".git").exists() and (root / "setup.py").exists():
        command = ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return ""
    try:
        return (package / BAKED).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


COMMIT = commit_of(Path(__file__).resolve().parent)
