"""What `mmdiff inspect` tells of a report."""

from __future__ import annotations

from mmdiff.formats.manifest import Json
from mmdiff.formats.store import Artifact


def what_report(artifact: Artifact) -> str:
    parameters = artifact.manifest.parameters
    cells, ns = artifact.spec("keys").shape[0], ", ".join(map(str, parameters["n"]))
    return f"{cells:,} cells, {len(parameters['methods'])} methods, n = {ns}, {parameters['draws']} draws"


def report_statistics(artifact: Artifact) -> Json:
    """The best method for each n, on the last group: its top-5 accuracy over all classes, in the mean of the draws."""
    lines = [line for line in artifact.manifest.facts["lines"] if line["chosen"]]
    found: Json = {}
    for n in artifact.manifest.parameters["n"]:
        own = [line for line in lines if line["n"] == n and line["group"] == lines[-1]["group"]]
        best = max(own, key=_top5)
        where = f" ({best['background']})" if best["background"] else ""
        found[f"best_at_n_{n}"] = {f"{best['method']}{where}": _top5(best)}
    return found


def _top5(line: Json) -> float:
    return float(line["mean"]["top5"][line["plane"]])
