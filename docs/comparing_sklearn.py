"""Compares LabelDiffusion with scikit-learn's LabelSpreading and LabelPropagation; saves docs/experiments/results/sklearn.json.

.venv/bin/python docs/comparing_sklearn.py                 all parts, and the tables of docs/sklearn.md
.venv/bin/python docs/comparing_sklearn.py --part digits   one part only: "digits", "times" or "memory"
.venv/bin/python docs/comparing_sklearn.py --draws 2       a quick look at the digits; prints only

Digits: each draw labels 1, 2 or 5 rows of each class, the same rows for all methods, and the accuracy is that on all other
rows. A method has a grid of nine settings. With 2 and 5 labels a class, it takes the setting that is best on its own labels:
each half of them is hidden in turn and predicted from the other. One label of each class cannot be halved: there it takes the
setting that was chosen most often with 2.

Times are processor times with the setting that was chosen most often with 5 labels a class, the least of five fits.

Memory: fits in processes of their own. The figure is the peak of anonymous and shared memory, read fifty times a second, less
what the process held before the fit. A least-squares fit through the measured sizes gives the number of rows at which 4 GB are
needed: a constant and a quadratic term for the dense kernel, a linear one for neighbours. LabelDiffusion is measured there, but
with --most-rows at most.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, pstdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from saving import save
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

import mmdiff

DOCS = Path(__file__).resolve().parent
RESULT, PAGE = DOCS / "experiments" / "results" / "sklearn.json", DOCS / "sklearn.md"
COMMAND = "python docs/comparing_sklearn.py"

PARTS = ("digits", "times", "memory")
LABELS, DRAWS, TIMED = (1, 2, 5), 20, 5
FOUR_GB = 4e9
# The search for the neighbours of more rows takes longer than all other measurements.
MOST_ROWS = 300_000
# Rows of 64 values in 10 classes, of which 100 have a label.
WIDTH, CLASSES, KNOWN = 64, 10, 100
SIZES = {"LabelSpreading, rbf": (4000, 8000, 16_000), "LabelSpreading, knn": (10_000, 20_000, 40_000)}
# scikit-learn compares all pairs of rows to find neighbours, so the second number is extrapolated far.
DEGREE = {"LabelSpreading, rbf": 2, "LabelSpreading, knn": 1}

Row = dict[str, Any]
Labels = NDArray[np.int64]

# LabelPropagation does not converge within 1,000 iterations here, so when it stops is a choice. Its dense kernel was worse
# than neighbours on the two draws where both were tried, and takes more than a second a fit.
GRIDS: dict[str, list[Row]] = {
    "LabelDiffusion": [{"k": k, "iterations": count} for k in (5, 10, 20) for count in (5, 10, 20)],
    "LabelSpreading": [
        *({"kernel": "knn", "n_neighbors": k, "alpha": alpha} for k in (5, 10, 20) for alpha in (0.8, 0.95)),
        *({"kernel": "rbf", "gamma": gamma, "alpha": 0.8} for gamma in (50, 100, 200)),
    ],
    "LabelPropagation": [{"kernel": "knn", "n_neighbors": k, "max_iter": count} for k in (5, 7, 10) for count in (10, 30, 100)],
}
MODELS = {"LabelDiffusion": mmdiff.LabelDiffusion, "LabelSpreading": LabelSpreading, "LabelPropagation": LabelPropagation}


class Digits:
    """The digits, scaled to unit length for all methods."""

    def __init__(self) -> None:
        X, self.truth = load_digits(return_X_y=True)
        self.X = X / np.linalg.norm(X, axis=1, keepdims=True)
        self.graphs = {k: mmdiff.knn_graph(self.X, k=k) for k in {setting["k"] for setting in GRIDS["LabelDiffusion"]}}

    def predicted(self, method: str, setting: Row, y: Labels) -> Labels:
        """The class of every row. The graphs of LabelDiffusion are made once; its time is measured by `seconds`."""
        model, X = MODELS[method](**setting), self.X
        if method == "LabelDiffusion":
            model, X = model.set_params(metric="precomputed_affinity"), self.graphs[setting["k"]]
        return np.asarray(model.fit(X, y).transduction_)

    def labelled(self, n: int, draw: int) -> Labels:
        order = np.random.default_rng([n, draw]).permutation(len(self.truth))
        return np.concatenate([order[self.truth[order] == label][:n] for label in range(10)])

    def known(self, rows: Labels) -> Labels:
        y = np.full(len(self.truth), -1)
        y[rows] = self.truth[rows]
        return y

    def tuned(self, method: str, rows: Labels, n: int) -> int:
        """The setting with the most right predictions of hidden labels, the first of equals."""
        halves = [rows.reshape(10, n)[:, part].ravel() for part in (slice(n // 2), slice(n // 2, None))]
        right = []
        for setting in GRIDS[method]:
            found = [(self.predicted(method, setting, self.known(shown)), hidden) for shown, hidden in (halves, halves[::-1])]
            right.append(sum(int((predicted[hidden] == self.truth[hidden]).sum()) for predicted, hidden in found))
        return int(np.argmax(right))

    def accuracy(self, method: str, setting: Row, rows: Labels) -> float:
        rest = np.setdiff1d(np.arange(len(self.truth)), rows)
        predicted = self.predicted(method, setting, self.known(rows))
        return float((predicted[rest] == self.truth[rest]).mean())

    def processor_time(self, method: str, setting: Row) -> Row:
        """The least of some fits, search for neighbours included; that of all threads. Others may be using the machine."""
        y = self.known(self.labelled(LABELS[-1], 0))
        found = []
        for _ in range(TIMED + 1):
            clock = time.process_time()
            MODELS[method](**setting).fit(self.X, y)
            found.append(time.process_time() - clock)
        # The first fit compiles.
        return {"method": method, "setting": setting, "processor": round(min(found[1:]), 4)}


def measure_digits(draws: int, methods: Iterable[str] = tuple(GRIDS)) -> list[Row]:
    """Accuracies over draws, and the setting that was chosen most often."""
    data, found = Digits(), []
    for method in methods:
        grid = GRIDS[method]
        chosen = {n: [data.tuned(method, data.labelled(n, draw), n) for draw in range(draws)] for n in LABELS if n > 1}
        chosen[1] = [Counter(chosen[2]).most_common(1)[0][0]] * draws
        for n in LABELS:
            figures = [data.accuracy(method, grid[at], data.labelled(n, draw)) for draw, at in enumerate(chosen[n])]
            often, times = Counter(chosen[n]).most_common(1)[0]
            row = {"method": method, "labels": n, "accuracy": [round(100 * value, 3) for value in figures]}
            found.append(row | {"setting": grid[often], "chosen": times})
            sys.stdout.write(f"{found[-1]}\n")
    return found


def measure_times(digits: list[Row]) -> list[Row]:
    """The time of a fit of each method with the setting that it chose most often with the most labels."""
    data = Digits()
    return [data.processor_time(row["method"], row["setting"]) for row in digits if row["labels"] == LABELS[-1]]


def rows_of(count: int) -> tuple[NDArray[np.float32], Labels]:
    draw = np.random.default_rng(0)
    truth = draw.integers(CLASSES, size=count)
    X = draw.standard_normal((count, WIDTH), np.float32)
    X += 3 * draw.standard_normal((CLASSES, WIDTH), np.float32)[truth]
    return X, np.where(np.arange(count) < KNOWN, truth, -1)


def held_bytes() -> int:
    """Anonymous and shared memory of this process. Mapped files are left out: they make room where it is needed."""
    lines = Path("/proc/self/status").read_text()
    return sum(1024 * int(found) for found in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", lines))


@contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """The highest memory within the block, read fifty times a second."""
    most, end = [held_bytes()], threading.Event()

    def watch() -> None:
        while not end.wait(0.02):
            most.append(max(most.pop(), held_bytes()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        end.set()
        thread.join()


def fit_alone(method: str, count: int) -> Row:
    """The memory and time of a fit, in this process. Iterations change neither the matrices nor their number."""
    # What is loaded and compiled on first use is no matter of rows.
    warnings.simplefilter("ignore", ConvergenceWarning)
    with TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as folder:
        if method == "LabelDiffusion":
            model: Any = mmdiff.LabelDiffusion(memory="2G", store=f"{folder}/store")
        else:
            model = LabelSpreading(kernel=method.split()[-1], gamma=0.01, n_neighbors=30, max_iter=3)
        model.fit(*rows_of(1000))
        X, y = rows_of(count)
        before, clock = held_bytes(), time.process_time()
        with peak() as most:
            model.fit(X, y)
    return {"method": method, "rows": count, "bytes": most() - before, "processor": round(time.process_time() - clock, 1)}


def measured_alone(method: str, count: int) -> Row:
    command = [sys.executable, __file__, "--fit", method, "--rows", str(count)]
    found: Row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    sys.stdout.write(f"{found}\n")
    return found


def limit_of(rows: list[Row], degree: int) -> tuple[int, float]:
    """The number of rows at which 4 GB are needed, and the factor of the leading term, in bytes."""
    counts, held = np.array([row["rows"] for row in rows], float), np.array([row["bytes"] for row in rows], float)
    # Relative errors count, so that the small sizes are fitted too.
    leading, constant = np.linalg.lstsq(
        np.column_stack([counts**degree, np.ones(len(rows))]) / held[:, None], held / held, rcond=None
    )[0]
    return int(((FOUR_GB - constant) / leading) ** (1 / degree)), float(leading)


def measure_memory(most_rows: int) -> tuple[list[Row], list[Row]]:
    """The fits at some sizes; and for each kernel the size that needs 4 GB, with what LabelDiffusion needs there, or below."""
    fits, limits = [], []
    for method, sizes in SIZES.items():
        own = [measured_alone(method, count) for count in sizes]
        count, leading = limit_of(own, DEGREE[method])
        ours = measured_alone("LabelDiffusion", min(count, most_rows))
        limits.append({"method": method, "rows": count, "degree": DEGREE[method], "leading": leading, "ours": ours})
        fits += own
    return fits, limits


def digits_table(result: Row) -> str:
    titles = ("", *(f"{n} label{'s' * (n > 1)} a class" for n in LABELS), "processor time of a fit")
    lines = [titles, ("---",) * len(titles)]
    for method in GRIDS:
        own = {row["labels"]: row for row in result["digits"] if row["method"] == method}
        best = {n: max(mean(row["accuracy"]) for row in result["digits"] if row["labels"] == n) for n in LABELS}
        cells = []
        for n in LABELS:
            figure = f"{mean(own[n]['accuracy']):.1f} ± {pstdev(own[n]['accuracy']):.1f}"
            cells.append(f"**{figure}**" if mean(own[n]["accuracy"]) == best[n] else figure)
        spent = next(row for row in result["times"] if row["method"] == method)
        lines.append((method, *cells, f"{spent['processor']:.2f} s"))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def settings_text(result: Row) -> str:
    parts = []
    for row in result["digits"]:
        if row["labels"] == LABELS[-1]:
            setting = ", ".join(f"{key}={value!r}" for key, value in row["setting"].items())
            parts.append(f"{row['method']} `{setting}` ({row['chosen']} of {result['draws']})")
    return f"Settings chosen most often with {LABELS[-1]} labels a class, which the times are of: {'; '.join(parts)}."


def memory_table(result: Row) -> str:
    lines: list[tuple[str, ...]] = [("", "measured", "4 GB are needed at", "LabelDiffusion")]
    lines.append(("---",) * 4)
    for limit in result["limits"]:
        own = [row for row in result["fits"] if row["method"] == limit["method"]]
        sizes = ", ".join(f"{row['bytes'] / 1e6:,.0f} MB at {row['rows']:,} rows" for row in own)
        squared = " n²" if limit["degree"] == 2 else " n"
        ours = f"{limit['ours']['bytes'] / 1e6:,.0f} MB at {limit['ours']['rows']:,} rows"
        lines.append((limit["method"], sizes, f"{limit['rows']:,} rows ({limit['leading']:,.0f} bytes ·{squared})", ours))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str, result: Row) -> str:
    """The page with its tables brought up to date."""
    run = f"Measured by `{result['command']}` on {result['cores']} cores of {result['cpu']}."
    parts = {"digits": [digits_table(result), settings_text(result)], "memory": [memory_table(result), run]}
    for mark, content in parts.items():
        body = "\n\n".join(content)
        text = re.sub(rf"(?s)(<!-- {mark} -->\n).*(<!-- /{mark} -->)", lambda found, b=body: f"{found[1]}{b}\n{found[2]}", text)  # type: ignore[misc]
    return text


def cpu() -> str:
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return names[0] if names else "an unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--most-rows", type=int, default=MOST_ROWS, help="of LabelDiffusion, where its memory is measured")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        sys.stdout.write(f"{json.dumps(fit_alone(options.fit, options.rows))}\n")
        return
    warnings.simplefilter("ignore", ConvergenceWarning)
    if options.draws != DRAWS:
        measure_digits(options.draws)
        return
    for part in (options.part,) if options.part else PARTS:
        measure(part, options.most_rows)
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULT.read_text())))


def measure(part: str, most_rows: int) -> None:
    """Measures a part, and saves it with the others as they were."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if part == "digits":
        found: Row = {"digits": measure_digits(DRAWS)}
    elif part == "times":
        found = {"times": measure_times(known["digits"])}
    else:
        found = dict(zip(("fits", "limits"), measure_memory(most_rows), strict=True))
    # Another part may have been measured meanwhile.
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    lists = {name: found.get(name, known.get(name, [])) for name in ("digits", "times", "fits", "limits")}
    head = {"command": COMMAND, "draws": DRAWS, "cores": len(os.sched_getaffinity(0)), "cpu": cpu()}
    save(RESULT, head, **lists)


if __name__ == "__main__":
    main()
