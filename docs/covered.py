"""Writes the coverage of each layer, as `coverage json` reports it, to docs/testing.json. `make coverage` runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "testing.json"


def main(report: Path) -> None:
    found: dict[str, list[int]] = {}
    for file, entry in json.loads(report.read_text())["files"].items():
        summary = entry["summary"]
        layer = found.setdefault(f"{Path(file).parts[0]}/", [0, 0])
        for total in (layer, found.setdefault("all", [0, 0])):
            total[0] += summary["covered_lines"] + summary["covered_branches"]
            total[1] += summary["num_statements"] + summary["num_branches"]
    known = json.loads(RESULTS.read_text())
    known["coverage"] = {part: round(100 * covered / all_, 2) for part, (covered, all_) in sorted(found.items(), reverse=True)}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
