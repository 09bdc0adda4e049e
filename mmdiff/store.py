"""`mmdiff.open` and `Store`: everything that the command line does, as one documented call each.

A method checks its parameters, runs the stage of the same name in bounded memory, and publishes artifacts in the store. What
was made before from the same inputs is found and left as it is; an interrupted call continues where it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import Missing, one_of
from mmdiff.formats.remote.remote import Remote, is_url
from mmdiff.formats.store.store import CHECKS, Checks
from mmdiff.results import Summary
from mmdiff.runtime.memory import parse_bytes
from mmdiff.runtime.progress import Progress, silent
from mmdiff.store_auditing import StoreAuditor
from mmdiff.store_browsing import StoreBrowser
from mmdiff.store_describing import StoreDescriber
from mmdiff.store_labelling import StoreLabeller
from mmdiff.store_predicting import StorePredictor

DEFAULT_STORE = "mmdiff-store"


def open_store(
    store: str | Path = DEFAULT_STORE,
    *,
    create: bool = False,
    memory: int | str = "8G",
    progress: bool | Progress = False,
    threads: int | None = None,
    dask: str | None = None,
    verify: Checks = "touched",
    command: str | None = None,
) -> Store:
    """Opens a store: a folder of artifacts, or the URL of a published one.

    Args:
        store: the folder, or a URL such as "s3://bucket/store", which is read-only.
        create: allow a folder that is not there yet; the first artifact makes it.
        memory: the most memory that a call may use, in bytes or such as "4G".
        progress: True shows progress bars on stderr; or a function (what, total, unit) that returns a context manager, which
            gives the function to call with each amount that is done.
        threads: the most threads to use in this process; None is all cores that the process may use.
        dask: address of a Dask scheduler, or "local:N" for N worker processes; used by `build_graph`, `diffuse` and
            `experiment`.
        verify: when the bytes of `store["graph/W"]` and `store.graph` are compared with their checksums: "touched" checks each
            chunk when it is first read, "all" checks everything when it is opened, "none" trusts the disk. Calls such as
            `diffuse` always check what they read.
        command: recorded in artifacts as the way to make them again; None records the call.

    Returns:
        The `Store`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open_store(folder + "/faces", create=True).names()
    []
    """
    if threads is not None:
        from mmdiff.runtime.threads import limit_cores

        limit_cores(threads)
    shown = progress if callable(progress) else silent
    if progress is True:
        from mmdiff.runtime.bars import show_progress

        shown = show_progress
    place = str(store) if is_url(str(store)) else Path(store)
    one_of("verify", verify, CHECKS)
    opened = Store(place, memory=parse_bytes(memory), progress=shown, dask=dask, verify=verify, command=command)
    if not create:
        opened._check_presence()
    return opened


class Store(StoreLabeller, StorePredictor, StoreAuditor, StoreBrowser, StoreDescriber):
    """A store of artifacts, opened by `mmdiff.open`. Rows are the user's own everywhere: as they were added.

    `store["descriptors/background"]["vectors"]` is an array of an artifact as it lies on disk: flat, read-only, memory-mapped.
    Index it, or give it to numpy: both return numpy arrays over the map, after the chunks they read have been checked.

    >>> import mmdiff, numpy as np, tempfile
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(300, 16)) + 6 * np.eye(16)[np.arange(3).repeat(100)], np.arange(3).repeat(100)
    >>> known = np.where(np.arange(300) % 20, -1, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = mmdiff.open(folder + "/store", create=True)
    ...     _ = store.add(X, labels=known)
    ...     _ = store.add(X[::2] + 0.1, role="test", labels=y[::2])
    ...     _ = store.build_graph(k=10)
    ...     scores = store.diffuse(iterations=3)
    ...     top1 = store.evaluate()["scores"][0]["iterations"][-1]["all"]["top1"]["accuracy"]
    ...     [name for name in store if name.startswith(("graph", "scores"))]
    ['graph/W', 'scores/diffusion']
    >>> scores, top1 > 0.9
    (Scores(scores/diffusion, 150 rows, 3 classes, iterations 0, 1, 2, 3), True)
    """

    def add(
        self,
        source: Any,
        *,
        role: str = "background",
        labels: Any = None,
        ids: Any = None,
        class_names: Any = None,
        append: bool = False,
        dtype: str | None = None,
        dims: int | None = None,
        normalize: bool = True,
        keep_raw: bool | None = None,
        on_bad: str = "error",
        no_background: bool = False,
        same_ids: bool = False,
    ) -> Summary:
        """Adds embeddings: reduced by PCA where they are wider than `dims`, scaled to unit length, stored as descriptors/ROLE.

        The PCA is trained on the background and used for all roles, so add the background first. Adding a role again replaces
        its rows; the background takes the rows that were appended to it with it.

        Args:
            source: array (rows, dimensions); or a path, several paths or a pattern such as "parts/*.npy": .npy, .fvecs, .bvecs,
                .fbin, .u8bin, .i8bin, .f16bin, "file.npz::array", "file.safetensors::tensor", "file.h5::dataset",
                "file.parquet::column", "file.arrow::column", "file.feather::column", zarr, folders of `datasets` and of
                clip-retrieval. Where only one array or column fits, its name may be left out.
            role: "background" (rows that labels spread over), "seeds" (labelled rows that are not in the background), or
                "test" (rows to classify and to evaluate on).
            labels: a label for each row: array or list of numbers or names, -1, None, NaN or "" for none; or a file: .npy,
                .txt, "file.csv::column", "file.parquet::column" or another table, a pattern such as "parts/*.parquet::label";
                or the name of a column where `source` is a table (or several, which all have it).
            ids: an id for each row, as array, file or column like `labels`; None uses row numbers.
            class_names: names of class numbers: a dict, a list (entry i names class i) or a file (.txt, .json, .csv).
            append: add rows to the background instead of replacing it: they are stored as descriptors/appended, with the PCA
                and the parameters of the background. Ids must be new; without ids row numbers go on.
            dtype: "float32" or "float16", how vectors are stored; None is "float32", or that of the background for `append`.
            dims: dimensions to reduce to; None is 256.
            normalize: scale rows to unit length.
            keep_raw: keep the original values too, which `logreg` trains on; None keeps them for seeds and test.
            on_bad: "error" refuses rows with NaN, Inf or only zeros; "drop" leaves them out.
            no_background: train the PCA on these seeds, where there is no background.
            same_ids: use only the labels of seeds whose ids stand in the collection: they are recorded as by `label`, and the
                other rows are seeds. Without it such rows are refused.

        Returns:
            A dict with the artifact, its shape, classes, and notes; where only labels were used, with labels/current and notes.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     print(store.add(np.eye(4), ids=["a", "b", "c", "d"], labels=["cat", None, "dog", None])["classes"])
        ...     store.add(np.ones((1, 4)), ids=["e"], append=True)["artifact"]
        2
        'descriptors/appended'
        """
        from mmdiff.importing.appending import append_descriptors
        from mmdiff.importing.arrays import given_class_names, given_column, given_source
        from mmdiff.importing.stage import Request, import_descriptors
        from mmdiff.runtime.parameters import flag

        self._writable(create=True)
        one_of("role", role, ("background", "seeds", "test"))
        one_of("dtype", "float32" if dtype is None else dtype, ("float32", "float16"))
        one_of("on_bad", on_bad, ("error", "drop"))
        opened, fingerprint = given_source(source)
        request = Request(
            sources=opened,
            source_fingerprint=fingerprint,
            role=role,  # type: ignore[arg-type]
            labels=given_column(labels, "labels"),
            ids=given_column(ids, "ids"),
            class_names=given_class_names(class_names),
            dtype="float32" if dtype is None else dtype,  # type: ignore[arg-type]
            dims=dims,
            normalize=normalize,
            keep_raw=keep_raw,
            on_bad=on_bad,  # type: ignore[arg-type]
            no_background=no_background,
            same_ids=same_ids,
            command=self._recorded("add", locals()),
        )
        if flag("append", append):
            return Summary(append_descriptors(self.path, request, dtype, self._progress).summary())
        return Summary(import_descriptors(self.path, request, self._progress).summary())

    def build_graph(
        self,
        *,
        k: int = 30,
        recall: float = 0.95,
        index: str = "auto",
        device: str = "auto",
        edge_weights: str = "constant",
        sigma: float | None = None,
        lambda_: float | None = None,
        transductive: bool = False,
        merge_appended: bool = False,
        seed: int = 0,
    ) -> Summary:
        """Builds the k-nearest-neighbour graph of all descriptors, and symmetrises it: W = D^-1 (W0 + W0^T).

        Neighbours of the background are found once; appended rows, seeds and test points complete the graph without searching
        it again. The warnings of "graph/W" say when appended rows should be merged.

        Args:
            k: neighbours of each node, itself included.
            recall: share of the true neighbours to find, measured on a sample.
            index: "auto" (exact for small sets, else cells), "flat" (exact), or a Faiss factory string such as "IVF4096,Flat".
            device: "auto", "cpu" or "gpu"; where descriptors are compared. "auto" takes the GPUs that Faiss sees.
            edge_weights: "constant", "gaussian" (needs sigma) or "meaningful" (needs lambda_).
            sigma: bandwidth of the Gaussian edge weights.
            lambda_: parameter of the meaningful-neighbour weights.
            transductive: make the test points nodes too.
            merge_appended: make the rows that were appended part of the background first, so that all are searched anew. Rows
                and ids stay as they are.
            seed: random seed.

        Returns:
            A dict with one entry for each artifact: its facts, bytes, seconds, and whether it was reused.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.random.default_rng(0).normal(size=(50, 4)))
        ...     store.build_graph(k=5)["graph/W"]["facts"]["nodes"]
        50
        """
        from mmdiff.building.stage import build_graph

        request = self._graph_request(**{key: value for key, value in locals().items() if key not in ("self", "build_graph")})
        path = self._writable().path
        with self._executor() as executor:
            return Summary(build_graph(path, request, self._progress, executor).summary())

    def import_graph(
        self,
        file: str | Path,
        *,
        distances: str | Path | None = None,
        metric: str = "distance",
        edge_weights: str = "constant",
        sigma: float | None = None,
        lambda_: float | None = None,
    ) -> Summary:
        """Imports a graph that was made elsewhere, in the user's order: background, appended rows, seeds (test points).

        Args:
            file: .ivecs or .npy with the row numbers of each row's neighbours, -1 for none; or .npz of a square CSR matrix, as
                scipy.sparse.save_npz writes it. Lists, and matrices that are not symmetric, are symmetrised as A + A^T.
            distances: .fvecs or .npy with the distance of each neighbour, for edge weights that are not constant.
            metric: "distance" (Euclidean, not squared) or "similarity" (inner products), what `distances` holds.
            edge_weights: "constant", "gaussian" (needs sigma) or "meaningful" (needs lambda_).
            sigma: bandwidth of the Gaussian edge weights.
            lambda_: parameter of the meaningful-neighbour weights.

        Returns:
            A dict with the artifact, its nodes and edges, and notes.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(folder + "/lists.npy", np.array([[0, 1], [1, 2], [2, 0]]))
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     store.import_graph(folder + "/lists.npy")["edges"]
        9
        """
        from mmdiff.graph.import_graph import Request, import_graph

        self._writable(create=True)
        one_of("metric", metric, ("distance", "similarity"))
        one_of("edge_weights", edge_weights, ("constant", "gaussian", "meaningful"))
        request = Request(
            file=Path(file),
            distances=None if distances is None else Path(distances),
            metric=metric,  # type: ignore[arg-type]
            edge_weights=edge_weights,  # type: ignore[arg-type]
            sigma=sigma,
            lambda_=lambda_,
            memory=self._memory,
            command=self._recorded("import_graph", locals()),
        )
        return Summary(import_graph(self.path, request, self._progress).summary())

    def fetch(self, url: str, artifacts: Sequence[str] | None = None, *, with_inputs: bool = False) -> Summary:
        """Copies artifacts of a remote store into this one; checksums are checked on arrival.

        Args:
            url: the remote store, such as "s3://bucket/store" or "file:///data/store".
            artifacts: their names; None fetches all.
            with_inputs: fetch also what they were made from, as far as it is there.

        Returns:
            A dict with the artifacts, and the bytes and seconds it took.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mmdiff.open(folder + "/there", create=True).add(np.eye(4))
        ...     here = mmdiff.open(folder + "/here", create=True)
        ...     _ = here.fetch("file://" + folder + "/there", ["models/pca"])
        ...     here.names()
        ['models/pca']
        """
        from mmdiff.formats.remote import fetching

        self._writable(create=True)
        start = time.perf_counter()
        remote = Remote.open(url)
        names = list(dict.fromkeys(artifacts or remote.names))
        if not names:
            raise Missing(f"{remote.url}: no artifacts are listed there. If there are some, name those to fetch, e.g. graph/W.")
        if with_inputs:
            names = fetching.with_inputs(remote, names)
        fetched = fetching.fetch(remote, names, self.path, self._progress)
        return Summary(
            url=remote.url,
            store=str(self.path),
            artifacts=[item.summary() for item in fetched],
            bytes=sum(item.downloaded for item in fetched),
            seconds=time.perf_counter() - start,
        )
