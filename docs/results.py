"""Runs the experiments of docs/experiments, saves their results in docs/experiments/results, and writes docs/results.md.

.venv/bin/python docs/results.py --store FOLDER      runs what the store does not have yet, then writes everything
.venv/bin/python docs/results.py --check FOLDER      also recomputes some cells in float64 with numpy and scipy only
.venv/bin/python docs/results.py                     writes the page from the saved results
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from results_page import page
from saving import save

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
CONFIGS = DOCS / "experiments"
RESULTS = CONFIGS / "results"

# Experiments that reuse cells of others come after them.
NAMES = ("table3", "table2", "table1", "k_by_size", "nonzero", "novel", "fusion")
CURVES = ("table1", "nonzero", "fusion")
FIGURES = ("top1", "top5", "novel_top1", "novel_top5")

# Cells of the test group that --check recomputes: n and draw.
CHECKED = ((2, 1), (20, 2))

Line = dict[str, Any]


def command(name: str) -> str:
    return f"mmdiff experiment run docs/experiments/{name}.toml"


def measure(name: str, store: Path) -> None:
    """Runs one config and saves the part of its results that the page needs."""
    from mmdiff.formats.store.store import Store

    program = Path(sys.executable).parent / "mmdiff"
    config = CONFIGS / f"{name}.toml"
    subprocess.run([program, "experiment", "run", config, "--store", store], check=True, stdout=subprocess.DEVNULL)
    artifact = Store.open(store).open_artifact(f"reports/{name}")
    facts, parameters, run = artifact.manifest.facts, artifact.manifest.parameters, artifact.run
    tuned = {method["name"]: list(method.get("tune", ())) for method in parameters["methods"]}
    counts, offsets = artifact.array("planes"), artifact.array("offsets")
    lines = []
    for line in facts["lines"]:
        if line["chosen"]:
            cells = range(line["first_cell"], line["first_cell"] + parameters["draws"])
            hits = [int(counts[offsets[cell] + line["plane"], FIGURES.index("top5")]) for cell in cells]
            lines.append(_short(line, tuned, name in CURVES) | {"hits": hits})
    head = {
        "command": command(name),
        "draws": parameters["draws"],
        "tests": facts["tests"],
        "cells": artifact.spec("keys").shape[0],
        "cells_found": run["cells_found"],
        "seconds": round(run["seconds"]),
        "started": run["started"],
        "cores": run["cores"],
    }
    save(RESULTS / f"{name}.json", head, lines=lines)


def _short(line: Line, tuned: dict[str, list[str]], curves: bool) -> Line:
    """The chosen options of a line, and its accuracies in percent as [mean, standard deviation]."""
    step = line["plane"]
    found: Line = {key: line[key] for key in ("group", "n", "background", "method", "variant")}
    options = line["options"].get("logreg", {}) if line["kind"] == "fusion" else line["options"]
    found["chosen"] = {key: options[key] for key in tuned[line["method"]]}
    found["at"] = line["planes"][step]
    for figure in FIGURES:
        found[figure] = [round(100 * line[which][figure][step], 2) for which in ("mean", "std")]
    if curves and len(line["planes"]) > 1:
        found["curve"] = [round(100 * value, 2) for value in line["mean"]["top5"]]
        if "nonzero" in line:
            found["nonzero"] = [round(100 * value, 3) for value in line["nonzero"]]
    return found


def check(store: Path) -> None:
    """Recomputes some cells of tables 2 and 3: the largest difference of any accuracy after any iteration, in points."""
    import numpy as np

    from mmdiff.experiment.config import read_config
    from mmdiff.formats.store.store import Store

    sys.path.insert(0, str(ROOT))
    from tests.support.naive_protocol import NaiveProtocol

    config = read_config(CONFIGS / "novel.toml")
    artifact = Store.open(store).open_artifact("reports/novel")
    data = {role: np.load(config.files[role]) for role in ("train", "train_labels", "test", "test_labels")}
    split = config.groups["test"]
    out_of_domain = list(config.out_of_domain)
    naive = NaiveProtocol(**data, base=list(split.base), novel=list(split.novel), out_of_domain=out_of_domain, seed=0, dims=256)
    counts, offsets = artifact.array("planes"), artifact.array("offsets")
    points = artifact.manifest.facts["tests"]["test"]
    totals = [points[which] for which in ("all", "all", "novel", "novel")]
    rows = []
    for line in artifact.manifest.facts["lines"]:
        draws = [draw for n, draw in CHECKED if n == line["n"]]
        if line["kind"] != "diffusion" or line["group"] != "test" or not draws:
            continue
        cell = line["first_cell"] + draws[0]
        ours = 100 * counts[offsets[cell] : offsets[cell + 1], :4] / totals
        theirs = 100 * naive.accuracies(line["background"], line["n"], draws[0], 30, len(ours) - 1)
        iteration = line["plane"]
        row = {"background": line["background"], "n": line["n"], "draw": draws[0], "iteration": iteration}
        row |= {"ours": round(float(ours[iteration, 1]), 3), "theirs": round(float(theirs[iteration, 1]), 3)}
        rows.append(row | {"largest_difference": round(float(np.abs(ours - theirs).max()), 3)})
        sys.stdout.write(f"{rows[-1]}\n")
    body = ",\n".join(f" {json.dumps(row)}" for row in rows)
    (RESULTS / "check.json").write_text(f"[\n{body}\n]\n")


def main(arguments: list[str]) -> None:
    if arguments:
        store = Path(arguments[1]) if len(arguments) == 2 and arguments[0] in ("--store", "--check") else None
        if store is None:
            sys.exit(__doc__)
        RESULTS.mkdir(exist_ok=True)
        for name in NAMES:
            measure(name, store)
        if arguments[0] == "--check":
            check(store)
    (DOCS / "results.md").write_text(page(RESULTS))


if __name__ == "__main__":
    main(sys.argv[1:])
