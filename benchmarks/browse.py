"""The page: the time from a label to new predictions, and of requests, on generated rows.

    python -m benchmarks.browse ROWS [--labels 40] [--memory 8G] [--folder DIR]

Builds a store with a graph, serves it by `mmdiff browse`, and labels rows as a user would: the first suggestion each time, with
one of ten classes. Prints its figures as JSON: seconds of the medians and of the worst cases, and the peak memory of both
processes. `predictions` is from the answer to a label until the page has predictions that rest on it, the pause of a second
included; `suggestions` until accuracies, confidences and the first suggestions are new too. With a folder, a store that is
there is used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.generate import generate
from benchmarks.knn import PROGRAM
from benchmarks.measure import machine, watch
from mmdiff.formats.store.manifest import Json

CLASSES = 10
_POLL = 0.02
_REQUESTS = ("search?q=", "search?q=12", "row?row={row}&path=0", "row?row={row}", "suggestions?count=60", "status", "classes")


class Client:
    """Requests to the page, one after the other."""

    def __init__(self, address: str) -> None:
        self._place = urlsplit(address)

    def ask(self, path: str, document: Json | None = None) -> tuple[Any, float]:
        """The answer, and the seconds that it took."""
        connection = HTTPConnection("127.0.0.1", self._place.port or 80, timeout=3600)
        body = None if document is None else json.dumps(document).encode()
        clock = time.perf_counter()
        connection.request(
            "GET" if body is None else "POST", f"{self._place.path}api/{path}", body, {"Content-Type": "application/json"}
        )
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer, time.perf_counter() - clock

    def settled(self) -> None:
        """Waits until nothing is computed."""
        while (state := self.ask("status")[0])["state"] != "idle":
            if state["state"] == "failed":
                raise SystemExit(state["message"])
            time.sleep(_POLL)

    def suggested(self) -> float:
        """Waits for suggestions; returns the seconds."""
        clock = time.perf_counter()
        while self.ask("suggestions?count=1")[0]["computing"]:
            time.sleep(_POLL)
        return time.perf_counter() - clock

    def label(self, title: str) -> Json:
        """Labels the first suggestion; the seconds until the answer, until new predictions, and until all is new."""
        row = self.ask("suggestions?count=1")[0]["rows"][0]["row"]
        stages = []
        _, saved = self.ask("label", {"rows": [row], "labels": [title]})
        clock = time.perf_counter()
        predictions = 0.0
        while True:
            status = self.ask("status")[0]
            stages.append(status["stage"])
            if "diffusing" in stages and status["stage"] != "diffusing" and not predictions:
                predictions = time.perf_counter() - clock
            if predictions and not self.ask("suggestions?count=1")[0]["computing"]:
                return {"saved": saved, "predictions": predictions, "suggestions": time.perf_counter() - clock}
            time.sleep(_POLL)


def measure(store: Path, labels: int, memory: str) -> Json:
    """The figures of a session on a store with a graph."""
    command = [str(PROGRAM), "browse", "--store", str(store), "--memory", memory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as page:
        assert page.stdout is not None
        clock = time.perf_counter()
        client = Client(page.stdout.readline().strip())
        found: Json = {"start": time.perf_counter() - clock}
        found["first_suggestions"] = client.suggested()
        client.settled()
        times = [client.label(f"class {number % CLASSES}") for number in range(labels)]
        for key in ("saved", "predictions", "suggestions"):
            # The first label compiles what is not compiled yet.
            values = [each[key] for each in times[1:]]
            found[key] = {"median": statistics.median(values), "worst": max(values)}
        rows = client.ask("store")[0]["rows"]
        found["requests"] = {
            path: max(client.ask(path.format(row=rows * place // 7))[1] for place in range(1, 7)) for path in _REQUESTS
        }
        found["peak_memory"] = {"page": _peak(page.pid), "computing": sum(_peak(child) for child in _children(page.pid))}
        found["status"] = {key: client.ask("status")[0][key] for key in ("labelled", "accuracy", "coverage", "confident")}
        page.terminate()
    return found


def _peak(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in threads for child in file.read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.browse")
    parser.add_argument("rows", type=int)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--memory", default="8G")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        store = folder / "store"
        if not (store / "graph" / "W").is_symlink():
            generate(folder / "rows.npy", given.rows)
            watch([PROGRAM, "import", folder / "rows.npy", "--dtype", "float16", "--store", store])
            watch([PROGRAM, "build-graph", "--memory", given.memory, "--store", store])
        found = {"machine": machine(), "rows": given.rows, **measure(store, given.labels, given.memory)}
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
