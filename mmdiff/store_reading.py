"""Reading a store: its artifacts and graph, and the calls that inspect, verify, export, evaluate, explain and report.

`mmdiff.store.Store` adds the calls that make artifacts.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdiff.formats.errors import BadOption, Parameter, Placeholder, ReadOnly, call
from mmdiff.formats.store.store import Artifact, Checks
from mmdiff.formats.store.store import Store as Files
from mmdiff.results import Summary
from mmdiff.runtime.progress import Progress

if TYPE_CHECKING:
    from mmdiff.arrays import Graph


class StoreReader:
    """The part of `Store` that leaves its artifacts as they are."""

    def __init__(self, place: Path | str, progress: Progress, verify: Checks) -> None:
        self._place, self._progress, self._verify = place, progress, verify

    @cached_property
    def _files(self) -> Files:
        """The files of the store: a folder, or a URL whose artifacts are fetched into a cache when they are needed."""
        if isinstance(self._place, Path):
            return Files(self._place)
        from mmdiff.formats.remote.fetching import CachedStore
        from mmdiff.formats.remote.remote import Remote

        cache = os.environ.get("MMDIFF_CACHE")
        parent = Path(cache) if cache else Path.home() / ".cache" / "mmdiff"
        folder = parent / hashlib.blake2b(self._place.rstrip("/").encode(), digest_size=8).hexdigest()
        return CachedStore(folder, Remote.open(self._place), self._progress)

    @property
    def path(self) -> Path:
        """The folder of the store; of a remote store, the folder that caches it."""
        return self._files.path

    def names(self) -> list[str]:
        """The names of all artifacts, in the order in which the stages make them."""
        return self._files.names() if self._exists else []

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __getitem__(self, name: str) -> Artifact:
        return self._open().open_artifact(name).checked(self._verify)

    @property
    def graph(self) -> Graph:
        """The graph, memory-mapped, in the user's row order: background, appended rows, seeds, test points that are nodes."""
        from mmdiff.arrays import Graph
        from mmdiff.graph.graph import NAME, CsrGraph

        return Graph(CsrGraph.from_artifact(self[NAME]))

    def __repr__(self) -> str:
        return f"Store({str(self._place)!r}, {', '.join(self.names()) or 'no artifacts yet'})"

    def _repr_html_(self) -> str:
        from mmdiff.notebook import store_html

        return store_html(self)

    def inspect(self, artifact: str | None = None, *, rows: str | None = None) -> Summary:
        """Describes the store, or one artifact in detail: its content, its origin, and whether it is stale.

        Args:
            artifact: its name, such as "graph/W"; None describes the whole store.
            rows: "A:B" gives rows A to B-1 of descriptors, with ids and labels, as the list `rows`.

        Returns:
            A dict: for the store `artifacts`, one entry each, and `unnamed`, what `gc` would remove.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4))
        ...     store.inspect("descriptors/background")["what"]
        '4 x 4 float32'
        """
        from mmdiff.inspection import stage
        from mmdiff.kinds import KINDS

        if rows is not None and artifact is None:
            raise BadOption(
                Parameter("rows", rows),
                ": name the artifact too, for example ",
                call("inspect", "descriptors/seeds", rows=rows),
            )
        files = self._open()
        if artifact is None:
            return Summary(stage.overview(files, KINDS))
        if rows is not None:
            return Summary(artifact=artifact, rows=list(stage.rows(files, artifact, rows)))
        return Summary(stage.details(files, artifact, KINDS))

    def verify(self, artifact: str | None = None) -> Summary:
        """Checks every byte: checksums, sizes, missing and surplus files, index ranges, offsets.

        Args:
            artifact: only this one; None checks the whole store.

        Returns:
            A dict with `ok`, and `problems`, each with the artifact, array and chunk, what is wrong and what to do.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4))
        ...     store.verify()["ok"]
        True
        """
        from mmdiff.formats.store.verify import bytes_to_read, verify, verify_frame
        from mmdiff.kinds import KINDS

        files = self._open()
        names = [artifact] if artifact else files.names()
        files.ensure_local(names)
        total, start = bytes_to_read(files, names), time.perf_counter()
        with self._progress("verifying", total, "bytes") as advance:
            problems = list(verify(files, names, KINDS, advance))
            if artifact is None:
                problems += verify_frame(files)
        return Summary(
            ok=not problems,
            artifacts=names,
            bytes=total,
            seconds=time.perf_counter() - start,
            problems=[problem.to_json() for problem in problems],
        )

    def gc(self, *, dry_run: bool = False) -> Summary:
        """Removes what no name leads to: drafts of interrupted runs and artifacts that were replaced.

        Args:
            dry_run: only list it.

        Returns:
            A dict with `items`, each a folder with its bytes and why it can go, and their `bytes` together.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4)), store.add(np.eye(5))
        ...     len(store.gc(dry_run=True)["items"])
        2
        """
        from mmdiff.formats.store.gc import collect, find_garbage

        files = self._writable()
        garbage = find_garbage(files) if dry_run else collect(files)
        items = [{"folder": str(item.folder), "bytes": item.bytes, "why": item.why} for item in garbage]
        return Summary(removed=not dry_run, bytes=sum(item.bytes for item in garbage), items=items)

    def export(
        self,
        artifact: str,
        file: str | Path,
        *,
        format_: str | None = None,
        array: str | None = None,
        order: str = "user",
        self_loops: bool = True,
        projection: Any = None,
    ) -> Summary:
        """Writes an artifact to a file that other tools read; an existing file is replaced once the new one is complete.

        Args:
            artifact: its name, such as "descriptors/background", "graph/W" or "scores/diffusion".
            file: the file; its ending says the format: .npy, .npz (of a graph: W for scipy.sparse.load_npz), .parquet, .csv,
                .safetensors (models), or that of a format below.
            format_: the format of another library, where the ending stands for several. Of lists of neighbours: "csr" (.npz:
                distances for scikit-learn, UMAP, cleanlab, HDBSCAN), "edges" (.parquet, .csv), "edge-index" (.safetensors,
                .npz: PyTorch Geometric, DGL), "sisap" (.h5), "embedding-atlas" (.parquet). Of graphs: "csr", "edges",
                "edge-index". Of descriptors and models/cells: "faiss" (.faiss).
            array: only this array, such as "raw" or "labels".
            order: "user" writes rows and node numbers in the user's order, "internal" as they are stored.
            self_loops: whether each row is its own neighbour in the file, at distance 0. cleanlab wants it to be False.
            projection: x and y of each row, for "embedding-atlas": an array (rows, 2), or a file as `add` takes it.

        Returns:
            A dict with the file, its rows, bytes and seconds, and notes.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4))
        ...     _ = store.export("descriptors/background", folder + "/x.npy")
        ...     np.load(folder + "/x.npy").shape
        (4, 4)
        """
        from mmdiff.export.stage import export
        from mmdiff.kinds import KINDS

        return Summary(
            export(
                self._open(),
                artifact,
                Path(file),
                array,
                self._progress,
                order,  # type: ignore[arg-type]
                format_=format_,
                self_loops=self_loops,
                projection=projection,
                kinds=KINDS,
            ).summary()
        )

    def explain(
        self,
        test: Any = None,
        *,
        id_: Any = None,
        class_: Any = None,
        scores: str = "diffusion",
        labels: str | None = None,
        images: str | None = None,
    ) -> Summary:
        """The path on which a label came to a test point or a row of the collection: back from it, the largest term each time.

        Args:
            test: the id of a test point.
            id_: the id of a row of the collection instead; the diffusion must have been asked for `predict_nodes`.
            class_: a class by name or number; None explains the true and the predicted one.
            scores: the diffusion to explain.
            labels: the file that the diffusion got its labels from, if any.
            images: a folder with an image for each id, or a path or URL with {id} in it.

        Returns:
            A dict with the point (`test` or `row`), and `paths`, each with its steps from a labelled row on.

        >>> import mmdiff, numpy as np, tempfile
        >>> y = np.arange(60) // 30
        >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[y]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, labels=y), store.add(X + 0.1, role="test", ids=np.arange(60) + 500), store.build_graph(k=8)
        ...     _ = store.diffuse(iterations=1)
        ...     store.explain(500)["test"]["predicted"]
        '0'
        """
        from mmdiff.explain.stage import Request, explain

        chosen = None if class_ is None else str(class_)
        point, row = (None if given is None else str(given) for given in (test, id_))
        return Summary(explain(self._open(), Request(point, row, chosen, scores, labels, images)))

    def report(
        self, out: str | Path = "report.html", *, novel: str | None = None, images: str | None = None, test: Sequence[Any] = ()
    ) -> Summary:
        """Writes one self-contained HTML page: accuracies, curves, experiments, classes, paths, and how artifacts were made.

        Args:
            out: the file.
            novel: classes to report separately too, as in `evaluate`.
            images: a folder with an image for each id, or a path or URL with {id} in it.
            test: ids of test points whose paths are shown; none shows some.

        Returns:
            A dict with the file, its bytes and sections, and notes.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4))
        ...     store.report(folder + "/report.html")["bytes"] > 1000
        True
        """
        from mmdiff.report.stage import Request, write_report

        request = Request(novel, images, [str(each) for each in test])
        return Summary(write_report(self._open(), Path(out), request, self._progress))

    def doctor(self) -> Summary:
        """Checks the software, the machine and the disk of the store: what a bug report should say. Takes seconds.

        Returns:
            A dict with `verdict` ("ok", "worth knowing" or "problem") and the groups "software", "extras", "machine" and
            "store" of checks, each with its facts, verdict and advice.

        >>> import mmdiff, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     "python" in mmdiff.open(folder + "/store", create=True).doctor()["software"]
        True
        """
        from mmdiff.doctor.stage import as_document, examine

        return Summary(as_document(examine(self._writable(create=True).path, self._progress)))

    @property
    def _exists(self) -> bool:
        return not isinstance(self._place, Path) or self._place.exists()

    def _open(self) -> Files:
        """The files of a store that must be there."""
        return Files.open(self._place) if isinstance(self._place, Path) else self._files

    def _writable(self, create: bool = False) -> Files:
        """The files of a store that this process may change."""
        if not isinstance(self._place, Path):
            raise ReadOnly(
                Parameter("store", Placeholder(self._place)),
                ": this needs a store on this machine; a remote one can only be inspected, verified, exported, evaluated, "
                "explained, reported and asked for suggestions. Copy it to a folder first: ",
                call("fetch", self._place, store=Placeholder("FOLDER")),
            )
        return self._files if create else self._open()
